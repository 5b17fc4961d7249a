"""The vLLM server of a run without GPUs: one process group on this machine.

Starts SkyRL's own vLLM server module (token-in/token-out `/inference/v1/generate`, pause, resume,
`/collective_rpc`) with a CPU worker, waits until it answers, and kills the whole group at the end. It does
not place or balance servers; on GPU nodes SkyRL does that itself.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[2]
"""Put on PYTHONPATH of children, so that `recipes` is found however the driver was started."""

SERVER_MODULE = "skyrl.backends.skyrl_train.inference_servers.vllm_server_actor"


STOP_TIMEOUT_S = 10.0
"""How long the guard may take to end its group."""


class ServerError(RuntimeError):
    """The server did not start, or died; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How to serve the policy."""

    model: str
    """Folder of the Hugging Face model."""
    served_model_name: str = "policy"
    """Name that requests must use."""
    max_model_len: int = 2048
    """Context window in tokens."""
    max_num_seqs: int = 64
    """Requests decoded together."""
    max_num_batched_tokens: int = 8192
    """Tokens of one scheduler step; at least max_model_len."""
    dtype: str = "float32"
    """fp32: bf16 is emulated, and slower, on most CPUs."""
    kv_cache_gib: int = 1
    """Memory for the KV cache in GiB."""
    threads: int = 1
    """OpenMP threads of the engine. One: small models gain nothing from more, and a second thread that
    shares its core with the sandboxes makes the whole server four times slower."""
    seed: int = 0
    """Seed of the engine; each request brings its own as well."""
    worker_cls: str = "recipes.cpu.vllm_worker.SyncedCpuWorker"
    """Worker class; the default one packs the LM head again after each reload."""
    start_timeout_s: float = 300.0
    """How long to wait for the first answer."""
    extra_args: tuple[str, ...] = ()
    """More arguments for vLLM, as on its command line."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """More environment variables for it."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class VllmServer:
    """One server process group. `start` returns at once; `wait_healthy` blocks until it answers."""

    def __init__(self, settings: ServerSettings, *, log_path: Path) -> None:
        self.settings = settings
        self.log_path = log_path
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """The command line, guard included."""
        s = self.settings
        return [
            sys.executable, "-m", "recipes.cpu.guard",
            sys.executable, "-m", SERVER_MODULE,
            "--model", s.model,
            "--served-model-name", s.served_model_name,
            "--host", "127.0.0.1",
            "--port", str(self.port),
            "--dtype", s.dtype,
            "--max-model-len", str(s.max_model_len),
            "--max-num-seqs", str(s.max_num_seqs),
            "--max-num-batched-tokens", str(s.max_num_batched_tokens),
            "--worker-cls", s.worker_cls,
            "--seed", str(s.seed),
            "--logprobs-mode", "processed_logprobs",
            "--generation-config", "vllm",
            "--enforce-eager",
            # A seeded request whose prompt is prefilled in pieces crashes vLLM's engine on CPU
            # ("CPU Generator does not use offset"): a prompt that does not fit waits instead.
            "--no-enable-chunked-prefill",
            "--disable-uvicorn-access-log",
            *s.extra_args,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """What the server sees: our environment, the repository importable, CPU settings of vLLM."""
        env = dict(os.environ)
        # Without bytecode caches its imports take more than a minute.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        paths = [str(REPOSITORY), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
        env.update(
            PYTHONPATH=os.pathsep.join(paths),
            # Keeps worker and engine in one process: one import less, no hop per step.
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE=str(self.settings.kv_cache_gib),
            VLLM_CPU_NUM_OF_RESERVED_CPU="0",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="INFO",
            OMP_NUM_THREADS=str(self.settings.threads),
            OMP_WAIT_POLICY="PASSIVE",
            # Eager mode: what is left of torch.compile (a logprob helper) costs 30 s on the first request.
            TORCHDYNAMO_DISABLE="1",
            HF_HUB_OFFLINE="1",
            TOKENIZERS_PARALLELISM="false",
            **self.settings.env,
        )
        return env

    def start(self) -> None:
        """Start the process group; the death of the calling thread ends it."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_healthy(self) -> None:
        """Block until the server answers. Raises ServerError with the log's tail."""
        deadline = time.monotonic() + self.settings.start_timeout_s
        while time.monotonic() < deadline:
            if self._process is None or self.ended() is not None:
                raise ServerError(f"the vLLM server ended while starting; {self._tail()}")
            if self._answers():
                return
            time.sleep(0.25)
        raise ServerError(
            f"no answer from the vLLM server in {self.settings.start_timeout_s:g} s; {self._tail()}"
        )

    def ended(self) -> int | None:
        """Exit status when it ended by itself; None while it runs, and when it was never started."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Kill the whole group and reap it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()  # The guard kills its group.
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self, lines: int = 25) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return f"its log ({self.log_path}) ends with:\n" + "\n".join(text.splitlines()[-lines:])
