"""Demonstrations: scripted agents run through the real agent loop, and what was said and shown kept.

Each distinct script of a task runs once in a sandbox of that task and is then repeated as often as it was
planned: the shares of right and wrong ones are what the policy learns. That a right script leaves exactly
the fixed file, and a wrong one does not, is checked on the resulting patch.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from recipes.cpu.policy.plans import Script, TaskSource, scripts
from recipes.cpu.policy.tokenizer import byte_tokenizer
from recipes.cpu.policy.types import Demonstration, DemonstrationSettings, DemoTurn
from recipes.cpu.policy.wording import responses
from recipes.swe.agent import AgentConfig, run_agent
from recipes.swe.chat import ChatCodec
from recipes.swe.policy import ScriptedPolicy
from recipes.swe.prompts import TOOL_DOCS, render
from recipes.swe.tasks import TaskRow, gold_patch, read_layers, to_task
from recipes.swe.tasks_patch import apply_patch, changed_paths
from recipes.swe.types import TaskInstance, Trajectory
from sandbox.cache import EnvCache
from sandbox.types import MIB, Backend, EnvSpec, Limits

LIMITS = Limits(memory_bytes=512 * MIB, pids=64, disk_bytes=128 * MIB)
CONCURRENT = 4
"""Sandboxes at once: the scripts wait for the kernel more than they compute."""


class DemonstrationError(Exception):
    """A task's scripts did not do what they were written to do."""


def task_source(row: TaskRow, cache: EnvCache) -> TaskSource:
    """The file with the bug and the file as it should be. Raises CacheError when it is not prepared."""
    env = cache.ensure(EnvSpec(key=row.instance_id))
    fix = gold_patch(row)
    paths = changed_paths(fix)
    if len(paths) != 1:
        raise DemonstrationError(f"{row.instance_id}: its fix touches {len(paths)} files, not one")
    path = f"{env.workdir}/{paths[0]}"
    buggy = read_layers(env.layers, path)
    return TaskSource(row.instance_id, path, buggy, apply_patch(fix, paths[0], buggy))


async def demonstrate(
    rows: Sequence[TaskRow],
    settings: DemonstrationSettings,
    *,
    backend: Backend,
    cache: EnvCache,
    config: AgentConfig,
    seed: int,
    on_task: Callable[[str], None] | None = None,
) -> list[Demonstration]:
    """All demonstrations, in the rows' order; `on_task(instance_id)` is called as each task is done."""
    gate = asyncio.Semaphore(CONCURRENT)
    codec = ChatCodec(byte_tokenizer())
    roomy = _roomy(config)

    async def run(script: Script, task: TaskInstance, source: TaskSource) -> Trajectory:
        async with gate:
            env = await asyncio.to_thread(cache.ensure, task.env)
            policy = ScriptedPolicy(codec, responses(script, seed=seed))
            async with await backend.open(env.spec(LIMITS)) as sandbox:
                trajectory = await run_agent(sandbox, policy, codec, task, roomy)
        check(script, source, trajectory, task.tests.workdir)
        return trajectory

    async def one(row: TaskRow, count: int) -> list[Demonstration]:
        source, task = task_source(row, cache), to_task(row)
        planned = scripts(source, count, settings, seed=seed)
        distinct = list(dict.fromkeys(planned))
        ran = await asyncio.gather(*(run(script, task, source) for script in distinct))
        turns = {s: _turns(trajectory) for s, trajectory in zip(distinct, ran, strict=True)}
        system, user = messages(task, config)
        if on_task is not None:
            on_task(row.instance_id)
        return [Demonstration(row.instance_id, system, user, turns[s], s.right) for s in planned]

    share, extra = divmod(settings.total, len(rows))
    made = await asyncio.gather(*(one(row, share + (i < extra)) for i, row in enumerate(rows)))
    return [demonstration for of_task in made for demonstration in of_task]


def messages(task: TaskInstance, config: AgentConfig) -> tuple[str, str]:
    """System and first user message, as `recipes.swe.agent.initial_prompt` renders them."""
    workdir = task.tests.workdir
    return (
        render(config.system_template, working_dir=workdir, command_docs=TOOL_DOCS),
        render(
            config.instance_template,
            problem_statement=task.problem_statement,
            instance_id=task.instance_id,
            working_dir=workdir,
            command_docs=TOOL_DOCS,
        ),
    )


def check(script: Script, source: TaskSource, trajectory: Trajectory, workdir: str) -> None:
    """Raises DemonstrationError when a script did not submit or its edit is not what it was meant to be."""
    if trajectory.end != "submitted":
        seen = trajectory.turns[-1].response if trajectory.turns else ""
        raise DemonstrationError(f"{script.instance_id}: a script ended with {trajectory.end}: {seen!r}")
    path = source.path.removeprefix(f"{workdir}/")
    result = apply_patch(trajectory.patch, path, source.buggy)
    if result == source.buggy:
        raise DemonstrationError(f"{script.instance_id}: an edit changed nothing: {script.edits}")
    if (result == source.fixed) != script.right:
        raise DemonstrationError(
            f"{script.instance_id}: an edit is not what it was meant to be: {script.edits}"
        )


def texts(demonstrations: Sequence[Demonstration]) -> list[str]:
    """Every distinct message, sorted."""
    found: set[str] = set()
    for one in demonstrations:
        found.update((one.system, one.user))
        for turn in one.turns:
            found.update((turn.response, turn.observation))
    return sorted(found - {""})


def _turns(trajectory: Trajectory) -> tuple[DemoTurn, ...]:
    return tuple(DemoTurn(turn.response, turn.observation) for turn in trajectory.turns)


def _roomy(config: AgentConfig) -> AgentConfig:
    """The same agent with room for a tokenizer that spends a token on every byte."""
    return replace(
        config,
        max_context_tokens=config.max_context_tokens * 16,
        max_response_tokens=config.max_response_tokens * 16,
    )
