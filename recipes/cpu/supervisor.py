"""Keeps the vLLM server of a run without GPUs alive: one that died is started again on the same port.

The new one loads the weights that were handed over last, so it never answers with older ones: whoever samples
just waits until it is there, and goes on. Clients retry by themselves (`recipes.cpu.client` for the
trainer, `VllmPolicy` for rollouts). After `MAX_RESTARTS` the server stays down, rollouts fail as `provider`,
and the run stops with its report. On GPU nodes SkyRL places servers itself and restarts none.
"""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from loguru import logger

from recipes.cpu.server import VllmServer

MAX_RESTARTS = 5
"""Of one run; each costs a minute or so."""
RESTART_WAIT_S = 300.0
"""How long clients wait for a server to come back."""
POLL_S = 0.25


class Supervisor:
    """Watches one server from a thread, which owns those that it starts (see recipes.cpu.guard)."""

    def __init__(self, server: VllmServer, *, sync_dir: Path, say: Callable[[str], None]) -> None:
        """`sync_dir`: where weights are handed over; `say` tells the user of a restart."""
        self._server = server
        self._sync_dir = sync_dir
        self._say = say
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="vllm supervisor", daemon=True)
        self.restarts = 0
        """How often the server was started again."""

    def start(self) -> None:
        """Watch from now on: to be called when the first server answers."""
        self._thread.start()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_S):
            status = self._server.ended()
            if status is None:
                continue
            if self.restarts >= MAX_RESTARTS:
                self._say(
                    f"vLLM ended again (status {status}) after {MAX_RESTARTS} restarts: no more of them"
                )
                return
            self.restarts += 1
            self._say(f"vLLM ended (status {status}); starting it again")
            logger.warning(f"vLLM ended with status {status}; restart {self.restarts}")
            model = serving_folder(Path(self._server.settings.model), self._sync_dir)
            self._server.settings = replace(self._server.settings, model=str(model))
            self._server.start()


def serving_folder(model: Path, sync_dir: Path) -> Path:
    """A model folder that holds what was handed over last; `model` itself when nothing was yet."""
    weights = sync_dir / "weights" / "model.safetensors"
    if not weights.exists():
        return model
    folder = sync_dir / "serving"
    if model == folder:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in model.iterdir():
        if not file.name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
            (folder / file.name).symlink_to(file)
    (folder / weights.name).symlink_to(weights)  # a link: the next restart finds the weights of that time
    return folder
