"""Sandboxes and programs of ours that fail: never a reward, and never a 0 of the patch's."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rewards.errors import GraderError
from rewards.grade import grade
from tests.rewards.project import GOLD, SPEC, LocalResult, LocalSandbox, diff, write_project


class Broken(LocalSandbox):
    """Fails at the n-th call."""

    def __init__(self, root: Path, *, at: int) -> None:
        super().__init__(root)
        self._left = at

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("the helper is gone")

    async def exec(self, argv: Sequence[str], **options: Any) -> LocalResult:
        self._step()
        return await super().exec(argv, **options)

    async def read_file(self, path: str, *, limit_bytes: int = 16 << 20) -> bytes:
        self._step()
        return await super().read_file(path, limit_bytes=limit_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._step()
        await super().write_file(path, data, mode=mode)


class Unfit(LocalSandbox):
    """Where git ends in some way of its own."""

    end = LocalResult(b"", None, True)

    async def exec(self, argv: Sequence[str], **options: Any) -> LocalResult:
        if argv[0] == "git":
            return self.end
        return await super().exec(argv, **options)


@pytest.mark.parametrize(
    "end",
    [
        LocalResult(b"", None, True),
        LocalResult(b"", 137, False),
        LocalResult(b"git: not found", 127, False),
        LocalResult(b"error: unable to write file 'x' mode 100644: No space left on device", 1, False),
    ],
)
@pytest.mark.parametrize("beside", ["", diff("conftest.py", None, "x\n")])
async def test_git_that_does_not_work_is_no_patch_that_does_not_apply(
    end: LocalResult, beside: str, tmp_path: Path
) -> None:
    write_project(tmp_path)
    sandbox = Unfit(tmp_path)
    sandbox.end = end
    with pytest.raises(GraderError) as caught:
        await grade(SPEC, beside + GOLD, sandbox)
    assert (caught.value.kind, caught.value.repeated) == ("sandbox", None)


@pytest.mark.parametrize("at", range(5))
async def test_sandbox_that_fails_at_any_step_is_never_a_reward(at: int, tmp_path: Path) -> None:
    write_project(tmp_path)
    with pytest.raises(GraderError, match="helper is gone"):
        await grade(SPEC, GOLD, Broken(tmp_path, at=at), restore={"tests/__init__.py": b""})


@dataclass(frozen=True)
class Usage:
    """What a sandbox says it used."""

    oom_kills: int | None


class Metered(LocalSandbox):
    """Counts one kill by the kernel."""

    async def usage(self) -> Usage:
        return Usage(1)


@pytest.mark.parametrize("kind", ["runner_died", "memory"])
async def test_a_logged_command_that_was_killed_is_in_doubt(kind: str, tmp_path: Path) -> None:
    write_project(tmp_path)
    script = "echo 'PASSED tests/test_area.py::test_zero[plain]'; "
    script += "kill -9 $$" if kind == "runner_died" else "exit 1"
    spec = dataclasses.replace(SPEC, command=("sh", "-c", script, "sh"), runner="log", log_format="pytest")
    sandbox = LocalSandbox(tmp_path) if kind == "runner_died" else Metered(tmp_path)
    with pytest.raises(GraderError) as caught:
        await grade(spec, GOLD, sandbox)
    assert caught.value.kind == kind
    assert caught.value.repeated is not None
    assert caught.value.repeated.reward == 0.0


async def test_a_logged_command_that_cannot_be_run_is_in_doubt(local: LocalSandbox) -> None:
    """Code of the project can end with that status too, and a 0 must not vanish."""
    spec = dataclasses.replace(SPEC, command=("sh", "-c", "exit 127"), runner="log", log_format="pytest")
    with pytest.raises(GraderError) as caught:
        await grade(spec, GOLD, local)
    assert (caught.value.kind, caught.value.repeated is not None) == ("runner_died", True)
