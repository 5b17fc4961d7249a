"""What a container's root is made of, as the kernel says: the directories of its overlay mount.

The engine is not asked: the mount table of the container's first process names the upper directory and the
ones below, proc_pid_mountinfo(5). Where the overlay keeps contents or names elsewhere than in these
directories (metacopy, redirect_dir), a diff read from them would be wrong, and is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError

_MAPPED = re.compile(r"/[^/]+/mapped/\d+/")
"""podman's idmapped mount of its whole directory, which nobody else sees; what it shows lies beside it."""
_ESCAPE = re.compile(r"\\([0-7]{3})")
_UNFIT = ("metacopy=on", "redirect_dir=on")
_CONTROLLERS: Mapping[str, str] = {"memory": "memory", "cpuacct": "cpuacct"}


@dataclass(frozen=True, slots=True)
class OverlayRoot:
    """The directories of one overlay mount, as paths outside."""

    upper: Path
    """What was written."""
    lower: tuple[Path, ...]
    """What lies below, topmost first."""


def find_root(pid: int) -> OverlayRoot:
    """Of the process, given by its id outside. Raises SandboxError."""
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise SandboxError(f"the container's mounts cannot be read: {error}") from error
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if before.split(" ")[4] == "/":
            if kind != "overlay":
                raise SandboxError(
                    f"the container's root is {kind}, not overlay: use the engine's overlay storage"
                )
            return parse_options(_unescape(options))
    raise SandboxError("the container has no root")


def parse_options(options: str) -> OverlayRoot:
    """From the mount options. Raises SandboxError for those that hide changes from the directories."""
    upper = ""
    lower: list[str] = []
    for option in _split(options, ","):
        name, _, value = option.partition("=")
        if name == "upperdir":
            upper = _plain(value)
        elif name in ("lowerdir", "lowerdir+"):
            lower += [_plain(path) for path in _split(value, ":")]
        elif option in _UNFIT:
            raise SandboxError(
                f"the engine mounts overlays with {option}: turn it off in its storage settings"
            )
    if not upper or not lower:
        raise SandboxError(f"the container's overlay cannot be understood: {options[:300]}")
    # Long lists are given relative to the driver's directory, which holds that of the upper one.
    home = Path(upper).parent.parent
    return OverlayRoot(Path(upper), tuple(home / _MAPPED.sub("/", path) for path in lower))


def _split(text: str, separator: str) -> list[str]:
    """At separators that no backslash precedes."""
    return re.split(rf"(?<!\\){re.escape(separator)}", text)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def find_cgroups(pid: int) -> dict[str, str]:
    """Directories for `sandbox.usage.read_usage`; without one that this machine does not show."""
    found: dict[str, str] = {}
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",") if controllers else ["memory", "cpuacct"]
        for name in names:
            place = Path("/sys/fs/cgroup") / (name if controllers else "") / path.lstrip("/")
            # On a hybrid machine the unified tree is listed too, but has no controllers.
            if name in _CONTROLLERS and place.is_dir() and path != "/" and (controllers or name not in found):
                found[name] = str(place)
    return found
