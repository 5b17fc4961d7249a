"""The benchmark's arithmetic: medians, bounds, and that nothing unmeasured counts as met."""

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import report
from benchmarks.report import Result

ROOT = Path(__file__).resolve().parents[2]


def result(name: str, start_ms: float, *, cpu_ms: float = 1.0, rate: float = 1.0, **facts: str) -> Result:
    return Result(
        name, f"what {name} is", start_ms=[start_ms] * 3, teardown_ms=[start_ms / 4] * 3, cpu_ms=[cpu_ms],
        rates={32: [rate]}, correct={32: (32, 32)}, **facts,
    )  # fmt: skip


def everything() -> list[Result]:
    return [
        result("floor", 4.0),
        result("mini", 8.0, cpu_ms=10.0, rate=200.0),
        result("mini-pool", 5.0, rate=300.0),
        result("bwrap", 20.0),
        result("crun", 60.0),
        result("podman", 300.0, rate=4.0),
        result("paper", 14_000.0, cpu_ms=13_000.0),
    ]


def met(results: list[Result], extra: dict[str, object] | None = None) -> dict[str, bool | None]:
    return {target.name: target.met for target in report.targets(results, extra or {})}


def test_summary_is_median_and_nearest_rank():
    summary = report.summarize([5.0, 1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 100.0])
    assert summary == report.Summary(5.5, 9.0, 10)
    assert report.summarize([7.0]) == report.Summary(7.0, 7.0, 1)
    assert report.summarize([]) is None


def test_bounds_on_both_sides():
    found = met(everything())
    assert found["start: mini faster than podman"] is True  # 37.5
    assert found["start: mini faster than crun"] is True  # 7.5
    assert found["start: mini faster than bwrap"] is True  # 2.5
    assert found["start: mini against the floor"] is True  # 2.0
    assert found["start: mini-pool faster than podman"] is True  # 60
    assert found["start: mini-pool against the floor"] is True  # 1.25
    assert found["teardown against a cold start"] is True
    assert found["CPU per start, less than the paper's"] is True  # 1300
    assert found["32 at once: mini's rate over podman's"] is True  # 50


@pytest.mark.parametrize(
    ("name", "value", "target"),
    [
        ("podman", 159.0, "start: mini faster than podman"),
        ("crun", 39.0, "start: mini faster than crun"),
        ("bwrap", 11.9, "start: mini faster than bwrap"),
        ("floor", 3.1, "start: mini against the floor"),
        ("mini-pool", 5.3, "start: mini-pool against the floor"),
    ],
)
def test_a_little_less_is_not_met(name: str, value: float, target: str):
    results = [each for each in everything() if each.name != name] + [result(name, value)]
    assert met(results)[target] is False


def test_overlay_of_bubblewrap_is_preferred():
    found = met([*everything(), result("bwrap-overlay", 11.0)])
    assert found["start: mini faster than bwrap-overlay"] is False
    assert "start: mini faster than bwrap" not in found


def test_what_was_not_measured_says_why_and_is_never_met():
    results = [each for each in everything() if each.name != "podman"]
    results.append(Result("podman", "an engine", missing="not installed: apt install podman"))
    targets = {target.name: target for target in report.targets(results, {})}
    target = targets["start: mini faster than podman"]
    assert target.met is None
    assert "apt install podman" in target.got
    assert all(target.met is None for target in report.targets([], {}))


def test_wrong_results_spoil_the_rate():
    results = everything()
    next(each for each in results if each.name == "mini").correct[32] = (31, 32)
    assert met(results)["32 at once: mini's rate over podman's"] is False


def test_session_and_memory():
    extra = {"session": {"over_ms": 1.2}, "memory": {"live": 1000, "unshared_mib": {"median": 1.4}}}
    found = met([], extra)
    assert found["session command over a bare shell"] is False
    assert found["unshared memory of an idle sandbox"] is True
    assert found["1,000 live idle sandboxes"] is True
    extra["memory"]["live"] = 200
    assert met([], extra)["1,000 live idle sandboxes"] is None


def test_tables_name_every_system_and_target():
    results = [*everything(), Result("docker", "an engine", missing="not installed: apt install docker.io")]
    targets = report.targets(results, {})
    console = Console(file=StringIO(), width=200)
    console.print(report.systems_table(results), report.targets_table(targets))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(each.name in text for each in results)
    assert all(target.name in text for target in targets)
    data = report.as_json(results, targets, {"load": 1})
    assert data["systems"]["mini"]["start_ms_summary"]["median"] == 8.0
    assert len(data["targets"]) == len(targets)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks/sandbox.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")


def test_help_and_wrong_arguments():
    shown = run("--help")
    assert shown.returncode == 0, shown.stderr
    assert "--quick" in shown.stdout
    assert "mini-pool" in shown.stdout
    for wrong in (
        ["--only", "nobody"],
        ["--live", "0"],
        ["--output", "/nowhere/x.json"],
        ["--work", "/nowhere"],
    ):
        assert run(*wrong).returncode == 2
