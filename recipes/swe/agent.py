"""The agent: a policy and a sandbox, turn by turn, until the work is submitted or a limit is hit.

Prompts come from `recipes.swe.history`, which keeps the ids of every message, so every id that is trained on
is one that was sampled, behind exactly the prompt that was sent. Errors of the sandbox and of the policy
server propagate; whatever the model does is recorded in the trajectory. It neither grades nor retries.
"""

from dataclasses import dataclass, replace

from recipes.swe.agent_clock import AgentClock
from recipes.swe.agent_config import AgentConfig, AgentConfigError
from recipes.swe.chat import ChatCodec
from recipes.swe.history import History
from recipes.swe.parsing import FormatError, format_call, parse
from recipes.swe.parsing_blocks import parse_block
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
    timer: AgentClock | None = None,
) -> Trajectory:
    """Let the policy work on the task in the sandbox. Raises SandboxError, ProviderError, DeadlineError."""
    clock = clock or StageClock()
    clock.switch("env")
    workdir = task.tests.workdir
    history = History(
        codec,
        initial_prompt(codec, task, config),
        keep_last=config.keep_last_observations,
        every=config.elide_every_turns,
    )
    tools = await ToolBox.open(sandbox, workdir=workdir, config=config, statement=task.problem_statement)
    loop = _Loop(
        policy, codec, config, sampling, clock, timer or AgentClock(config, clock.now), tools, history
    )
    turns, end = await loop.run()
    await tools.close()
    if turns:  # Nobody was shown what followed the last turn.
        turns[-1] = replace(turns[-1], observation="")
    changes = await sandbox.changes(workdir)
    return Trajectory(tuple(turns), changes.patch, end, changes.left_out)


@dataclass(slots=True)
class _Loop:
    """Turn after turn until something ends it."""

    policy: Policy
    codec: ChatCodec
    config: AgentConfig
    sampling: Sampling
    clock: StageClock
    timer: AgentClock
    tools: ToolBox
    history: History

    async def run(self) -> tuple[list[Turn], EndReason]:
        """All turns, and what ended them."""
        turns: list[Turn] = []
        format_errors = 0
        while len(turns) < self.config.max_turns:
            room = self.config.max_context_tokens - len(self.history.prompt)
            if self.timer.left_s <= 0:
                return turns, "time"
            if room < self.config.min_response_tokens:
                return turns, "context"
            turn, submitted = await self._turn(len(turns), room)
            turns.append(turn)
            format_errors = 0 if turn.action else format_errors + 1
            if submitted:
                return turns, "submitted"
            if format_errors >= self.config.max_format_errors:
                return turns, "format"
            self.history.add(turn.response_ids, turn.observation)
        return turns, "turn_limit"

    async def _turn(self, number: int, room: int) -> tuple[Turn, bool]:
        """One call of the policy and what it led to; whether the work was submitted."""
        prompt, config = self.history.prompt, self.config
        self.clock.switch("llm")
        completion = await self.timer.model(
            self.policy.sample(
                prompt,
                max_tokens=min(room, config.max_response_tokens),
                temperature=self.sampling.temperature,
                top_p=self.sampling.top_p,
                seed=self.sampling.turn_seed(number),
            )
        )
        self.clock.switch("env")
        response = self.codec.decode(completion.token_ids)
        with self.timer.tools():
            command_s = min(config.command_timeout_s, max(self.timer.left_s, 1.0))
            action, result = await _act(response, self.tools, config, timeout_s=command_s)
        turn = Turn(
            prompt_ids=prompt,
            response_ids=completion.token_ids,
            logprobs=completion.logprobs,
            stop_reason=completion.stop_reason,
            response=response,
            action=action,
            observation=result.observation,
        )
        return turn, result.submitted


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
        if config.call_format == "thought_action":
            call = parse_block(response)
        else:
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
