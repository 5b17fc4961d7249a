"""Comparison methods whose answer cannot depend on what they are compared with.

An object that equals everything passes every test that compares it. A method is reported when no value
it returns, and no condition on the way, is made from its argument. `__bool__` and `__hash__` are left
alone: constant ones are common in honest sentinel classes, and every object is true without help.
"""

import ast
from collections.abc import Iterator

COMPARISONS = frozenset(
    {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__"}
    | {"__instancecheck__", "__subclasscheck__", "__subclasshook__"}
)
BUILTINS = frozenset({"repr", "str", "bool", "id", "hash", "type", "callable", "truth", "len", "dir", "vars"})
"""As a comparison they answer with something true, or always the same."""
_SENTINELS = frozenset({"NotImplemented"})


def same_answers(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """(node, name) of every method, lambda or attribute that answers the same for every object."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name in COMPARISONS:
                if _ignores_argument(node):
                    yield node, node.name
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    name = _name(target)
                    if name in COMPARISONS and (_is_constant_function(value) or _name(value) in BUILTINS):
                        yield node, name
            case ast.Call(func=function, args=arguments) if _name(function) in ("setattr", "__setattr__"):
                texts = [argument for argument in arguments if isinstance(argument, ast.Constant)]
                for text in texts:
                    if text.value in COMPARISONS and any(map(_is_constant_function, arguments)):
                        yield node, str(text.value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if (
                        isinstance(key, ast.Constant)
                        and key.value in COMPARISONS
                        and _is_constant_function(value)
                    ):
                        yield node, str(key.value)
            case _:
                pass


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_constant_function(node: ast.AST) -> bool:
    """A lambda whose answer does not use its last argument (the others may be `self`)."""
    if not isinstance(node, ast.Lambda):
        return False
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    if node.args.vararg is not None:
        names.append(node.args.vararg.arg)
    return not names or not _mentions(node.body, {names[-1]})


def _ignores_argument(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    given = (*function.args.posonlyargs, *function.args.args)
    names = [argument.arg for argument in given]
    if function.args.vararg is not None:
        names.append(function.args.vararg.arg)
    if not names:
        return False
    known = _derived(function, {names[-1]})
    answers = 0
    for node in ast.walk(function):
        match node:
            case ast.Return(value=value) if value is not None and _name(value) not in _SENTINELS:
                answers += 1
                if _mentions(value, known) and not _trivial(value):
                    return False
            case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test) if not _trivial(test):
                if _mentions(test, known):
                    return False
            case ast.Match(subject=subject) if _mentions(subject, known):
                return False
            case ast.Try(body=body) if any(_mentions(part, known) for part in body):
                return False
            case ast.Yield() | ast.YieldFrom():
                return False
            case _:
                pass
    return answers > 0


def _derived(function: ast.AST, names: set[str]) -> set[str]:
    """The names and all that are given a value made from them."""
    known = set(names)
    flows = list(_flows(function))
    while reached := [made for made, source in flows if source & known]:
        flows = [flow for flow in flows if not flow[1] & known]
        known.update(*reached)
    return known


def _flows(function: ast.AST) -> Iterator[tuple[set[str], set[str]]]:
    """(names that are given a value, names that the value is made from)."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield {name for target in targets for name in _targets(target)}, _targets(value)
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield _targets(target), _targets(value)
            case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                yield _targets(target), _targets(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield _targets(target), _targets(value)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield _targets(target), _targets(value)
            case _:
                pass


def _targets(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(child, ast.Name) and child.id in names for child in ast.walk(node))


def _trivial(node: ast.expr) -> bool:
    """Expressions with one answer for any object: `x == x`, `isinstance(x, object)`, `... or True`."""
    match node:
        case ast.Compare(left=left, comparators=[right]) if ast.dump(left) == ast.dump(right):
            return True
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id="object")]):
            return True
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(isinstance(value, ast.Constant) and value.value is True for value in values)
        case _:
            return False
