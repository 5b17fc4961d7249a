"""`doctor --io`: real figures, a number of units that follows from them, nothing left behind."""

from pathlib import Path

import pytest

from launch.doctor import main
from launch.io_probe import MOST_UNITS, IoFacts, filesystem_of, measure
from sandbox.cache_gate import UNIT_BYTES


def facts(unpack: float, filesystem: str = "ext4") -> IoFacts:
    return IoFacts(unpack, 1.0, 1.0, filesystem, 1)


def test_units_follow_from_the_bandwidth() -> None:
    assert facts(250e6).units == 40  # the published run's
    assert facts(1.0).units == 1 and facts(1e15).units == MOST_UNITS
    assert facts(2 * UNIT_BYTES).units == 16


def test_network_file_systems_are_told() -> None:
    assert facts(1.0, "nfs4").is_shared and not facts(1.0).is_shared
    assert filesystem_of(Path("/proc")) == "proc"


def test_it_measures_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.io_probe._SMALL_FILES", 150)
    monkeypatch.setattr("launch.io_probe._LARGE_BYTES", 1 << 20)
    found = measure(tmp_path / "cache", workers=1)
    assert found.unpack_bytes_per_s > 1e5 and found.files_per_s > 10 and found.read_bytes_per_s > 1e5
    assert found.free_bytes > 0 and found.filesystem
    assert not list((tmp_path / "cache").iterdir())


def test_the_command_proposes_a_number_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.io_probe.measure", lambda _folder: facts(100e6, "nfs"))
    assert main(["--io", "--layers", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "unpacks 100 MB" in said and "paths.cache_io=16" in said and "paths.node_dir" in said
    monkeypatch.undo()
    (tmp_path / "file").touch()
    assert main(["--io", "--layers", str(tmp_path / "file")]) == 1
    assert "cannot be measured" in capsys.readouterr().out
