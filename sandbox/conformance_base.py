"""What the conformance checks share: how a check is marked, what it raises, and the sandboxes it opens.

The checks themselves are in the other modules `sandbox.conformance_*`;
`sandbox.conformance` lists and runs them.
"""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox.types import Backend, ExecResult, Sandbox, SandboxSpec, Session

Need = Literal["root", "limits", "network", "processes", "ids"]
"""What a check takes for granted beyond the protocols. `root`: a file tree of the sandbox's own, the layers
below it, everything writable. `limits`: totals per sandbox of memory, processes and disk. `network`: its own
loopback and no way out. `processes`: it sees only its own processes, and all it started can be found. `ids`:
root inside is not root outside."""

PLENTY_S = 90.0
"""Seconds that nothing here comes near to, not even on an emulated processor."""


class ConformanceError(Exception):
    """A backend does not behave as `sandbox.types` says."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: call it with an entered backend. It opens its own sandboxes."""

    name: str
    """Name of the function."""
    needs: tuple[Need, ...]
    """Facilities without which it cannot hold; see `lacks_of`."""
    function: Callable[[Backend], Awaitable[None]]
    """Raises ConformanceError with what was wrong."""

    async def __call__(self, backend: Backend) -> None:
        await self.function(backend)

    def lacking(self, backend: Backend) -> tuple[Need, ...]:
        """Those of its needs that the backend says it does not meet."""
        missing = lacks_of(backend)
        return tuple(need for need in self.needs if need in missing)


def check(*, needs: tuple[Need, ...] = ()) -> Callable[[Callable[[Backend], Awaitable[None]]], Check]:
    """Mark a function as a check."""

    def mark(function: Callable[[Backend], Awaitable[None]]) -> Check:
        return Check(getattr(function, "__name__", repr(function)), needs, function)

    return mark


def lacks_of(backend: Backend) -> Mapping[Need, str]:
    """What a backend states in an attribute `lacks` that it cannot do: need -> what is lost, in one sentence.

    A backend without the attribute meets every need."""
    return getattr(backend, "lacks", {})


def expect(condition: bool, message: str, seen: object = "") -> None:
    """Raise ConformanceError with `message`, and with what was seen, unless `condition` holds."""
    if not condition:
        raise ConformanceError(f"{message}{f': {seen!r}' if seen != '' else ''}")


def expect_result(result: ExecResult, status: int | None, output: bytes | None, what: str) -> None:
    """The result has this status and, unless None, exactly this output."""
    expect(result.exit_status == status, f"{what}: exit status, expected {status}", result)
    if output is not None:
        expect(result.output == output, f"{what}: output, expected {output!r}", result.output)


@asynccontextmanager
async def layered(backend: Backend) -> AsyncGenerator[tuple[Sandbox, Path]]:
    """A sandbox over one layer holding a small /testbed."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        layer = Path(name)
        layer.chmod(0o755)
        root = layer / "testbed"
        (root / "pkg").mkdir(parents=True)
        (root / "pkg" / "a.py").write_text("one\ntwo\nthree\n")
        (root / "pkg" / "b.py").write_text("b\n")
        (root / "run.sh").write_text("echo hi\n")
        async with await backend.open(SandboxSpec(layers=(layer,), workdir="/testbed")) as sandbox:
            yield sandbox, root


@asynccontextmanager
async def opened_session(
    backend: Backend, spec: SandboxSpec | None = None
) -> AsyncGenerator[tuple[Sandbox, Session]]:
    """A sandbox and a session in it."""
    async with await backend.open(spec or SandboxSpec()) as sandbox:
        session = await sandbox.open_session()
        yield sandbox, session
        await session.close()
