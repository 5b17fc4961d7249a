"""Makes the demo's starting policy: `python launch/make_policy.py`, a few minutes on two cores.

A small language model learns to speak the tool format from scripted demonstrations that run in sandboxes of
the tasks (`python launch/prepare.py` makes those first). A second run with the same inputs is done at once.

Exit status: 0 done, 1 failed, 2 the tasks, the agent's configuration or an argument are wrong, 3 no sandbox
can be opened on this machine, 130 interrupted.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

if sys.path and Path(sys.path[0] or ".").resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # launch/ itself there would shadow modules

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from launch.exit_codes import BAD_CONFIG, FAILED, INTERRUPTED, OK, UNUSABLE_MACHINE
from recipes.cpu.policy.demonstrations import DemonstrationError
from recipes.cpu.policy.make import Made, MakeSettings, finished, inputs_digest, make_policy, policy_folder
from recipes.cpu.policy.tokenizer import TokenizerMismatchError
from recipes.swe.agent import AgentConfig, AgentConfigError
from recipes.swe.tasks import LOCAL_TASKS, TaskFileError, load_rows
from sandbox.errors import CacheError, SandboxError, SandboxUnavailableError
from sandbox.mini import MiniBackend

ROOT = Path(__file__).resolve().parents[1]
WANTED_RATES = (0.15, 0.6)
"""Resolve rates before RL that leave GRPO something to tell apart in most groups."""


class _Bars:
    """Shows a bar for each stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._current: TaskID | None = None

    def stage(self, text: str, total: int) -> None:
        self._current = self._progress.add_task(text, total=total, detail="")

    def advance(self, detail: str = "") -> None:
        if self._current is not None:
            self._progress.update(self._current, advance=1, detail=detail)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=True)
    cache_dir: Path = arguments.cache_dir.resolve()
    settings = replace(MakeSettings(), seed=arguments.seed)
    folder = policy_folder(cache_dir)
    try:
        load_rows(cache_dir / LOCAL_TASKS)
        AgentConfig.load(arguments.agent)
        digest = inputs_digest(cache_dir / LOCAL_TASKS, arguments.agent, settings)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}-lock"):
            made = None if arguments.force else finished(folder, digest)
            made = made or _make(cache_dir, arguments.agent, settings, console)
    except (TaskFileError, AgentConfigError, OSError) as error:
        return _fail(console, error, BAD_CONFIG)
    except SandboxUnavailableError as error:
        return _fail(console, error, UNUSABLE_MACHINE)
    except CacheError as error:
        return _fail(console, error, BAD_CONFIG)
    except (SandboxError, DemonstrationError, TokenizerMismatchError) as error:
        return _fail(console, error, FAILED)
    except KeyboardInterrupt:
        console.print("interrupted; nothing was published", style="yellow")
        return INTERRUPTED
    _tell(made, console)
    return OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch/make_policy.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of demonstrations, weights and batches (default 0)"
    )
    parser.add_argument(
        "--cache-dir", type=Path, default=ROOT / ".cache", help="where tasks lie and policies go"
    )
    parser.add_argument(
        "--agent",
        type=Path,
        default=ROOT / "configs" / "agent" / "demo.yaml",
        help="configuration of the agent that the policy will be served to",
    )
    parser.add_argument("--force", action="store_true", help="make it again even when nothing changed")
    return parser


def _make(cache_dir: Path, agent: Path, settings: MakeSettings, console: Console) -> Made:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())

    async def run(bars: _Bars) -> Made:
        async with MiniBackend() as backend:
            return await make_policy(cache_dir, agent, settings, backend=backend, progress=bars)

    with Progress(*columns, TextColumn("{task.fields[detail]}"), console=console) as progress:
        return asyncio.run(run(_Bars(progress)))


def _tell(made: Made, console: Console) -> None:
    console.print(f"{made.folder} {'is made' if made.fresh else 'was made before from the same inputs'}")
    console.print(f"  {made.summary}", highlight=False)
    low, high = WANTED_RATES
    if not low <= made.resolve_rate <= high:
        console.print(
            f"  its resolve rate is outside {low}-{high}: training will show little; try another --seed",
            style="yellow",
        )


def _fail(console: Console, error: Exception, status: int) -> int:
    console.print(f"launch/make_policy.py: {error}", style="bold red", highlight=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    from launch.entry import run_command

    run_command(main)
