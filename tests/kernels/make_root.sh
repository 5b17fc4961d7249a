#!/bin/sh
# A Debian file tree of another architecture for tests/kernels/run.py --root: make_root.sh TARGET [SUITE [ARCH]]
# Needs root, mmdebstrap and qemu-user-static. Packages are only unpacked (nothing of them runs), kernel included.
set -eu
target=$1 suite=${2:-trixie} architecture=${3:-arm64}
packages=bash,dash,base-passwd,busybox-static,ca-certificates,coreutils,diffutils,e2fsprogs,erofs-utils,findutils
packages=$packages,git,grep,gzip,hostname,less,libc-bin,linux-image-$architecture,mawk,mount,netbase,procps
packages=$packages,python3,python3-filelock,python3-zstandard,sed,squashfs-tools,tar,util-linux,xz-utils
mmdebstrap --mode=root --architectures="$architecture" --variant=extract --include="$packages" "$suite" "$target"
# What the packages' scripts would have made.
cp "$target/usr/share/base-passwd/passwd.master" "$target/etc/passwd"
cp "$target/usr/share/base-passwd/group.master" "$target/etc/group"
ln -sf mawk "$target/usr/bin/awk"
ln -sf dash "$target/usr/bin/sh"
case $architecture in arm64) cpu=aarch64 ;; amd64) cpu=x86_64 ;; *) cpu=$architecture ;; esac
cp "/usr/bin/qemu-$cpu-static" "$target/qemu"
chroot "$target" /qemu /usr/bin/python3 -m compileall -q /usr/lib/python3* || true
rm "$target/qemu"
