"""The runner: stages add up, faults of ours are retried once and become data, limits hold."""

import asyncio
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from recipes.swe.agent_config import AgentConfig
from recipes.swe.chat import ChatCodec
from recipes.swe.failures import DeadlineError, ProviderError, classify, worth_retrying
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.rollout import RolloutLimits, RolloutRunner, render
from recipes.swe.stages import StageClock
from recipes.swe.types import STAGES, WAITS, Completion, RolloutRequest
from rewards.cache import GradeCache
from rewards.errors import GraderError
from rewards.grader import Case, Grader
from rewards.shapes import ShapeConfig, shape_config
from rewards.types import GradingSandbox, RewardResult
from sandbox.errors import CacheError, SandboxLostError, SandboxStartError
from sandbox.types import SandboxSpec
from tests.agent.fakes import FakeBackend, FakeCache, FakeSandbox, task
from tests.agent.test_agent import DEMO, FIX, LS, SUBMIT

SOLVED = RewardResult(1.0, True, 1.0, 0)


class Looping(ScriptedPolicy):
    """One policy for many rollouts: the turn is told from the prompt's length."""

    def __init__(self, codec: ChatCodec, texts: list[str], delay_s: float = 0.0) -> None:
        super().__init__(codec, [])
        self._all = [codec.encode_response(text) for text in texts]
        self._delay_s = delay_s
        self.errors: list[Exception] = []
        self.calls = 0
        self.called = asyncio.Event()

    async def sample(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> Completion:
        self.calls += 1
        self.called.set()
        await asyncio.sleep(self._delay_s)
        if self.errors:
            raise self.errors.pop(0)
        turn = prompt_ids.count(self._codec.end_id) // 2 - 1
        ids = self._all[turn]
        return Completion(ids, (0.0,) * len(ids), "stop")


@dataclass
class Parts:
    """A runner with everything around it fake."""

    codec: ChatCodec
    texts: list[str] = field(default_factory=lambda: [LS, FIX, SUBMIT])
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    delay_s: float = 0.0
    grades: list[RewardResult | Exception] = field(default_factory=list)
    verdicts: GradeCache | None = None
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    agent: AgentConfig = DEMO

    def __post_init__(self) -> None:
        self.policy = Looping(self.codec, self.texts, self.delay_s)
        self.backend = FakeBackend(lambda: FakeSandbox({"/testbed/a.py": b"return a - b\n"}))
        self.cache = FakeCache()
        self.graded: list[str] = []
        self.grading_now = 0
        self.most_grading = 0

    async def grade(self, case: Case, patch: str, sandbox: GradingSandbox) -> RewardResult:
        assert await sandbox.read_file("/testbed/a.py") == b"return a - b\n"
        self.grading_now += 1
        self.most_grading = max(self.most_grading, self.grading_now)
        await asyncio.sleep(self.delay_s)
        self.grading_now -= 1
        self.graded.append(patch)
        outcome = self.grades.pop(0) if self.grades else SOLVED
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def runner(self) -> RolloutRunner:
        return RolloutRunner(
            self.backend,
            self.cache,
            self.policy,
            self.codec,
            self.agent,
            grader=Grader(once=self.grade, cache=self.verdicts),
            shape=self.shape,
            limits=self.limits,
        )


async def test_one_rollout(codec: ChatCodec) -> None:
    parts = Parts(codec, delay_s=0.05)
    started = time.monotonic()
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    wall_s = time.monotonic() - started
    assert rollout.failure is None
    assert rollout.reward == SOLVED
    assert rollout.attempts == 1
    assert rollout.trajectory is not None
    assert parts.graded == [rollout.trajectory.patch]
    assert tuple(rollout.stage_times_s) == STAGES
    assert sum(rollout.stage_times_s.values()) == pytest.approx(wall_s, abs=0.01)
    assert rollout.stage_times_s["llm"] >= 0.15
    assert 0.05 <= rollout.stage_times_s["grade"] < 0.1
    assert len(parts.backend.opened) == 2
    assert all(sandbox.closed for sandbox in parts.backend.opened)
    text = render(rollout, task())
    for part in ("add() subtracts.", "I look.", "a + b", "solved"):
        assert part in text


@pytest.mark.parametrize(
    ("error", "kind"), [(ProviderError("gone"), "provider"), (SandboxLostError("x"), "sandbox")]
)
async def test_a_fault_is_retried_in_a_fresh_sandbox(codec: ChatCodec, error: Exception, kind: str) -> None:
    parts = Parts(codec)
    parts.policy.errors = [error]
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert (rollout.failure, rollout.attempts, rollout.reward) == (None, 2, SOLVED)
    assert len(parts.backend.opened) == 3

    parts = Parts(codec)
    parts.policy.errors = [error, error]
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.attempts) == (kind, 2)
    assert rollout.trajectory is None
    assert rollout.reward is None
    assert all(sandbox.closed for sandbox in parts.backend.opened)


async def test_a_grader_fault_is_retried_without_the_agent(codec: ChatCodec) -> None:
    parts = Parts(codec, grades=[GraderError("no report")])
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert (rollout.failure, rollout.attempts) == (None, 1)
    assert rollout.reward == replace(SOLVED, gradings=2)
    assert parts.policy.calls == 3

    parts = Parts(codec, grades=[GraderError("no report"), GraderError("again")])
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.failure is not None
    assert rollout.failure.kind == "grader"
    assert rollout.trajectory is not None
    assert rollout.reward is None


@pytest.mark.parametrize(
    ("where", "error", "kind"),
    [
        ("cache", CacheError("missing"), "cache"),
        ("open", SandboxStartError("no"), "sandbox"),
        ("open", OSError(28, "No space left on device"), "node"),
        ("open", ConnectionResetError("helper"), "node"),
    ],
)
async def test_faults_before_the_agent(
    codec: ChatCodec, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, kind: str
) -> None:
    parts = Parts(codec)

    def fail(*_: object) -> None:
        raise error

    async def fail_open(spec: SandboxSpec) -> FakeSandbox:
        raise error

    if where == "cache":
        monkeypatch.setattr(parts.cache, "ensure", fail)
    else:
        monkeypatch.setattr(parts.backend, "open", fail_open)
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.failure is not None
    assert rollout.failure.kind == kind
    assert (rollout.trajectory, rollout.reward, rollout.attempts) == (None, None, 2)


async def test_a_sandbox_that_never_opens(codec: ChatCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(codec, limits=RolloutLimits(start_timeout_s=0.05))

    async def hang(spec: SandboxSpec) -> FakeSandbox:
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(parts.backend, "open", hang)
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.failure is not None
    assert rollout.failure.kind == "sandbox"


async def test_an_attempt_that_hangs(codec: ChatCodec) -> None:
    parts = Parts(codec, delay_s=60, limits=RolloutLimits(attempt_timeout_s=0.05))
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.attempts) == ("deadline", 2)
    assert "stage llm" in rollout.failure.message


async def test_a_programming_error_costs_one_rollout(
    codec: ChatCodec, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts(codec)
    parts.policy.errors = [TypeError("bug")]
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.attempts) == ("internal", 1), "it would only come again"
    assert "in stage llm: TypeError: bug" in rollout.failure.message
    assert "Traceback" in caplog.text
    assert all(sandbox.closed for sandbox in parts.backend.opened)


@pytest.mark.parametrize(
    ("error", "kind", "elsewhere"),
    [
        (CacheError("torn layer"), "cache", True),
        (SandboxStartError("no namespaces"), "sandbox", True),
        (SandboxLostError("its init died"), "sandbox", False),
        (ProviderError("gone"), "provider", False),
        (DeadlineError("slow"), "deadline", False),
        (GraderError("lost", "lost"), "grader", True),
        (GraderError("wrong tests", "task"), "grader", False),
        (OSError(28, "No space left on device"), "node", True),
        (TimeoutError(), "node", True),
        (KeyError("x"), "internal", False),
        (AssertionError(), "internal", False),
    ],
)
def test_each_error_has_one_class(error: Exception, kind: str, elsewhere: bool) -> None:
    failure = classify(error, stage="env")
    assert (failure.kind, failure.elsewhere) == (kind, elsewhere)
    assert worth_retrying(failure) == (kind not in ("grader", "internal"))


async def test_a_fault_of_the_node_is_left_to_another_worker(
    codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(codec)

    async def full(spec: SandboxSpec) -> FakeSandbox:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts.backend, "open", full)
    moved = await parts.runner().run(RolloutRequest("t", task(), may_move=True))
    assert moved.failure is not None
    assert (moved.failure.elsewhere, moved.attempts) == (True, 1)
    stays = await parts.runner().run(RolloutRequest("t", task()))
    assert stays.attempts == 2

    parts = Parts(codec)
    parts.policy.errors = [ProviderError("gone")]
    other = await parts.runner().run(RolloutRequest("t", task(), may_move=True))
    assert (other.failure, other.attempts) == (None, 2), "not the node's: tried again where it is"


async def test_work_that_is_done_is_only_graded_after_a_move(codec: ChatCodec) -> None:
    here = Parts(codec, grades=[GraderError("x", "sandbox"), GraderError("x", "sandbox")])
    failed = await here.runner().run(RolloutRequest("t", task(), may_move=True))
    assert failed.failure is not None
    assert failed.failure.elsewhere
    there = Parts(codec)
    moved = await there.runner().run(RolloutRequest("t", task(), done=failed.trajectory))
    assert (moved.failure, moved.reward, moved.trajectory) == (None, SOLVED, failed.trajectory)
    assert there.policy.calls == 0


async def test_waiting_is_measured_apart(codec: ChatCodec) -> None:
    parts = Parts(codec, delay_s=0.03, limits=RolloutLimits(max_concurrent=2, max_grading=1))
    parts.agent = replace(DEMO, model_call_s=0.0, model_token_s=0.0)
    parts.delay_s = 0.3  # of grading: on a busy machine two rollouts drift apart
    runner = parts.runner()
    rollouts = await asyncio.gather(*(runner.run(RolloutRequest(str(n), task())) for n in range(4)))
    assert all(tuple(rollout.waits_s) == WAITS for rollout in rollouts)
    assert sum(rollout.waits_s["slot"] > 0.1 for rollout in rollouts) == 2
    assert min(rollout.waits_s["model"] for rollout in rollouts) >= 0.09
    assert max(rollout.waits_s["grading_slot"] for rollout in rollouts) >= 0.025
    for rollout in rollouts:
        within = rollout.waits_s["model"] + rollout.waits_s["grading_slot"]
        assert within <= sum(rollout.stage_times_s.values())


async def test_limits_hold(codec: ChatCodec) -> None:
    parts = Parts(codec, delay_s=0.005, limits=RolloutLimits(max_concurrent=4, max_grading=2))
    runner = parts.runner()
    requests = [RolloutRequest(str(number), task(instance_id=f"toy__{number}")) for number in range(20)]
    rollouts = await asyncio.gather(*(runner.run(request) for request in requests))
    assert [rollout.trajectory_id for rollout in rollouts] == [str(number) for number in range(20)]
    assert all(rollout.reward == SOLVED for rollout in rollouts)
    assert parts.backend.most_open == 4
    assert parts.most_grading == 2


async def test_one_patch_is_graded_once(codec: ChatCodec) -> None:
    parts = Parts(codec, delay_s=0.005, verdicts=GradeCache())
    runner = parts.runner()
    rollouts = await asyncio.gather(*(runner.run(RolloutRequest(str(number), task())) for number in range(8)))
    assert all(rollout.reward == SOLVED for rollout in rollouts)
    assert len(parts.graded) == 1


async def test_the_trained_number_is_shaped_and_the_verdict_stays(codec: ChatCodec) -> None:
    half = RewardResult(0.0, False, 0.5, 0)
    parts = Parts(codec, grades=[half, SOLVED, SOLVED], shape=ShapeConfig(shape="fraction", turn_penalty=0.5))
    runner = parts.runner()
    rollouts = [await runner.run(RolloutRequest(str(number), task())) for number in range(2)]
    share = 3 / DEMO.max_turns
    for rollout, expected, resolved in zip(rollouts, (0.5, 1.0), (False, True), strict=True):
        assert rollout.reward is not None
        assert rollout.reward.reward == pytest.approx(expected * (1 - 0.5 * share))
        assert (rollout.reward.resolved, rollout.quarantined) == (resolved, False)


@pytest.mark.parametrize("policy", ["zero", "quarantine"])
async def test_a_suspicious_verdict(codec: ChatCodec, policy: str) -> None:
    suspect = RewardResult(0.0, False, 0.0, 0, tests_passed=True, suspicions=("looks for pytest",))
    shape = shape_config({"suspicious": policy, "format_bonus": 0.5})
    rollout = await Parts(codec, grades=[suspect], shape=shape).runner().run(RolloutRequest("t", task()))
    assert rollout.failure is None
    assert rollout.reward == suspect
    assert rollout.quarantined == (policy == "quarantine")


async def test_faults_of_grading_travel_with_the_rollout(codec: ChatCodec) -> None:
    fault = GraderError("killed", "runner_died", repeated=RewardResult(0.0, False, 0.0, 1))
    rollout = await Parts(codec, grades=[fault]).runner().run(RolloutRequest("t", task()))
    assert (rollout.reward is not None and rollout.reward.resolved, rollout.attempts) == (True, 1)
    assert rollout.grading_faults == {"runner_died": 1}


async def test_a_fault_is_not_remembered(codec: ChatCodec) -> None:
    parts = Parts(codec, verdicts=GradeCache(), grades=[GraderError("no report")])
    rollout = await parts.runner().run(RolloutRequest("t", task()))
    assert rollout.reward == replace(SOLVED, gradings=2)
    assert len(parts.graded) == 2


async def test_cancellation_closes_the_sandbox(codec: ChatCodec) -> None:
    parts = Parts(codec, delay_s=60)
    runner = parts.runner()
    running = asyncio.create_task(runner.run(RolloutRequest("t", task())))
    await parts.policy.called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [sandbox.closed for sandbox in parts.backend.opened] == [True]


async def test_cancellation_is_no_fault_although_the_sandbox_cannot_be_closed(codec: ChatCodec) -> None:
    """The error of closing takes the place of the cancellation: that must not begin another attempt."""

    class Stuck(FakeSandbox):
        async def close(self) -> None:
            await super().close()
            raise SandboxLostError("the engine does not answer")

    parts = Parts(codec, delay_s=60)
    parts.backend = FakeBackend(lambda: Stuck({}))
    running = asyncio.create_task(parts.runner().run(RolloutRequest("t", task())))
    await parts.policy.called.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(running), 5)
    assert len(parts.backend.opened) == 1


def test_clock_charges_all_time_to_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 3.0, 6.0, 9.0, 10.0]).__next__
    clock = StageClock(now)
    clock.switch("env_prep")
    assert clock.switch("llm") == "env_prep"
    assert clock.switch("env_prep") == "llm"
    assert clock.stop() == {**dict.fromkeys(STAGES, 0.0), "env_prep": 4.0, "llm": 2.0}
    assert clock.stage == ""
    clock.switch("grade")
    assert clock.stop()["grade"] == 1.0


def test_importing_the_agent_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'tokenizers', 'vllm', 'skyrl', 'ray', 'hydra', 'wandb', 'aiohttp'}"
    code = f"import sys, recipes.swe.rollout, recipes.swe.policy; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
