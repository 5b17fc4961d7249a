"""Values of the configuration that follow from others, set before it is checked, shown and saved.

Only what one value forces on another. A contradiction that the user wrote is not repaired but told.
"""

from pathlib import Path
from typing import Any


def derive(plain: dict[str, Any]) -> list[str]:
    """Fill in what follows; returns one line for each contradiction.

    A history with elided observations must be trained step by step (docs/failures.md)."""
    skyrl = _section(plain.get("skyrl"))
    generator = _section(skyrl.get("generator"))
    if _keeps_last(_section(plain.get("agent"))) is None:
        return []
    errors: list[str] = []
    if generator.setdefault("step_wise_trajectories", True) is False:
        errors.append(
            "skyrl.generator.step_wise_trajectories: must be true: agent.keep_last_observations is set"
        )
    return errors


def _section(node: Any) -> dict[str, Any]:
    return node if isinstance(node, dict) else {}


def _keeps_last(agent: dict[str, Any]) -> Any:
    """As the agent will read it: a SWE-agent file may say it. What is wrong with one is told elsewhere."""
    from recipes.swe.agent_config import AgentConfigError
    from recipes.swe.swe_agent_yaml import read_swe_agent_yaml

    if source := agent.get("swe_agent_yaml"):
        try:
            agent = agent | read_swe_agent_yaml(Path(source)).values
        except AgentConfigError:
            return None
    return agent.get("keep_last_observations")
