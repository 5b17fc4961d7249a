"""Tokenizer of the demo policy: a small byte-level BPE that every Qwen2 loader reads the same way.

`AutoTokenizer` (and so vLLM and SkyRL) rebuilds a `qwen2` tokenizer with Qwen2's own normalizer and
pre-tokenizer whatever `tokenizer.json` says, so the merges are learned under exactly those, and
`verify` asserts equal ids on every text after an export. It knows nothing of tasks or agents.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Plain ChatML: no default system message, nothing stripped, so that it adds up turn by turn."""


class TokenizerMismatchError(Exception):
    """The exported tokenizer reads some text differently from the one the policy was trained with."""


def byte_tokenizer() -> Any:
    """A Qwen2 tokenizer with one token a byte and no merges.

    Demonstrations must run through the agent's own codec before there is text to learn merges from;
    this one can spell anything."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIAL_TOKENS, *alphabet]
    return _qwen2({name: index for index, name in enumerate(names)}, [])


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Any:
    """Learn merges over `texts` until there are `vocab_size` entries, special tokens included."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    reference = byte_tokenizer().backend_tokenizer
    learner = Tokenizer(models.BPE())
    learner.normalizer = reference.normalizer
    learner.pre_tokenizer = reference.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    import json

    model = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    return _qwen2(model["vocab"], merges)


def verify(folder: Path, tokenizer: Any, texts: Iterable[str]) -> int:
    """Check that what `AutoTokenizer` loads from `folder` gives `tokenizer`'s ids on all texts.

    Returns the number of texts; raises TokenizerMismatchError at the first difference."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder)
    if loaded.eos_token_id != tokenizer.convert_tokens_to_ids(IM_END):
        raise TokenizerMismatchError(f"{folder}: the end token is {loaded.eos_token!r}, not {IM_END!r}")
    count = 0
    for text in texts:
        expected = tokenizer.encode(text, add_special_tokens=False)
        found = loaded.encode(text, add_special_tokens=False)
        if found != expected:
            raise TokenizerMismatchError(f"{folder}: ids differ after loading, first on {text[:80]!r}")
        if loaded.decode(found) != text:
            raise TokenizerMismatchError(f"{folder}: ids do not decode to the text, first on {text[:80]!r}")
        count += 1
    return count


def _qwen2(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from transformers import Qwen2Tokenizer

    tokenizer_class: Any = Qwen2Tokenizer  # its annotations are narrower than what it takes

    return tokenizer_class(
        vocab=vocab,
        merges=merges,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        unk_token=None,
        additional_special_tokens=[IM_START],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        chat_template=CHAT_TEMPLATE,
    )
