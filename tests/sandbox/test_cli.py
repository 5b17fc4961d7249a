"""`python -m sandbox`, as a user types it: real processes, a real terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import process
from sandbox.cli import main
from sandbox.listing import live_owners
from tests.sandbox import ordinary_user

_REPOSITORY = Path(__file__).resolve().parents[2]
_DEADLINE_S = 60.0

pytestmark = pytest.mark.usefixtures("usable")


def _command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sandbox", *map(str, arguments)]


def _cli(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        _command(*arguments), input=stdin, capture_output=True, timeout=_DEADLINE_S, cwd=_REPOSITORY
    )


@pytest.fixture
def running(state_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`run` of a command that says it has begun and then sleeps."""
    started = subprocess.Popen(
        _command("run", "--state-dir", state_dir, "--", "sh", "-c", "echo begun; sleep 987"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=_REPOSITORY,
    )  # fmt: skip
    assert started.stdout and started.stdout.readline() == b"begun\n"
    yield started
    started.kill()
    started.communicate(timeout=_DEADLINE_S)


@pytest.mark.parametrize(
    ("script", "status", "out", "err"),
    [
        ("echo a; echo b >&2", 0, b"a\n", b"b\n"),
        ("exit 7", 7, b"", b""),
        ("kill -9 $$", 137, b"", b""),
        ("printf '\\377\\000'", 0, b"\xff\0", b""),
        ("head -c 3000000 /dev/zero | wc -c; (sleep 987 &) ; echo left", 0, b"3000000\nleft\n", b""),
    ],
)
def test_run_gives_output_and_status(script: str, status: int, out: bytes, err: bytes) -> None:
    done = _cli("run", "--", "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_run_passes_input_of_any_size() -> None:
    data = os.urandom(2_000_000)
    assert _cli("run", "--", "cat", stdin=data).stdout == data
    # A program that reads none of it does not hang the command.
    assert _cli("run", "--", "true", stdin=data).returncode == 0


def test_run_keeps_the_options_of_the_program() -> None:
    assert _cli("run", "printf", "%s.", "-n", "--", "--help").stdout == b"-n.--.--help."
    assert _cli("run", "--", "printf", "%s.", "-n", "--").stdout == b"-n.--."


def test_output_comes_as_it_is_written(running: subprocess.Popen[bytes]) -> None:
    assert running.poll() is None  # "begun" was read while the command still runs


def test_nothing_of_the_callers_environment_or_files_goes_in(tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "data").mkdir(parents=True)
    (layer / "data" / "x").write_text("layer\n")
    shown = tmp_path / "shown"
    shown.write_text("bound\n")
    tmp_path.chmod(0o755)
    done = _cli(
        "run", "--layer", layer, "--bind", f"{shown}:/opt/shown", "--env", "A=b c", "--env", "HOME=/data",
        "--workdir", "/data", "--", "sh", "-c",
        "cat x /opt/shown; echo $A $HOME; pwd; echo y > x; echo z > /opt/shown",
    )  # fmt: skip
    assert done.stdout == b"layer\nbound\nb c /data\n/data\n"
    assert b"Read-only" in done.stderr
    assert ((layer / "data" / "x").read_text(), shown.read_text()) == ("layer\n", "bound\n")
    done = _cli("run", "--", "env")
    assert os.environ.get("PYTEST_CURRENT_TEST", "?").encode() not in done.stdout


def test_diff_is_printed_or_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "f").write_text("one\n")
    arguments = ("run", "--layer", tmp_path, "--diff", "/work")
    edit = ("--", "sh", "-c", "echo two > /work/f; echo edited")
    done = _cli(*arguments, *edit)
    assert done.stdout.startswith(b"edited\ndiff --git a/f b/f\n") and b"\n-one\n+two\n" in done.stdout
    done = _cli(*arguments, "--diff-to", tmp_path / "patch", *edit)
    assert done.stdout == b"edited\n"
    assert "\n-one\n+two\n" in (tmp_path / "patch").read_text()


def test_upload_and_download(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f").write_text("hello\n")
    script = "tr a-z A-Z < /data/f > /data/g"
    done = _cli(
        "run", "--upload", f"{tmp_path / 'in'}:/data", "--download", f"/data:{tmp_path / 'out'}",
        "--", "sh", "-c", script,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out" / "g").read_text() == "HELLO\n"
    done = _cli("run", "--download", f"/none:{tmp_path / 'none'}", "--", "true")
    assert done.returncode == 125 and done.stderr.count(b"\n") == 1 and b"/none" in done.stderr


def test_timeout_is_124_and_leaves_nothing(state_dir: Path) -> None:
    done = _cli("run", "--state-dir", state_dir, "--timeout", "0.5", "--", "sh", "-c", "echo a; sleep 987")
    assert (done.returncode, done.stdout) == (124, b"a\n")
    assert done.stderr == b"minisandbox: timed out after 0.5 s\n"
    assert list(state_dir.iterdir()) == []


def test_limits_reach_the_sandbox() -> None:
    script = "ulimit -n; head -c 20000000 /dev/zero > /big"
    done = _cli("run", "--disk", "8M", "--open-files", "99", "--", "sh", "-c", script)
    assert done.stdout == b"99\n" and b"No space left" in done.stderr


def test_pipes_that_close_early_end_it_without_a_traceback() -> None:
    for arguments in ("run -- yes", "--help", "probe"):
        line = f"{' '.join(_command())} {arguments} | head -c 2 > /dev/null; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=_DEADLINE_S, cwd=_REPOSITORY)
        assert done.stderr == b""
        if arguments == "run -- yes":
            assert done.stdout == b"141\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_sandbox(
    number: signal.Signals, running: subprocess.Popen[bytes], state_dir: Path
) -> None:
    assert [len(owner.sandboxes) >= 1 for owner in live_owners(state_dir)] == [True]
    running.send_signal(number)
    out, err = running.communicate(timeout=_DEADLINE_S)
    assert (running.returncode, out, err) == (128 + number, b"", b"")
    assert list(state_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "COMMAND"),
        (("run",), "nothing to run"),
        (("run", "--layer", "/nonexistent", "--", "true"), "no such directory"),
        (("run", "--memory", "much", "--", "true"), "512M"),
        (("run", "--memory", "0", "--", "true"), "512M"),
        (("run", "--pids", "-1", "--", "true"), "whole number"),
        (("run", "--cpu-weight", "20000", "--", "true"), "10000"),
        (("run", "--timeout", "nan", "--", "true"), "seconds"),
        (("run", "--bind", "/usr", "--", "true"), "SRC:DST"),
        (("run", "--bind", "/usr:relative", "--", "true"), "absolute"),
        (("run", "--env", "=x", "--", "true"), "NAME=VALUE"),
        (("run", "--env", "NO_SUCH_VARIABLE_HERE", "--", "true"), "not set"),
        (("run", "--allow", "http://a.org", "--", "true"), "HOST"),
        (("run", "--network", "host", "--allow", "a.org", "--", "true"), "--network"),
        (("run", "--workdir", "x", "--", "true"), "absolute"),
        (("run", "--upload", "x", "--", "true"), "FROM:TO"),
        (("shell",), "terminal"),
        (("conformance", "exec_reports_exactly", "no_such"), "no_such"),
        (("nonsense",), "nonsense"),
        (("ls", "--nonsense"), "nonsense"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    arguments: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(arguments)
    except SystemExit as error:
        status = error.code
    out, err = capfd.readouterr()
    assert status == 2 and out == "" and err.count("\n") == 1
    assert err.startswith("minisandbox: ") and words in err


def test_a_start_that_fails_is_125_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no image\n")
    done = _cli("run", "--layer", tmp_path / "file", "--", "true")
    assert done.returncode == 125 and done.stderr.startswith(b"minisandbox: ")
    assert done.stderr.count(b"\n") == 1


def test_every_command_has_help() -> None:
    for name in ("run", "shell", "ls", "gc", "probe", "conformance"):
        done = _cli(name, "--help")
        assert done.returncode == 0 and done.stdout.startswith(b"usage: minisandbox " + name.encode())


def test_ls_shows_what_lives_and_gc_takes_what_died(
    running: subprocess.Popen[bytes], state_dir: Path
) -> None:
    done = _cli("ls", "--json", "--state-dir", state_dir)
    (owner,) = json.loads(done.stdout)
    assert owner["pid"] == running.pid and "sleep 987" in owner["command"]
    (sandbox,) = [each for each in owner["sandboxes"] if not each["spare"]]
    assert sandbox["processes"] == 3  # the first one, sh, sleep
    assert sandbox["memory_bytes"] > 100_000 and 0 <= sandbox["age_s"] < 600
    assert process.start_time(sandbox["pid"]) is not None
    shown = _cli("ls", "--state-dir", state_dir).stdout.decode()
    assert f"owner {running.pid} " in shown and f"pid {sandbox['pid']} " in shown
    # Its cgroups are shared with other runs of the tests, so it may well find something of theirs.
    done = _cli("gc", "--state-dir", state_dir)
    assert b" 0 directories" in done.stdout or b"nothing" in done.stdout
    assert process.start_time(sandbox["pid"]) is not None  # gc leaves the living alone
    os.kill(owner["helper_pid"], signal.SIGSTOP)
    running.kill()
    running.wait()
    assert json.loads(_cli("ls", "--json", "--state-dir", state_dir).stdout) == []
    done = _cli("gc", "--state-dir", state_dir)
    assert done.stdout.startswith(b"removed: 1 directories")
    deadline = time.monotonic() + _DEADLINE_S
    while process.start_time(sandbox["pid"]) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert list(state_dir.iterdir()) == []


def test_conformance_checks_what_it_is_asked_to(state_dir: Path) -> None:
    done = _cli("conformance", "--state-dir", state_dir, "exec_reports_exactly", "loopback_works")
    shown = done.stdout.decode().splitlines()
    assert done.returncode == 0 and shown[:2] == [
        "ok     exec_reports_exactly: as promised",
        "ok     loopback_works: as promised",
    ]
    assert len(shown) == 3 and shown[2].startswith("2 of 2 checks passed in ")
    assert list(state_dir.iterdir()) == []


def test_probe_tells_about_this_machine() -> None:
    findings = json.loads(_cli("probe", "--json").stdout)
    assert {"seccomp", "overlay"} <= {finding["name"] for finding in findings}
    shown = _cli("probe").stdout.decode()
    assert "\nmode " in shown and ", files by overlay\n" in shown
    assert shown.endswith("sandboxes can be opened here\n")
    assert all(finding["name"] in shown for finding in findings)


class _Terminal:
    """`shell` on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            _command("shell", *arguments), stdin=self.slave, stdout=self.slave, stderr=self.slave,
            cwd=_REPOSITORY, start_new_session=True,
            preexec_fn=lambda: termios.tcsetwinsize(0, (33, 77)),
        )  # fmt: skip
        self.seen = b""

    def expect(self, text: bytes) -> None:
        """Wait until it is shown; what was before it is forgotten."""
        deadline = time.monotonic() + _DEADLINE_S
        while text not in self.seen:
            ready, _, _ = select.select([self.master], [], [], 0.5)
            if ready:
                self.seen += os.read(self.master, 65536)
            assert time.monotonic() < deadline, self.seen
        self.seen = self.seen.partition(text)[2]

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def end(self) -> int:
        """Exit status; the terminal must be as it was."""
        deadline = time.monotonic() + _DEADLINE_S
        while self.process.poll() is None:
            ready, _, _ = select.select([self.master], [], [], 0.05)
            if ready:
                self.seen += os.read(self.master, 65536)
            assert time.monotonic() < deadline, self.seen
        assert termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def shell() -> Iterator[_Terminal]:
    terminal = _Terminal()
    terminal.expect(b"[sandbox] /# ")
    yield terminal
    terminal.close()


def test_shell_has_a_terminal_with_job_control(shell: _Terminal) -> None:
    shell.type(b"tty; stty size; echo T=$TERM\n")
    shell.expect(b"/dev/pts/0\r\n33 77\r\nT=")
    termios.tcsetwinsize(shell.slave, (44, 88))
    os.kill(shell.process.pid, signal.SIGWINCH)
    time.sleep(0.2)
    shell.type(b"stty size\n")
    shell.expect(b"44 88\r\n")
    shell.type(b"sleep 987\n")
    time.sleep(0.3)
    shell.type(b"\x1a")
    shell.expect(b"Stopped")
    shell.type(b"fg\n")
    time.sleep(0.2)
    shell.type(b"\x03")
    time.sleep(0.2)
    shell.type(b"echo status=$?\n")
    shell.expect(b"status=130")
    shell.type(b"exit 7\n")
    assert shell.end() == 7


def test_shell_ends_with_its_terminal_restored_when_signalled(shell: _Terminal) -> None:
    shell.process.send_signal(signal.SIGTERM)
    assert shell.end() == 143


def test_shell_cannot_type_into_the_users_terminal(shell: _Terminal) -> None:
    """TIOCSTI, the classic way; and the user's terminal is not even there."""
    code = "import fcntl,termios;[fcntl.ioctl(0,termios.TIOCSTI,bytes([b])) for b in b'echo pwned\\n']"
    shell.type(
        f'perl -e \'ioctl(STDIN, 0x5412, "x") or print "no: $!\\n"\' || python3 -c "{code}"\n'.encode()
    )
    shell.expect(b"no: ")
    shell.type(b"ls /dev/pts; cat /proc/self/mountinfo | grep -c devpts\n")
    shell.expect(b"0  ptmx\r\n1\r\n")
    shell.type(b"exit\n")
    assert shell.end() == 0
    ready, _, _ = select.select([shell.slave], [], [], 0.2)
    assert not ready  # nothing waits to be read by whoever owns the terminal now


def test_shell_runs_another_program() -> None:
    terminal = _Terminal("--env", "A=b", "--", "sh", "-c", "tty; echo $A; exit 3")
    terminal.expect(b"/dev/pts/0\r\nb\r\n")
    assert terminal.end() == 3
    terminal.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="all of the above already ran as an ordinary user")
def test_commands_as_an_ordinary_user() -> None:
    """Ids, files and `ls` of the user's own; `gc` and `probe` need no root."""
    with ordinary_user.home() as target:
        probed = ordinary_user.run(target, "-m", "sandbox", "probe")
        if probed.returncode == 3:
            pytest.skip(f"the kernel forbids it to ordinary users: {probed.stdout}")
        assert (probed.returncode, probed.stderr) == (0, "")
        layer = target / "tmp" / "layer"
        (layer / "work").mkdir(parents=True)
        (layer / "work" / "f").write_text("one\n")
        for path in (layer, layer / "work", layer / "work" / "f"):
            os.chown(path, ordinary_user.ORDINARY_ID, ordinary_user.ORDINARY_ID)
        script = "id -u; cat f; echo two > f; exit 7"
        done = ordinary_user.run(
            target, "-m", "sandbox", "run", "--layer", str(layer), "--workdir", "/work", "--diff", "/work",
            "--", "sh", "-c", script,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (7, "")
        assert done.stdout.startswith("0\none\n") and "\n-one\n+two\n" in done.stdout
        assert (layer / "work" / "f").read_text() == "one\n"
        sleeper = ("-m", "sandbox", "run", "--", "sh", "-c", "echo begun; sleep 987")
        with subprocess.Popen(ordinary_user.command(target, *sleeper), stdout=subprocess.PIPE) as started:
            assert started.stdout and started.stdout.readline() == b"begun\n"
            (owner,) = json.loads(ordinary_user.run(target, "-m", "sandbox", "ls", "--json").stdout)
            assert owner["pid"] == started.pid
            (seen,) = [each for each in owner["sandboxes"] if not each["spare"]]
            assert seen["processes"] == 3 and seen["memory_bytes"] > 100_000
            started.kill()
        done = ordinary_user.run(target, "-m", "sandbox", "gc")
        assert done.returncode == 0 and "1 directories" in done.stdout, (done.stdout, done.stderr)
