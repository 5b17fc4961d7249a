"""Which backend this machine gets: the best that opens a sandbox here, and what is lost with it.

Order: MiniSandbox as root with shifted ids, as root without, as an ordinary user, each over an overlay or
else by copies (`sandbox.overlay`); then, only when the caller allows a weak mode, Landlock. A mode is chosen
by opening a sandbox in it, never by a version. Training and grading must not pass `allow_weak`.

    async with open_backend() as (backend, report): ...
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError, SandboxUnavailableError
from sandbox.mini import MiniBackend
from sandbox.overlay import Mode
from sandbox.types import Backend, SandboxSpec
from sandbox.weak import LandlockBackend

_TRIAL_S = 30.0


@dataclass(frozen=True, slots=True)
class Report:
    """What was chosen."""

    mode: str
    """`shifted`, `unshifted`, `user` or `landlock`."""
    weak: bool
    """True for a mode that is no full sandbox."""
    losses: tuple[str, ...]
    """What does not hold in it, one sentence each; empty for the best mode."""
    passed_over: tuple[str, ...]
    """Why the better modes were not chosen, one line each."""
    files: Mode = "copies"
    """How roots are made of layers."""

    def lines(self) -> tuple[str, ...]:
        """For people: the mode, then one line for every loss and every reason."""
        head = f"mode {self.mode}, files by {self.files}" + (
            " (WEAKER: no full sandbox)" if self.weak else ""
        )
        lost = (f"lost: {loss}" for loss in self.losses)
        return (head, *lost, *(f"not used: {reason}" for reason in self.passed_over))


_UNSHIFTED = (
    "ids are not shifted: root inside keeps root's id outside, without any capability; keep the state "
    "directory and layers on a file system with idmapped mounts (ext4, xfs, btrfs, tmpfs)"
)
_FILES: dict[Mode, tuple[str, ...]] = {
    "overlay": (),
    "copies": (
        "no overlay: layers are copied for each sandbox, which costs time, memory and disk_bytes",
        "no overlay: trees that one layer alone provides outside the working directory, /tmp, /root, /home, "
        "/var, /run and /etc are read-only, so that nothing can be installed into them",
    ),
    "extract": ("all of the layers is copied for each sandbox, which costs time, memory and disk_bytes",),
}
_DISK = (
    "tmpfs cannot hold an overlay's marks (kernel before 6.6): what sandboxes write goes to the state "
    "directory's disk, and its size is looked at ten times a second"
)
_USER = (
    "root inside has this user's id outside: a way out would have this user's rights; layers must belong to "
    "the user, and images must be unpacked"
)


def report_of(backend: Backend) -> Report:
    """Mode and losses of an entered MiniBackend or LandlockBackend."""
    if isinstance(backend, LandlockBackend):
        return Report("landlock", True, tuple(backend.facts["losses"]), ())
    if not isinstance(backend, MiniBackend):
        raise TypeError(f"{backend.name} has no modes")
    losses: list[str] = []
    mode = "shifted"
    if not backend.facts["shifted"]:
        mode = "unshifted" if os.geteuid() == 0 else "user"
        losses.append(_UNSHIFTED if mode == "unshifted" else _USER)
    missing = {"memory": "memory is limited per process only", "pids": "the process limit counts per user id"}
    controllers: list[str] = backend.facts["controllers"]
    losses += [f"no cgroup: {lost}" for name, lost in missing.items() if name not in controllers]
    files: Mode = backend.facts["mode"]
    losses += [*_FILES[files], *([_DISK] if backend.facts["upper"] == "disk" else [])]
    why: str = backend.facts["mode_reason"]
    return Report(mode, False, tuple(losses), (why,) if why else (), files)


async def _try(backend: Backend) -> None:
    async with await backend.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["true"], timeout_s=_TRIAL_S)
        if result.exit_status != 0:
            raise SandboxUnavailableError(f"a first command failed: {result.text.strip()}")


@asynccontextmanager
async def open_backend(
    *, state_dir: Path | None = None, allow_weak: bool = False, mode: Mode | None = None
) -> AsyncGenerator[tuple[MiniBackend | LandlockBackend, Report]]:
    """The best backend, entered, after a first sandbox has run a command in it; `mode` as in MiniBackend.

    Raises SandboxUnavailableError with the reason, and, unless `allow_weak`, with the word that a weaker mode
    would work, where it would."""
    mini = MiniBackend(state_dir=state_dir, mode=mode)
    try:
        await mini.__aenter__()
        try:
            await _try(mini)
        except BaseException:
            await mini.__aexit__(None, None, None)
            raise
    except SandboxError as error:
        reason = str(error)
    else:
        try:
            yield mini, report_of(mini)
        finally:
            await mini.__aexit__(None, None, None)
        return
    async with _open_weak(state_dir, reason, allowed=allow_weak) as pair:
        yield pair


@asynccontextmanager
async def _open_weak(
    state_dir: Path | None, reason: str, *, allowed: bool
) -> AsyncGenerator[tuple[MiniBackend | LandlockBackend, Report]]:
    async with LandlockBackend(state_dir=state_dir) as weak:
        try:
            await _try(weak)
        except SandboxError as error:
            raise SandboxUnavailableError(f"{reason}; and the Landlock mode: {error}") from error
        if not allowed:
            raise SandboxUnavailableError(
                f"{reason}; the weaker Landlock mode would work here, but has to be allowed expressly"
            )
        chosen = report_of(weak)
        yield weak, Report(chosen.mode, chosen.weak, chosen.losses, (f"MiniSandbox: {reason}",))
