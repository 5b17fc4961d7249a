"""Runs test files with pytest inside a sandbox and writes a signed result for every test id.

Never imported by the package: `rewards.runner` copies this file into the sandbox and runs it with the
environment's own Python (3.8 or newer) and pytest (7 or newer). The request, with the key that signs
the results, comes by standard input; no code under test runs before it is read. A test counts as passed
only if its setup, call and teardown were reported as passed and this file itself saw its call return.
In every test module a canary with an unguessable name fails on purpose: a patched runner gives itself
away. What it cannot do: hide from code in the same process that walks frames or the heap.
"""

# pyright: basic
# It speaks with pytest of any version and with Python 3.8, so it goes without annotations.
import hashlib
import json
import operator
import os
import sys

WATCHED = (
    "_pytest.runner", "_pytest.reports", "_pytest.python", "_pytest.unittest", "_pytest.nodes",
    "_pytest.main", "_pytest.outcomes", "_pytest.skipping", "_pytest._code.code", "_pytest.fixtures",
    "_pytest.python_api", "_pytest.raises", "unittest.case",
)  # fmt: skip
"""Modules whose functions must not change while tests run, beside all of pluggy."""


class Watch:
    """References to the functions of the test runner, to see whether code under test changed them.

    Compared after every test, so the comparison stays in C: about 0.1 ms."""

    def __init__(self):
        self.owners = []
        self.functions = []
        self.codes = []
        seen = set()
        for name, module in list(sys.modules.items()):
            if name not in WATCHED and name.split(".", 1)[0] != "pluggy":
                continue
            self._add(module, name)
            for value in list(vars(module).values()):
                home = getattr(value, "__module__", None)
                if isinstance(value, type) and value not in seen and (home in WATCHED or home == name):
                    seen.add(value)
                    self._add(value, str(home) + "." + value.__qualname__)

    def _add(self, owner, label):
        names, members = [], []
        for name, member in list(vars(owner).items()):
            function = getattr(member, "__func__", getattr(member, "fget", member))
            if callable(function):
                names.append(name)
                members.append(member)
                if hasattr(function, "__code__"):
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


def make_plugin(pytest, canary):
    """The recording plugin; `canary` is the random part of the canaries' names."""

    def name_of_canary(config):
        pattern = config.getini("python_functions")[0]
        return pattern.replace("*", "_" + canary) if "*" in pattern else pattern + "_" + canary

    class ModuleWithCanary(pytest.Module):
        def collect(self):
            left, right = len(canary), len(canary) + 1

            def fails():
                assert left == right

            name = name_of_canary(self.config)
            fails.__name__ = fails.__qualname__ = name
            fails.__module__ = self.obj.__name__
            setattr(self.obj, name, fails)
            return super().collect()

    class Recorder:
        def __init__(self):
            self.reports = {}
            self.returned = {}
            self.failed_reports = 0
            self.tampered = set()
            self.finished = False
            self.session = None
            self.changed = tuple

        @pytest.hookimpl(trylast=True)
        def pytest_sessionstart(self, session):
            self.session = session
            self.changed = Watch().changed

        @pytest.hookimpl(tryfirst=True)
        def pytest_pycollect_makemodule(self, module_path, parent):
            return ModuleWithCanary.from_parent(parent, path=module_path)

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item):
            outcome = yield
            if outcome.excinfo is None:
                self.returned[item.nodeid] = self.returned.get(item.nodeid, 0) + 1
            self.tampered.update(self.changed())

        @pytest.hookimpl(tryfirst=True)
        def pytest_sessionfinish(self):
            # Not later: pytest itself undoes a few changes of its own when it shuts down.
            self.tampered.update(self.changed())
            self.finished = True

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report):
            expected = hasattr(report, "wasxfail")
            self.reports.setdefault(report.nodeid, []).append((report.when, report.outcome, expected))
            self.failed_reports += report.outcome == "failed" and not expected

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report):
            if report.outcome == "failed":
                self.failed_reports += 1
                self.reports.setdefault(report.nodeid, []).append(("setup", "failed", False))

    return Recorder()


def status_of(reports, returned):
    """One word for all reports of one id (an id that occurs twice passes if each occurrence does)."""
    if any(outcome == "failed" and when == "call" for when, outcome, _ in reports):
        return "failed"
    if any(outcome == "failed" for _, outcome, _ in reports):
        return "error"
    if any(expected for _, _, expected in reports):
        return "xpassed" if all(outcome == "passed" for _, outcome, _ in reports) else "xfailed"
    if any(outcome == "skipped" for _, outcome, _ in reports):
        return "skipped"
    phases = [when for when, _, _ in reports]
    times = phases.count("setup")
    calls = phases.count("call")
    if times and calls >= times == phases.count("teardown") and returned == times:
        return "passed"
    return "error"


def collect_results(recorder, canary, exit_status):
    """What the host wants to know, as plain data."""
    statuses, canaries = {}, {}
    for nodeid, reports in recorder.reports.items():
        status = status_of(reports, recorder.returned.get(nodeid, 0))
        if canary in nodeid:
            canaries.setdefault(nodeid.split("::", 1)[0], []).append(status)
        else:
            statuses[nodeid] = status
    session_failed = getattr(recorder.session, "testsfailed", -1)
    return {
        "statuses": statuses,
        "canaries": canaries,
        "exit_status": exit_status,
        "counts_agree": recorder.finished and session_failed == recorder.failed_reports,
        "tampered": sorted(recorder.tampered),
    }


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
        *request["files"],
    ]  # fmt: skip


def main():
    """Reads the request, runs pytest, writes the signed results, and ends without exit handlers."""
    request = json.loads(sys.stdin.buffer.read())
    key = bytes.fromhex(request.pop("key"))
    canary = request.pop("canary")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PYTHONPATH", "COV_"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    missing = [path for path in request["files"] if not os.access(path, os.F_OK)]
    if missing:
        text = "test files are missing: " + ", ".join(missing) + "\n"
        os.write(1, text.encode("utf-8", "surrogateescape"))
        os._exit(97)
    del sys.path[0]
    import pytest

    if request["workdir_on_path"]:
        sys.path.insert(0, request["workdir"])
    args = arguments(request)
    sys.argv[:] = ["pytest", *args]
    recorder = make_plugin(pytest, canary)
    sign, dump, write, leave = hashlib.blake2b, json.dumps, os.write, os._exit
    target = request["result"]
    write(1, (request["started"] + "\n").encode())
    status = int(pytest.main(args, plugins=[recorder]))
    sys.stdout.flush()
    sys.stderr.flush()
    data = dump(collect_results(recorder, canary, status)).encode()
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    payload = sign(data, key=key, digest_size=32).hexdigest().encode() + b"\n" + data
    while payload:
        payload = payload[write(handle, payload) :]
    os.close(handle)
    leave(status)


if __name__ == "__main__":
    main()
