"""`python launch/doctor.py --recipe NAME [overrides]`: does the run fit the memory of given GPUs and nodes?

Arithmetic of launch/memory_fit.py on the composed configuration; nothing is loaded or opened, so it answers
for machines that are elsewhere. Exit status: 0 it fits, 2 the configuration is wrong, 3 it does not fit.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from launch.config_compose import ConfigError
from launch.config_validate import load_config
from launch.exit_codes import BAD_CONFIG, OK, UNUSABLE_MACHINE
from launch.machine import hub_file
from launch.memory_fit import GIB, Layout, Phase, cpu_phase, kv_sequences, layout_of, phases
from launch.memory_model import ModelShape, shape_of

NO_SHAPE = (
    "policy.shape: the size of {path} is not known here: set policy.shape.{{layers,hidden,...}} as in "
    "configs/policy/swe_agent_lm_7b.yaml, or policy.path to a folder with its config.json"
)


def check_recipe(
    recipe: str,
    overrides: Sequence[str],
    *,
    gpus: int | None = None,
    gpu_gib: float = 80.0,
    host_gib: float | None = None,
) -> int:
    """Print what the run needs against what there is; the exit status."""
    more = [] if gpus is None else [f"cluster.gpus_per_node={gpus}"]
    try:
        config = load_config([f"+recipe={recipe}", *overrides, *more])
        shape = _known_shape(config)
    except ConfigError as error:
        print(f"launch/doctor.py: {len(error.errors)} error(s) in the configuration:", file=sys.stderr)
        for line in error.errors:
            print(f"  - {line}", file=sys.stderr)
        return BAD_CONFIG
    name = f"{config['policy']['name']} ({shape.parameters / 1e6:,.1f} million parameters)"
    if not config["cluster"]["gpus_per_node"]:
        here = host_gib or psutil.virtual_memory().total / GIB
        return _show(f"{recipe}: {name} without GPUs", (cpu_phase(shape, here),))
    layout = layout_of(config)
    found = phases(shape, layout, gpu_gib=gpu_gib, host_gib=host_gib)
    cluster = config["cluster"]
    where = f"{cluster['num_nodes']} x {cluster['gpus_per_node']} GPUs of {gpu_gib:g} GiB"
    status = _show(f"{recipe}: {name} on {where}", found)
    _say_concurrency(config, kv_sequences(shape, layout, gpu_gib))
    if status != OK:
        for line in advice(shape, layout, gpu_gib=gpu_gib, host_gib=host_gib):
            print(line)
    return status


def _known_shape(config: Mapping[str, Any]) -> ModelShape:
    path = config["policy"]["path"]
    shape = shape_of(config["policy"], hub_file(path, "config.json"))
    if shape is None:
        raise ConfigError([NO_SHAPE.format(path=path)])
    return shape


def _show(title: str, found: Sequence[Phase]) -> int:
    print(title)
    for phase in found:
        limit = "" if phase.limit_gib is None else f" of {phase.limit_gib:.0f}"
        verdict = "not checked" if phase.limit_gib is None else "fits" if phase.fits else "DOES NOT FIT"
        print(f"{phase.name:<36} {phase.need_gib:7.1f}{limit} GiB  {verdict}")
        for part in phase.parts:
            print(f"    {part.gib:7.1f}  {part.name}")
    short = [phase for phase in found if not phase.fits]
    for phase in short:
        lacking = phase.need_gib - (phase.limit_gib or 0)
        print(f"Does not fit: {phase.name}, {lacking:.1f} GiB too little.")
    if not short:
        print("Fits, by arithmetic; launch/memory_fit.py says what is counted and assumed.")
    return UNUSABLE_MACHINE if short else OK


def _say_concurrency(config: Mapping[str, Any], sequences: float) -> None:
    trainer = config["trainer"]
    rollouts = trainer["prompts_per_step"] * trainer["rollouts_per_prompt"]
    at_once = max(0, int(sequences * trainer["engines"]))
    rest = "." if at_once >= rollouts else ": the others wait in vLLM, or are preempted."
    print(
        f"KV cache: {trainer['engines']} engines hold {at_once} sequences of "
        f"{config['policy']['context_tokens']} tokens; a step has {rollouts} rollouts{rest}"
    )


def advice(shape: ModelShape, layout: Layout, *, gpu_gib: float, host_gib: float | None = None) -> list[str]:
    """Single changes that would make it fit, as overrides."""
    ways = {
        "trainer=grpo_fsdp_lora (adapters instead of all weights)": {"lora_rank": layout.lora_rank or 32},
        f"trainer.sequence_parallel={2 * layout.sequence_parallel}": {
            "sequence_parallel": 2 * layout.sequence_parallel
        },
        f"trainer.tensor_parallel={2 * layout.tensor_parallel}": {
            "tensor_parallel": 2 * layout.tensor_parallel,
            "engines_per_node": max(1, layout.engines_per_node // 2),
        },
        "cluster=two_node (twice the GPUs)": {"train_gpus": 2 * layout.train_gpus},
    }
    fitting = [
        text
        for text, changes in ways.items()
        if all(
            phase.fits
            for phase in phases(
                shape, dataclasses.replace(layout, **changes), gpu_gib=gpu_gib, host_gib=host_gib
            )
        )
    ]
    return (
        ["It would fit with one of:", *(f"  {text}" for text in fitting)]
        if fitting
        else ["No single change helps."]
    )
