"""A training run on a machine with no GPU: SkyRL's trainer, a CPU policy worker, one vLLM process group.

It starts the server first, since that takes longest, then Ray and the workers meanwhile. All processes it
starts are its children or Ray's, carry the run's environment variable, and are gone when it returns.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.trainer_utils import cleanup_old_checkpoints
from skyrl.train.utils.utils import prepare_runtime_environment

from recipes.cpu.client import PatientClient
from recipes.cpu.nodes import ray_cluster
from recipes.cpu.server import REPOSITORY, ServerSettings, VllmServer
from recipes.cpu.stand_ins import install_flash_attn
from recipes.cpu.supervisor import RESTART_WAIT_S, Supervisor
from recipes.swe.console import log_to_file, say
from recipes.swe.experiment import SweExp, skyrl_config, without_progress_bar
from recipes.swe.trainers import AsyncTrainer, SyncTrainer

LOGPROB_TOLERANCE = 1e-3
"""Both sides compute in fp32: a larger mean difference means that they hold different weights."""


class OnCpu(RayPPOTrainer):
    """In front of a trainer: the policy is built on the CPU; there is no critic and no reference model."""

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        """SkyRL's, with our policy worker in place of the one that needs a GPU."""
        from recipes.cpu.worker import policy_actor

        super().build_models(policy_actor(), CriticWorker, RefWorker)

    def _cleanup_old_checkpoints(self) -> None:
        """On this machine only; SkyRL's starts a Ray task per node, whose imports take 10-20 s."""
        cleanup_old_checkpoints(self.cfg.trainer.ckpt_path, self.cfg.trainer.max_ckpts_to_keep)


class CpuSyncTrainer(OnCpu, SyncTrainer):
    """One step after the other."""


class CpuAsyncTrainer(OnCpu, AsyncTrainer):
    """The policy is updated while the server samples."""

    compares_logprobs = True


class CpuSweExp(SweExp):
    """The experiment over a server of our own."""

    sync_trainer = CpuSyncTrainer
    async_trainer = CpuAsyncTrainer
    logprob_tolerance = LOGPROB_TOLERANCE
    reconnect_s = RESTART_WAIT_S

    def __init__(
        self, cfg: SkyRLTrainConfig, settings: Mapping[str, Any], server: VllmServer, supervisor: Supervisor
    ) -> None:
        self.server = server
        self.supervisor = supervisor
        self.on_ready: Callable[[], None] = lambda: None
        super().__init__(cfg, settings)

    def get_inference_client(self) -> Any:
        """SkyRL's client of our server, which need not answer yet: workers come up meanwhile."""
        self.fanout = self.start_fanout(self.server.url)
        return PatientClient.of(super().get_inference_client())

    def wait_until_ready(self) -> None:
        """Block until server and rollout workers are there."""
        self.server.wait_healthy()
        self.supervisor.start()
        super().wait_until_ready()
        self.on_ready()


def server_settings(cfg: SkyRLTrainConfig) -> ServerSettings:
    """How to serve, out of SkyRL's keys; `engine_init_kwargs` become vLLM's command-line options."""
    engine = cfg.generator.inference_engine
    options = dict(engine.engine_init_kwargs)
    worker_cls = options.pop("worker_cls", None)
    extra: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is not False and value is not None:
            extra += [flag] if value is True else [flag, str(value)]
    if not engine.enable_prefix_caching:
        extra.append("--no-enable-prefix-caching")
    return ServerSettings(
        model=cfg.trainer.policy.model.path,
        served_model_name=engine.served_model_name or cfg.trainer.policy.model.path,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        dtype=engine.model_dtype,
        seed=cfg.trainer.seed,
        extra_args=tuple(extra),
        **({"worker_cls": worker_cls} if worker_cls else {}),
    )


def worker_environment(cfg: SkyRLTrainConfig, paths: Mapping[str, str]) -> dict[str, Any]:
    """Ray's `runtime_env` of all its workers."""
    from recipes.cpu.worker import SYNC_DIR_VARIABLE

    variables = prepare_runtime_environment(cfg) | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", "")))),
        "CUDA_VISIBLE_DEVICES": "",
        "SKYRL_LOG_FILE": str(Path(cfg.trainer.log_path) / "workers.log"),
        SYNC_DIR_VARIABLE: paths["shm_dir"],
        "HF_HUB_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads must not take the core from the server
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }
    hook = "recipes.cpu.stand_ins.install_flash_attn"
    return {"env_vars": variables, "worker_process_setup_hook": hook}


def run_on_cpu(settings: Mapping[str, Any]) -> None:
    """Train. Returns when all steps are done; raises when the run failed."""
    run_dir, paths = Path(settings["paths"]["run_dir"]), settings["paths"]
    log_to_file(run_dir)
    without_progress_bar()
    install_flash_attn()
    started = time.monotonic()
    cfg = skyrl_config(settings)
    for folder in (cfg.trainer.log_path, paths["temp_dir"], paths["shm_dir"]):
        Path(folder).mkdir(parents=True, exist_ok=True)
    server = VllmServer(server_settings(cfg), log_path=Path(cfg.trainer.log_path) / "vllm.log")
    engine = cfg.generator.inference_engine
    engine.external_proxy_url, engine.external_server_urls = server.url, [server.url]
    validate_cfg(cfg)
    say("starting vLLM, Ray and the trainer (a minute or so)")
    nodes = ray_cluster(
        settings["cluster"],
        temp_dir=paths["temp_dir"],
        runtime_env=worker_environment(cfg, paths),
        cache_io=paths["cache_io"],
    )
    with server, Supervisor(server, sync_dir=Path(paths["shm_dir"]), say=say) as supervisor, nodes:
        exp = CpuSweExp(cfg, settings, server, supervisor)
        exp.on_ready = lambda: say(f"all up after {time.monotonic() - started:.0f} s")
        try:
            exp.run()
        finally:
            exp.close()
