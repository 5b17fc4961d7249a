"""vLLM's CPU worker, with a weight reload that reaches every copy of the weights.

On x86 vLLM's CPU backend keeps a packed copy of the LM head for its GEMM. The generic
`reload_weights` refreshes the parameters but not that copy when the head is tied to the embedding, so
the server would go on sampling from the old head: silently, and off by 0.1-0.2 in log-probability.
Chosen with `--worker-cls`; nothing here runs on a GPU.
"""

from typing import Any

from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.v1.worker.cpu_worker import CPUWorker


class SyncedCpuWorker(CPUWorker):
    """A CPU worker whose reload also packs embeddings and heads again."""

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """Reload as vLLM does, then re-pack. Called through `/collective_rpc`."""
        super().reload_weights(*args, **kwargs)
        for module in self.model_runner.get_model().modules():
            if isinstance(module, VocabParallelEmbedding):
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)
