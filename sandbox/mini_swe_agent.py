"""mini-swe-agent's environment in a MiniSandbox: what `environment_class: docker` gives, without containers.

Name it in a configuration as `environment_class: sandbox.mini_swe_agent.MiniSandboxEnvironment`. As there,
each action is one shell of its own in the same sandbox. Needs the extra `rex`; nothing else of this
package imports it.
"""

import os
import platform
from types import TracebackType
from typing import Any, Self

from minisweagent.exceptions import Submitted
from pydantic import Field

from sandbox.rex_config import MiniSandboxDeploymentConfig
from sandbox.rex_host import SandboxHost, shared_host
from sandbox.types import MIB, ExecResult, Sandbox

_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class MiniSandboxEnvironmentConfig(MiniSandboxDeploymentConfig):
    """All of the deployment's fields, and mini-swe-agent's."""

    cwd: str = ""
    """Where actions run. Empty: the deployment's `workdir`."""
    timeout: int = 30
    """Time that one action may take, in seconds."""
    forward_env: list[str] = Field(default_factory=list[str])
    """Variables handed in from outside when they are set there; those of `env` win."""
    interpreter: list[str] = Field(default=["bash", "-c"])
    """What an action is given to, as its last argument. No login shell: /etc/profile would reset PATH."""


class MiniSandboxEnvironment:
    """Implements `minisweagent.Environment`. Use it as `with`, or call `cleanup`, or let it be collected."""

    def __init__(self, *, host: SandboxHost | None = None, **kwargs: Any) -> None:
        """`kwargs` are the fields of `MiniSandboxEnvironmentConfig`. Raises SandboxError when the sandbox
        cannot be opened."""
        self._sandbox: Sandbox | None = None
        self.config = MiniSandboxEnvironmentConfig(**kwargs)
        self._host = host or shared_host(self.config.state_dir)
        spec = self.config.spec()
        self._workdir = self.config.cwd or spec.workdir
        self._host.enter()
        try:
            self._sandbox = self._host.wait(self._host.open(spec))
        except BaseException:
            self._host.leave()
            raise

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox. Its methods belong to the host's loop: use `diff` and its like."""
        if self._sandbox is None:
            raise RuntimeError("the environment was cleaned up")
        return self._sandbox

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run an action; raises mini-swe-agent's Submitted when it hands in the result. Whatever else goes
        wrong is told to the model, as mini-swe-agent's own environments do."""
        seconds = timeout or self.config.timeout
        command = str(action.get("command", ""))
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        try:
            result = self._host.wait(
                self.sandbox.exec(
                    [*self.config.interpreter, command],
                    timeout_s=seconds,
                    env={**forwarded, **self.config.env},
                    cwd=cwd or self._workdir,
                    output_limit_bytes=self.config.output_mib * MIB,
                )
            )
        except Exception as error:  # noqa: BLE001 - the protocol: the agent is told, and may go on or give up
            return _failed("", error)
        if result.timed_out:
            return _failed(result.text, TimeoutError(f"the command did not end in {seconds} seconds"))
        _raise_when_submitted(result)
        return {"output": result.text, "returncode": result.exit_status, "exception_info": ""}

    def diff(self, root: str = "") -> str:
        """What was changed below `root` (`cwd`) as a git-format patch, read from outside: nothing that ran
        inside can falsify it."""
        return self._host.wait(self.sandbox.diff(root or self._workdir))

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What prompts may name: the configuration, and the kernel's names."""
        return {**self.config.model_dump(), **platform.uname()._asdict(), **kwargs}

    def serialize(self) -> dict[str, Any]:
        """For the trajectory file."""
        kind = type(self)
        config = {
            "environment": self.config.model_dump(mode="json"),
            "environment_type": f"{kind.__module__}.{kind.__name__}",
        }
        return {"info": {"config": config}}

    def cleanup(self) -> None:
        """Close the sandbox. Idempotent."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            try:
                self._host.wait(sandbox.close())
            finally:
                self._host.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    def __del__(self) -> None:
        sandbox = getattr(self, "_sandbox", None)  # absent when the keyword arguments were wrong
        if sandbox is not None:
            self._sandbox = None
            self._host.discard(sandbox)


def _failed(output: str, error: Exception) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _raise_when_submitted(result: ExecResult) -> None:
    """mini-swe-agent's sign of the end: a first line of output; the rest is what is handed in."""
    first, _, submission = result.text.lstrip().partition("\n")
    if first.strip() == _SUBMIT and result.exit_status == 0:
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
