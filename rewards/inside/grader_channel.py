"""What every runner inside the sandbox shares: signed reports, and watching the test framework's own code.

Speaks Python 3.6 and later, without annotations. What it cannot do: hide from code
in the same process that walks frames or the heap.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import gc
import json
import operator
import os
import sys
import types

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL as well
except ImportError:
    from hashlib import blake2b


def make_send(handle, key):
    """A function that reports one event (a list of plain data) to the supervisor, signed and numbered.

    Everything it needs is bound here, so that patching json, hashlib or os changes nothing. A forked
    copy of this process is silent. An event with `hold` goes out with the next one, which must be near."""
    mac, dumps, write, getpid = blake2b, json.JSONEncoder().encode, os.write, os.getpid
    owner, count, held = getpid(), [0], []

    def send(*event, hold=False):
        if getpid() != owner:
            return
        count[0] += 1
        body = dumps([count[0], event]).encode()
        frame = len(body).to_bytes(4, "big") + mac(body, key=key, digest_size=16).digest() + body
        held.append(frame)
        if hold:
            return
        frame = b"".join(held)
        held.clear()
        while frame:
            frame = frame[write(handle, frame) :]

    return send


def announce(request, send):
    """Says that the runner is there, and that code of the project comes next. The text goes out from here: it
    must come before anything that this code prints."""
    os.write(1, (request.pop("started") + "\n").encode())
    send("ready")


class Watch:
    """References to the functions of the test framework, to see whether code under test changed them.

    Compared after every test, so the comparison stays in C: 0.15 ms for the 1,500 members that pytest has."""

    def __init__(self, modules, package=None):
        """`modules` by name, and all modules of one package."""
        self.dicts = []
        self.names = []
        self.members = []
        self.labels = []
        self.get = dict.get
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
        content = dict_of(owner)
        if type(content) is not dict:
            self.get = get_of_any
        for name, member in list(content.items()):
            function = member
            if isinstance(member, (staticmethod, classmethod)):
                function = member.__func__
            elif isinstance(member, property):
                function = member.fget
            if callable(function):
                self.dicts.append(content)
                self.names.append(name)
                self.members.append(member)
                self.labels.append(label + "." + name)
                if isinstance(function, types.FunctionType):
                    self.functions.append(function)
                    self.codes.append(function.__code__)

    def changed(
        self, same=operator.is_, code_of=operator.attrgetter("__code__"), every=all, each=map, pairs=zip
    ):
        """Names of what is no longer as it was."""
        found, get = [], self.get
        if not every(each(same, each(get, self.dicts, self.names), self.members)):
            found += [
                label
                for content, name, member, label in pairs(self.dicts, self.names, self.members, self.labels)
                if get(content, name) is not member
            ]
        if not every(each(same, each(code_of, self.functions), self.codes)):
            found += [
                function.__module__ + "." + function.__qualname__
                for function, code in pairs(self.functions, self.codes)
                if function.__code__ is not code
            ]
        return found


def dict_of(owner):
    """The dictionary behind a module or class; a class shows only a proxy of its own, slower to ask."""
    content = vars(owner)
    if isinstance(content, types.MappingProxyType):
        behind = gc.get_referents(content)
        return behind[0] if len(behind) == 1 and type(behind[0]) is dict else content
    return content


def get_of_any(content, name):
    """Of an interpreter that does not show the dictionaries of classes."""
    return content.get(name)


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
