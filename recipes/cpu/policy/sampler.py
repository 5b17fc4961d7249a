"""Sampling from the demo policy in this process: no server, calls that arrive together share a batch.

`TorchPolicy` is a `recipes.swe.types.Policy`, so the agent loop cannot tell it from vLLM. It serves the
making and judging of the policy; training uses vLLM.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.swe.types import Completion

GATHER_S = 0.02
"""How long the first call of a batch waits for others."""


def load(folder: Path) -> tuple[Any, Any]:
    """The model (fp32) and tokenizer of a policy folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model, AutoTokenizer.from_pretrained(folder)


def sample_batch(
    model: Any, prompts: Sequence[Sequence[int]], *, max_tokens: int, temperature: float, pad: int, end: int
) -> list[Completion]:
    """One response a prompt, sampled without nucleus or top-k cuts from torch's global generator."""
    import torch

    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), pad, dtype=torch.long)
    attention = torch.zeros((len(prompts), width), dtype=torch.long)
    for index, prompt in enumerate(prompts):
        ids[index, width - len(prompt) :] = torch.tensor(list(prompt))
        attention[index, width - len(prompt) :] = 1
    with torch.inference_mode():
        result = model.generate(
            input_ids=ids,
            attention_mask=attention,
            max_new_tokens=max_tokens,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=0,
            top_p=1.0,
            eos_token_id=end,
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_logits=True,
        )
    drawn = result.sequences[:, width:]
    logits = torch.stack(result.logits, dim=1).float()
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    return [
        _completion(row, scores, end) for row, scores in zip(drawn.tolist(), logprobs.tolist(), strict=True)
    ]


def _completion(drawn: list[int], logprobs: list[float], end: int) -> Completion:
    if end in drawn:
        length = drawn.index(end) + 1
        return Completion(tuple(drawn[:length]), tuple(logprobs[:length]), "stop")
    return Completion(tuple(drawn), tuple(logprobs), "length")


@dataclass(frozen=True, slots=True)
class _Call:
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    answer: asyncio.Future[Completion]


class TorchPolicy:
    """A `Policy` over a model in this process. Use it from one event loop."""

    def __init__(self, model: Any, *, pad: int, end: int, max_batch: int = 64) -> None:
        self._model = model
        self._pad = pad
        self._end = end
        self._max_batch = max_batch
        self._waiting: list[_Call] = []
        self._worker: asyncio.Task[None] | None = None

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        """Sample one response; `top_p` and `seed` are not honoured (1.0 and the global generator)."""
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(prompt_ids, max_tokens, temperature, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            self._waiting.sort(key=lambda call: call.temperature)
            first = self._waiting[0].temperature
            calls = [c for c in self._waiting[: self._max_batch] if c.temperature == first]
            del self._waiting[: len(calls)]
            try:
                done = await asyncio.to_thread(self._generate, calls)
            except Exception as error:  # noqa: BLE001 - handed to every waiting caller, which raises it
                for call in calls:
                    if not call.answer.done():
                        call.answer.set_exception(error)
                continue
            for call, completion in zip(calls, done, strict=True):
                if not call.answer.done():
                    call.answer.set_result(completion)

    def _generate(self, calls: Sequence[_Call]) -> list[Completion]:
        longest = max(call.max_tokens for call in calls)
        done = sample_batch(
            self._model,
            [call.prompt for call in calls],
            max_tokens=longest,
            temperature=calls[0].temperature,
            pad=self._pad,
            end=self._end,
        )
        return [_cut(c, call.max_tokens) for c, call in zip(done, calls, strict=True)]


def _cut(completion: Completion, limit: int) -> Completion:
    if len(completion.token_ids) <= limit:
        return completion
    return Completion(completion.token_ids[:limit], completion.logprobs[:limit], "length")
