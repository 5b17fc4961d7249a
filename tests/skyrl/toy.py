"""A toy environment in place of sandboxes: two turns, and a reward for tokens of even id.

The policy is really served and really sampled; only the tools and the tests are made up, so that the
trainer, the server and the weight sync can be tested in minutes.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from launch.config_compose import compose_config, to_plain
from recipes.swe.chat import ChatCodec
from recipes.swe.history import History
from recipes.swe.policy import VllmPolicy
from recipes.swe.tasks import TaskRow
from recipes.swe.types import Failure, Rollout, RolloutRequest, TaskInstance, Trajectory, Turn
from rewards.types import RewardResult, TestSpec
from sandbox.types import EnvSpec

OBSERVATION = "go on"
TURNS = 2
TURN_TOKENS = 24


def make_task(name: str) -> TaskInstance:
    """A task that needs no environment."""
    return TaskInstance(name, "toy", f"Say even things about {name}.", EnvSpec(name), TestSpec((), (), ()))


@dataclass(slots=True)
class ToyRunner:
    """Runs a rollout against the served policy."""

    codec: ChatCodec
    policy: VllmPolicy
    fail_ids: tuple[str, ...]
    turns: int = TURNS
    keep_last: int | None = None
    pause_s: float = 0.0

    async def run(self, request: RolloutRequest) -> Rollout:
        """Sample a few turns and score them."""
        started = time.monotonic()
        name = request.task.instance_id
        if any(request.trajectory_id.endswith(suffix) for suffix in self.fail_ids):
            return Rollout(request.trajectory_id, name, None, None, failure=Failure("sandbox", "on purpose"))
        first = self.codec.initial("Be even.", request.task.problem_statement)
        history = History(self.codec, first, keep_last=self.keep_last)
        turns: list[Turn] = []
        for number in range(self.turns):
            sampled = await self.policy.sample(
                history.prompt,
                max_tokens=TURN_TOKENS,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=(request.seed or 0) + number,
            )
            text = self.codec.decode(sampled.token_ids)
            last = number == self.turns - 1
            turns.append(
                Turn(history.prompt, sampled.token_ids, sampled.logprobs, sampled.stop_reason, text, text,
                     "" if last else OBSERVATION)
            )  # fmt: skip
            history.add(sampled.token_ids, OBSERVATION)
            await asyncio.sleep(self.pause_s)
        ids = [token for turn in turns for token in turn.response_ids]
        reward = sum(token % 2 == 0 for token in ids) / len(ids)
        return Rollout(
            request.trajectory_id,
            name,
            Trajectory(tuple(turns), "", "turn_limit"),
            RewardResult(reward, reward > 0.6, reward, 0),
            {"llm": time.monotonic() - started},
        )


async def open_toy_runner(config: Mapping[str, Any], stack: AsyncExitStack) -> ToyRunner:
    """Factory for the fan-out."""
    codec = ChatCodec(AutoTokenizer.from_pretrained(config["policy"]["path"]))
    policy = VllmPolicy(
        config["server_url"],
        config["served_model_name"],
        stop_token_ids=(codec.end_id,),
        reconnect_s=config["reconnect_s"],
    )
    stack.push_async_callback(policy.close)
    agent = config["agent"]
    return ToyRunner(
        codec,
        policy,
        tuple(agent.get("fail_ids", ())),
        turns=agent.get("toy_turns", TURNS),
        keep_last=agent.get("keep_last_observations"),
        pause_s=agent.get("pause_s", 0.0),
    )


def write_tasks(path: Path, count: int) -> Path:
    """Rows in SWE-smith's schema, so that the real loader reads them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        TaskRow(
            f"toy__task.{i:08x}.toy__{i:08d}", "diff", ("t::a",), (), "none", "swesmith/toy", f"Be even, {i}."
        )
        for i in range(count)
    ]
    path.write_text("\n".join(row.to_json() for row in rows))
    return path


def toy_settings(folder: Path, *overrides: str) -> dict[str, Any]:
    """The configuration of a toy run below `folder`, composed as the launcher composes it."""
    config, errors = compose_config(
        [
            "trainer=grpo_cpu",
            "cluster=local_cpu",
            "logger=file",
            "agent=demo",
            f"policy.path={folder}/model",
            "policy.dtype=float32",
            "policy.prompt_tokens=512",
            "policy.turn_tokens=64",
            "policy.context_tokens=512",
            f"data.path={folder}/tasks.jsonl",
            f"paths.runs_dir={folder}/runs",
            f"paths.temp_dir={folder}/tmp",
            f"paths.shm_dir={folder}/shm",
            "run_name=toy",
            "trainer.max_steps=2",
            "trainer.prompts_per_step=4",
            "trainer.rollouts_per_prompt=4",
            "trainer.checkpoint_every_steps=1",
            "trainer.lr=3e-3",
            "skyrl.trainer.micro_train_batch_size_per_gpu=16",
            *overrides,
        ]
    )
    plain, more = to_plain(config)
    assert not errors and not more, errors + more
    return plain | {"runner_factory": "tests.skyrl.toy:open_toy_runner"}
