"""Containers as sandboxes, with the real engines where this machine can run them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from sandbox import conformance
from sandbox.container import ContainerBackend
from sandbox.container_sandbox import ContainerSandbox
from sandbox.errors import SandboxLostError, SandboxStartError
from sandbox.types import MIB, BindMount, Limits, SandboxSpec
from tests.sandbox import engines

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
PLENTY_S = 60.0


@pytest.fixture(scope="module", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, tuple[str, ...]]]:
    try:
        with engines.engine(request.param) as command:
            yield request.param, command
    except engines.UnusableError as error:
        pytest.skip(f"{request.param}: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def containers(
    engine: tuple[Any, tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ContainerBackend]:
    name, command = engine
    async with ContainerBackend(name, program=command, state_dir=tmp_path_factory.mktemp("s")) as backend:
        yield backend


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> SandboxSpec:
    """Two layers: the upper one removes a file of the lower one."""
    top, bottom = tmp_path_factory.mktemp("top"), tmp_path_factory.mktemp("bottom")
    (bottom / "testbed/pkg").mkdir(parents=True)
    (bottom / "testbed/pkg/a.py").write_text("one\ntwo\n")
    (bottom / "testbed/pkg/gone.py").write_text("gone\n")
    (bottom / "testbed/pkg/twin.py").hardlink_to(bottom / "testbed/pkg/a.py")
    (top / "testbed/pkg").mkdir(parents=True)
    (top / "testbed/pkg/b.py").write_text("b\n")
    if os.geteuid() == 0:
        os.mknod(top / "testbed/pkg/gone.py", 0o020000, 0)  # overlay's mark of a removed name
    limits = Limits(memory_bytes=128 * MIB, pids=48, disk_bytes=64 * MIB)
    return SandboxSpec(layers=(top, bottom), workdir="/testbed", limits=limits, env={"GREETING": "hello"})


async def run(sandbox: ContainerSandbox, script: str) -> str:
    return (await sandbox.exec(["bash", "-c", script], timeout_s=PLENTY_S)).text


async def test_layers_commands_sessions_changes_and_forks(
    containers: ContainerBackend, spec: SandboxSpec
) -> None:
    async with await containers.open(spec) as sandbox:
        assert await run(sandbox, "ls pkg; cat pkg/twin.py; echo $GREETING; id -u") == (
            "a.py\nb.py\ntwin.py\none\ntwo\nhello\n0\n"
        )
        session = await sandbox.open_session()
        await session.run("cd pkg; x=5", timeout_s=PLENTY_S)
        result = await session.run("echo $x; pwd; exit 3", timeout_s=PLENTY_S)
        assert (result.text, result.exit_status) == ("5\n/testbed/pkg\n", 3)
        await run(sandbox, "echo three >> pkg/a.py; rm pkg/b.py; mkdir new; echo n > new/n; ln -s n new/l")
        patch = await sandbox.diff("/testbed")
        assert "+three" in patch and "deleted file" in patch and "new/l" in patch and "gone.py" not in patch
        async with await sandbox.fork() as twin:
            assert await twin.diff("/testbed") == patch
            await run(twin, "echo four >> pkg/a.py; touch pkg/b.py")
            assert "+four" in await twin.diff("/testbed")
        assert await sandbox.diff("/testbed") == patch
        await sandbox.write_file("/testbed/w", b"w")
        assert await sandbox.read_file("/testbed/w") == b"w"
        usage = await sandbox.usage()
        assert usage.cpu_s and usage.memory_peak_bytes


async def test_limits_that_the_engine_holds(containers: ContainerBackend, spec: SandboxSpec) -> None:
    async with await containers.open(spec) as sandbox:
        eater = "import sys; x = bytearray(200 << 20); sys.stdout.write('ate')"
        assert "ate" not in await run(sandbox, f"python3 -c '{eater}'")
        assert (await sandbox.usage()).oom_kills
        assert "fork" in await run(sandbox, "for i in $(seq 80); do sleep 1 & done 2>&1; kill $(jobs -p)")
        assert await run(sandbox, "ulimit -n") == "4096\n"


async def test_writing_over_the_limit_ends_it(containers: ContainerBackend, spec: SandboxSpec) -> None:
    async with await containers.open(spec) as sandbox:
        with pytest.raises(SandboxLostError, match="over its limit"):
            for _ in range(100):
                await sandbox.exec(
                    ["sh", "-c", "head -c 20M /dev/zero >> /big; sleep 0.1"], timeout_s=PLENTY_S
                )


async def test_nothing_is_left_and_equal_layers_are_one_image(
    containers: ContainerBackend, spec: SandboxSpec, engine: tuple[str, tuple[str, ...]]
) -> None:
    first, second = await asyncio.gather(containers.open(spec), containers.open(spec))
    assert first.image == second.image
    upper = first.upper
    await asyncio.gather(first.close(), second.close())
    assert not upper.exists()
    assert await containers._engine.sandboxes() == []
    assert [
        path.name for path in (containers.directory or Path()).iterdir() if path.name.startswith("mini")
    ] == []


async def test_a_killed_container_is_a_lost_sandbox(containers: ContainerBackend, spec: SandboxSpec) -> None:
    async with await containers.open(spec) as sandbox:
        running = asyncio.ensure_future(sandbox.exec(["sleep", "100"], timeout_s=PLENTY_S))
        await asyncio.sleep(0.3)
        await containers._engine.remove(sandbox.id)
        with pytest.raises(SandboxLostError):
            await running


async def test_an_image_by_its_name(containers: ContainerBackend, spec: SandboxSpec) -> None:
    async with await containers.open(spec) as sandbox:
        image = sandbox.image
    usr = BindMount(Path("/usr"), "/usr")  # an image that a registry has brings programs of its own
    named = replace(spec, layers=(), binds=(usr,), image=image)
    async with await containers.open(named) as sandbox:
        assert await run(sandbox, "ls pkg; echo new > pkg/new") == "a.py\nb.py\ntwin.py\n"
        async with await sandbox.fork() as twin:
            assert "pkg/new" in await twin.diff("/testbed")
    with pytest.raises(SandboxStartError):
        await containers.open(replace(spec, image="localhost/nobody/has:this"))


async def test_what_cannot_start_says_why(containers: ContainerBackend, spec: SandboxSpec) -> None:
    missing = BindMount(Path("/nonexistent/x"), "/opt/x")
    with pytest.raises(SandboxStartError, match="no such file"):
        await containers.open(replace(spec, binds=(missing,)))
    with pytest.raises(SandboxStartError, match="no directory"):
        await containers.open(replace(spec, layers=(Path("/nonexistent/layer"),)))
    assert await containers._engine.sandboxes() == []


async def test_many_open_at_once_on_the_loop_that_ray_gives_its_actors(
    engine: tuple[Any, tuple[str, ...]], tmp_path: Path
) -> None:
    """Its children inherit what is open, and an engine's monitor stays as long as its container."""
    name, command = engine

    async def answers() -> list[str]:
        async with ContainerBackend(name, program=command, state_dir=tmp_path) as backend:
            opened = await asyncio.gather(*(backend.open(SandboxSpec()) for _ in range(6)))
            return [await run(sandbox, "echo here") for sandbox in opened]

    def in_a_thread() -> list[str]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(answers())

    assert await asyncio.to_thread(in_a_thread) == ["here\n"] * 6


_DIES = """
import asyncio, os, sys
from pathlib import Path
from sandbox.container import ContainerBackend
from sandbox.types import SandboxSpec

async def main():
    backend = ContainerBackend(sys.argv[1], program=sys.argv[3:], state_dir=Path(sys.argv[2]))
    await backend.__aenter__()
    print((await backend.open(SandboxSpec())).id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_the_next_backend_removes_what_a_killed_owner_left(
    engine: tuple[Any, tuple[str, ...]], tmp_path: Path
) -> None:
    name, command = engine
    words = (sys.executable, "-c", _DIES, name, str(tmp_path), *command)
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    async with ContainerBackend(name, program=command, state_dir=tmp_path) as backend:
        assert done.stdout.strip() not in await backend._engine.sandboxes()


@pytest.mark.slow
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check, containers: ContainerBackend) -> None:
    outcome = await conformance.run_one(check, containers)
    assert outcome.problem == ""
    assert set(outcome.lacking) <= ({"limits", "ids"} if containers.name == "docker" else {"limits"})
