#!/usr/bin/env bash
# Compiles configs/lock/*.txt from pyproject.toml: exact versions for Linux and Python 3.12, without URLs
# and index names, so that any mirror serves. Add --upgrade to take newer versions.
set -euo pipefail
cd "$(dirname "$0")/.."

lock() {
    local name=$1
    shift
    .venv/bin/uv pip compile --quiet pyproject.toml --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate -o "configs/lock/$name.txt" "$@"
    if grep -nE '://|^-|@ ' "configs/lock/$name.txt"; then
        echo "configs/lock/$name.txt holds a URL or an option" >&2
        exit 1
    fi
    echo "configs/lock/$name.txt: $(wc -l < "configs/lock/$name.txt") packages"
}

extra=("$@")
lock base "${extra[@]}"
lock cpu --extra cpu --extra dev --extra rex --override configs/lock/overrides-cpu.txt "${extra[@]}"
lock dev --extra dev "${extra[@]}"
lock data --extra data --extra dev "${extra[@]}"
lock gpu --extra gpu --override configs/lock/overrides-gpu.txt "${extra[@]}"
