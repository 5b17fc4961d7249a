"""What every backend must do: small checks over the `Backend` protocol, run by the tests and the doctor.

Each check takes an entered backend, opens its own sandboxes and raises `ConformanceError` with what was
wrong. Attacks that need to look at the host are in tests/sandbox, not here.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sandbox.types import MIB, Backend, ExecResult, Limits, Sandbox, SandboxSpec, Session

Check = Callable[[Backend], Awaitable[None]]

_T = 20.0
"""Seconds that nothing here comes near to."""


class ConformanceError(Exception):
    """A backend does not behave as `sandbox.types` says."""


def _expect(condition: bool, message: str, seen: object = "") -> None:
    if not condition:
        raise ConformanceError(f"{message}{f': {seen!r}' if seen != '' else ''}")


def _expect_result(result: ExecResult, status: int | None, output: bytes | None, what: str) -> None:
    _expect(result.exit_status == status, f"{what}: exit status, expected {status}", result)
    if output is not None:
        _expect(result.output == output, f"{what}: output, expected {output!r}", result.output)


@asynccontextmanager
async def _layered(backend: Backend) -> AsyncGenerator[tuple[Sandbox, Path]]:
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
async def _session(
    backend: Backend, spec: SandboxSpec | None = None
) -> AsyncGenerator[tuple[Sandbox, Session]]:
    async with await backend.open(spec or SandboxSpec()) as sandbox:
        session = await sandbox.open_session()
        yield sandbox, session
        await session.close()


async def exec_reports_exactly(backend: Backend) -> None:
    """Status, output, stdin, environment and directory of one-shot programs."""
    async with await backend.open(SandboxSpec(env={"GREETING": "hé"}, workdir="/tmp")) as sandbox:
        _expect_result(await sandbox.exec(["true"], timeout_s=_T), 0, b"", "true")
        _expect_result(await sandbox.exec(["sh", "-c", "exit 77"], timeout_s=_T), 77, b"", "exit 77")
        _expect_result(await sandbox.exec(["sh", "-c", "kill -9 $$"], timeout_s=_T), 137, b"", "killed")
        result = await sandbox.exec(["cat"], stdin=b"\0\xff" * 100_000, timeout_s=_T)
        _expect_result(result, 0, b"\0\xff" * 100_000, "stdin of any bytes")
        result = await sandbox.exec(["sh", "-c", "echo $GREETING $X; pwd"], env={"X": "y"}, timeout_s=_T)
        _expect_result(result, 0, "hé y\n/tmp\n".encode(), "environment and directory")
        result = await sandbox.exec(["pwd"], cwd="/usr", timeout_s=_T)
        _expect_result(result, 0, b"/usr\n", "cwd")
        result = await sandbox.exec(["sh", "-c", "echo a; echo b >&2; echo c"], timeout_s=_T)
        _expect_result(result, 0, b"a\nb\nc\n", "stdout and stderr in order")
        for odd in (["echo", "a\0b"], ["echo", "\ud800"], ["/etc/passwd"], ["/"]):
            result = await sandbox.exec(odd, timeout_s=_T)
            _expect(result.exit_status == 126, f"{odd!r} is status 126", result)
        result = await sandbox.exec(["no-such-program"], timeout_s=_T)
        _expect(result.exit_status == 127, "a missing program is status 127", result)
        result = await sandbox.exec(
            ["sh", "-c", "echo out > /dev/stdout; echo err > /dev/stderr"], timeout_s=_T
        )
        _expect_result(result, 0, b"out\nerr\n", "/dev/stdout and /dev/stderr can be opened")


async def exec_times_out(backend: Backend) -> None:
    """A timeout kills the whole tree, keeps the output so far, and the sandbox goes on."""
    async with await backend.open(SandboxSpec()) as sandbox:
        script = "echo started; (setsid sleep 1234 &) ; sleep 1234 & sleep 1234"
        result = await sandbox.exec(["sh", "-c", script], timeout_s=0.3)
        _expect(result.timed_out and result.exit_status is None, "timed out", result)
        _expect(result.output.startswith(b"started\n"), "output before the timeout is kept", result)
        left = await sandbox.exec(["sh", "-c", "grep -l 1234 /proc/[0-9]*/cmdline; :"], timeout_s=_T)
        # grep finds itself and its shell
        _expect(left.output.count(b"\n") <= 2, "nothing of it is left", left.output)


async def output_is_capped(backend: Backend) -> None:
    """Ten megabytes come back as head and tail."""
    async with _session(backend) as (sandbox, session):
        command = "echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last"
        for result in (
            await sandbox.exec(["sh", "-c", command], timeout_s=_T, output_limit_bytes=10_000),
            await session.run(command, timeout_s=_T, output_limit_bytes=10_000),
        ):
            _expect(result.exit_status == 0 and result.truncated, "truncated, status kept")
            _expect(10_000 <= len(result.output) <= 10_200, "size", len(result.output))
            _expect(
                result.output.startswith(b"first\n") and result.output.endswith(b"\nlast\n"), "head, tail"
            )


async def session_keeps_state(backend: Backend) -> None:
    """Directory, variables, functions and jobs live from command to command."""
    async with _session(backend) as (_, session):
        await session.run("cd /usr; x=5; export Y=6; f() { echo f$1; }; sleep 100 & p=$!", timeout_s=_T)
        result = await session.run("pwd; echo $x $Y; f 7; kill -0 $p && echo alive", timeout_s=_T)
        _expect_result(result, 0, b"/usr\n5 6\nf7\nalive\n", "state")
        _expect_result(await session.run("(exit 42)", timeout_s=_T), 42, b"", "status")


async def session_takes_any_command(backend: Backend) -> None:
    """Whatever the bytes of a command, its result is its own and the next command works."""
    cases: list[tuple[bytes, int | None, bytes | None]] = [
        (b"cat <<'EOF'\n\tx\n  $y `z` \\\nEOF\n", 0, b"\tx\n  $y `z` \\\n"),
        (b"echo 'unbalanced", 2, None),
        (b'echo "unbalanced', 2, None),
        (b"if true; then", 2, None),
        (b"(", 2, None),
        (b"", 0, b""),
        (b"\n\n# only a comment", 0, b""),
        (b"echo a\necho b; false", 1, b"a\nb\n"),
        (b"printf '\\xff\\000\\n'", 0, b"\xff\0\n"),
        ("echo 'naïve €'".encode(), 0, "naïve €\n".encode()),
        (b"echo '\xe9'", 0, b"\xe9\n"),
        (b"printf abc", 0, b"abc"),
        (b"break; continue; echo on", 0, None),
        (b"return 3", None, None),
        (b"cat; read x; echo $?", 0, b"1\n"),
        (b"exit 9", 9, b""),
        (b"set -e; false; echo not", 1, b""),
        (b"exec true", 0, b""),
        (b"exec >/dev/null; echo lost", 0, b""),
        (b"kill -9 $$", 137, None),
        (b"set -u; echo $undefined_variable", None, None),
        (b"sleep 300 & echo started", 0, b"started\n"),
        (b"IFS=x; set -f; shopt -s extglob; alias ls=false; echo ok", 0, b"ok\n"),
        (b"trap 'echo bye' EXIT; exit 4", 4, b"bye\n"),
        (b"echo " + b"y" * 200_000 + b" | wc -c", 0, b"200001\n"),
        (b"PS1=x PROMPT_COMMAND='echo no'; history; !!; echo !x", 0, None),
    ]
    async with _session(backend) as (_, session):
        for command, status, output in cases:
            result = await session.run(command, timeout_s=_T)
            shown = command[:60]
            _expect(not result.timed_out, "no timeout", shown)
            if status is not None:
                _expect(result.exit_status == status, f"status of {shown!r}, expected {status}", result)
            if output is not None:
                _expect(result.output == output, f"output of {shown!r}, expected {output[:60]!r}", result)
            result = await session.run("echo next", timeout_s=_T)
            _expect_result(result, 0, b"next\n", f"the command after {shown!r}")


async def session_survives_timeout(backend: Backend) -> None:
    """A timeout kills the command's whole tree; directory and variables stay, older jobs live."""
    async with _session(backend) as (_, session):
        await session.run("cd /usr; x=5; sleep 777 & job=$!; sleep 0.1", timeout_s=_T)
        slow = (
            "sleep 888; echo never",
            "(setsid sleep 888 &); sleep 888 | cat",
            "while :; do :; done",
            "trap '' TERM INT USR1; while :; do :; done",
            "python3 -c 'import time; time.sleep(888)' || sleep 888",
        )
        for command in slow:
            result = await session.run("echo begin; " + command, timeout_s=0.3)
            _expect(result.timed_out and result.exit_status is None, f"timeout of {command!r}", result)
            _expect(result.output.startswith(b"begin\n"), "output before it", result)
            _expect(b"never" not in result.output, "the rest of the list does not run", result)
            result = await session.run("pwd; grep -c 888 /proc/[0-9]*/cmdline | grep -v :0", timeout_s=_T)
            _expect(result.output.startswith(b"/usr\n"), f"directory after {command!r}", result)
            _expect(result.output.count(b"\n") <= 2, f"nothing left of {command!r}", result)
            if "trap" not in command:
                result = await session.run("echo $x; kill -0 $job && echo alive", timeout_s=_T)
                _expect_result(result, 0, b"5\nalive\n", f"state after {command!r}")


async def session_ignores_late_output(backend: Backend) -> None:
    """A job that holds the output open, or never stops writing, does not delay a command."""
    async with _session(backend) as (_, session):
        result = await session.run("sleep 300 & yes & echo x; sleep 0.05; echo y", timeout_s=_T)
        _expect(result.exit_status == 0 and not result.timed_out, "not delayed")
        result = await session.run("kill %2; echo done", timeout_s=_T)
        _expect(b"done" in result.output, "the next command works")


async def cancelled_run_is_over(backend: Backend) -> None:
    """Cancelling `run` ends its command; the next one is not mixed up with it."""
    async with _session(backend) as (_, session):
        task = asyncio.ensure_future(session.run("sleep 999; echo old", timeout_s=_T))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        result = await session.run("echo new; grep -c 999 /proc/[0-9]*/cmdline | grep -v :0", timeout_s=_T)
        _expect(result.output.startswith(b"new\n") and result.output.count(b"\n") <= 2, "clean", result)


async def files_are_regular_and_inside(backend: Backend) -> None:
    """read_file and write_file: errors, links, parents, modes."""
    async with await backend.open(SandboxSpec(workdir="/tmp")) as sandbox:
        await sandbox.write_file("/a/b/c.bin", bytes(range(256)), mode=0o755)
        _expect(await sandbox.read_file("/a/b/c.bin") == bytes(range(256)), "bytes come back")
        result = await sandbox.exec(["stat", "-c", "%a %u", "/a/b/c.bin"], timeout_s=_T)
        _expect_result(result, 0, b"755 0\n", "mode and owner")
        await sandbox.write_file("/a/b/c.bin", b"short")
        _expect(await sandbox.read_file("/a/b/c.bin") == b"short", "replaced, not overwritten")
        setup = "mkfifo /fifo; ln -s /etc /link; ln -s /../../../etc/passwd /up; ln -s loop /loop; mkdir /d"
        await sandbox.exec(["sh", "-c", setup], timeout_s=_T)
        inside = await sandbox.read_file("/etc/passwd")
        _expect(await sandbox.read_file("/link/passwd") == inside, "links resolve inside")
        _expect(await sandbox.read_file("/up") == inside, "links upwards resolve inside")
        for path, kinds in (
            ("/missing", (FileNotFoundError,)),
            ("/d", (IsADirectoryError,)),
            ("/fifo", (ValueError,)),
            ("/dev/zero", (ValueError,)),
            ("/loop", (OSError,)),
            ("/etc/passwd\0x", (OSError,)),
            ("/\ud800", (OSError,)),
        ):
            try:
                await sandbox.read_file(path)
            except kinds:
                continue
            _expect(False, f"reading {path} should raise {kinds}")
        try:
            await sandbox.read_file("/etc/passwd", limit_bytes=3)
        except ValueError:
            return
        _expect(False, "limit_bytes is kept")


async def diff_is_a_git_patch(backend: Backend) -> None:
    """Changes, new and deleted files, modes and links; nothing of .git; empty when undone."""
    async with _layered(backend) as (sandbox, _):
        _expect(await sandbox.diff("/testbed") == "", "nothing changed")
        script = (
            "sed -i s/two/2/ pkg/a.py; rm pkg/b.py; echo n > new.txt; chmod +x run.sh; ln -s pkg/a.py l; "
            "mkdir .git; echo x > .git/y; mkfifo ff"
        )
        _expect_result(await sandbox.exec(["sh", "-c", script], timeout_s=_T), 0, b"", "changes")
        patch = await sandbox.diff("/testbed")
        for line in (
            "diff --git a/pkg/a.py b/pkg/a.py", "-two", "+2", "deleted file mode 100644", "--- a/pkg/b.py",
            "+++ b/new.txt", "new mode 100755", "new file mode 120000",
        ):  # fmt: skip
            _expect(line in patch.splitlines(), f"patch has {line!r}", patch)
        _expect(".git/" not in patch and "ff" not in patch.split(), "no .git, no fifo", patch)
        undo = "git apply -R --unsafe-paths -p1 - 2>&1 || exit 1"
        async with _layered(backend) as (fresh, _):
            await fresh.write_file("/tmp/p", patch.encode())
            applied = await fresh.exec(["git", "apply", "/tmp/p"], timeout_s=_T)
            _expect_result(applied, 0, b"", "git apply takes it")
            _expect(await fresh.diff("/testbed") == patch, "and gives the same patch")
            await fresh.exec(["sh", "-c", undo], stdin=patch.encode(), timeout_s=_T)
            _expect(await fresh.diff("/testbed") == "", "and nothing once reversed")


async def layers_are_shared_unchanged(backend: Backend) -> None:
    """Writes stay in the sandbox that made them."""
    async with _layered(backend) as (sandbox, root):
        await sandbox.exec(["sh", "-c", "rm -r pkg; echo x > run.sh"], timeout_s=_T)
        _expect(
            (root / "run.sh").read_text() == "echo hi\n" and (root / "pkg" / "a.py").exists(), "layer kept"
        )


async def limits_hold(backend: Backend) -> None:
    """Process count and disk size."""
    limits = Limits(pids=40, disk_bytes=8 * MIB, memory_bytes=256 * MIB)
    async with await backend.open(SandboxSpec(limits=limits)) as sandbox:
        script = (
            "head -c 50000000 /dev/zero > /big; echo $?; rm /big; for i in $(seq 100); do sleep 60 & done"
        )
        # bash as sh retries a failed fork for seconds, so a timeout is as good an end as any here.
        result = await sandbox.exec(["sh", "-c", script], timeout_s=3)
        _expect(b"No space left" in result.output, "disk is limited", result.output[:200])
        _expect(b"fork" in result.output, "processes are limited", result.output[:500])
    async with await backend.open(SandboxSpec(limits=limits)) as sandbox:
        result = await sandbox.exec(["bash", "-c", "b() { b | b & }; b; b; sleep 9"], timeout_s=1)
        result = await sandbox.exec(["bash", "-c", ":"], timeout_s=_T)
        _expect(not result.timed_out, "a fork bomb is contained", result)


async def isolation_basics(backend: Backend) -> None:
    """No network but loopback, no capabilities, no host processes, no way to mount."""
    async with await backend.open(SandboxSpec()) as sandbox:

        async def run(script: str) -> ExecResult:
            return await sandbox.exec(["bash", "-c", script], timeout_s=_T)

        _expect((await run("grep -c . /proc/net/dev")).output == b"3\n", "one network interface")
        result = await run("exec 3<>/dev/tcp/192.0.2.1/80")
        _expect(result.exit_status != 0, "no route out", result)
        result = await run("grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -vc 0000000000000000")
        _expect(result.output == b"0\n", "no capability", result)
        _expect((await run("grep NoNewPrivs /proc/self/status")).output.endswith(b"1\n"), "no_new_privs")
        result = await run("ls -d /proc/[0-9]* | wc -l")
        _expect(int(result.output) < 10, "own processes only", result)
        for attempt in (
            "mount -t tmpfs x /mnt", "umount /usr", "unshare -U true", "unshare -m true",
            "mount -o remount,rw /usr", "touch /usr/x", "chroot / true",
            "mknod /n c 1 3 && head -c 1 /n > /dev/null", "kill -9 1 && ! kill -0 1",
            "cat /proc/1/environ | grep -q =", "ls /proc/1/fd/", "ls /proc/1/root/",
            "cat /proc/kcore | head -c 1 | grep -q .", "echo x > /proc/sysrq-trigger",
            "echo x > /proc/sys/kernel/core_pattern", "dmesg",
        ):  # fmt: skip
            _expect((await run(attempt)).exit_status != 0, f"{attempt!r} must fail")
        _expect((await run("echo still here")).output == b"still here\n", "and the sandbox still lives")


async def loopback_works(backend: Backend) -> None:
    """Test suites start servers on 127.0.0.1; two sandboxes may use one port."""
    script = (
        "coproc cat; exec 3<>/dev/tcp/127.0.0.1/9 2>/dev/null; "
        "timeout 5 bash -c 'echo -n | cat < /dev/tcp/127.0.0.1/9' 2>&1 | grep -c refused"
    )
    async with await backend.open(SandboxSpec()) as sandbox:
        result = await sandbox.exec(["bash", "-c", script], timeout_s=_T)
        _expect(b"1" in result.output, "loopback answers (connection refused, not unreachable)", result)


async def close_is_idempotent(backend: Backend) -> None:
    """close twice, close after the first process died, and many at once."""
    sandbox = await backend.open(SandboxSpec())
    session = await sandbox.open_session()
    await session.run("sleep 100 & setsid sleep 100 &", timeout_s=_T)
    await asyncio.gather(sandbox.close(), sandbox.close())
    await session.close()

    async def one(number: int) -> bytes:
        async with await backend.open(SandboxSpec()) as each:
            return (await each.exec(["echo", str(number)], timeout_s=_T)).output

    results = await asyncio.gather(*(one(number) for number in range(16)))
    _expect(results == [b"%d\n" % number for number in range(16)], "many at once", results)


CHECKS: tuple[Check, ...] = (
    exec_reports_exactly,
    exec_times_out,
    output_is_capped,
    session_keeps_state,
    session_takes_any_command,
    session_survives_timeout,
    session_ignores_late_output,
    cancelled_run_is_over,
    files_are_regular_and_inside,
    diff_is_a_git_patch,
    layers_are_shared_unchanged,
    limits_hold,
    isolation_basics,
    loopback_works,
    close_is_idempotent,
)


async def run_all(backend: Backend) -> dict[str, str]:
    """Name of each check -> '' or what was wrong. Every check runs, whatever the others did."""
    results: dict[str, str] = {}
    for check in CHECKS:
        name = getattr(check, "__name__", repr(check))
        try:
            async with asyncio.timeout(120):
                await check(backend)
            results[name] = ""
        except Exception as error:  # noqa: BLE001 - any failure of a check is its result
            results[name] = f"{type(error).__name__}: {error}"
    return results
