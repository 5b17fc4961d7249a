"""Runs test files with pytest in this process, reporting every test.

A test counts as passed only if its setup, call and teardown were reported as passed and this file itself saw
its call return. In every module, and in every class that inherits from elsewhere, a canary with a random
name fails on purpose: a patched runner or base class gives itself away. Python 3.6, pytest 6 and later.
"""

# pyright: basic, reportRedeclaration=false, reportArgumentType=false, reportAttributeAccessIssue=false
import functools
import importlib
import importlib.util
import inspect
import os
import sys

from grader_channel import Done, Watch, announce, is_foreign, make_canary  # pyright: ignore
from grader_options import settle  # pyright: ignore
from grader_sources import Builtins, Sources  # pyright: ignore

WATCHED = (
    "_pytest.runner", "_pytest.reports", "_pytest.python", "_pytest.unittest", "_pytest.nodes",
    "_pytest.main", "_pytest.outcomes", "_pytest.skipping", "_pytest._code.code", "_pytest.fixtures",
    "_pytest.python_api", "_pytest.raises", "unittest.case", "pytest",
)  # fmt: skip
"""Modules whose functions must not change while tests run, beside all of pluggy."""


def status_of(reports, returned):
    """One word for the reports of one test."""
    if any(outcome == "failed" and when == "call" for when, outcome, _ in reports):
        return "failed"
    if any(outcome == "failed" for _, outcome, _ in reports):
        return "error"
    if any(expected for _, _, expected in reports):
        return "xpassed" if all(outcome == "passed" for _, outcome, _ in reports) else "xfailed"
    if any(outcome == "skipped" for _, outcome, _ in reports):
        return "skipped"
    phases = [when for when, _, _ in reports]
    if phases.count("setup") == phases.count("teardown") == returned == 1 and phases.count("call") >= 1:
        return "passed"
    return "error"


def count_calls(item):
    """Has the test function itself tell of each return, since a hook may stand for the call. A list with the
    function and an item for each return; None for tests that somebody else has to run."""
    function = getattr(item, "obj", None)
    if not inspect.isroutine(function) or inspect.isbuiltin(function):
        return None
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        return None
    if inspect.isasyncgenfunction(function) or not hasattr(item, "fixturenames"):
        return None
    calls = [function]

    @functools.wraps(function)
    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        calls.append(True)
        return result

    item.obj = call
    return calls


class Before:
    """What has to be known before any code of the project runs, and that is before the first conftest.py."""

    def __init__(self, root, targets=(), patched=()):
        for name in WATCHED:
            try:
                importlib.import_module(name)
            except ImportError:  # Not in every version.
                continue
        self.watch = Watch(WATCHED, "pluggy")
        self.builtins = Builtins()
        self.sources = Sources(root, targets, patched).install()


def spare_collections(config):
    """pytest 8.4 looks for unreachable objects five times when all tests are over. That tells nothing of a
    test and takes 20 to 40 ms; pytest's own tests of runs in one process leave it out in this way."""
    try:
        from _pytest.unraisableexception import gc_collect_iterations_key
    except ImportError:
        return
    config.stash[gc_collect_iterations_key] = 0


def make_plugin(pytest, request, send, before):
    """The reporting plugin."""
    sources = before.sources
    canary, done, dead_files = request["canary"], Done(request["done"]), set(request["dead_files"])

    def name_of_canary(config):
        pattern = config.getini("python_functions")[0]
        return pattern.replace("*", "_" + canary) if "*" in pattern else pattern + "_" + canary

    class ModuleWithCanary(pytest.Module):
        def collect(self):
            if self.nodeid in dead_files:
                return []
            name = name_of_canary(self.config)
            if self.config.getoption("assertmode", "") == "plain":  # Otherwise pytest's own loader is used.
                sources.check_module(self.obj, str(self.fspath))
            setattr(self.obj, name, make_canary(name, self.obj.__name__, False))
            send("scope", self.nodeid + "::")
            return super().collect()

    class Recorder:
        def __init__(self):
            self.reports = []
            self.returned = 0
            self.failed_reports = 0
            self.tampered = set()
            self.finished = False
            self.session = None
            self.changed = before.watch.changed
            self.builtins = before.builtins

        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config, args):
            settle(early_config, args)

        @pytest.hookimpl(trylast=True)
        def pytest_sessionstart(self, session):
            self.session = session
            spare_collections(session.config)

        if int(pytest.__version__.split(".", 1)[0]) >= 7:

            @pytest.hookimpl(tryfirst=True)
            def pytest_pycollect_makemodule(self, module_path, parent):
                return ModuleWithCanary.from_parent(parent, path=module_path)

        else:

            @pytest.hookimpl(tryfirst=True)
            def pytest_pycollect_makemodule(self, path, parent):
                return ModuleWithCanary.from_parent(parent, fspath=path)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_pycollect_makeitem(self, collector, name, obj):
            outcome = yield
            if inspect.isclass(obj) and isinstance(outcome.get_result(), pytest.Class):
                if is_foreign(obj, obj.__module__):
                    is_unittest = issubclass(obj, getattr(sys.modules.get("unittest"), "TestCase", ()))
                    text = "test_" + canary if is_unittest else name_of_canary(collector.config)
                    setattr(obj, text, make_canary(text, obj.__module__, True))
                    send("scope", outcome.get_result().nodeid + "::")

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_make_collect_report(self, collector):
            if isinstance(collector, pytest.File):
                send("load", collector.nodeid)
            yield
            if isinstance(collector, pytest.File):
                send("idle")

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, config, items):
            kept = [item for item in items if not done.take(item.nodeid)]
            if len(kept) != len(items):
                items[:] = kept
            for item in items:
                sources.note(item, getattr(item, "obj", None))

        def check(self, item):
            """Whether the test is still what was collected."""
            name = getattr(item, "originalname", None) or item.name
            sources.check(item, getattr(item, "obj", None), name, str(item.fspath))
            if {"runtest", "setup", "teardown"}.intersection(vars(item)):
                sources.problems.add("the test function was replaced: " + name)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item):
            self.reports, self.returned = [], 0
            send("begin", item.nodeid)
            self.tampered.update(self.builtins.changed())
            yield
            self.tampered.update(self.builtins.changed())
            # The next test begins at once; after the last one the session's end sends it.
            send("end", item.nodeid, status_of(self.reports, self.returned), hold=True)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item):
            self.check(item)
            calls = count_calls(item)
            outcome = yield
            if calls is not None:
                item.obj = calls.pop(0)
            self.check(item)
            if outcome.excinfo is None and (calls is None or calls):
                self.returned += 1
            self.tampered.update(self.changed())

        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish(self):
            send("idle")
            # Not later: pytest itself undoes a few changes of its own when it shuts down.
            self.tampered.update(self.changed())
            self.finished = True

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            expected = hasattr(report, "wasxfail")
            self.reports.append((report.when, report.outcome, expected))
            self.failed_reports += report.outcome == "failed" and not expected

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.outcome == "failed":
                self.failed_reports += 1
                send("end", report.nodeid, "error")

        def finish(self, status):
            failed = getattr(self.session, "testsfailed", -1)
            agree = self.finished and failed == self.failed_reports
            send("finish", status, agree, sorted(self.tampered | sources.problems))

    return Recorder()


def arguments(request):
    """Command line of pytest; later options win over the project's own `addopts`."""
    return [
        "--rootdir=" + request["workdir"],
        "--confcutdir=" + request["workdir"],
        *request["options"],
        "-p", "no:cacheprovider",
        "--continue-on-collection-errors",
        "--maxfail=0",
        "--color=no",
        *([] if request["traceback"] else ["--tb=no", "-q", "--assert=plain"]),
        *request["targets"],
    ]  # fmt: skip


def pose():
    """`__main__` becomes that of `python -m pytest`: what tests start by `spawn` looks at it, to load it
    again or not."""
    spec = importlib.util.find_spec("pytest.__main__")
    if spec is None:  # Before pytest 5.4.
        return
    main = importlib.util.module_from_spec(spec)
    main.__name__ = "__main__"
    sys.modules["__main__"] = main


def run(request, send):
    """The whole of a process that runs pytest; returns its exit status."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    if request["workdir_on_path"]:
        sys.path.insert(0, request["workdir"])
    args = arguments(request)
    sys.argv[:] = ["pytest", *args]
    before = Before(request["workdir"], request["targets"], request["patched"])
    recorder = make_plugin(pytest, request, send, before)
    pose()
    announce(request, send)
    status = int(pytest.main(args, plugins=[recorder]))
    recorder.finish(status)
    return status
