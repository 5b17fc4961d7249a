"""Options that describe a sandbox on the command line, and the `SandboxSpec` they stand for.

Everything is checked here, before anything is opened: a wrong option is one line and status 2.
"""

import argparse
import math
import os
import re
from pathlib import Path

from sandbox.allowlist import parse_rule
from sandbox.overlay import MODES
from sandbox.types import BindMount, Limits, SandboxSpec

_DEFAULT = Limits()
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class UsageError(Exception):
    """The user asked for something that makes no sense; the text says what to write instead."""


def size(text: str) -> int:
    """`512M`, `2G`, plain bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def seconds(text: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def count(text: str) -> int:
    """A positive whole number."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def layer(text: str) -> Path:
    """An existing directory or image."""
    path = Path(text).absolute()
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{text}: no such directory or image")
    return path


def bind(text: str) -> BindMount:
    """`SRC:DST` or `SRC:DST:rw`."""
    source, target, *mode = [*text.split(":"), ""][:4]
    if text.count(":") not in (1, 2) or mode[0] not in ("", "rw", "ro") or not target.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not SRC:DST or SRC:DST:rw with an absolute DST")
    return BindMount(layer(source), target, writable=mode[0] == "rw")


def variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE`, or `NAME` to pass the caller's own."""
    name, equals, value = text.partition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if not equals and name not in os.environ:
        raise argparse.ArgumentTypeError(f"{name} is not set here; write {name}=VALUE")
    return name, value if equals else os.environ[name]


def transfer(text: str) -> tuple[str, str]:
    """`FROM:TO`, whichever of the two is inside."""
    source, colon, target = text.partition(":")
    if not (source and colon and target):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO")
    return source, target


def allowed(text: str) -> str:
    """An entry of the allow-list."""
    try:
        parse_rule(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """Options of `run` and `shell`."""
    _add_files(parser)
    _add_network(parser)
    _add_limits(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is inside")
    text = "read-only files, topmost first; again for more (below all of them: this machine's /usr)"
    group.add_argument("--layer", type=layer, action="append", default=[], metavar="DIR_OR_IMAGE", help=text)
    text = "show a file or directory of this machine inside, read-only unless :rw"
    group.add_argument("--bind", type=bind, action="append", default=[], metavar="SRC:DST[:rw]", help=text)
    text = "a variable; nothing else of your environment goes in"
    group.add_argument("--env", type=variable, action="append", default=[], metavar="NAME[=VALUE]", help=text)
    text = "directory inside to start in (default: /)"
    group.add_argument("--workdir", default="/", metavar="DIR", help=text)
    text = "how the root is made of layers (default: the best that works here, see `probe`)"
    group.add_argument("--mode", choices=MODES, help=text)
    text = "where not even user namespaces are to be had: use Landlock, which is NO full sandbox"
    group.add_argument("--allow-weak", action="store_true", help=text)
    text = "where what is written goes (default: tmpfs, which counts as memory)"
    group.add_argument("--upper", choices=("tmpfs", "disk"), default="tmpfs", help=text)


def _add_network(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    text = "none: own loopback only (default); host: this machine's"
    group.add_argument("--network", choices=("none", "host"), default="none", help=text)
    text = (
        "a host that programs reach through a proxy all the same; *.DOMAIN for those below it; "
        "ports 80 and 443 unless given"
    )
    group.add_argument("--allow", type=allowed, action="append", default=[], metavar="HOST[:PORT]", help=text)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    text = "memory, with what lies in tmpfs (default: 2G)"
    add("--memory", type=size, default=_DEFAULT.memory_bytes, metavar="SIZE", help=text)
    text = "what may be written (default: 1G)"
    add("--disk", type=size, default=_DEFAULT.disk_bytes, metavar="SIZE", help=text)
    text = f"processes and threads (default: {_DEFAULT.pids})"
    add("--pids", type=count, default=_DEFAULT.pids, metavar="N", help=text)
    text = f"share of the processor against neighbours, 1-10000 (default: {_DEFAULT.cpu_weight})"
    add("--cpu-weight", type=count, default=_DEFAULT.cpu_weight, metavar="N", help=text)
    text = f"descriptors of one process (default: {_DEFAULT.open_files})"
    add("--open-files", type=count, default=_DEFAULT.open_files, metavar="N", help=text)
    text = "life of the sandbox (default: no limit)"
    add("--wall-time", type=seconds, metavar="SECONDS", help=text)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Further options of `run`."""
    text = "kill the command after this time (status 124)"
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help=text)
    text = "copy a file or directory in before the command"
    parser.add_argument(
        "--upload", type=transfer, action="append", default=[], metavar="HERE:INSIDE", help=text
    )
    text = "copy a file or directory out after it"
    parser.add_argument(
        "--download", type=transfer, action="append", default=[], metavar="INSIDE:HERE", help=text
    )
    text = "after the command print what changed below DIR, as a git patch"
    parser.add_argument("--diff", metavar="DIR", help=text)
    text = "write that patch to FILE instead"
    parser.add_argument("--diff-to", type=Path, metavar="FILE", help=text)
    add_command(parser, "what to run, after --")


def add_command(parser: argparse.ArgumentParser, text: str) -> None:
    """The rest of the command line, options of that program included."""
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD", help=text)


def command_of(options: argparse.Namespace) -> list[str]:
    """What to run, without the `--` that separates it; empty when nothing was given."""
    argv: list[str] = options.argv
    return argv[1:] if argv[:1] == ["--"] else argv


def spec_of(options: argparse.Namespace) -> SandboxSpec:
    """The sandbox that the options ask for."""
    if options.network == "host" and options.allow:
        raise UsageError("--allow is for --network none; with --network host everything is reachable")
    if not options.workdir.startswith("/"):
        raise UsageError(f"--workdir {options.workdir}: give an absolute directory")
    if options.cpu_weight > 10_000:
        raise UsageError(f"--cpu-weight {options.cpu_weight}: 1 to 10000")
    return SandboxSpec(
        layers=tuple(options.layer),
        binds=tuple(options.bind),
        env=dict(options.env),
        workdir=options.workdir,
        limits=Limits(
            memory_bytes=options.memory,
            pids=options.pids,
            disk_bytes=options.disk,
            open_files=options.open_files,
            cpu_weight=options.cpu_weight,
            wall_time_s=options.wall_time,
        ),
        network=options.network,
        allowed_hosts=tuple(options.allow),
        upper=options.upper,
    )
