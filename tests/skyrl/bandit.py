"""A policy that really learns, in milliseconds: one choice per rollout, through SkyRL's real training loop.

The policy is one number, the logit of choosing the right edit. An agent's rollouts run in the real
`RolloutRunner` over fake sandboxes, with faults injected at its boundaries; SkyRL's own trainer computes
advantages and loss; the number is moved by the gradient. So the curve with faults can be held against the
clean one over many steps and seeds, without vLLM.
"""

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.backends.skyrl_train.workers.worker_utils import BaseBatchIterator

from benchmarks.loop import PacedWorkers
from recipes.swe.chat import ChatCodec
from recipes.swe.failures import DeadlineError, ProviderError
from recipes.swe.parsing import format_call
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.rollout import RolloutLimits, RolloutRunner
from recipes.swe.types import Completion, Rollout, RolloutRequest
from rewards.errors import GraderError
from rewards.grader import Case
from rewards.types import RewardResult
from sandbox.errors import CacheError, SandboxLostError, SandboxStartError
from sandbox.types import CachedEnv, EnvSpec, SandboxSpec
from tests.agent.fakes import FakeBackend, FakeCache, FakeSandbox
from tests.agent.test_agent import DEMO, FIX, SUBMIT
from tests.skyrl.chosen import injected

WRONG = format_call(
    "str_replace_editor",
    {"command": "str_replace", "path": "/testbed/a.py", "old_str": "a - b", "new_str": "a * b"},
)
SOURCE = {"/testbed/a.py": b"def add(a, b):\n    return a - b\n"}

FAULTS: Mapping[str, str] = {
    "provider": "provider",
    "start": "sandbox",
    "lost": "sandbox",
    "cache": "cache",
    "grader": "grader",
    "deadline": "deadline",
    "bug": "internal",
}
"""Fault that can be injected -> the kind of failure that it must be counted as."""

_fault: ContextVar[str] = ContextVar("fault of the running rollout", default="")


class Weights:
    """The policy's only parameter and its optimizer."""

    def __init__(self, *, start: float = -1.0, lr: float = 0.15) -> None:
        self.logit = torch.tensor(start, requires_grad=True)
        self._optimizer = torch.optim.Adam([self.logit], lr=lr)

    def step(self) -> None:
        """Apply the gradient."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def logprobs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the right and of the wrong edit."""
        return torch.nn.functional.logsigmoid(self.logit), torch.nn.functional.logsigmoid(-self.logit)


class BanditPolicy(ScriptedPolicy):
    """Chooses an edit in the first turn, and submits in the second."""

    def __init__(self, codec: ChatCodec, weights: Weights, *, right: str = FIX, wrong: str = WRONG) -> None:
        super().__init__(codec, [])
        self._weights = weights
        self.right, self.wrong = codec.encode_response(right), codec.encode_response(wrong)
        self._submit = codec.encode_response(SUBMIT)
        self.place = next(i for i, (a, b) in enumerate(zip(self.right, self.wrong, strict=False)) if a != b)

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        await asyncio.sleep(0)
        if _fault.get() == "provider":
            raise ProviderError("on purpose")
        if _fault.get() == "deadline":
            raise DeadlineError("on purpose")
        if self._codec.decode(prompt_ids).count("<|im_start|>assistant") > 1:
            return Completion(self._submit, (0.0,) * len(self._submit), "stop")
        chance = random.Random(seed).random()
        right, wrong = (value.item() for value in self._weights.logprobs())
        ids, logprob = (self.right, right) if chance < math.exp(right) else (self.wrong, wrong)
        logprobs = [0.0] * len(ids)
        logprobs[self.place] = logprob
        return Completion(ids, tuple(logprobs), "stop")


class LostSandbox(FakeSandbox):
    """Dies at the first write."""

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        raise SandboxLostError("on purpose")


class FaultyBackend(FakeBackend):
    """Fails to open, or opens what will die."""

    def __init__(self) -> None:
        super().__init__(lambda: (LostSandbox if _fault.get() == "lost" else FakeSandbox)(SOURCE))

    async def open(self, spec: SandboxSpec) -> FakeSandbox:
        if _fault.get() == "start":
            raise SandboxStartError("on purpose")
        return await super().open(spec)


class FaultyCache(FakeCache):
    """Has everything, unless told otherwise."""

    def ensure(self, spec: EnvSpec) -> CachedEnv:
        if _fault.get() == "cache":
            raise CacheError("on purpose")
        if _fault.get() == "bug":
            raise TypeError("on purpose")
        return super().ensure(spec)


class PatchGrader:
    """Solved when the right edit is in the patch."""

    async def judge(self, case: Case, patch: str, *, faults: Any = None) -> RewardResult:
        async with case.open_sandbox():
            if _fault.get() == "grader":
                raise GraderError("on purpose")
        solved = "a + b" in patch
        return RewardResult(float(solved), solved, float(solved), 0)


class LocalFanout:
    """Runs rollouts in this process, each with its fault."""

    def __init__(self, codec: ChatCodec, policy: BanditPolicy, faults: Mapping[str, float]) -> None:
        self.faults = faults
        self.backend = FaultyBackend()
        self.rollouts: list[Rollout] = []
        agent = replace(DEMO, max_turns=3)
        limits = RolloutLimits(max_concurrent=256, max_grading=256)
        grader: Any = PatchGrader()
        self._runner = RolloutRunner(
            self.backend, FaultyCache(), policy, codec, agent, grader=grader, limits=limits
        )

    async def run(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        rollouts = await asyncio.gather(*(self._one(request) for request in requests))
        self.rollouts += rollouts
        return rollouts

    async def _one(self, request: RolloutRequest) -> Rollout:
        _fault.set(injected(request.trajectory_id, self.faults))  # gather gives each its own context
        return await self._runner.run(request)


class LearningWorkers(PacedWorkers):
    """In place of SkyRL's worker processes: computes its policy loss and moves the one parameter."""

    def __init__(self, algorithm: Any, weights: Weights, policy: BanditPolicy) -> None:
        super().__init__(0.0)
        self._algorithm, self._weights, self._policy = algorithm, weights, policy

    def stage_data(
        self, model: str, data: TrainingInputBatch, boundaries: list[tuple[int, int]]
    ) -> list[Any]:
        return [data.slice(start, end) for start, end in boundaries]

    def forward_from_staged(self, model: str, chunk: Any) -> Any:
        with torch.no_grad():
            rows = self._logprobs(chunk).tolist()
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row} for row in rows])

    def forward_backward_from_staged(self, model: str, chunks: Any) -> Any:
        experience = BaseBatchIterator.batch_to_experience(chunks)
        loss, metrics = PolicyLossRegistry.get(self._algorithm.policy_loss_type)(
            self._logprobs(chunks),
            experience.action_log_probs,
            experience.advantages,
            config=self._algorithm,
            loss_mask=experience.loss_mask,
            rollout_logprobs=experience.rollout_logprobs,
        )
        loss.backward()
        return SimpleNamespace(metrics={"policy_loss": loss.item(), **metrics})

    def optim_step(self, model: str) -> float:
        self._weights.step()
        return 0.0

    def _logprobs(self, chunk: TrainingInputBatch) -> torch.Tensor:
        """Zero but where an edit was chosen: there what the policy gives that choice now."""
        right_ids, wrong_ids, place = self._policy.right, self._policy.wrong, self._policy.place
        ids = chunk["sequences"][:, -chunk.metadata["response_length"] :]
        rows = torch.zeros(ids.shape)
        if ids.shape[1] <= place:
            return rows
        right, wrong = self._weights.logprobs()
        starts = ids.unfold(1, place + 1, 1)
        same = (starts[:, :, :place] == torch.tensor(right_ids[:place])).all(dim=-1)
        chosen_right = torch.nn.functional.pad(same & (starts[:, :, place] == right_ids[place]), (place, 0))
        chosen_wrong = torch.nn.functional.pad(same & (starts[:, :, place] == wrong_ids[place]), (place, 0))
        return rows + chosen_right * right + chosen_wrong * wrong
