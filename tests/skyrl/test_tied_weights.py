"""Models with tied embeddings stay tied when SkyRL shards them."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.launch.runner import ROOT

pytest.importorskip("skyrl")


def run(mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.skyrl.tied_run", mode],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_skyrl_alone_trains_the_two_apart_and_our_worker_does_not():
    plain, kept = run("plain"), run("kept")
    assert plain["loaded"] and kept["loaded"], "both start from the model's own weights"
    assert plain["moved"] > 1e-3 and kept["moved"] > 1e-3, "an update was made"
    assert not plain["one_before"] and plain["apart"] > 1e-3, "else this repair is no longer needed"
    assert kept["one_before"] and kept["one_after"] and kept["apart"] == 0
    assert plain["parameters"] == kept["parameters"] + 1
