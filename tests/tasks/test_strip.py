"""Programs and libraries without their debug information still work, and odd files are left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.swe.build_strip import strip, strip_tree


def _library() -> Path:
    """The C library of this process: always there, and as its linker left it.

    Not just any library: those in wheels have been moved about in by patchelf, which `strip` leaves alone.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = {Path(line.split()[-1]) for line in lines}
    return next(path for path in names if path.name.startswith(("libc.so", "libc-2")))


def test_what_is_loaded_stays_and_debug_information_goes(tmp_path: Path) -> None:
    """The library is given sections as a compiler with -g leaves them, in front of its own table."""
    data = _library().read_bytes()
    bare = strip(data)
    assert bare is not None
    once_more = strip(_with_debug(bare, b"line tables" * 5000))
    assert once_more == bare, "the same content, whatever debug information there was"
    assert b"line tables" not in bare and len(bare) <= len(data) + 512
    path = tmp_path / "library.so"
    path.write_bytes(bare)
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(path)!r})"], check=True)


def _with_debug(data: bytes, debug: bytes) -> bytes:
    """The same file with one more section that is never loaded, as the assembler would put it."""
    table = int.from_bytes(data[40:48], "little")
    count = int.from_bytes(data[60:62], "little")
    rows = data[table : table + 64 * count]
    row = (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(16)
    row += table.to_bytes(8, "little") + len(debug).to_bytes(8, "little") + bytes(24)
    names = rows[-64:]
    fresh = data[:table] + debug
    fresh += bytes(-len(fresh) % 8)
    header = fresh[:40] + len(fresh).to_bytes(8, "little") + fresh[48:60]
    header += (count + 1).to_bytes(2, "little") + count.to_bytes(2, "little")
    return header + fresh[64:] + rows[:-64] + row + names


@pytest.mark.parametrize("cut", [0, 3, 40, 64, 1000, -1])
def test_a_damaged_file_is_left_alone(cut: int) -> None:
    assert strip(_library().read_bytes()[:cut]) is None


def test_data_behind_the_program_is_kept() -> None:
    """A program that carries an archive behind it would lose it."""
    assert strip(_library().read_bytes() + b"archive" * 100) is None


def test_a_tree_keeps_modes_links_and_other_files(tmp_path: Path) -> None:
    bare = strip(_library().read_bytes())
    assert bare is not None
    library, text, link = tmp_path / "a.so", tmp_path / "text", tmp_path / "link.so"
    library.write_bytes(_with_debug(bare, bytes(9000)))
    library.chmod(0o755)
    text.write_bytes(b"\x7fELF is what it begins with")
    link.symlink_to("a.so")
    os.mkfifo(tmp_path / "pipe")
    assert strip_tree(tmp_path) >= 9000
    assert library.read_bytes() == bare and library.stat().st_mode & 0o777 == 0o755
    assert link.is_symlink() and text.read_bytes().endswith(b"with")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.so", "link.so", "pipe", "text"]
    assert strip_tree(tmp_path) == 0
