"""Size of a decoder of Qwen2's kind: its parameters, and what activations and the KV cache take per token.

Pure arithmetic on numbers of a model's config.json. What uses it is launch/memory_fit.py.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

BF16 = 2
FP32 = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder: grouped-query attention with biases on q, k and v, gated MLP, RMS norms."""

    layers: int
    """Decoder layers."""
    hidden: int
    """Width of the residual stream."""
    intermediate: int
    """Width of the gated MLP."""
    heads: int
    """Query heads of a layer."""
    kv_heads: int
    """Key/value heads of a layer."""
    head_dim: int
    """Width of a head."""
    vocab: int
    """Rows of the embedding."""
    tied: bool
    """Whether the output layer is the embedding."""

    @classmethod
    def from_config_json(cls, loaded: Mapping[str, Any]) -> Self:
        """Out of a model's config.json. Raises KeyError when it is no such decoder."""
        heads = int(loaded["num_attention_heads"])
        return cls(
            layers=int(loaded["num_hidden_layers"]),
            hidden=int(loaded["hidden_size"]),
            intermediate=int(loaded["intermediate_size"]),
            heads=heads,
            kv_heads=int(loaded.get("num_key_value_heads") or heads),
            head_dim=int(loaded.get("head_dim") or loaded["hidden_size"] // heads),
            vocab=int(loaded["vocab_size"]),
            tied=bool(loaded.get("tie_word_embeddings", False)),
        )

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: projections of q, k, v (with biases) and o, three of the MLP, norms."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = (self.hidden + 1) * (query + 2 * key) + query * self.hidden
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding; the output layer has as many, unless it is the same."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters. Qwen2.5-7B: 7,615,616,512, as its card says."""
        ends = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + ends + self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Parameters of LoRA on all linear layers but the output: rank x (inputs + outputs) each (arXiv
        2106.09685)."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * (self.hidden + query) + 2 * (self.hidden + key)
        return self.layers * rank * (attention + 3 * (self.hidden + self.intermediate))

    def kv_bytes_per_token(self, tensor_parallel: int) -> int:
        """KV cache of one token on one GPU: 2 x layers x key/value heads x width in bf16 (arXiv 2309.06180).
        With fewer heads than GPUs each GPU holds one."""
        return 2 * self.layers * max(1, self.kv_heads // tensor_parallel) * self.head_dim * BF16

    def layer_activation_bytes_per_token(self) -> int:
        """What one layer keeps for its backward pass, bf16, with flash attention (no scores): the counting
        of arXiv 2205.05198, section 4, for a gated MLP.

        Inputs of both norms and of both blocks, attention's output before and after its projection (6 x
        hidden), q, k and v before and after rotation, and gate, up, its activation and their product."""
        rotated = 2 * (self.heads + 2 * self.kv_heads) * self.head_dim
        return BF16 * (6 * self.hidden + rotated + 4 * self.intermediate)


def shape_of(policy: Mapping[str, Any], hub_config: Path | None = None) -> ModelShape | None:
    """Size of the configured policy: its config.json when that is here, else `policy.shape`; else None."""
    for path in (Path(policy["path"]) / "config.json", hub_config):
        if path is not None and path.is_file():
            try:
                return ModelShape.from_config_json(json.loads(path.read_text("utf-8")))
            except (KeyError, ValueError):
                break
    shape = policy.get("shape")
    if not isinstance(shape, Mapping):
        return None
    return ModelShape(**{field.name: shape[field.name] for field in fields(ModelShape)})
