"""The agent's tools on one sandbox: bash, str_replace_editor and submit.

`ToolBox.run` turns a parsed call into an observation. What the model does wrong is an observation; what the
sandbox does wrong is raised (SandboxError), so that the two are never mixed up.
"""

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from recipes.swe.agent_config import AgentConfig
from recipes.swe.editor import Editor
from recipes.swe.parsing import ToolCall
from recipes.swe.prompts import elide, render
from sandbox.types import Sandbox, Session


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call led to."""

    observation: str
    """Text for the model, already rendered and capped."""
    submitted: bool = False
    """True when the model ended its work."""


class ToolBox:
    """Tools of one agent. Close it to end the shell."""

    def __init__(
        self, session: Session, editor: Editor, config: AgentConfig, review: Callable[[str], Awaitable[str]]
    ) -> None:
        """`review` renders one of the config's reviews; see `open`."""
        self._session = session
        self._editor = editor
        self._config = config
        self._review = review
        self._reviews = list(config.submit_reviews)

    @classmethod
    async def open(cls, sandbox: Sandbox, *, workdir: str, config: AgentConfig, statement: str = "") -> Self:
        """Start the shell that the bash tool keeps using. `statement` is what reviews may repeat."""
        editor = Editor(
            sandbox, workdir=workdir, snippet_lines=config.snippet_lines, timeout_s=config.command_timeout_s
        )
        session = await sandbox.open_session()
        if config.shell_env:
            pairs = " ".join(f"{name}={shlex.quote(value)}" for name, value in config.shell_env.items())
            await session.run(f"export {pairs}", timeout_s=config.command_timeout_s)

        async def review(template: str) -> str:
            changes = await sandbox.changes(workdir)
            return render(template, diff=changes.patch, problem_statement=statement)

        return cls(session, editor, config, review)

    async def run(self, call: ToolCall, *, timeout_s: float) -> ToolResult:
        """Carry out one call; a command gets at most `timeout_s`."""
        if call.name == "submit":
            return await self._submit()
        if call.name == "bash":
            return ToolResult(await self._bash(str(call.arguments["command"]), timeout_s))
        return ToolResult(self._rendered(await self._editor.run(call.arguments)))

    async def _submit(self) -> ToolResult:
        if not self._reviews:
            return ToolResult("", submitted=True)
        return ToolResult(self._rendered(await self._review(self._reviews.pop(0))))

    async def close(self) -> None:
        """End the shell and all it started."""
        await self._session.close()

    async def _bash(self, command: str, timeout_s: float) -> str:
        config = self._config
        # Four bytes a character at most, head and tail kept, and the note of the cut: enough to elide from.
        limit = (8 if config.truncated_observation_template else 4) * config.observation_limit_chars + 1024
        result = await self._session.run(command, timeout_s=timeout_s, output_limit_bytes=limit)
        output = result.text.rstrip()
        if result.timed_out:
            return render(
                config.timeout_template,
                command=elide(command, 200),
                timeout=f"{timeout_s:g}",
                observation=elide(output, config.observation_limit_chars),
            )
        hint = ""
        if config.show_exit_status and result.exit_status not in (0, None):
            hint = f"[exit status {result.exit_status}]"
        return self._rendered(output, hint)

    def _rendered(self, text: str, hint: str = "") -> str:
        text, limit = text.rstrip(), self._config.observation_limit_chars
        if len(text) > limit and self._config.truncated_observation_template:
            return render(
                self._config.truncated_observation_template,
                observation=text,
                working_dir="",
                max_observation_length=limit,
                elided_chars=len(text) - limit,
            )
        shown = elide(text, limit)
        observation = "\n".join(part for part in (shown, hint) if part)
        if not observation:
            return render(self._config.empty_observation_template, observation="", working_dir="")
        return render(self._config.observation_template, observation=observation, working_dir="")
