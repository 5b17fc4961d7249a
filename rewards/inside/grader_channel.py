"""What every runner inside the sandbox shares: signed reports, and watching the test framework's own code.

Copied to the sandbox; speaks Python 3.6 and later, without annotations. What it cannot do: hide from code
in the same process that walks frames or the heap.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import hashlib
import json
import operator
import os
import sys
import types


def make_send(handle, key):
    """A function that reports one event (a list of plain data) to the supervisor, signed and numbered.

    Everything it needs is bound here, so that patching json, hashlib or os changes nothing. A forked
    copy of this process is silent."""
    blake2b, dumps, write, getpid = hashlib.blake2b, json.JSONEncoder().encode, os.write, os.getpid
    owner, count = getpid(), [0]

    def send(*event):
        if getpid() != owner:
            return
        count[0] += 1
        body = dumps([count[0], event]).encode()
        frame = len(body).to_bytes(4, "big") + blake2b(body, key=key, digest_size=16).digest() + body
        while frame:
            frame = frame[write(handle, frame) :]

    return send


class Watch:
    """References to the functions of the test framework, to see whether code under test changed them.

    Compared after every test, so the comparison stays in C: about 0.1 ms."""

    def __init__(self, modules, package=None):
        """`modules` by name, and all modules of one package."""
        self.owners = []
        self.functions = []
        self.codes = []
        seen = set()
        for name, module in list(sys.modules.items()):
            if name not in modules and name.split(".", 1)[0] != package:
                continue
            self._add(module, name)
            for value in list(vars(module).values()):
                if not isinstance(value, type) or value in seen:
                    continue
                home = value.__module__
                if home in modules or home == name:
                    seen.add(value)
                    self._add(value, str(home) + "." + value.__qualname__)

    def _add(self, owner, label):
        names, members = [], []
        for name, member in list(vars(owner).items()):
            function = member
            if isinstance(member, (staticmethod, classmethod)):
                function = member.__func__
            elif isinstance(member, property):
                function = member.fget
            if callable(function):
                names.append(name)
                members.append(member)
                if isinstance(function, types.FunctionType):
                    self.functions.append(function)
                    self.codes.append(function.__code__)
        self.owners.append((vars(owner), names, members, label))

    def changed(self, same=operator.is_, code_of=operator.attrgetter("__code__")):
        """Names of what is no longer as it was."""
        found = []
        for members_now, names, members, label in self.owners:
            if not all(map(same, map(members_now.get, names), members)):
                found += [
                    label + "." + name
                    for name, member in zip(names, members)  # noqa: B905
                    if members_now.get(name) is not member
                ]
        if not all(map(same, map(code_of, self.functions), self.codes)):
            found += [
                function.__module__ + "." + function.__qualname__
                for function, code in zip(self.functions, self.codes)  # noqa: B905
                if function.__code__ is not code
            ]
        return found


class Done:
    """Tests that an earlier process has finished, by id and number of occurrences."""

    def __init__(self, counts):
        self.left = dict(counts)

    def take(self, test_id):
        """Whether this occurrence is finished already."""
        left = self.left.get(test_id, 0)
        if left:
            self.left[test_id] = left - 1
        return left > 0


def make_canary(function_name, module_name, takes_self):
    """A test that always fails."""
    left, right = len(function_name), len(function_name) + 1

    def function():
        assert left == right

    def method(self):
        assert left == right

    canary = method if takes_self else function
    canary.__name__ = canary.__qualname__ = function_name
    canary.__module__ = module_name
    return canary


def is_foreign(cls, module_name):
    """Whether a test class inherits from something that is neither its own module's nor the framework's."""
    known = (module_name, "builtins", "abc", "typing", "unittest", "_pytest")
    return any(
        base.__module__ != module_name and base.__module__.split(".", 1)[0] not in known
        for base in cls.__mro__
    )
