"""The demo policy's network: a Qwen2 of 0.75 million parameters in fp32, and its Hugging Face folder."""

from pathlib import Path
from typing import Any

from recipes.cpu.policy.tokenizer import END_OF_TEXT, IM_END
from recipes.cpu.policy.types import ModelSettings


def build_model(settings: ModelSettings, tokenizer: Any, *, seed: int) -> Any:
    """A freshly initialised model whose vocabulary is the tokenizer's."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    pad = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.context_tokens,
        tie_word_embeddings=True,
        use_sliding_window=False,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue] - taken by the base class
    )
    config.architectures = ["Qwen2ForCausalLM"]
    model: Any = Qwen2ForCausalLM(config)  # its `to` is decorated beyond what pyright follows
    return model.to(torch.float32)


def export(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write config.json, model.safetensors, generation_config.json and the tokenizer to `folder`."""
    from transformers import GenerationConfig

    end = tokenizer.convert_tokens_to_ids(IM_END)
    pad = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, top_k=0, eos_token_id=end, pad_token_id=pad
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
