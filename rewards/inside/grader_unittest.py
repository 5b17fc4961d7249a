"""Runs unittest, or a runner built on it (Django's), in this process, reporting every test.

The command's own program is executed with `unittest.TextTestRunner.run` replaced: there the suite gets its
canaries (one failing test in every class, so that a tampered base class gives itself away), tests that are
finished already are left out, and results are reported. A test counts as passed only if its one outcome was
success and this file itself saw the test method return. Python 3.6 and later.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import functools
import inspect
import os
import runpy
import sys
import unittest
import unittest.util

from grader_channel import Done, Watch, announce, make_canary  # pyright: ignore
from grader_equal import is_from  # pyright: ignore
from grader_sources import Builtins, Sources  # pyright: ignore

WATCHED = (
    "unittest.case", "unittest.suite", "unittest.result", "unittest.runner", "unittest.loader",
    "unittest.async_case", "unittest.main",
)  # fmt: skip


class Reporter:
    """Sees every test of this process."""

    def __init__(self, request, send):
        self.send = send
        self.canary = "test_" + request["canary"]
        self.done = Done(request["done"])
        self.finished = False
        self.agree = True
        self.tampered = set()
        self.outcomes = None
        self.returned = 0
        self.failures = 0
        self.order = []
        self.changed = tuple
        self.builtins = Builtins()
        self.sources = Sources(request["workdir"], request["targets"], request["patched"]).install()

    def run(self, original, runner, suite):
        """Stands for `TextTestRunner.run`."""
        runner.failfast = False
        self.prepare(suite)
        if isinstance(runner.resultclass, type):
            runner.resultclass = self.result_class(runner.resultclass)
        self.failures = 0
        if self.order:
            self.send("begin", self.order[0])
        result = original(runner, suite)
        self.tampered.update(self.changed())
        self.send("idle")
        counted = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
        self.agree = self.agree and counted == self.failures
        self.finished = True
        return result

    def prepare(self, suite):
        """Puts in the canaries, takes out finished tests, and wraps every test method."""
        tests = list(flatten(suite))
        after = {}
        for place, test in enumerate(tests):
            cls = type(test)
            last = place + 1 == len(tests) or type(tests[place + 1]) is not cls
            if last and cls.__module__.split(".", 1)[0] not in ("unittest", "doctest"):
                after[id(test)] = self.make_canary_of(cls)
                if self.sources.patched and is_from(cls, self.sources.patched):
                    self.sources.problems.add("a test that the product made: " + cls.__qualname__)
        self.rebuild(suite, after)
        self.order = [test.id() for test in flatten(suite)]
        for test in flatten(suite):
            self.watch_call(test)

    def make_canary_of(self, cls):
        self.send("scope", unittest.util.strclass(cls) + ".")
        if self.canary not in vars(cls):
            setattr(cls, self.canary, make_canary(self.canary, cls.__module__, True))
        try:
            return cls(self.canary)
        except Exception:  # A class that cannot be made has no failing canary: its passes will not count.
            return None

    def rebuild(self, suite, after):
        tests = []
        for test in suite._tests:
            if isinstance(test, unittest.BaseTestSuite):
                self.rebuild(test, after)
                tests.append(test)
                continue
            if not self.done.take(test.id()):
                tests.append(test)
            canary = after.get(id(test))
            if canary is not None and not self.done.take(canary.id()):
                tests.append(canary)
        suite._tests = tests

    def watch_call(self, test):
        """Notes each return of the test method, in a function of the same kind as it."""
        name = getattr(test, "_testMethodName", None)
        method = getattr(test, name, None) if name else None
        if method is None:
            return
        self.sources.note(id(test), method)
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def call(*args, **kwargs):
                result = await method(*args, **kwargs)
                self.returned += 1
                return result

        else:

            @functools.wraps(method)
            def call(*args, **kwargs):
                result = method(*args, **kwargs)
                self.returned += 1
                return result

        try:
            setattr(test, name, call)
        except AttributeError:  # A class with slots: not seen to return, so never passed.
            return

    def check(self, test):
        """Whether the test and the built-in functions are still what they were."""
        self.tampered.update(self.builtins.changed())
        name = getattr(test, "_testMethodName", None)
        method = getattr(type(test), name, None) if name else None
        if method is not None and id(test) in self.sources.noted:
            module = sys.modules.get(type(test).__module__)
            self.sources.check(id(test), method, name, getattr(module, "__file__", None))

    def result_class(self, base):
        """A result that reports and otherwise is the runner's own."""
        reporter = self

        class Result(base):
            def startTest(self, test):  # noqa: N802
                reporter.outcomes, reporter.returned = [], 0
                reporter.check(test)
                reporter.send("begin", test.id())
                super().startTest(test)

            def stopTest(self, test):  # noqa: N802
                super().stopTest(test)
                reporter.tampered.update(reporter.changed())
                reporter.check(test)
                # Python 3.12.1 tells of a skipped test without starting it; `note` has reported it then.
                if reporter.outcomes is not None:
                    status = status_of(reporter.outcomes, reporter.returned)
                    reporter.send("end", test.id(), status, aliases(test))
                if reporter.order and reporter.order[0] == test.id():
                    reporter.order.pop(0)
                if reporter.order:
                    reporter.send("begin", reporter.order[0])
                reporter.outcomes = None

            def addSubTest(self, test, subtest, err):  # noqa: N802
                if err is not None:
                    kind = "failure" if issubclass(err[0], test.failureException) else "error"
                    reporter.note(kind, test)
                super().addSubTest(test, subtest, err)

        for name, kind in KINDS.items():
            setattr(Result, name, make_method(base, name, kind, reporter))
        return Result

    def note(self, kind, test):
        """One outcome; those of class and module fixtures come between tests."""
        self.failures += kind in ("failure", "error", "unexpected success")
        if self.outcomes is None or not hasattr(test, "_testMethodName"):
            if not hasattr(test, "test_case"):
                self.send("end", test.id(), "skipped" if kind == "skip" else "error", [])
            return
        self.outcomes.append(kind)


KINDS = {
    "addSuccess": "success",
    "addFailure": "failure",
    "addError": "error",
    "addSkip": "skip",
    "addExpectedFailure": "expected failure",
    "addUnexpectedSuccess": "unexpected success",
}


def make_method(base, name, kind, reporter):
    original = getattr(base, name)

    def method(self, test, *args):
        reporter.note(kind, test)
        return original(self, test, *args)

    method.__name__ = name
    return method


def status_of(outcomes, returned):
    """One word for the outcomes of one test."""
    if "failure" in outcomes:
        return "failed"
    if "error" in outcomes:
        return "error"
    for kind, status in (
        ("skip", "skipped"),
        ("expected failure", "xfailed"),
        ("unexpected success", "xpassed"),
    ):
        if kind in outcomes:
            return status
    return "passed" if outcomes == ["success"] and returned == 1 else "error"


def aliases(test):
    """Other names of a test: those that unittest and Django print, of this and earlier Python versions."""
    try:
        name, cls = test._testMethodName, unittest.util.strclass(type(test))
        names = [str(test), name + " (" + cls + ")", name + " (" + cls + "." + name + ")"]
        description = test.shortDescription()
    except Exception:  # Methods of the test class; it goes without other names.
        return []
    return names + ([description] if description else [])


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.BaseTestSuite):
            for inner in flatten(test):
                yield inner
        else:
            yield test


def run(request, send):
    """The whole of a process that runs the command; returns its exit status."""
    reporter = Reporter(request, send)
    if sys.version_info >= (3, 8):
        import unittest.async_case  # Loaded lazily otherwise, and then it would not be watched.
    original = unittest.TextTestRunner.run
    unittest.TextTestRunner.run = lambda runner, suite: reporter.run(original, runner, suite)
    reporter.changed = Watch(WATCHED).changed
    announce(request, send)
    program, words = request["program"], request["words"]
    try:
        if program.startswith("-m"):
            sys.path.insert(0, request["workdir"])
            sys.argv[:] = [program[2:], *words]
            runpy.run_module(program[2:], run_name="__main__", alter_sys=True)
        else:
            path = os.path.join(request["workdir"], program)
            sys.path.insert(0, os.path.dirname(path))
            sys.argv[:] = [path, *words]
            runpy.run_path(path, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
    send(
        "finish",
        int(status),
        reporter.finished and reporter.agree,
        sorted(reporter.tampered | reporter.sources.problems),
    )
    return int(status)
