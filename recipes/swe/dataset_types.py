"""What a data set's row says, whatever data set it comes from: the task, its source, and how to build it.

Adapters (`recipes.swe.datasets`) turn rows into `SourceTask`s; the prepare pipeline builds, validates and
exports them. Plain data only: nothing here reads a file or knows a data set.
"""

from dataclasses import dataclass
from typing import Literal

from rewards.types import RunnerName

PrepareStatus = Literal["passed", "failed", "flaky", "build_error", "timeout", "bad_row"]
"""What became of a row. `bad_row`: it cannot even be read."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot become a task."""

    row_id: str
    """Its id, or `row N` when it has none."""
    position: int
    """Number of the row in its data set, from 0."""
    reason: str
    """One line for a person."""


@dataclass(frozen=True, slots=True)
class RepoSource:
    """Where the repository's files come from."""

    kind: Literal["git", "sdist", "dir"]
    """`git`: a commit of a remote; `sdist`: a source distribution of the package index; `dir`: a folder."""
    location: str
    """URL of the remote, `name==version` on the index, or a path."""
    revision: str = ""
    """Full commit of `git`; sha256 of the sdist's file; empty for `dir`."""


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """How an environment is built and how its tests are run."""

    source: RepoSource
    """The repository before any patch of a task."""
    python: str
    """Version of the interpreter, for example 3.9; a full version pins the patch release."""
    requirement_files: tuple[str, ...] = ()
    """Requirement files in the repository, relative to its root, installed first. `a|b` means the first of
    them that is there. Lines that name the repository itself (`-e .`, `.[test]`) are left out."""
    environment_files: tuple[str, ...] = ()
    """Conda environment files in the repository, in the same way: their dependencies are taken from the
    package index under the same names, without python and what is no Python package."""
    packages: tuple[str, ...] = ()
    """Requirements to install next, best pinned; they may replace what the files above chose."""
    pre_install: tuple[str, ...] = ()
    """Shell commands in the repository, one script under `set -e`, between the packages and `install`."""
    install: tuple[str, ...] = ()
    """Shell commands that install the repository itself, one script under `set -e`."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables for all of these commands."""
    python_path: tuple[str, ...] = ()
    """Directories (absolute, inside) that the venv puts on sys.path, to use the repository in place."""
    system_packages: tuple[str, ...] = ()
    """Debian packages it wants; reported when missing, never installed."""
    test_command: str = "python -m pytest"
    """Command line of the tests, without ids."""
    runner: RunnerName = "pytest"
    """Who runs them, see `rewards.types`."""
    log_format: str = ""
    """With runner `log`: name of a parser of `rewards.logs`."""
    plugins: bool = True
    """Whether pytest plugins that the environment holds are loaded. The grader loads none by itself, so the
    builder lists them once and `datasets_commands.with_plugins` names them in the test command."""
    lint: bool = True
    """Whether patches are searched for code that knows of its tests, see `rewards.types`."""


@dataclass(frozen=True, slots=True)
class SourceTask:
    """One row of a data set."""

    instance_id: str
    """Unique in its data set."""
    repo: str
    """As in the row."""
    problem_statement: str
    """What the agent is told."""
    env_key: str
    """Tasks with the same key share interpreter, venv and repository layers."""
    build: BuildSpec
    """How the environment is made."""
    start_patch: str
    """Applied to the source to make what the agent starts from: the bug of SWE-smith; empty elsewhere."""
    gold_patch: str
    """Fixes it; relative to what the agent starts from."""
    test_patch: str
    """Applied by the grader only; empty when the tests are in the repository already."""
    fail_to_pass: tuple[str, ...]
    """Exact ids of tests that fail before and pass after the fix."""
    pass_to_pass: tuple[str, ...]
    """Exact ids of tests that pass before and after."""
    targets: tuple[str, ...] = ()
    """What to run, see `rewards.types`; empty: what the ids name."""
    image_name: str = ""
    """Container image of the data set, noted only: bug and repository are not in it as a task needs them."""
    timeout_s: float = 300.0
    """Wall-clock limit of one test run."""
