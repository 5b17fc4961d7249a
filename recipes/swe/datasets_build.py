"""From a profile's facts to a BuildSpec, and what all adapters share: sources, and targets of a test run."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from recipes.swe.dataset_types import BuildSpec, RepoSource
from recipes.swe.datasets_commands import read_test_command
from recipes.swe.datasets_fields import FieldError, hidden_test_files, text_of, unique, words_of
from recipes.swe.datasets_steps import conda_words, editable, requirements, split_system
from rewards.errors import GraderError
from rewards.logs import format_of_repo
from rewards.runners.python import modules_of

REMOTE = "https://github.com/{repo}"
"""Where the public data sets' commits are; `set: {source: …}` of an override names another place."""
FIRST_SIGNED_PYTEST = 6
USUAL_PYTEST = "pytest<9"
"""Where a data set's images hold one that its facts do not name; they were made before pytest 9."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PYTEST = re.compile(r"pytest\s*(==|<=|<|~=)\s*(\d+)([\d.]*)")


def git_source(repo: str, row: Mapping[str, Any], name: str = "base_commit") -> RepoSource:
    """A commit that the row names. Raises FieldError."""
    commit = text_of(row, name).strip().lower()
    if not _COMMIT.fullmatch(commit):
        raise FieldError(f"{name} is no full commit id: {commit!r}")
    return RepoSource("git", REMOTE.format(repo=repo), commit)


def spec_build(
    repo: str,
    spec: Mapping[str, Any],
    source: RepoSource,
    *,
    requirement_files: Iterable[str] = (),
    environment_files: Iterable[str] = (),
    pinned: Iterable[str] = (),
    log_format: str = "",
    with_pytest: bool = False,
) -> BuildSpec:
    """A build from facts in swebench's form (its registry, SWE-rebench's install_config). The files are
    alternatives: the first that exists. `pinned`: requirements that are known exactly; `log_format`: of the
    output, where that of the repository is not known; `with_pytest`: the facts leave out that it is there."""
    named = str(spec.get("packages") or "").strip()
    created = () if named in ("requirements.txt", "environment.yml") else conda_words(named)
    pip = words_of(spec.get("pip_packages"), "pip_packages")
    before, system = split_system(words_of(spec.get("pre_install"), "pre_install"))
    install, more_system = split_system(words_of(spec.get("install"), "install"))
    packages = requirements([USUAL_PYTEST] if with_pytest else (), created, pinned, pip)
    tests = read_test_command(
        str(spec.get("test_cmd") or ""),
        log_format=log_format or format_of_repo(repo),
        old_pytest=has_old_pytest(packages),
    )
    return BuildSpec(
        source=source,
        python=python_of(spec.get("python")),
        requirement_files=_first_of(requirement_files, "requirements.txt", named),
        environment_files=_first_of(environment_files, "environment.yml", named),
        packages=packages,
        pre_install=before,
        install=tuple(map(editable, install)),
        system_packages=unique((*system, *more_system)),
        test_command=tests.command,
        runner=tests.runner,
        log_format=tests.log_format,
    )


def _first_of(choices: Iterable[str], usual: str, named: str) -> tuple[str, ...]:
    """Files to install where the facts name `usual` in place of packages."""
    return ("|".join(choices) or usual,) if named == usual else ()


def unknown_build(source: RepoSource) -> BuildSpec:
    """A build of which no profile tells: overrides must at least say which Python, see `known`."""
    return BuildSpec(source, python="", install=("python -m pip install -e .",))


def known(build: BuildSpec, what: str) -> BuildSpec:
    """The build, if profile or override told how. Raises FieldError."""
    if not build.python:
        raise FieldError(f"no profile tells how {what} is built; say it by an override, or use a custom row")
    return build


def python_of(value: Any) -> str:
    """A version such as 3.9 or 3.9.18. Raises FieldError."""
    text = str(value or "").strip().removeprefix("python").strip()
    if not re.fullmatch(r"3\.\d+(?:\.\d+)?", text):
        raise FieldError(f"no version of Python: {value!r}")
    return text


def has_old_pytest(packages: Iterable[str]) -> bool:
    """Whether a requirement holds pytest below the version that the signed runner needs."""
    for package in packages:
        if match := _PYTEST.match(package):
            number, rest = int(match[2]), match[3].strip(".0")
            first = FIRST_SIGNED_PYTEST + (match[1] == "<" and not rest)
            return number < first
    return False


def run_targets(build: BuildSpec, test_patch: str, test_ids: Iterable[str]) -> tuple[str, ...]:
    """What a run must name beside its ids. For pytest nothing: ids hold their files. Modules for Django, as
    an id that is a docstring may be in any of the test patch; for sympy the test patch's files."""
    files = [path for path in hidden_test_files(test_patch) if path.endswith(".py")]
    if build.runner == "log":
        return tuple(files) if build.log_format == "sympy" else ()
    if build.runner not in ("django", "unittest"):
        return ()
    modules: set[str] = set()
    nameless = False
    for test_id in test_ids:
        try:
            modules.update(modules_of([test_id]))
        except GraderError:
            nameless = True
    if nameless:
        modules.update(_module_of(path) for path in files if "test" in path.rsplit("/", 1)[-1])
    return tuple(sorted(modules)) if nameless else ()


def _module_of(path: str) -> str:
    """As Django's runner names a file of its tests."""
    return path.removesuffix(".py").removeprefix("tests/").replace("/", ".")
