"""For the tests of the cache: layers are packed fast, except where packing itself is tested."""

import pytest


@pytest.fixture(autouse=True)
def fast_packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The level changes the bytes of a file and nothing else that these tests look at."""
    if request.path.name != "test_pack.py":
        monkeypatch.setattr("sandbox.store_pack.LEVEL", 1)
