"""What Weights & Biases reads from the environment of a run.

SkyRL passes it only project, name, configuration and tags; group, job type, run id and folder go this
way. Without a key the run is written offline, below the run's folder.
"""

import os
from collections.abc import Mapping
from typing import Any


def tracker_environment(config: Mapping[str, Any], job_type: str = "train") -> dict[str, str]:
    """Variables to set before anything imports wandb."""
    logger = config["logger"]
    offline = logger["mode"] == "offline" or (
        logger["mode"] == "auto" and not os.environ.get("WANDB_API_KEY")
    )
    variables = {
        "WANDB_DIR": config["paths"]["run_dir"],
        "WANDB_MODE": "offline" if offline else "online",
        "WANDB_RUN_GROUP": f"{config['recipe_name']}-seed{config['seed']}",
        "WANDB_JOB_TYPE": job_type,
        "WANDB_RUN_ID": config["run_name"],
        "WANDB_RESUME": "allow",
        "WANDB_SILENT": "true",
    }
    if offline:
        variables["WANDB_API_KEY"] = "0" * 40  # SkyRL demands a key even when nothing is sent
    if logger["entity"]:
        variables["WANDB_ENTITY"] = logger["entity"]
    return variables
