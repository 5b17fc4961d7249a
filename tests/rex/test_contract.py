"""What SWE-ReX's local runtime does, ours does: the same cases against both.

Its sessions take seconds and are not exact: depending on bash and load they add line ends and prompts to the
output, or lose an exit code. So they are compared without those (`alike`), while ours must be exact.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from swerex.deployment.abstract import AbstractDeployment
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    CloseBashSessionResponse,
    CloseResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    ReadFileRequest,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)

from sandbox.rex import MiniSandboxDeployment, MiniSandboxRuntime
from tests.rex.conftest import started


@pytest.fixture(params=[pytest.param("local", marks=pytest.mark.slow), "mini"])
async def shell(request: pytest.FixtureRequest, state_dir: Path) -> AsyncIterator[AbstractRuntime]:
    """A runtime with the session `default`. The local one needs more than its second under load."""
    deployment = started(request, state_dir)
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    yield deployment.runtime
    await deployment.stop()


def alike(runtime: AbstractRuntime, seen: BashObservation, wanted: BashObservation) -> bool:
    """Equal; for the local runtime as far as it can be."""
    if isinstance(runtime, MiniSandboxRuntime):
        return seen == wanted
    text = seen.output.replace("SHELLPS1PREFIX", "").replace("\r", "").strip()
    code = wanted.exit_code if seen.exit_code is None else seen.exit_code
    return BashObservation(
        output=text, exit_code=code, expect_string=seen.expect_string
    ) == wanted.model_copy(update={"output": wanted.output.strip()})


async def run(runtime: AbstractRuntime, command: str, **fields: Any) -> BashObservation:
    return await runtime.run_in_session(BashAction(command=command, timeout=20, **fields))


SAME = [
    ("echo hello", "hello\n", 0),
    ("printf 'no newline'", "no newline", 0),
    ("true", "", 0),
    ("(exit 7)", "", 7),
    ("echo out; echo err >&2", "out\nerr\n", 0),
    ("printf '\\xff\\xfe'", "\\xff\\xfe", 0),
    ("printf '\\033[31mred\\033[0m\\n'", "red\n", 0),
    ("printf 'ü€\\n'", "ü€\n", 0),
    ("echo a\necho b", "a\nb\n", 0),
    ("cat <<EOF\none\ntwo\nEOF", "one\ntwo\n", 0),
    ("echo a && echo b || echo c", "a\nb\n", 0),
    ("for x in 1 2 3; do echo $x; done", "1\n2\n3\n", 0),
    ("/no/such 2> /dev/null", "", 127),
]


async def test_observations(shell: AbstractRuntime):
    for command, output, code in SAME:
        seen = await run(shell, command, check="silent")
        wanted = BashObservation(output=output, exit_code=code, expect_string="SHELLPS1PREFIX")
        assert alike(shell, seen, wanted), f"{command}: {seen}"


async def test_state_lives_on(shell: AbstractRuntime):
    await run(shell, "cd /usr; export A=1; b=2; f() { echo f$1; }", check="ignore")
    seen = await run(shell, "pwd; echo $A$b; f 3", check="ignore")
    assert alike(shell, seen, BashObservation(output="/usr\n12\nf3\n", expect_string="SHELLPS1PREFIX"))


async def test_checks(shell: AbstractRuntime):
    if isinstance(
        shell, MiniSandboxRuntime
    ):  # the local one may lose the exit code, and then says so instead
        with pytest.raises(
            NonZeroExitCodeError, match=r"reason: Command '\(exit 3\)' failed with exit code 3"
        ):
            await run(shell, "(exit 3)", check="raise", error_msg="reason")
    assert (await run(shell, "(exit 3)", check="silent")).exit_code in (3, None)
    assert (await run(shell, "(exit 3)", check="ignore")).exit_code is None
    for command in ("if", "echo a; )", "for x in", "echo 'open", "echo a\nif true; then"):
        with pytest.raises(BashIncorrectSyntaxError) as caught:
            await run(shell, command, check="ignore")
        assert set(caught.value.extra_info) == {"bash_stdout", "bash_stderr"}
        assert "line" in caught.value.extra_info["bash_stderr"]
        assert "Error (exit code 2) while checking bash command" in str(caught.value)
    seen = await run(shell, "echo still here", check="silent")
    assert alike(
        shell, seen, BashObservation(output="still here\n", exit_code=0, expect_string="SHELLPS1PREFIX")
    )


async def test_timeout_then_interrupt(shell: AbstractRuntime):
    action = BashAction(command="echo before; sleep 60", timeout=1)
    with pytest.raises(CommandTimeoutError, match=r"timeout after 1\.0 seconds while running command"):
        await shell.run_in_session(action)
    seen = await shell.run_in_session(BashInterruptAction(timeout=2))
    assert isinstance(seen, BashObservation)
    assert seen.exit_code == 0
    assert seen.expect_string == "SHELLPS1PREFIX"
    assert seen.output.strip().startswith("before")
    seen = await run(shell, "echo after", check="silent")
    assert alike(shell, seen, BashObservation(output="after\n", exit_code=0, expect_string="SHELLPS1PREFIX"))
    idle = await shell.run_in_session(BashInterruptAction(timeout=2))
    assert alike(shell, idle, BashObservation(output="", exit_code=0, expect_string="SHELLPS1PREFIX"))


async def test_interactive_program(shell: AbstractRuntime):
    def talk(command: str, **fields: Any) -> BashAction:
        return BashAction(command=command, timeout=20, **fields)

    python = talk("python3 -q", is_interactive_command=True, expect=[">>> "])
    seen = await shell.run_in_session(python)
    assert (seen.exit_code, seen.expect_string) == (0, ">>> ")
    seen = await shell.run_in_session(talk("print(6*7)", is_interactive_command=True, expect=[">>> "]))
    assert seen == BashObservation(output="42", exit_code=0, expect_string=">>> ")
    seen = await shell.run_in_session(talk("quit()", is_interactive_quit=True))
    assert (seen.exit_code, seen.expect_string) == (0, "SHELLPS1PREFIX")
    seen = await run(shell, "echo shell", check="silent")
    assert alike(shell, seen, BashObservation(output="shell\n", exit_code=0, expect_string="SHELLPS1PREFIX"))


async def test_interrupted_program_goes_on(shell: AbstractRuntime):
    def talk(command: str, limit: float = 20) -> BashAction:
        return BashAction(command=command, timeout=limit, is_interactive_command=True, expect=[">>> "])

    await shell.run_in_session(talk("python3 -q"))
    with pytest.raises(CommandTimeoutError):
        await shell.run_in_session(talk("import time; time.sleep(60)", 1))
    seen = await shell.run_in_session(BashInterruptAction(timeout=5, expect=[">>> "]))
    assert (seen.exit_code, seen.expect_string) == (0, ">>> ")
    assert "KeyboardInterrupt" in seen.output
    assert (await shell.run_in_session(talk("print('alive')"))).output == "alive"
    await shell.run_in_session(BashAction(command="quit()", timeout=20, is_interactive_quit=True))


async def test_sessions_by_name(shell: AbstractRuntime):
    runtime = shell

    async def shows(name: str, text: str) -> None:
        seen = await run(runtime, "echo [$X]", session=name, check="silent")
        assert alike(runtime, seen, BashObservation(output=text, exit_code=0, expect_string="SHELLPS1PREFIX"))

    made = await runtime.create_session(CreateBashSessionRequest(session="a", startup_timeout=60))
    assert isinstance(made, CreateBashSessionResponse)
    await runtime.create_session(CreateBashSessionRequest(session="b", startup_timeout=60))
    with pytest.raises(SessionExistsError, match="session a already exists"):
        await runtime.create_session(CreateBashSessionRequest(session="a"))
    await run(runtime, "cd /usr; X=1", session="a", check="ignore")
    await shows("a", "[1]\n")
    await shows("b", "[]\n")
    assert await runtime.close_session(CloseBashSessionRequest(session="a")) == CloseBashSessionResponse()
    with pytest.raises(SessionDoesNotExistError, match="session 'a' does not exist"):
        await run(runtime, "echo", session="a")
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest(session="a"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.run_in_session(BashInterruptAction(session="a"))
    await runtime.create_session(CreateBashSessionRequest(session="a", startup_timeout=60))
    await shows("a", "[]\n")


async def test_startup_files(shell: AbstractRuntime, tmp_path: Path):
    file = tmp_path / "rc"
    await shell.write_file(WriteFileRequest(path=str(file), content="echo loaded; FROM_RC=yes\nPS1=x\n"))
    made = await shell.create_session(
        CreateBashSessionRequest(
            session="new", startup_source=[str(file), "/does/not/exist"], startup_timeout=60
        )
    )
    assert "loaded\n" in made.output
    assert "/does/not/exist: No such file or directory" in made.output
    seen = await run(shell, "echo $FROM_RC", session="new", check="silent")
    assert alike(shell, seen, BashObservation(output="yes\n", exit_code=0, expect_string="SHELLPS1PREFIX"))


EXECUTED = [
    (Command(command=["echo", "a b"]), CommandResponse(stdout="a b\n", exit_code=0)),
    (Command(command="echo a | tr a b", shell=True), CommandResponse(stdout="b\n", exit_code=0)),
    (Command(command="echo $1-$0", shell=True), CommandResponse(stdout="-/bin/sh\n", exit_code=0)),
    (Command(command=["echo $0 $1", "x", "y"], shell=True), CommandResponse(stdout="x y\n", exit_code=0)),
    (Command(command="true"), CommandResponse(exit_code=0)),
    (
        Command(command="echo out; echo err >&2; exit 3", shell=True),
        CommandResponse(stdout="out\n", stderr="err\n", exit_code=3),
    ),
    (
        Command(command="echo out; echo err >&2", shell=True, merge_output_streams=True),
        CommandResponse(stdout="out\nerr\n", exit_code=0),
    ),
    (Command(command=["pwd"], cwd="/usr/bin"), CommandResponse(stdout="/usr/bin\n", exit_code=0)),
    (
        Command(command='echo "$A"', shell=True, env={"A": "x y\nz", "PATH": "/usr/bin:/bin"}),
        CommandResponse(stdout="x y\nz\n", exit_code=0),
    ),
    (Command(command=["printf", r"\377\033[1m"]), CommandResponse(stdout="\\xff\x1b[1m", exit_code=0)),
    (Command(command="cat", shell=True), CommandResponse(exit_code=0)),
    (Command(command=["sh", "-c", "exit 200"]), CommandResponse(exit_code=200)),
    (
        Command(command=["/no/such"], shell=True),
        CommandResponse(stderr="/bin/sh: 1: /no/such: not found\n", exit_code=127),
    ),
]


@pytest.mark.parametrize(("command", "response"), EXECUTED)
async def test_execute(either: AbstractDeployment, command: Command, response: CommandResponse):
    assert await either.runtime.execute(command) == response


async def test_execute_checks(either: AbstractDeployment):
    with pytest.raises(NonZeroExitCodeError, match="why: Command 'echo o; exit 4' failed with exit code 4"):
        await either.runtime.execute(
            Command(command="echo o; exit 4", shell=True, check=True, error_msg="why")
        )
    with pytest.raises(CommandTimeoutError, match=r"Timeout \(0\.5s\) exceeded while running command"):
        await either.runtime.execute(Command(command=["sleep", "20"], timeout=0.5))
    with pytest.raises(TimeoutError):
        await either.runtime.execute(Command(command="sleep 20", shell=True, timeout=0.5))


async def test_files(either: AbstractDeployment, tmp_path: Path):
    runtime = either.runtime
    path = str(tmp_path / "new" / "dir" / "file.txt")
    written = await runtime.write_file(WriteFileRequest(path=path, content="ü\nline"))
    assert written == WriteFileResponse()
    assert (await runtime.read_file(ReadFileRequest(path=path))).content == "ü\nline"
    latin = await runtime.read_file(ReadFileRequest(path=path, encoding="latin-1"))
    assert latin.content == "Ã¼\nline"
    await runtime.execute(Command(command=f"printf 'a\\377' > {path}; chmod 755 {path}", shell=True))
    with pytest.raises(UnicodeDecodeError):
        await runtime.read_file(ReadFileRequest(path=path))
    replaced = await runtime.read_file(ReadFileRequest(path=path, errors="replace"))
    assert replaced.content == "a�"
    await runtime.write_file(WriteFileRequest(path=path, content="short"))
    mode = await runtime.execute(Command(command=["stat", "-c", "%a %s", path]))
    assert mode.stdout == "755 5\n"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path=str(tmp_path / "missing")))
    with pytest.raises(IsADirectoryError):
        await runtime.read_file(ReadFileRequest(path=str(tmp_path / "new")))
    with pytest.raises(IsADirectoryError):
        await runtime.write_file(WriteFileRequest(path=str(tmp_path / "new"), content=""))


async def test_upload(either: AbstractDeployment, tmp_path: Path):
    runtime = either.runtime
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "data.bin").write_bytes(bytes(range(256)))
    # Two levels that only exist inside one of the two, where tmp_path itself does not exist.
    target = tmp_path / "inside"
    await runtime.execute(Command(command=["mkdir", "-p", str(target)]))

    async def upload(here: Path, there: Path) -> None:
        request = UploadRequest(source_path=str(here), target_path=str(there))
        assert await runtime.upload(request) == UploadResponse()

    await upload(source, target / "tree")
    assert (await runtime.execute(Command(command=[str(target / "tree/run.sh")]))).stdout == "ran\n"
    size = await runtime.execute(Command(command=["stat", "-c", "%s", str(target / "tree/sub/data.bin")]))
    assert size.stdout == "256\n"
    await upload(source / "run.sh", target / "renamed.sh")
    await upload(source / "run.sh", target)
    listing = await runtime.execute(Command(command=["ls", str(target)]))
    assert listing.stdout.split() == ["renamed.sh", "run.sh", "tree"]
    assert (await runtime.execute(Command(command=[str(target / "run.sh")]))).stdout == "ran\n"
    with pytest.raises(FileNotFoundError):
        await upload(source / "missing", target / "x")


async def test_life(either: AbstractDeployment):
    assert await either.is_alive(timeout=10)
    assert await either.runtime.is_alive()
    assert await either.runtime.close() == CloseResponse()
    await either.stop()
    await either.stop()
    with pytest.raises(DeploymentNotStartedError):
        _ = either.runtime
    await either.start()
    assert (await either.runtime.execute(Command(command=["echo", "again"]))).stdout == "again\n"


def test_each_call_in_an_event_loop_of_its_own(usable: None, state_dir: Path):
    """SWE-agent and mini-swe-agent call like this."""
    deployment = MiniSandboxDeployment(state_dir=state_dir)
    asyncio.run(deployment.start())
    asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
    asyncio.run(deployment.runtime.run_in_session(BashAction(command="X=5", timeout=20)))
    seen = asyncio.run(deployment.runtime.run_in_session(BashAction(command="echo $X", timeout=20)))
    assert seen == BashObservation(output="5\n", exit_code=0, expect_string="SHELLPS1PREFIX")
    asyncio.run(deployment.stop())
