"""`sandbox.kind` chooses the backend."""

from pathlib import Path

import pytest

from launch.config_validate import load_config
from recipes.swe.backends import make_backend


@pytest.mark.parametrize("kind", ["mini", "docker", "podman"])
def test_each_kind_of_the_configuration_has_its_backend(kind: str, tmp_path: Path) -> None:
    section = load_config(["+recipe=swe_smith_1600", f"sandbox={kind}"])["sandbox"]
    assert make_backend(section, tmp_path).name == kind


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'vm' is not known"):
        make_backend({"kind": "vm"}, tmp_path)
