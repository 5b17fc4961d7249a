"""Looks for objects that equal whatever they are compared with, where tests compare them.

Such an object passes any test, and there is no end of ways to write one. So the comparisons that trusted
test files assert are looked at while they run: each side whose class comes from a patched file is also
compared with values that it cannot equal. Only `assert a == b`, `assert a in b` and unittest's `assertEqual`
and the like, as statements. What it cannot see: an object that equals some wrong values and not these, or
one whose class poses well as that of another file. Python 3.6 and later.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import ast
import itertools
import os
import sys

NAME = "@same"
"""Of the function in the globals of test modules; no code can spell it."""
ASSERTIONS = frozenset((
    "assertEqual", "assertEquals", "assertSequenceEqual", "assertListEqual", "assertTupleEqual",
    "assertDictEqual", "assertSetEqual", "assertCountEqual", "assertItemsEqual", "assertMultiLineEqual",
    "assertAlmostEqual", "assertIn", "assert_equal", "eq_",
))  # fmt: skip
CONTAINERS = (list, tuple, dict, set, frozenset)
PLAIN = (object, int, bool, float, complex, str, bytes, bytearray, range, type(None)) + CONTAINERS
EQUALITIES = [cls.__eq__ for cls in PLAIN]
MOST = 2000
"""Values inside of one comparison that are looked at."""


def rewrite(tree):
    """The same tests, with a look at what they compare."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Assert):
            node.test = looked_at(node.test)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            look_at_arguments(node.value)
        else:
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                left.extend(getattr(node, field, ()))
    return tree


def looked_at(test):
    if isinstance(test, ast.BoolOp):
        test.values = [looked_at(value) for value in test.values]
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], (ast.Eq, ast.In)):
            kind = "==" if isinstance(test.ops[0], ast.Eq) else "in"
            return call(test, test.left, test.comparators[0], kind)
    return test


def look_at_arguments(node):
    name = getattr(node.func, "attr", getattr(node.func, "id", None))
    two = node.args[:2]
    if name in ASSERTIONS and len(two) == 2 and not any(isinstance(each, ast.Starred) for each in two):
        kind = "both in" if name == "assertIn" else "both"
        pair = ast.Starred(value=call(node, two[0], two[1], kind), ctx=ast.Load())
        node.args[:2] = [ast.copy_location(pair, node)]


def call(place, first, second, kind):
    function = ast.copy_location(ast.Name(id=NAME, ctx=ast.Load()), place)
    how = ast.copy_location(ast.parse(repr(kind), mode="eval").body, place)
    return ast.copy_location(ast.Call(func=function, args=[first, second, how], keywords=[]), place)


class Anything:
    """Equal to itself alone."""


class Looker:
    """Looks at comparisons. `patched` are real paths; `report` takes a sentence."""

    def __init__(self, patched, report):
        self.patched = patched
        self.report = report
        self.known = {}

    def is_patched(self, cls):
        # By its identity, since a metaclass decides what a class equals; kept, so that this stays its own.
        if id(cls) not in self.known:
            self.known[id(cls)] = (cls, cls not in PLAIN and is_from(cls, self.patched))
        return self.known[id(cls)][1]

    def inside(self, value):
        """What is to be asked: the value, or those in it when it compares as Python's own containers do."""
        found, left, seen = [], [value], 0
        while left and seen < MOST:
            value, seen = left.pop(), seen + 1
            cls = type(value)
            if has_own_equality(cls):
                if self.is_patched(cls):
                    found.append(value)
                continue
            for base in CONTAINERS:
                if issubclass(cls, base):
                    left.extend(itertools.islice(base.__iter__(value), MOST))
                    if base is dict:
                        left.extend(itertools.islice(dict.values(value), MOST))
        return found

    def ask(self, questions):
        """Compares each with values that it cannot equal."""
        for value, other, contains in questions:
            for sample in samples(other):
                try:
                    answer = bool(sample in value if contains else value == sample)
                except BaseException:  # Whatever the class does with a value that it does not know.
                    continue
                if answer:
                    self.report("an object equals anything: " + type(value).__name__)

    def same(self, first, second, kind):
        """Stands for a comparison, or with `both` gives back what is to be compared."""
        contains = kind.endswith("in")
        questions = [(value, second, False) for value in self.inside(first)]
        questions += [(value, first, False) for value in self.inside(second)]
        if contains and self.is_patched(type(second)):
            questions.append((second, first, True))
        # Some before and some after, so that nobody knows which comparison is the true one.
        for _ in range(number(3) + 1 if questions else 0):
            self.ask(questions)
        if kind.startswith("both"):
            return first, second
        result = first in second if contains else first == second
        self.ask(questions)
        return result


def number(limit, urandom=os.urandom):
    """Random; the tests' own random numbers stay as they are."""
    return int.from_bytes(urandom(8), "big") % limit


def samples(other):
    """Values that what equals `other` cannot equal as well: one that nobody knows, and some of its kind, near
    and far."""
    yield Anything()
    text = "%x" % number(1 << 62)
    if isinstance(other, bool):
        yield not other
    elif isinstance(other, (int, float)):
        yield other + 1 + number(3)
        yield other * 3 + number(1 << 30) + 1000
    elif isinstance(other, str):
        yield str(other)[:-1] + chr(0x4E00 + number(20000))
        yield str(other) + text
    elif isinstance(other, bytes):
        yield bytes(other) + text.encode()
    elif isinstance(other, (list, tuple)):
        yield (list if isinstance(other, list) else tuple)([Anything()] * max(len(other), 1))
    elif isinstance(other, dict):
        yield {text: None}


def has_own_equality(cls):
    """Whether a class compares in another way than the types of Python that hold or are plain values."""
    method = type.__getattribute__(cls, "__eq__")
    return not any(method is other for other in EQUALITIES)


def is_from(cls, patched):
    """Whether a class may come from a patched file; one that is not found where it says it is from may."""
    # Asked of the type of types: a metaclass may tell something else.
    if not type.__dict__["__flags__"].__get__(cls) & 1 << 9:  # Py_TPFLAGS_HEAPTYPE: of a class statement.
        return False
    found = module = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    path = getattr(module, "__file__", None)
    if found is not cls or path is None or os.path.realpath(path) in patched:
        return True
    code = getattr(type.__getattribute__(cls, "__eq__"), "__code__", None)
    return code is not None and os.path.realpath(code.co_filename) in patched
