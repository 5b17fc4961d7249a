"""Test commands of the public data sets in our terms: which runner of `rewards.runners` runs the tests.

Reporting options are left out, since the signed runners read no output, and so are files: those follow from
the ids. Where nothing but an output exists (sympy's own runner, unittest programs, pytest before 6), the
runner is `log`. Pure functions over text.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from recipes.swe.datasets_fields import FieldError
from rewards.types import RunnerName

_ACTIVATE = re.compile(r"\A\s*source \S+activate\s*;\s*conda activate \S+\s*;\s*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_REPORTING = re.compile(
    r"-[rvq]\w*|-[xl]|-pno:cacheprovider|--(?:no-header|verbose|quiet|disable-warnings|disable-pytest-warnings|"
    r"showlocals|no-summary|exitfirst|lf|ff|no-cov|cov\S*|(?:tb|color|durations|junitxml|maxfail)=.*)"
)
_WITH_VALUE = frozenset(
    {"-p", "-o", "-c", "-k", "-m", "-W", "-n", "--tb", "--color", "--durations", "--maxfail"}
)
_VALUE_DROPPED = frozenset({"-k", "-n", "--tb", "--color", "--durations", "--maxfail"})
_OPTIONS_DROPPED = frozenset({("-p", "no:cacheprovider"), ("-o", "console_output_style=classic")})
_LAUNCHERS = frozenset({"uv", "poetry", "pdm", "hatch", "coverage", "xvfb-run"})
"""Programs that only find the environment; ours is on the path already."""
_WRAPPERS = frozenset({"tox", "nox", "make", "bash", "sh"})
_SHELL = re.compile(r"[;&|<>`$]|\A(?:cd|export|source)\b")


@dataclass(frozen=True, slots=True)
class TestCommand:
    """How tests are run."""

    __test__ = False

    command: str
    """Command line without ids."""
    runner: RunnerName
    """Who runs it."""
    log_format: str = ""
    """With runner `log`."""


def read_test_command(text: str, *, log_format: str, old_pytest: bool = False) -> TestCommand:
    """The runner for a data set's test command. `log_format`: the parser for commands that nothing but an
    output tells of; `old_pytest`: before 6, which the signed runner does not speak. Raises FieldError."""
    text = _ACTIVATE.sub("", text).strip()
    if not text:
        raise FieldError("no test command is known")
    if _SHELL.search(text):
        script = text + ' "$@"'
        return TestCommand(shlex.join(("bash", "-c", script, "bash")), "wrapped")
    words = split_words(text)
    assigned = 0
    while assigned < len(words) and _ASSIGNMENT.match(words[assigned]):
        assigned += 1
    variables, words = words[:assigned], words[assigned:]
    if not words:
        raise FieldError(f"the test command runs nothing: {text!r}")
    program = words[0].rsplit("/", 1)[-1]
    if program in _LAUNCHERS and "pytest" in words:
        words, program = words[words.index("pytest") :], "pytest"
    if program in ("pytest", "py.test"):
        return _pytest(("pytest",), words[1:], text, old_pytest)
    if program in _WRAPPERS | _LAUNCHERS:
        return TestCommand(shlex.join([*_env(variables), *words]), "wrapped")
    if program.startswith("python"):
        return _python(words[1:], variables, text, log_format, old_pytest)
    if program.endswith(".py") or "/" in words[0]:  # its first line may name an interpreter that is not there
        return _python(words, variables, text, log_format, old_pytest)
    return TestCommand(shlex.join([*_env(variables), *words]), "log", log_format)


def _python(words: list[str], variables: list[str], text: str, log_format: str, old: bool) -> TestCommand:
    """A command of Python: a module (`-m …`) or a script."""
    if words[:2] == ["-m", "pytest"]:
        return _pytest(("python", "-m", "pytest"), words[2:], text, old)
    if words[:2] == ["-m", "unittest"]:
        return TestCommand(shlex.join(("python", *words)), "unittest")
    if not words:
        raise FieldError(f"the test command runs nothing: {text!r}")
    script = words[0].removeprefix("./")
    if script.endswith(("runtests.py", "manage.py")):
        return TestCommand(shlex.join(("python", script, *_without_parallel(words[1:]))), "django")
    return TestCommand(shlex.join((*_env(variables), "python", script, *words[1:])), "log", log_format)


def _env(variables: Sequence[str]) -> tuple[str, ...]:
    return ("env", *variables) if variables else ()


def _pytest(head: Sequence[str], options: Sequence[str], text: str, old: bool) -> TestCommand:
    if old:
        return TestCommand(text if "-rA" in options else f"{text} -rA", "log", "pytest")
    return TestCommand(shlex.join((*head, *pytest_options(options))), "pytest")


def pytest_options(words: Sequence[str]) -> tuple[str, ...]:
    """Options that decide what tests do, not how they report."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in _WITH_VALUE:
            value = rest.pop(0) if rest else ""
            if word not in _VALUE_DROPPED and value and (word, value) not in _OPTIONS_DROPPED:
                kept += (word, value)
        elif word.startswith("-") and not _REPORTING.fullmatch(word):
            kept.append(word)
    return tuple(kept)


def _without_parallel(words: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--parallel":
            if rest and rest[0].isdigit():
                rest.pop(0)
        elif not word.startswith("--parallel="):
            kept.append(word)
    return tuple(kept)


def split_words(text: str) -> list[str]:
    """Words of a command line. Raises FieldError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FieldError(f"{text!r} cannot be split into words: {error}") from error


def command_words(command: str) -> tuple[str, ...]:
    """A BuildSpec's test command as `rewards.types.TestSpec` has it. Raises FieldError."""
    return tuple(split_words(command))


_PLUGIN_OPTIONS = {
    "xdist": ("-n0",),  # a project's own addopts may ask for workers, which the signed runner cannot watch
    "xdist.looponfail": None,
    "pytest_cov": ("--no-cov",),
    "rerunfailures": ("--reruns=0",),
    "randomly": None,  # another order each time
    "random_order": None,
    "sugar": None,
}
"""Plugins with options that keep them harmless; None: not loaded at all."""


def with_plugins(command: Sequence[str], runner: RunnerName, plugins: Sequence[str]) -> tuple[str, ...]:
    """The command with a `-p` for each pytest plugin of the environment, by the names of their entry points.
    Under the grader pytest looks for none by itself: what runs is what was found when it was built."""
    words = tuple(command)
    is_pytest = any(word.rsplit("/", 1)[-1] in ("pytest", "py.test") for word in words)
    if runner not in ("pytest", "log") or not is_pytest:
        return words
    more: list[str] = []
    for name in sorted(set(plugins)):
        options = _PLUGIN_OPTIONS.get(name, ())
        if options is not None:
            more += ("-p", name, *options)
    return (*words, *more)
