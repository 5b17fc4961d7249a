"""SkyRL's FSDP workers for models whose embedding and output layer are one matrix (Qwen2.5-Coder-3B is such).

SkyRL 0.4.0 moves a model to the meta device before it shards it, and `Module.to("meta")` makes two parameters
of a shared one. Both are then trained apart, while vLLM goes on with one for both: what is trained drifts
from what is served, a little more each step. Here the two are tied again before sharding and after loading;
FSDP2 keeps a parameter that two modules share. Untied models go through unchanged. Import this where
flash_attn is installed, or its stand-in.
"""

from typing import Any

import ray
from skyrl.backends.skyrl_train.distributed import fsdp_strategy
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase, FSDPRefWorkerBase


def tie_again(model: Any) -> None:
    """Make the output layer use the embedding's parameter, if the model's configuration says so."""
    if not getattr(model.config, "tie_word_embeddings", False):
        return
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if output is not None and output.weight is not embedding.weight:
        output.weight = embedding.weight


def keep_tied() -> None:
    """Have SkyRL's strategy of this process tie models again; more calls change nothing."""
    if getattr(fsdp_strategy.apply_fsdp2, "keeps_tied", False):
        return
    shard, load = fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict

    def shard_tied(model: Any, *arguments: Any, **options: Any) -> None:
        tie_again(model)
        shard(model, *arguments, **options)

    def load_tied(model: Any, *arguments: Any, **options: Any) -> Any:
        loaded = load(model, *arguments, **options)
        tie_again(model)
        return loaded

    shard_tied.keeps_tied = True  # type: ignore[attr-defined]
    fsdp_strategy.apply_fsdp2, fsdp_strategy.fsdp2_load_full_state_dict = shard_tied, load_tied


class TiedPolicyWorker(FSDPPolicyWorkerBase):
    """The policy worker."""

    def init_model(self, *arguments: Any, **options: Any) -> None:
        """As SkyRL's."""
        keep_tied()
        super().init_model(*arguments, **options)


class TiedRefWorker(FSDPRefWorkerBase):
    """The worker of the reference model."""

    def init_model(self, *arguments: Any, **options: Any) -> None:
        """As SkyRL's."""
        keep_tied()
        super().init_model(*arguments, **options)


def policy_actor() -> Any:
    """What `build_models` takes as PolicyWorker."""
    return ray.remote(num_gpus=1)(TiedPolicyWorker)


def reference_actor() -> Any:
    """What `build_models` takes as RefWorker."""
    return ray.remote(num_gpus=1)(TiedRefWorker)
