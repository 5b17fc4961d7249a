"""The one thing that our configuration files compute: how many vLLM engines fill the GPUs.

Everything else in configs/ is a value or points to one. Registered with OmegaConf when a configuration is
composed, so that importing this changes nothing.
"""

from omegaconf import OmegaConf


def engines(nodes: int, gpus_per_node: int, tensor_parallel: int) -> int:
    """Engines of `tensor_parallel` GPUs that fit on all nodes together; 1 at least.

    What is no number, or does not divide, is told by the checks of launch/config_rules.py."""
    if not all(isinstance(value, int) and value > 0 for value in (nodes, gpus_per_node, tensor_parallel)):
        return 1
    return max(1, nodes * gpus_per_node // tensor_parallel)


def register_resolvers() -> None:
    """Make `${engines:nodes,gpus_per_node,tensor_parallel}` known."""
    OmegaConf.register_new_resolver("engines", engines, replace=True)
