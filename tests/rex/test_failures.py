"""What breaks SWE-ReX's own sessions (shared design notes, "Sessions: measured") works through ours."""

import asyncio

import pytest
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError
from swerex.runtime.abstract import BashAction, BashInterruptAction, BashObservation, CreateBashSessionRequest

from sandbox.rex import MiniSandboxRuntime


@pytest.fixture
async def shell(runtime: MiniSandboxRuntime) -> MiniSandboxRuntime:
    await runtime.create_session(CreateBashSessionRequest())
    return runtime


async def output(shell: MiniSandboxRuntime, command: str, session: str = "default") -> str:
    return (await shell.run_in_session(BashAction(command=command, session=session, timeout=60))).output


SENTINELS = ["SHELLPS1PREFIX", "UNIQUESTRING29234", "EXITCODESTART0EXITCODEEND"]


@pytest.mark.parametrize("text", SENTINELS)
async def test_a_printed_sentinel_is_only_text(shell: MiniSandboxRuntime, text: str):
    assert await output(shell, f"echo before; echo {text}; echo after") == f"before\n{text}\nafter\n"


async def test_tabs_in_a_heredoc(shell: MiniSandboxRuntime):
    assert await output(shell, "cat <<'E'\n\tls /u\t\t\n\tx\nE") == "\tls /u\t\t\n\tx\n"


async def test_long_output(shell: MiniSandboxRuntime):
    assert await output(shell, "head -c 1300000 /dev/zero | tr '\\0' x") == "x" * 1_300_000
    assert await output(shell, "echo after") == "after\n"


async def test_a_timeout_leaves_the_session(shell: MiniSandboxRuntime):
    await output(shell, "cd /usr; X=1")
    with pytest.raises(CommandTimeoutError):
        await shell.run_in_session(BashAction(command="sleep 60", timeout=0.5))
    assert await output(shell, "pwd; echo $X") == "/usr\n1\n"


@pytest.mark.parametrize("command", ["X=1; exit 3", "X=1; set -e; (exit 3)"])
async def test_exit_leaves_the_session(shell: MiniSandboxRuntime, command: str):
    with pytest.raises(NonZeroExitCodeError):
        await output(shell, command)
    assert await output(shell, "set +e; echo $X") == "1\n"


async def test_interrupt_while_a_command_runs(shell: MiniSandboxRuntime):
    running = asyncio.create_task(
        shell.run_in_session(BashAction(command="echo begun; sleep 60", timeout=50, check="silent"))
    )
    await asyncio.sleep(1)
    await shell.run_in_session(BashInterruptAction())
    assert await running == BashObservation(output="begun\n", exit_code=130, expect_string="SHELLPS1PREFIX")
    assert await output(shell, "echo after") == "after\n"


async def test_many_echoes_at_once_are_all_right(shell: MiniSandboxRuntime):
    names = [f"s{number}" for number in range(8)]
    for name in names:
        await shell.create_session(CreateBashSessionRequest(session=name))

    async def echoes(name: str) -> list[str]:
        return [await output(shell, f"echo {name}-{number}", name) for number in range(40)]

    seen = await asyncio.gather(*map(echoes, names))
    assert seen == [[f"{name}-{number}\n" for number in range(40)] for name in names]


async def test_an_unfinished_substitution_does_not_kill_the_shell(shell: MiniSandboxRuntime):
    """Evaluated a few times it corrupts the heap of bash 5.2; it must not get there."""
    await output(shell, "X=kept")
    for _ in range(5):
        with pytest.raises(RuntimeError):
            await output(shell, "echo $(")
    assert await output(shell, "echo $X") == "kept\n"
