"""Parsers of test logs, for tasks whose results exist only as output. Pure functions: text -> `ParsedLog`.

One per family of format, by name. `format_of_repo` says which the twelve repositories of SWE-bench need.
Compared with swebench's own parsers on recorded logs: see tests/rewards/crosscheck.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from rewards.errors import GraderError
from rewards.logs.base import ParsedLog
from rewards.logs.pytest_log import parse_pytest
from rewards.logs.sympy_log import parse_sympy
from rewards.logs.unittest_log import parse_unittest

__all__ = ["PARSERS", "ParsedLog", "format_of_repo", "parser_of"]

PARSERS: Mapping[str, Callable[[str], ParsedLog]] = MappingProxyType(
    {"pytest": parse_pytest, "unittest": parse_unittest, "django": parse_unittest, "sympy": parse_sympy}
)
_OWN_FORMAT = MappingProxyType({"django/django": "django", "sympy/sympy": "sympy"})


def parser_of(name: str) -> Callable[[str], ParsedLog]:
    """The parser of that name. Raises GraderError."""
    if name not in PARSERS:
        raise GraderError(f"no log parser is named {name!r}; there are {', '.join(PARSERS)}", "task")
    return PARSERS[name]


def format_of_repo(repo: str) -> str:
    """Name of the parser for the logs of a SWE-bench repository (`owner/name`)."""
    return _OWN_FORMAT.get(repo, "pytest")
