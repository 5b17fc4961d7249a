"""Every recipe with every policy, trainer and sandbox composes and is accepted by SkyRL, or says why not.

The default test takes each pair of choices at least once; the slow one takes all combinations.
"""

import itertools
from collections.abc import Iterable

import pytest

from launch.config_compose import CONFIG_DIR, ConfigError
from launch.config_validate import load_config

pytest.importorskip("skyrl")
from launch.skyrl_check import rejection

Combination = tuple[str, str, str, str]


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


RECIPES, POLICIES, TRAINERS, SANDBOXES = map(choices, ("recipe", "policy", "trainer", "sandbox"))


def nonsense(combination: Combination) -> tuple[str, ...]:
    """What a combination that makes no sense is told, in order; empty for all others."""
    recipe, policy, trainer, _ = combination
    if recipe == "swe_smith_1600_2node" and policy == "cpu_tiny" and "fsdp" in trainer:
        heads = "4 does not divide the 2 heads (2 key/value) of cpu_tiny"  # TP and sequence parallel 4
        return (f"trainer.tensor_parallel: {heads}", f"trainer.sequence_parallel: {heads}")
    return ()


def problems(combinations: Iterable[Combination]) -> list[str]:
    found: list[str] = []
    for combination in combinations:
        recipe, policy, trainer, sandbox = combination
        overrides = [f"+recipe={recipe}", f"policy={policy}", f"trainer={trainer}", f"sandbox={sandbox}"]
        if policy == "hf":
            overrides.append("policy.path=owner/some-model")
        told: tuple[str, ...] = ()
        try:
            config = load_config(overrides)
        except ConfigError as error:
            told = error.errors
        else:
            assert config["recipe_name"] == recipe and config["sandbox"]["kind"] == sandbox
            assert config["trainer"]["name"] == trainer and config["policy"]["name"] == policy
            if reason := rejection(config["skyrl"]):
                told = (f"skyrl: {reason}",)
        if told != nonsense(combination):
            found.append(f"{' '.join(overrides)}: {told}")
    return found


@pytest.fixture(autouse=True)
def wandb_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)


def test_the_groups_are_all_there():
    assert set(RECIPES) == {
        "cpu_demo", "swe_gym", "swe_smith_1600", "swe_smith_1600_2node", "swe_smith_1600_async",
        "swe_smith_1600_docker",
    }  # fmt: skip
    assert set(POLICIES) == {"cpu_tiny", "hf", "qwen2_5_coder_3b", "swe_agent_lm_32b", "swe_agent_lm_7b"}
    assert {"grpo_cpu", "grpo_cpu_async", "grpo_fsdp", "grpo_fsdp_async", "grpo_fsdp_lora"} <= set(TRAINERS)
    assert set(SANDBOXES) == {"docker", "mini", "podman"}


def test_every_pair_of_choices_is_accepted_or_told_why_not():
    chosen = [
        (recipe, POLICIES[(r + t) % len(POLICIES)], trainer, SANDBOXES[(r + t // 2) % len(SANDBOXES)])
        for r, recipe in enumerate(RECIPES)
        for t, trainer in enumerate(TRAINERS)
    ]
    groups = (RECIPES, POLICIES, TRAINERS, SANDBOXES)
    for a, b in itertools.combinations(range(4), 2):
        pairs = {(one[a], one[b]) for one in chosen}
        assert pairs == set(itertools.product(groups[a], groups[b])), "a pair is left out"
    assert problems(chosen) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", RECIPES)  # about a minute each; pytest -k picks some
def test_every_combination_is_accepted_or_told_why_not(recipe: str):
    assert problems(itertools.product([recipe], POLICIES, TRAINERS, SANDBOXES)) == []
