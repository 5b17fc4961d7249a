"""The conformance suite: as the user who runs the tests, and from root also as an ordinary user."""

import json
import os

import pytest

from sandbox import conformance
from sandbox.mini import MiniBackend
from tests.sandbox import ordinary_user

_RUN = """
import asyncio, json, os
from sandbox import conformance
from sandbox.mini import MiniBackend
from sandbox.probe import unusable_reason

async def main():
    async with MiniBackend() as backend:
        facts = {"uid": os.getuid(), "outside_uid": backend.facts["outside_uid"]}
        outcomes = await conformance.run_all(backend)
        return facts | {"results": {each.name: [each.problem, each.lacking] for each in outcomes}}

reason = unusable_reason()
print(json.dumps({"unusable": reason} if reason else asyncio.run(main())))
"""


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.name)
async def test_conformance(check: conformance.Check, backend: MiniBackend) -> None:
    await check(backend)


@pytest.mark.skipif(os.geteuid() != 0, reason="the suite above already ran as an ordinary user")
def test_conformance_as_ordinary_user() -> None:
    with ordinary_user.home() as target:
        (target / "run.py").write_text(_RUN)
        done = ordinary_user.run(target, str(target / "run.py"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    if report.get("unusable"):
        pytest.skip(f"the kernel forbids it to ordinary users: {report['unusable']}")
    assert report["uid"] == report["outside_uid"] == ordinary_user.ORDINARY_ID
    assert {name: seen for name, seen in report["results"].items() if seen != ["", []]} == {}
