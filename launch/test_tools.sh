#!/usr/bin/env bash
# Installs the programs of the system that tests call and that nothing else needs, where they are missing:
# mksquashfs and mkfs.erofs, which make the layer images, and podman with crun (11 MB). Only root on a machine
# with apt can; anywhere else, and where apt fails, one line says which tests are skipped and why. Never fails:
# the rest can be tested.
set -uo pipefail

declare -A packages=([mksquashfs]=squashfs-tools [mkfs.erofs]=erofs-utils [podman]=podman [crun]=crun)
missing=()
for program in "${!packages[@]}"; do
    type -P "$program" > /dev/null || missing+=("${packages[$program]}")
done
if [ "${#missing[@]}" = 0 ]; then
    exit 0
fi
install() {
    apt-get install -qq -y --no-install-recommends "${missing[@]}"
}
export DEBIAN_FRONTEND=noninteractive
if [ "$(id -u)" = 0 ] && type -P apt-get > /dev/null; then
    echo "[setup] installing ${missing[*]} for the tests"
    if install > /dev/null 2>&1 || { apt-get update -qq && install; } > /dev/null 2>&1; then
        exit 0
    fi
    echo "[setup] apt-get could not install ${missing[*]}: tests that need them will be skipped"
else
    echo "[setup] ${missing[*]} not installed (needs root and apt): tests that need them will be skipped"
fi
