"""Commands of other harnesses in our terms: what runs the tests, and what is left of install steps."""

import pytest

from recipes.swe.datasets_build import has_old_pytest
from recipes.swe.datasets_commands import command_words, read_test_command, with_plugins
from recipes.swe.datasets_fields import FieldError
from recipes.swe.datasets_steps import conda_words, editable, requirements, split_system

SMITH = "source /opt/miniconda3/bin/activate; conda activate testbed; "


@pytest.mark.parametrize(
    ("text", "command", "runner"),
    [
        ("pytest -rA", "pytest", "pytest"),
        ("pytest --no-header -rA --tb=no -p no:cacheprovider", "pytest", "pytest"),
        ("pytest -rA -vv -o console_output_style=classic --tb=long", "pytest", "pytest"),
        (SMITH + "pytest --disable-warnings --color=no --tb=no --verbose", "pytest", "pytest"),
        (SMITH + "pytest test.py --verbose --color=no --tb=no", "pytest", "pytest"),
        (SMITH + "pytest --verbose -rs -c /dev/null", "pytest -c /dev/null", "pytest"),
        (SMITH + "pytest --color=no -rA -k", "pytest", "pytest"),
        ("python3.9 -m pytest -W ignore::X -q", "python -m pytest -W ignore::X", "pytest"),
        ("/root/.local/bin/uv run pytest --tb=no -n 4 -p xdist", "pytest -p xdist", "pytest"),
        ("pytest -m 'not slow' --runslow", "pytest -m 'not slow' --runslow", "pytest"),
        ("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1",
         "python tests/runtests.py --verbosity 2 --settings=test_sqlite", "django"),
        ("python manage.py test --parallel=4 --keepdb", "python manage.py test --keepdb", "django"),
        ("python -m unittest -v", "python -m unittest -v", "unittest"),
        ("PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
         "env PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning python bin/test -C --verbose", "log"),
        (SMITH + "python test.py --verbose", "python test.py --verbose", "log"),
        (SMITH + "python -m tornado.test --verbose", "python -m tornado.test --verbose", "log"),
        ("tox --current-env -epy39 -v --", "tox --current-env -epy39 -v --", "wrapped"),
        ("make test", "make test", "wrapped"),
        ("trial tests", "trial tests", "log"),
    ],
)  # fmt: skip
def test_who_runs_it(text: str, command: str, runner: str) -> None:
    found = read_test_command(text, log_format="unittest")
    assert (found.command, found.runner) == (command, runner)
    assert found.log_format == ("unittest" if runner == "log" else "")
    assert command_words(found.command)


def test_a_shell_line_is_wrapped_and_gets_its_targets() -> None:
    found = read_test_command("cd lib && pytest -rA", log_format="pytest")
    assert (found.runner, command_words(found.command)) == (
        "wrapped",
        ("bash", "-c", 'cd lib && pytest -rA "$@"', "bash"),
    )


def test_a_pytest_that_is_too_old_is_judged_by_its_output() -> None:
    found = read_test_command("pytest --tb=no", log_format="", old_pytest=True)
    assert (found.command, found.runner, found.log_format) == ("pytest --tb=no -rA", "log", "pytest")


@pytest.mark.parametrize(
    ("requirement", "old"),
    [
        ("pytest==3.3.1", True),
        ("pytest<6", True),
        ("pytest<6.0", True),
        ("pytest<6.2", False),
        ("pytest<=5.4.3", True),
        ("pytest==6.0.0", False),
        ("pytest<9", False),
        ("pytest>=3", False),
        ("pytest", False),
        ("pytest-cov==2.5", False),
    ],
)
def test_which_pytest_is_too_old(requirement: str, old: bool) -> None:
    assert has_old_pytest(["numpy==1.0", requirement]) == old


@pytest.mark.parametrize("text", ["", "  ", SMITH, "pytest 'x", "A=b"])
def test_no_command_is_told(text: str) -> None:
    with pytest.raises(FieldError, match=r"test command|split into words"):
        read_test_command(text, log_format="")


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("python -m pip install .", "python -m pip install -e ."),
        ("pip install .[test]", "pip install -e .[test]"),
        ("pip install -v --pre '.[dev,test]' && x", "pip install -v --pre -e '.[dev,test]' && x"),
        ("pip install -e .", "pip install -e ."),
        ("pip install -v --no-use-pep517 -e .", "pip install -v --no-use-pep517 -e ."),
        ("pip install -r requirements.txt", "pip install -r requirements.txt"),
        ("pip install ./sub", "pip install ./sub"),
        ("pip install .hidden", "pip install .hidden"),
        ("python setup.py install", "python -m pip install -e ."),
        ("python setup.py build; python setup.py install", "python -m pip install -e ."),
        ("make init", "make init"),
    ],
)  # fmt: skip
def test_the_repository_stays_in_use(command: str, left: str) -> None:
    assert editable(command) == left


def test_steps_of_root_are_taken_out_and_named() -> None:
    left, packages = split_system(
        [
            "apt-get update && apt-get install -y locales graphviz",
            "apt-get -y update && apt-get -y upgrade && DEBIAN_FRONTEND=none apt-get install -y ffmpeg",
            "echo 'en_US UTF-8' > /etc/locale.gen",
            "locale-gen en_US.UTF-8",
            "sed -i 's/a/b/' setup.py && apt install -y graphviz",
            "make all && make more",
        ]
    )
    assert left == ("sed -i 's/a/b/' setup.py", "make all && make more")
    assert packages == ("locales", "graphviz", "ffmpeg")


def test_requirements_of_several_steps_are_one_list() -> None:
    conda = conda_words("'numpy==1.19.2' scipy=1.5 mpmath flake8 'pandas<2.0.0'")
    assert conda == ("numpy==1.19.2", "scipy==1.5", "mpmath", "flake8", "pandas<2.0.0")
    assert requirements(
        conda, ["numpy", "mpmath==1.3.0", "Flake8>=3", "flake8_comprehensions", "# x", "-e ."]
    ) == (
        "numpy==1.19.2",
        "scipy==1.5",
        "mpmath==1.3.0",
        "Flake8>=3",
        "pandas<2.0.0",
        "flake8_comprehensions",
    )


def test_plugins_of_the_environment_are_named_once() -> None:
    found = ["xdist", "asyncio", "pytest_cov", "randomly", "pytest_mock", "asyncio"]
    assert with_plugins(("pytest",), "pytest", found) == (
        *("pytest", "-p", "asyncio", "-p", "pytest_cov", "--no-cov", "-p", "pytest_mock"),
        *("-p", "xdist", "-n0"),
    )
    assert with_plugins(("pytest", "-rA"), "log", ["asyncio"]) == ("pytest", "-rA", "-p", "asyncio")
    assert with_plugins(("python", "test.py"), "log", found) == ("python", "test.py")
    assert with_plugins(("tox",), "wrapped", found) == ("tox",)
