"""Install steps of the public data sets, made to work without root and conda.

Theirs were written for a container with conda, root and the whole internet. Here an environment is a venv
over a repository that stays where it is. Pure functions over text.
"""

import re
import shlex
from collections.abc import Iterable

from recipes.swe.datasets_fields import FieldError, unique

_APT = re.compile(r"\bapt(?:-get)?\b")
_INSTALL = re.compile(r"\bapt(?:-get)?\b.*?\binstall\b(?P<packages>.*)\Z")
_LOCALE = re.compile(r"locale-gen|/etc/locale\.gen")
_HERE = r"['\"]?\.(?:\[[^\]]*\])?['\"]?(?:\s|;|&|\Z)"
_COPYING = re.compile(rf"(pip3? install(?:\s+(?!-e\b|--editable\b)-\S+)*)\s+(?={_HERE})")
_SETUP = re.compile(r"python3? setup\.py (?:install|develop)\b[^;&]*")
_BUILD = re.compile(r"python3? setup\.py build\s*(?:;|&&)\s*(?=python)")


def split_system(commands: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(commands that are left, Debian packages that the others install). Setting up locales is left out:
    C.UTF-8 is always there."""
    left: list[str] = []
    packages: list[str] = []
    for command in commands:
        steps: list[str] = []
        for step in re.split(r"\s*&&\s*", command.strip()):
            if match := _INSTALL.search(step):
                packages += [word for word in match["packages"].split() if not word.startswith("-")]
            elif step and not _APT.search(step) and not _LOCALE.search(step):
                steps.append(step)
        if steps:
            left.append(" && ".join(steps))
    return tuple(left), unique(packages)


def editable(command: str) -> str:
    """An install command that leaves the repository in use. A copy in site-packages would hide the agent's
    change from the tests; swebench installs again before each grading instead."""
    command = _BUILD.sub("", command)
    command = _SETUP.sub("python -m pip install -e .", command)
    return _COPYING.sub(r"\1 -e ", command)


def requirements(*groups: Iterable[str]) -> tuple[str, ...]:
    """Requirements of several steps as one list: where a project is named twice, a later version wins over an
    earlier one, and any version over none."""
    chosen: dict[str, str] = {}
    for requirement in (item.strip() for group in groups for item in group):
        if not requirement or requirement.startswith(("#", "-")):
            continue
        match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
        name = re.sub(r"[-_.]+", "-", match[0]).lower() if match else requirement
        bare = match is not None and match[0] == requirement
        if name not in chosen or not bare:
            chosen[name] = requirement
    return tuple(chosen.values())


def conda_words(text: str) -> tuple[str, ...]:
    """Requirements of a `conda create` line. One `=` is conda's way to pin."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FieldError(f"packages cannot be split into words: {error}: {text!r}") from error
    return tuple(re.sub(r"(?<![=<>!~])=(?!=)", "==", word) for word in words)
