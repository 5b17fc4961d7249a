"""What is sent into a sandbox to run tests there: the modules of `rewards.inside`, as one text.

They are compiled once per process of the grader. An interpreter of another kind than ours, told by the magic
number of its byte code, compiles the sources that travel beside them (about 15 ms). Nothing is written to the
sandbox, except for a wrapped command, whose own interpreters have to find our plugin.
"""

import base64
import functools
import importlib.util
import json
import marshal
from collections.abc import Mapping
from importlib import resources
from typing import Any

GRADER_DIR = "/opt/grader"
"""Where the runner claims to lie inside the sandbox, and the results do; nothing of the task is there."""
_COMMON = ("grader_channel", "grader_equal", "grader_sources")
PLUGIN_FILES = (*_COMMON, "grader_options", "grader_pytest", "grader_join")
"""Modules that a wrapped command's pytest imports from `GRADER_DIR`."""
_SUPERVISOR = ("grader_child", "grader_run")
_MODULES: Mapping[str, tuple[str, ...]] = {
    "pytest": (*_COMMON, "grader_options", "grader_pytest", *_SUPERVISOR),
    "unittest": (*_COMMON, "grader_unittest", *_SUPERVISOR),
    "wrapped": ("grader_channel", *_SUPERVISOR),
}
"""By kind of plan, each module after those that it imports."""
_MAGIC = importlib.util.MAGIC_NUMBER


@functools.cache
def program() -> str:
    """The text that the environment's interpreter is started with."""
    return source("grader_boot")


@functools.cache
def source(module: str) -> str:
    """Of one of our modules inside."""
    return resources.files("rewards").joinpath("inside", f"{module}.py").read_text("utf-8")


def standard_input(kind: str, key: bytes, request: Mapping[str, Any]) -> bytes:
    """What `program` reads: 64 characters of a key for the results, the modules, and the request."""
    return f'{key.hex()}{{"modules": {_modules(kind, _MAGIC)}, {json.dumps(request)[1:]}'.encode()


@functools.cache
def _modules(kind: str, magic: bytes) -> str:
    sources = {name: source(name) for name in _MODULES[kind]}
    codes = {
        name: compile(text, f"{GRADER_DIR}/{name}.py", "exec", dont_inherit=True, optimize=0)
        for name, text in sources.items()
    }
    code = base64.b64encode(marshal.dumps(codes)).decode()
    return json.dumps({"magic": magic.hex(), "folder": GRADER_DIR, "code": code, "sources": sources})
