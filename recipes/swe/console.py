"""What a training run writes to the terminal, and where everything else goes.

SkyRL, vLLM, Ray and torch greet, patch and warn by the dozen while they are imported. A person who
watches a run wants one line per step: `quiet` (before those imports) keeps warnings of the driver and drops
the chatter; `log_to_file` keeps SkyRL's own log in the run's folder. It imports none of them.
"""

import logging
import os
import sys
import warnings
from pathlib import Path

from loguru import logger


def say(line: str) -> None:
    """One line for the person who watches."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def quiet() -> None:
    """Silence what is below a warning, and known harmless warnings, in this process only."""
    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{level}: {message}")
    logging.disable(logging.INFO)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # no CUDA here
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def log_to_file(run_dir: Path) -> None:
    """Send SkyRL's log to `logs/driver.log`; only warnings reach the terminal."""
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    logger.remove()
    logger.add(run_dir / "logs" / "driver.log", level="INFO")
    logger.add(sys.stderr, level="WARNING", format="{level}: {message}")
