"""A real, tiny Qwen2 tokenizer, trained here, with Qwen2.5's own chat template or a plain ChatML one."""

import json
from typing import Any

import pytest

from recipes.swe.chat import ChatCodec

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
DEFAULT_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe nice.<|im_end|>\\n' }}{% endif %}"
    + PLAIN_TEMPLATE
)
"""As Qwen2.5's does, it adds a system message where there is none."""


def make_tokenizer(template: str = PLAIN_TEMPLATE) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*special, *alphabet])}
    options = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>"],
        "chat_template": template,
    }
    backend = Qwen2Tokenizer(vocab=vocab, merges=[], **options).backend_tokenizer
    learner = Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator(
        ["system\nuser\nassistant\n def add(a, b):\n    return a + b\n\n" * 9], trainer
    )
    model = json.loads(learner.to_str())["model"]
    return Qwen2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], **options)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="session")
def codec(tokenizer: Any) -> ChatCodec:
    return ChatCodec(tokenizer)
