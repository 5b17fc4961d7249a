"""The two trainers on GPUs: SkyRL's FSDP workers, tied models kept tied (see recipes.swe.gpu_workers)."""

from typing import Any

from recipes.swe.trainers import AsyncTrainer, SyncTrainer


class _GpuModels:
    """Builds the models with our workers; another strategy than FSDP keeps SkyRL's."""

    cfg: Any

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        """SkyRL's, with workers that keep tied models tied."""
        if self.cfg.trainer.strategy == "fsdp":
            from recipes.swe.gpu_workers import policy_actor, reference_actor

            super().build_models(policy_actor(), CriticWorker, reference_actor())  # type: ignore[misc]
            return
        super().build_models(PolicyWorker, CriticWorker, RefWorker)  # type: ignore[misc]


class GpuSyncTrainer(_GpuModels, SyncTrainer):
    """One step after the other."""


class GpuAsyncTrainer(_GpuModels, AsyncTrainer):
    """Training and generation at the same time."""
