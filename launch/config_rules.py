"""Rules between keys of a configuration whose types are right: one line for each that is broken.

They say in our keys, and with what to set, what SkyRL or vLLM would say in theirs after minutes of start-up.
Files, GPUs and packages of this machine are not looked at here (launch/machine.py).
"""

from collections.abc import Mapping
from typing import Any

Section = Mapping[str, Any]


def broken_rules(plain: Section) -> list[str]:
    """Every rule between sections that the configuration breaks."""
    return [
        *_lengths(plain["policy"], plain["agent"]),
        *_sandbox(plain["sandbox"]),
        *_cluster(plain["cluster"], plain["trainer"]),
        *_gpu_division(plain),
        *_micro_batches(plain),
        *_asynchronous(plain),
        *_tasks(plain),
    ]


def _tasks(plain: Section) -> list[str]:
    """Which tasks are trained on and which are evaluated."""
    curriculum, skip, evaluation = plain["data"]["curriculum"], plain["data"]["skip"], plain["eval"]
    skips = skip["solved_epochs"] or skip["unsolved_epochs"]
    errors: list[str] = []
    if evaluation["every_steps"] and not evaluation["tasks"] and evaluation["path"] is None:
        errors.append("eval.tasks: is 0; say how many tasks to hold out, or name a file with eval.path")
    if curriculum["min_rate"] > curriculum["max_rate"]:
        errors.append("data.curriculum.min_rate: is above data.curriculum.max_rate")
    narrowed = curriculum["min_rate"] > 0 or curriculum["max_rate"] < 1
    if not curriculum["rates"] and (curriculum["order"] != "random" or narrowed):
        errors.append("data.curriculum.rates: is empty; name earlier runs, or no difficulty is known")
    if skip["retry_after_epochs"] and not skips:
        errors.append("data.skip.retry_after_epochs: needs data.skip.solved_epochs or unsolved_epochs")
    if plain["trainer"].get("generation_groups") and (skips or curriculum["order"] != "random"):
        errors.append(
            "data.skip: and data.curriculum.order need the synchronous trainer; the asynchronous one has "
            "skyrl.trainer.algorithm.zero_variance_filter=true "
            "skyrl.trainer.fully_async.sample_full_batch=true"
        )
    return errors


def _lengths(policy: Section, agent: Section) -> list[str]:
    errors: list[str] = []
    if policy["prompt_tokens"] > policy["context_tokens"]:
        errors.append("policy.prompt_tokens: is larger than policy.context_tokens")
    if policy["turn_tokens"] >= policy["context_tokens"]:
        errors.append("policy.turn_tokens: leaves no room for a prompt in policy.context_tokens")
    for key, limit in (("max_context_tokens", "context_tokens"), ("max_response_tokens", "turn_tokens")):
        wanted = agent.get(key)
        if isinstance(wanted, int) and wanted > policy[limit]:
            errors.append(f"agent.{key}: {wanted} is more than policy.{limit}, {policy[limit]}")
    return errors


def _sandbox(sandbox: Section) -> list[str]:
    if sandbox["disk_mib"] < sandbox["memory_mib"]:
        return []
    return ["sandbox.disk_mib: must be below sandbox.memory_mib, since files of the sandbox count as memory"]


def _cluster(cluster: Section, trainer: Section) -> list[str]:
    errors: list[str] = []
    gpus = cluster["gpus_per_node"]
    if trainer["gpus_per_node"] and not gpus:
        errors.append("cluster.gpus_per_node: is 0, but this trainer needs GPUs; try trainer=grpo_cpu")
    if gpus and not trainer["gpus_per_node"]:
        name = trainer["name"]
        errors.append(f"cluster.gpus_per_node: is {gpus}, but {name} uses none; try cluster=local_cpu")
    if cluster["kind"] == "local" and cluster["num_nodes"] > 1 and gpus:
        errors.append("cluster.kind: local is one machine; for more with GPUs use cluster=ray or two_node")
    if cluster["kind"] == "ray" and not cluster["address"]:
        errors.append("cluster.address: is needed to join a Ray cluster: auto, or host:port")
    return errors


def _gpu_division(plain: Section) -> list[str]:
    """How GPUs are divided between training and engines, and heads between GPUs."""
    cluster, trainer = plain["cluster"], plain["trainer"]
    nodes, gpus = cluster["num_nodes"], cluster["gpus_per_node"]
    train, rollout = trainer["train_gpus_per_node"], trainer["rollout_gpus_per_node"]
    engines, tensor, sequence = (trainer[key] for key in ("engines", "tensor_parallel", "sequence_parallel"))
    errors: list[str] = []
    if not gpus or not trainer["gpus_per_node"]:
        return errors  # told already, or a trainer without GPUs
    if shares_gpus(plain):
        if engines * tensor != nodes * gpus:
            errors.append(
                f"trainer.engines: {engines} x trainer.tensor_parallel {tensor} = {engines * tensor} GPUs, "
                f"but vLLM shares all {nodes * gpus} with training: they must be equal"
            )
    elif train + rollout > gpus:
        errors.append(
            f"trainer.train_gpus_per_node: {train} and trainer.rollout_gpus_per_node {rollout} are more than "
            f"cluster.gpus_per_node, {gpus}"
        )
    elif engines * tensor > nodes * rollout:
        errors.append(
            f"trainer.engines: {engines} x trainer.tensor_parallel {tensor} = {engines * tensor} GPUs, but "
            f"trainer.rollout_gpus_per_node gives vLLM {nodes * rollout}"
        )
    if (nodes * train) % sequence:
        training = nodes * train
        errors.append(f"trainer.sequence_parallel: {sequence} does not divide the {training} GPUs that train")
    return errors + _heads(plain["policy"], tensor, sequence)


def _micro_batches(plain: Section) -> list[str]:
    """A process trains its share of a mini-batch in micro-batches of one size."""
    trainer = _skyrl_trainer(plain)
    placement, policy = trainer.get("placement", {}), trainer.get("policy", {})
    keys = (
        (placement, "policy_num_nodes", 1),
        (placement, "policy_num_gpus_per_node", 1),
        (policy, "sequence_parallel_size", 1),
        (trainer, "policy_mini_batch_size", plain["trainer"]["prompts_per_step"]),
        (trainer, "micro_train_batch_size_per_gpu", 1),
    )
    numbers = [section.get(key, usual) for section, key, usual in keys if isinstance(section, Mapping)]
    if len(numbers) < len(keys) or not all(isinstance(number, int) and number > 0 for number in numbers):
        return []  # told with their types
    nodes, gpus, sequence, prompts, micro = numbers
    ranks = max(1, nodes * gpus // sequence)
    rows = prompts * plain["trainer"]["rollouts_per_prompt"] // ranks
    if rows and rows % micro == 0:
        return []
    return [
        f"skyrl.trainer.micro_train_batch_size_per_gpu: {micro} does not divide the {rows} rollouts of a "
        f"mini-batch that each of {ranks} training process(es) gets (trainer.prompts_per_step x "
        "trainer.rollouts_per_prompt / processes)"
    ]


def _heads(policy: Section, tensor: int, sequence: int) -> list[str]:
    """vLLM and Ulysses give each GPU whole heads; fewer key/value heads than GPUs are copied."""
    shape = policy.get("shape")
    if not isinstance(shape, Mapping):
        return []
    errors: list[str] = []
    for key, size in (("tensor_parallel", tensor), ("sequence_parallel", sequence)):
        heads, kv_heads = shape["heads"], shape["kv_heads"]
        if heads % size or (kv_heads % size and size % kv_heads):
            errors.append(
                f"trainer.{key}: {size} does not divide the {heads} heads ({kv_heads} key/value) of "
                f"{policy['name']}"
            )
    return errors


def _asynchronous(plain: Section) -> list[str]:
    if not is_asynchronous(plain):
        return []
    trainer = plain["trainer"]
    groups, prompts = trainer["generation_groups"], trainer["prompts_per_step"]
    most = prompts * (trainer["max_staleness_steps"] + 1)
    if prompts <= groups <= most:
        return []
    return [
        f"trainer.generation_groups: {groups} must lie between trainer.prompts_per_step, {prompts}, and that "
        f"times (trainer.max_staleness_steps + 1), {most}"
    ]


def shares_gpus(plain: Section) -> bool:
    """Whether training and vLLM take turns on the same GPUs."""
    return bool(_skyrl_trainer(plain).get("placement", {}).get("colocate_all", True))


def is_asynchronous(plain: Section) -> bool:
    """Whether the fully asynchronous trainer is chosen."""
    return bool(_skyrl_trainer(plain).get("fully_async", {}).get("enabled", False))


def _skyrl_trainer(plain: Section) -> Section:
    section = plain["skyrl"].get("trainer", {}) if isinstance(plain["skyrl"], Mapping) else {}
    return section if isinstance(section, Mapping) else {}
