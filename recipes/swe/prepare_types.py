"""Vocabulary of the prepare pipeline: what is asked for, and what became of each row. Plain data only."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recipes.swe.dataset_types import PrepareStatus
from sandbox.types import MIB, Limits

STATUSES: tuple[PrepareStatus, ...] = ("passed", "failed", "flaky", "build_error", "timeout", "bad_row")
TEST_LIMITS = Limits(memory_bytes=1024 * MIB, pids=256, disk_bytes=256 * MIB)


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How a task is validated."""

    repeats: int = 2
    """Runs in peace: each once without a patch and once with the gold patch."""
    stress_repeats: int = 1
    """More of them while every processor is kept busy."""
    stress_processes: int = 0
    """Busy processes of such a run; 0: two for each processor."""
    limits: Limits = TEST_LIMITS
    """Of a sandbox that runs tests; those of training."""


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """What to do with the rows of a data set."""

    name: str
    """Name of the set; its statuses and logs lie below `<cache>/prepare/<name>`."""
    cache_dir: Path
    """The cache (config paths.cache_dir)."""
    output: Path
    """JSONL file for the tasks that passed."""
    filter: str = ""
    """Only rows whose id or repository matches: a glob, or a regular expression after `re:`."""
    retry: tuple[str, ...] = ()
    """Ids (or globs of them) and statuses to do again."""
    force: bool = False
    """Do all again."""
    parallel_builds: int = 2
    """Environments built at once."""
    parallel_checks: int = 2
    """Tasks validated at once."""
    check: CheckSettings = field(default_factory=CheckSettings)
    """How tasks are validated."""


CALM = ":calm"
"""After the digest of the inputs: the runs in peace are done and passed, those under stress are not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row."""

    instance_id: str
    """Of the task, or the name of a bad row."""
    repo: str
    """Of the task; empty for a bad row."""
    status: PrepareStatus
    """See `dataset_types.PrepareStatus`."""
    reason: str
    """Why, in one line; empty when it passed."""
    inputs: str
    """Digest of all that was judged and how; a row that changed is done again."""
    lasting: bool = True
    """False when the machine, the network or the load is to blame: the next run tries again."""
    duration_s: float = 0.0
    """Wall time of its validation; of its build where that failed."""
    digest: str = ""
    """Of its environment, when one was built."""
    plugins: tuple[str, ...] = ()
    """pytest plugins of its environment."""
    row: str = ""
    """Digest of the row alone, however it was judged; empty for a bad row."""

    @property
    def settled(self) -> bool:
        """False for a task that passed in peace and has still to run under stress."""
        return not self.inputs.endswith(CALM)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that the person who watches may want to see."""

    kind: Literal["env", "calm", "task"]
    """An environment was built (or not), a task passed in peace and waits for stress, or a row is done."""
    name: str
    """Environment's key, or instance id."""
    status: str
    """`built`, `known` or a status."""
    reason: str = ""
    """Why it is not good."""
    known: bool = False
    """True when an earlier run had done it."""


type Watch = Callable[[Event], None]
