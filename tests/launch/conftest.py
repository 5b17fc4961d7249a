"""What tests of several commands share."""

from collections.abc import Iterator

import pytest

from tests.sandbox import engines


@pytest.fixture(params=["mini", "podman", "docker"])
def sandboxes(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Overrides that choose them."""
    if request.param == "mini":
        yield []
        return
    try:
        with engines.engine(request.param) as command:
            words = ",".join(f"'{word}'" for word in command)
            yield [f"sandbox={request.param}", f"sandbox.engine_command=[{words}]"]
    except engines.UnusableError as error:
        pytest.skip(f"{request.param}: {error}")
