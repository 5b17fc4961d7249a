"""The agent: a policy and a sandbox, turn by turn, until the work is submitted or a limit is hit.

Each prompt is the last prompt + exactly what was sampled + the ids of the observation, so every id that is
trained on is one that was sampled. Errors of the sandbox and of the policy server propagate; whatever the
model does is recorded in the trajectory. It neither grades nor retries.
"""

import time
from dataclasses import dataclass, replace

from recipes.swe.agent_config import AgentConfig, AgentConfigError
from recipes.swe.chat import ChatCodec
from recipes.swe.parsing import FormatError, format_call, parse
from recipes.swe.prompts import TOOL_DOCS, elide, render
from recipes.swe.stages import StageClock
from recipes.swe.tools import ToolBox, ToolResult
from recipes.swe.types import EndReason, Policy, TaskInstance, Trajectory, Turn
from sandbox.types import Sandbox

__all__ = ["AgentConfig", "AgentConfigError", "Sampling", "initial_prompt", "run_agent"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one rollout samples."""

    temperature: float = 1.0
    """Sampling temperature."""
    top_p: float = 1.0
    """Nucleus bound."""
    seed: int | None = None
    """Seed of the rollout; each turn gets its own, made from it."""

    def turn_seed(self, turn: int) -> int | None:
        """Seed of one turn."""
        return None if self.seed is None else (self.seed * 1_000_003 + turn) % (1 << 31)


async def run_agent(
    sandbox: Sandbox,
    policy: Policy,
    codec: ChatCodec,
    task: TaskInstance,
    config: AgentConfig,
    *,
    sampling: Sampling = Sampling(),
    clock: StageClock | None = None,
) -> Trajectory:
    """Let the policy work on the task in the sandbox. Raises SandboxError and ProviderError."""
    clock = clock or StageClock()
    clock.switch("env")
    workdir = task.tests.workdir
    prompt = initial_prompt(codec, task, config)
    tools = await ToolBox.open(sandbox, workdir=workdir, config=config)
    turns: list[Turn] = []
    end: EndReason = "turn_limit"
    format_errors = 0
    deadline = time.monotonic() + config.time_limit_s
    while len(turns) < config.max_turns:
        room = config.max_context_tokens - len(prompt)
        left_s = deadline - time.monotonic()
        if room < config.min_response_tokens or left_s <= 0:
            end = "time" if left_s <= 0 else "context"
            break
        clock.switch("llm")
        completion = await policy.sample(
            prompt,
            max_tokens=min(room, config.max_response_tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.turn_seed(len(turns)),
        )
        clock.switch("env")
        response = codec.decode(completion.token_ids)
        command_s = min(config.command_timeout_s, max(deadline - time.monotonic(), 1.0))
        action, result = await _act(response, tools, config, timeout_s=command_s)
        turns.append(
            Turn(
                prompt_ids=prompt,
                response_ids=completion.token_ids,
                logprobs=completion.logprobs,
                stop_reason=completion.stop_reason,
                response=response,
                action=action,
                observation=result.observation,
            )
        )
        format_errors = 0 if action else format_errors + 1
        if result.submitted or format_errors >= config.max_format_errors:
            end = "submitted" if result.submitted else "format"
            break
        closed = codec.is_closed(completion.token_ids)
        prompt = prompt + completion.token_ids + codec.continue_(result.observation, closed=closed)
    await tools.close()
    if turns:  # Nobody was shown what followed the last turn.
        turns[-1] = replace(turns[-1], observation="")
    changes = await sandbox.changes(workdir)
    return Trajectory(tuple(turns), changes.patch, end, changes.left_out)


def initial_prompt(codec: ChatCodec, task: TaskInstance, config: AgentConfig) -> tuple[int, ...]:
    """Ids of the first prompt; a problem statement too long for the context loses its middle."""
    workdir = task.tests.workdir
    system = render(config.system_template, working_dir=workdir, command_docs=TOOL_DOCS)
    limit = config.max_context_tokens - config.min_response_tokens
    statement = task.problem_statement
    while True:
        user = render(
            config.instance_template,
            problem_statement=statement,
            instance_id=task.instance_id,
            working_dir=workdir,
            command_docs=TOOL_DOCS,
        )
        prompt = codec.initial(system, user)
        if len(prompt) <= limit:
            return prompt
        if len(statement) < 200:
            problem = (
                f"{config.max_context_tokens} does not even hold the first prompt of {len(prompt)} tokens"
            )
            raise AgentConfigError([f"agent.max_context_tokens: {problem}"])
        statement = elide(statement, len(statement) * 3 // 4)


async def _act(
    response: str, tools: ToolBox, config: AgentConfig, *, timeout_s: float
) -> tuple[str, ToolResult]:
    """The response's call as text and what it led to; a malformed one has no call."""
    try:
        call = parse(response, allow_multiple=config.allow_multiple_calls)
    except FormatError as error:
        observation = render(
            config.format_error_template,
            error=error.message,
            exception_message=error.message,
            error_code=error.code,
            command_docs=TOOL_DOCS,
        )
        return "", ToolResult(observation)
    return format_call(call.name, call.arguments), await tools.run(call, timeout_s=timeout_s)
