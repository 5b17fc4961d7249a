"""SkyRL's policy worker on a CPU: gloo instead of nccl, no sharding, weights handed over as a file.

`CpuPolicyWorker` is the FSDP policy worker with its process group, strategy and weight sync replaced;
loss, optimiser, micro-batching and checkpoints are SkyRL's. One process only: there is nothing to shard.
FSDP2 itself is avoided on purpose: its meta-device start unties embeddings, and training drifts from what
is served. Import this module only where `stand_ins.install_flash_attn` has run.
"""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed
from safetensors.torch import save_file
from skyrl.backends.skyrl_train.distributed.dispatch import MeshRank
from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy
from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase

from recipes.cpu.stand_ins import point_cuda_at_cpu

SYNC_DIR_VARIABLE = "MINISANDBOX_SYNC_DIR"
"""Environment variable with the folder (best a tmpfs) through which weights go to the server."""
MAX_THREADS = 8
"""Small models gain nothing from more threads."""


class WholeModelStrategy(FSDPStrategy):
    """SkyRL's FSDP strategy without FSDP: the module stays as it was loaded."""

    def setup_distributed(self) -> None:
        self.set_seed(self.seed)
        self.world_size = torch.distributed.get_world_size()
        if self.world_size != 1:
            raise ValueError("the CPU trainer runs as one process; set policy_num_gpus_per_node to 1")

    def _fsdp_init_model(self, model: Any, is_train: bool = True, is_wrapped: bool = False) -> Any:
        return model.model if is_wrapped else model


class CpuPolicyWorker(FSDPPolicyWorkerBase):
    """The policy worker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        point_cuda_at_cpu()
        torch.set_num_threads(min(os.cpu_count() or 1, MAX_THREADS))
        super().__init__(*args, **kwargs)

    def init_worker_process_group(self) -> None:
        """A gloo group of one, and its mesh on the CPU."""
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(backend="gloo", timeout=timedelta(minutes=10))
        self.device_mesh = torch.distributed.device_mesh.init_device_mesh(
            "cpu", mesh_shape=(self._world_size, 1), mesh_dim_names=("dp", "sp")
        )
        self.mesh_rank = MeshRank(
            dp=self.device_mesh.get_local_rank(mesh_dim="dp"),
            sp=0,
            tp=0,
            pp=0,
            world_size=self._world_size,
            dp_size=self.device_mesh.size(0),
            pp_size=1,
        )

    def init_model(self, model_path: str, num_training_steps: int | None = None) -> None:
        """Load the model with the strategy above; SkyRL's method names its strategy by module global."""
        fsdp_worker.FSDPStrategy = WholeModelStrategy
        super().init_model(model_path, num_training_steps)

    async def init_weight_sync_state(self, inference_engine_client: Any, inference_engine_cfg: Any) -> None:
        """Nothing to negotiate: weights go through a file."""
        self._client = inference_engine_client

    async def broadcast_to_inference_engines(
        self, inference_engine_client: Any, inference_engine_cfg: Any, model_id: str | None = None
    ) -> None:
        """Write the weights and have every server load them."""
        folder = Path(os.environ[SYNC_DIR_VARIABLE]) / "weights"
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self._weights(), folder / "new.tmp")
        (folder / "new.tmp").replace(folder / "model.safetensors")
        client = inference_engine_client or self._client
        # Raises for any status but 2xx.
        await client._call_all_servers(
            "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        )
        if inference_engine_cfg.enable_prefix_caching:
            await client.reset_prefix_cache(reset_running_requests=True)

    def _weights(self) -> dict[str, torch.Tensor]:
        """The state dict by checkpoint names, tied tensors once."""
        seen: set[int] = set()
        weights: dict[str, torch.Tensor] = {}
        for name, tensor in self.model.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                weights[name] = tensor.detach().contiguous()
        return weights


class WithoutGpu:
    """Stands where SkyRL expects a Ray actor class, and drops the GPU from what it asks for."""

    def __init__(self, actor_class: Any) -> None:
        self._actor_class = actor_class

    def options(self, **options: Any) -> Any:
        """Ray's `options`, with no GPU and no CPU reserved: one machine, and the steps take turns."""
        options.update(num_gpus=0, num_cpus=0)
        return self._actor_class.options(**options)


def policy_actor() -> WithoutGpu:
    """What `build_models` takes as PolicyWorker."""
    return WithoutGpu(ray.remote(num_gpus=0)(CpuPolicyWorker))
