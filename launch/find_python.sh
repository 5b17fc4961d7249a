#!/usr/bin/env bash
# Prints the path of a Python >= 3.12 (3.12 preferred: the locks were made for it), wherever it is:
# on PATH, under uv's managed pythons, under pyenv's versions. Each candidate is run, not just
# looked at, since a shim on PATH may be broken. Exit 3 with what to do when there is none.
# PYTHON=/path/to/python on the command line of make wins.
set -uo pipefail

check='import sys, venv, ensurepip; sys.exit(not ((3, 12) <= sys.version_info < (3, 14)))'
tried=()

candidates() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
    fi
    local roots=("${UV_PYTHON_INSTALL_DIR:-}" "${XDG_DATA_HOME:-$HOME/.local/share}/uv/python"
        "${PYENV_ROOT:+$PYENV_ROOT/versions}" "$HOME/.pyenv/versions" /opt/python /usr/local /usr)
    local version root
    for version in 3.12 3.13; do
        type -ap "python$version"
        for root in "${roots[@]}"; do
            if [ -n "$root" ]; then
                ls -1d "$root"/*"$version"*/bin/python"$version" "$root/bin/python$version" 2>/dev/null | sort -rV
            fi
        done
    done
    type -ap python3 python
}

while IFS= read -r candidate; do
    if [ ! -x "$candidate" ]; then
        continue
    fi
    # The real interpreter, not the shim or the virtual environment it was found through.
    if real=$("$candidate" -I -c "$check
" 2>/dev/null && "$candidate" -I -c 'import sys; print(sys._base_executable)' 2>/dev/null) && [ -x "$real" ]; then
        echo "$real"
        exit 0
    fi
    tried+=("$candidate")
done < <(candidates | awk '!seen[$0]++')

{
    echo "No usable Python 3.12 or 3.13 was found (it must be able to make a virtual environment)."
    if [ "${#tried[@]}" -gt 0 ]; then
        echo "Tried and not usable: ${tried[*]}"
    fi
    echo "Any one of these helps; none needs root but the first:"
    echo "  apt-get install python3.12 python3.12-venv"
    echo "  uv python install 3.12"
    echo "  pyenv install 3.12"
    echo "  make PYTHON=/path/to/python3.12 ..."
} >&2
exit 3
