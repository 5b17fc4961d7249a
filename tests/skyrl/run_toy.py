"""One toy run in a process of its own: `python -m tests.skyrl.run_toy FOLDER [override...]`."""

import os
import sys
from pathlib import Path

from tests.skyrl.toy import toy_settings


def main(folder: Path, overrides: list[str]) -> None:
    """Train."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    from recipes.swe.experiment import run

    run(toy_settings(folder, *overrides))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
