"""How often the reward's lint suspects innocent code: the changes between releases of ten projects.

    python benchmarks/lint_false_positives.py FOLDER

Wheels are downloaded with pip into FOLDER and opened, never installed or run. Each changed product file
of each pair of consecutive releases counts once; a release holds far more than a bug fix does, so the
share of files is the figure to compare with a patch of one file. Prints the shares, and what was found.
"""

import argparse
import difflib
import itertools
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

from rewards.lint import find_suspicions
from rewards.policy import PatchPolicy

RELEASES = {
    "requests": ("2.29.0", "2.30.0", "2.31.0", "2.32.0", "2.32.3"),
    "flask": ("2.2.5", "2.3.0", "2.3.3", "3.0.0", "3.0.3"),
    "click": ("8.0.4", "8.1.0", "8.1.3", "8.1.6", "8.1.7"),
    "werkzeug": ("2.3.0", "2.3.8", "3.0.0", "3.0.3", "3.0.6"),
    "jinja2": ("3.0.3", "3.1.0", "3.1.2", "3.1.4", "3.1.5"),
    "httpx": ("0.24.1", "0.25.0", "0.25.2", "0.26.0", "0.27.2"),
    "rich": ("13.4.0", "13.5.0", "13.6.0", "13.7.1", "13.9.4"),
    "marshmallow": ("3.19.0", "3.20.0", "3.21.0", "3.22.0", "3.23.0"),
    "sqlparse": ("0.4.2", "0.4.3", "0.4.4", "0.5.0", "0.5.3"),
    "starlette": ("0.36.0", "0.37.0"),
}
"""Wheels of pure Python; consecutive pairs are compared."""


def wheel(folder: Path, project: str, version: str) -> Path:
    """The wheel, downloaded by pip unless it is there."""
    pattern = f"{project}-{version}-*.whl"
    found = [path for path in folder.glob("*.whl") if re.match(pattern.replace("*", ".*"), path.name, re.I)]
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "-d", str(folder), f"{project}=={version}"], check=True)
        return wheel(folder, project, version)
    return found[0]


def sources(path: Path) -> dict[str, bytes]:
    """Product files of a wheel: what the reward's policy would not drop."""
    policy = PatchPolicy()
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        return {name: archive.read(name) for name in names if policy.why_path_dropped(name, ()) is None}


def added_lines(old: bytes, new: bytes) -> set[int]:
    """Line numbers of added lines in `new`."""
    if old == new:
        return set()
    blocks = difflib.SequenceMatcher(a=old.split(b"\n"), b=new.split(b"\n"), autojunk=False).get_opcodes()
    return {
        line for kind, _, _, first, last in blocks if kind != "equal" for line in range(first + 1, last + 1)
    }


def main() -> None:
    """Download, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    files = suspected = 0
    kinds: Counter[str] = Counter()
    for project, versions in RELEASES.items():
        opened = [sources(wheel(folder, project, version)) for version in versions]
        for old, new in itertools.pairwise(opened):
            for name in sorted(new):
                lines = added_lines(old.get(name, b""), new[name])
                found = find_suspicions(name, new[name], lines, frozenset()) if lines else ()
                files += bool(lines)
                suspected += bool(found)
                kinds.update(text.split(": ", 1)[1] for text in found)
    print(f"changed files {files}, suspected {suspected} ({suspected / files:.1%})")
    for kind, count in kinds.most_common():
        print(f"{count:5} {kind}")


if __name__ == "__main__":
    main()
