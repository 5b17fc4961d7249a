"""Every probe in every mode: none may succeed, and none may fail for a reason that proves nothing."""

import os
from functools import cache

import pytest

from tests.sandbox.probes import ALL, run
from tests.sandbox.probes.model import Mode, Probe

# One process per mode runs all probes, so the first test of a mode waits for all of them.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("usable")]
_MODES: tuple[Mode, ...] = ("root", "user", "unshifted") if os.geteuid() == 0 else ("user",)


@cache
def _results(mode: Mode) -> dict[str, dict[str, object]]:
    return run.run_mode(mode, [])


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("probe", ALL, ids=lambda probe: probe.id)
def test_probe_is_refused(probe: Probe, mode: Mode) -> None:
    result = _results(mode)[probe.id]
    expected = ("refused", "succeeded") if mode in probe.known else ("refused",)
    assert result["outcome"] in expected, result["detail"]


def test_ids_are_unique_and_sixty_at_least() -> None:
    assert len({probe.id for probe in ALL}) == len(ALL) >= 60
    assert not any("root" in probe.known for probe in ALL)
