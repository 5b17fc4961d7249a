"""SkyRL's own validation of its part of the configuration: `python -m launch.skyrl_check < skyrl.json`.

It imports torch and vLLM, so the dry run starts it as a process of its own. Nothing is opened, no GPU asked.
Exit status 0: accepted; 2: rejected, the reason in one line on stderr.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any


def rejection(skyrl: Mapping[str, Any]) -> str | None:
    """Why SkyRL refuses this configuration, in one line; None when it accepts it. Needs WANDB_API_KEY set."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import validate_cfg

    try:
        config = SkyRLTrainConfig.from_cli_overrides(dict(skyrl))
        engine = config.generator.inference_engine
        if not (engine.run_engines_locally or engine.external_proxy_url or engine.external_server_urls):
            engine.external_proxy_url = (
                "http://127.0.0.1:1"  # the address is known once the server is started
            )
        validate_cfg(config)
    except (ValueError, AssertionError, TypeError, NotImplementedError) as error:
        return " ".join(str(error).split())
    return None


def main() -> int:
    """Command line; returns the exit status."""
    reason = rejection(json.load(sys.stdin))
    if reason is None:
        return 0
    print(f"REJECTED {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
