"""Suspicions about code that an agent added: code that knows of the tests, or answers yes to everything.

Tests in the same process cannot exclude code that looks for them. This reads the patched files as
syntax trees, and reports only what lies on added lines, never comments or docstrings. It is a
filter against the common tricks, not a proof: what it looks for lies in `rewards.lint_rules`.
"""

import ast
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

from rewards.equality import same_answers
from rewards.fold import folded_text
from rewards.lint_rules import (
    ANY_ATTRIBUTES,
    ATTRIBUTES,
    GUARDED_MODULES,
    HARMLESS_SYS,
    HOOKS,
    MODULES,
    MOST_BYTES,
    MOST_LINES,
    NAMES,
    PROBES,
    STRINGS,
    WORDS,
)

_CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN_CODINGS = frozenset(
    {b"utf-8", b"utf8", b"ascii", b"us-ascii", b"latin-1", b"iso-8859-1", b"iso-8859-15"}
)


def find_suspicions(
    path: str, source: bytes, added_lines: Collection[int], test_names: Collection[str]
) -> tuple[str, ...]:
    """What is suspicious on the added lines of a Python file, in short sentences.

    `test_names` are the task's test functions and files, which product code has no reason to name.
    A file that this Python cannot parse may be one that another version can: its added lines are
    searched as text."""
    if too_much := _too_much(path, source, added_lines):
        return too_much
    odd = _odd_coding(path, source, added_lines)
    try:
        tree = ast.parse(source)
        return (*odd, *_search_tree(path, tree, _python_lines(source, added_lines), test_names))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return (*odd, *_search_text(path, source, added_lines, test_names))


def _search_tree(
    path: str, tree: ast.AST, lines: Sequence[int] | None, test_names: Collection[str]
) -> tuple[str, ...]:
    ignored, modules = _bare_strings(tree), _imported_modules(tree)
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if definition and _touched(first, first, lines) and HOOKS.match(node.name):
            found[f"{path}:{first}: added code defines {node.name}"] = None
        if id(node) in ignored or not first or definition or not _touched(first, last, lines):
            continue
        for what in _suspicious(node, test_names, modules):
            found[f"{path}:{first}: added code uses {what}"] = None
    for node, name in same_answers(tree):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        if _touched(first, last, lines):
            found[f"{path}:{first}: {name} gives the same answer for every object"] = None
    return tuple(found)


def _too_much(path: str, source: bytes, added_lines: Collection[int]) -> tuple[str, ...]:
    """More than a fix adds, and than can be searched while a verdict is waited for."""
    if len(added_lines) <= MOST_LINES:
        lines = source.split(b"\n")
        if sum(len(lines[number - 1]) for number in added_lines if number <= len(lines)) <= MOST_BYTES:
            return ()
    return (f"{path}: more code was added than can be searched",)


def _touched(first: int, last: int, lines: Sequence[int] | None) -> bool:
    """Whether one of the sorted lines lies in the range; None is all lines."""
    if lines is None:
        return True
    place = bisect_left(lines, first)
    return place < len(lines) and lines[place] <= last


def _python_lines(source: bytes, added_lines: Collection[int]) -> Sequence[int] | None:
    """The added lines as Python counts them, sorted; None, for all, where that differs from git's count.

    A lone CR ends a line for Python and not for git; a form feed ends one for neither."""
    return None if b"\r" in source.replace(b"\r\n", b"") else sorted(added_lines)


def _odd_coding(path: str, source: bytes, added_lines: Collection[int]) -> tuple[str, ...]:
    """A coding line other than the plain ones: text that looks like a comment may be code."""
    for number, line in enumerate(source.split(b"\n")[:2], start=1):
        match = _CODING.match(line)
        if match and number in added_lines and match[1].lower().replace(b"_", b"-") not in _PLAIN_CODINGS:
            return (f"{path}:{number}: added code uses the source coding {match[1].decode('latin-1')!r}",)
    return ()


def _search_text(
    path: str, source: bytes, added_lines: Collection[int], test_names: Collection[str]
) -> Iterator[str]:
    lines = source.decode("latin-1").split("\n")
    for number in sorted(added_lines):
        text = lines[number - 1] if 0 < number <= len(lines) else ""
        match = WORDS.search(text) or STRINGS.search(text)
        if match is not None:
            yield f"{path}:{number}: added code that cannot be parsed holds {match[0]!r}"
        elif any(name in text for name in test_names):
            yield f"{path}:{number}: added code that cannot be parsed names one of the task's tests"


def _bare_strings(tree: ast.AST) -> set[int]:
    """Docstrings and other strings that are statements: they do nothing."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _suspicious(node: ast.AST, test_names: Collection[str], modules: Mapping[str, str]) -> Iterator[str]:
    """What is suspicious about one node. `modules`: see `_imported_modules`."""
    match node:
        case ast.Import(names=names):
            yield from (f"the module {alias.name}" for alias in names if _root(alias.name) in MODULES)
        case ast.ImportFrom(module=str(module), names=names):
            yield from _import_from(module, [alias.name for alias in names])
        case ast.Attribute(attr=attribute) if attribute in ANY_ATTRIBUTES:
            yield attribute
        case ast.Attribute(value=value, attr=attribute):
            yield from _attribute(_module_of(value, modules), attribute)
            if attribute in GUARDED_MODULES and isinstance(value, ast.Name) and value.id in modules:
                yield f"{attribute} through another module"
        case ast.Name(id=name) if name in NAMES:
            yield name
        case ast.Call():
            yield from _call(node, modules)
        case ast.Constant() | ast.BinOp() | ast.JoinedStr() | ast.Subscript():
            yield from _text(folded_text(node), test_names)
        case _:
            return


def _root(module: str) -> str:
    return module.split(".", 1)[0]


def _import_from(module: str, names: Collection[str]) -> Iterator[str]:
    if _root(module) in MODULES:
        yield f"the module {module}"
        return
    for name in names:
        if f"{module}.{name}" in MODULES or name in GUARDED_MODULES:
            yield f"the module {name}"
        yield from _attribute(module, name)


def _attribute(module: str, attribute: str) -> Iterator[str]:
    if module == "sys" and attribute not in HARMLESS_SYS:
        yield f"sys.{attribute}"
    elif attribute in ATTRIBUTES.get(module, ()):
        yield f"{module}.{attribute}"


def _module_of(node: ast.AST, modules: Mapping[str, str]) -> str:
    """The module that an expression names: `sys`, `s` after `import sys as s`, `importlib.util`, `os.sys`."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute):
        if node.attr in GUARDED_MODULES:
            return node.attr
        outer = _module_of(node.value, modules)
        return f"{outer}.{node.attr}" if f"{outer}.{node.attr}" in ATTRIBUTES else ""
    return ""


def _call(node: ast.Call, modules: Mapping[str, str]) -> Iterator[str]:
    """Calls that reach a name or a module by its text, and guarded modules handed over as values."""
    function = node.func
    called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    if called == "import_module" and node.args:
        text = folded_text(node.args[0])
        if text is None:
            yield "a module by a computed name"
        elif _root(text) in MODULES | GUARDED_MODULES:
            yield f"the module {text}"
    yield from _text(folded_text(node), ())
    for position, argument in enumerate((*node.args, *(keyword.value for keyword in node.keywords))):
        module = modules.get(argument.id, "") if isinstance(argument, ast.Name) else ""
        if called in ("getattr", "hasattr") and position == 0 and module and len(node.args) > 1:
            name = folded_text(node.args[1])
            if name is not None:
                yield from _attribute(module, name)
                continue
        if module in GUARDED_MODULES:
            yield f"the module {module} as a value"
    if called in PROBES and len(node.args) > 1:
        name = folded_text(node.args[1])
        if name in ANY_ATTRIBUTES | NAMES:
            yield f"{name}"


def _text(text: str | None, test_names: Collection[str]) -> Iterator[str]:
    if text is None:
        return
    if (match := STRINGS.search(text)) is not None:
        yield f"the text {match[0]!r}"
    elif any(name in text for name in test_names):
        yield "the name of one of the task's tests"


def _imported_modules(tree: ast.AST) -> dict[str, str]:
    """Name in the file -> module (`import sys as s`, `from os import path`)."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or _root(alias.name)] = alias.name if alias.asname else _root(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names
