"""The runners with signed results: pytest, unittest, Django's, and commands that run pytest inside.

Each turns a task's command and ids into a plan; `rewards.runners.signed` carries it out.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from rewards.errors import GraderError
from rewards.runners.base import RunOptions, TestRun, targets_of
from rewards.runners.signed import GRADER_DIR, Plan, run_signed
from rewards.types import GradingSandbox, TestSpec

TARGETS = "{targets}"
"""A word of a wrapped command that is replaced by the targets; without it they come last."""
_DOTTED = re.compile(r"[^\s()]+ \(([\w.]+)\)\Z")


@dataclass(frozen=True, slots=True)
class PytestCommand:
    """A pytest command taken apart."""

    python: str
    """The interpreter."""
    options: tuple[str, ...]
    """Words after pytest."""
    workdir_on_path: bool
    """As `python -m` does."""


def parse_command(command: Sequence[str]) -> PytestCommand:
    """Understands `python -m pytest …` and `pytest …`. Raises GraderError for anything else."""
    words = tuple(command)
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program.startswith("python") and words[1:3] == ("-m", "pytest"):
        return PytestCommand(python=words[0], options=words[3:], workdir_on_path=True)
    if program in ("pytest", "py.test"):
        return PytestCommand(python="python", options=words[1:], workdir_on_path=False)
    raise GraderError(f"test command {words!r} is not pytest", "task")


def files_of(test_ids: Sequence[str]) -> tuple[str, ...]:
    """The test files that pytest ids lie in, sorted."""
    return tuple(sorted({test_id.split("::", 1)[0] for test_id in test_ids}))


class PytestRunner:
    """`python -m pytest` or `pytest`, in one process of ours."""

    def targets(self, test_ids: Sequence[str]) -> tuple[str, ...]:
        return files_of(test_ids)

    async def run(self, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
        command = parse_command(tests.command)
        targets = targets_of(self, tests)
        plan = Plan(
            kind="pytest",
            python=command.python,
            targets=targets,
            must_exist=targets,
            request={"options": command.options, "workdir_on_path": command.workdir_on_path},
        )
        return await run_signed(plan, tests, sandbox, options)


class UnittestRunner:
    """`python -m unittest …`. Ids are `module.Class.test`, or as unittest prints them. Options of the command
    stay; with `discover` in it nothing is added, since that command finds its tests itself."""

    def targets(self, test_ids: Sequence[str]) -> tuple[str, ...]:
        return modules_of(test_ids)

    async def run(self, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
        words = tests.command
        if len(words) < 3 or words[1:3] != ("-m", "unittest"):
            raise GraderError(f"test command {words!r} is not unittest", "task")
        rest = words[3:]
        targets = () if "discover" in rest else targets_of(self, tests)
        plan = Plan(
            kind="unittest",
            python=words[0],
            targets=targets,
            must_exist=tuple(target for target in targets if target.endswith(".py")),
            request={"program": "-munittest", "words": (*rest, *targets)},
        )
        return await run_signed(plan, tests, sandbox, options)


class DjangoRunner:
    """`python manage.py test …` or `[python] tests/runtests.py …`, in one process: no parallel workers."""

    def targets(self, test_ids: Sequence[str]) -> tuple[str, ...]:
        return modules_of(test_ids)

    async def run(self, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
        python, program, rest = self._parts(tests.command)
        targets = targets_of(self, tests)
        words = (*rest, "--noinput", "--parallel=1", *targets)
        plan = Plan(
            kind="unittest",
            python=python,
            targets=targets,
            must_exist=(program,),
            request={"program": program, "words": words},
        )
        return await run_signed(plan, tests, sandbox, options)

    def _parts(self, words: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
        """Interpreter, program, and the rest without what is decided here."""
        python, rest = ("python", tuple(words)) if words[:1] and words[0].endswith(".py") else (
            words[0] if words else "", tuple(words[1:])
        )  # fmt: skip
        if not rest or not rest[0].endswith(".py"):
            raise GraderError(f"test command {tuple(words)!r} is not Django's", "task")
        kept: list[str] = []
        position = 1
        while position < len(rest):
            word = rest[position]
            if word == "--parallel":
                position += 1 + (position + 1 < len(rest) and rest[position + 1].isdigit())
                continue
            if word not in ("--failfast", "--noinput", "--no-input") and not word.startswith("--parallel="):
                kept.append(word)
            position += 1
        return python, rest[0].removeprefix("./"), tuple(kept)


class WrappedRunner:
    """tox, nox, make, a script: any command that runs pytest once, somewhere inside.

    Our plugin reaches that pytest by environment variables (tox is told to pass them on). What the command
    runs before pytest could ask for the report channel first: then pytest is refused, and nothing counts."""

    def targets(self, test_ids: Sequence[str]) -> tuple[str, ...]:
        return files_of(test_ids)

    async def run(self, tests: TestSpec, sandbox: GradingSandbox, options: RunOptions) -> TestRun:
        targets = targets_of(self, tests)
        argv: list[str] = []
        for word in tests.command:
            argv.extend(targets if word == TARGETS else (word,))
        if TARGETS not in tests.command:
            argv.extend(targets)
        quiet = "" if options.traceback else " --tb=no --assert=plain"
        names = "GRADER_CHANNEL,PYTEST_ADDOPTS,PYTEST_DISABLE_PLUGIN_AUTOLOAD,PYTHONPATH"
        env = {
            "PYTHONPATH": GRADER_DIR,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p grader_join -p no:cacheprovider --continue-on-collection-errors --maxfail=0"
            f" --color=no --rootdir={tests.workdir} --confcutdir={tests.workdir}{quiet}",
            "TOX_OVERRIDE": f"testenv.pass_env+={names}",
            "TOX_TESTENV_PASSENV": names.replace(",", " "),  # tox 3
        }
        plan = Plan(
            kind="wrapped",
            python="python",
            targets=targets,
            must_exist=targets,
            request={"argv": argv, "env": env, "channel": f"grader-{secrets.token_hex(8)}-"},
        )
        return await run_signed(plan, tests, sandbox, options)


def modules_of(test_ids: Sequence[str]) -> tuple[str, ...]:
    """Modules of unittest ids, `a.b.Class.test` or `test (a.b.Class)` or `test (a.b.Class.test)`.

    Raises GraderError for a docstring, which is all that Django prints of some tests: such tasks name their
    targets."""
    modules: set[str] = set()
    for test_id in test_ids:
        match = _DOTTED.match(test_id)
        name = test_id.split(" ", 1)[0]
        dotted = match[1].removesuffix(f".{name}") if match else test_id.rpartition(".")[0]
        module, dot, _ = dotted.rpartition(".")
        if not dot or not re.fullmatch(r"[\w.]+", dotted):
            raise GraderError(f"the id {test_id!r} names no module: give the task's targets", "task")
        modules.add(module)
    return tuple(sorted(modules))
