"""One update of a tied model sharded by SkyRL's own strategy, on a CPU: `python tied_run.py plain|kept`.

Prints as JSON whether embedding and output layer are one parameter, before and after, and how they differ."""

import json
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from recipes.cpu.stand_ins import install_flash_attn

install_flash_attn()

import torch  # noqa: E402
import torch.distributed  # noqa: E402
from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy  # noqa: E402
from skyrl.train.config import FSDPConfig  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from recipes.swe.gpu_workers import keep_tied  # noqa: E402
from tests.skyrl.tiny_model import save_tiny_model  # noqa: E402


def weights(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    ends = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    return tuple(one.full_tensor().detach().clone() for one in ends)  # type: ignore[return-value]


def main(mode: str) -> None:
    torch.Tensor.cuda = lambda tensor: tensor  # type: ignore[method-assign,assignment]
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    folder = Path(mkdtemp())
    save_tiny_model(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)
    assert model.config.tie_word_embeddings
    if mode == "kept":
        keep_tied()
        keep_tied()
    strategy = FSDPStrategy(
        fsdp_config=FSDPConfig(), fsdp_strategy="fsdp", seed=0, micro_train_batch_size_per_gpu=1
    )
    strategy.device_mesh = init_device_mesh("cpu", (1,))
    start = model.get_input_embeddings().weight.detach().clone()
    model = strategy._fsdp_init_model(model)
    loaded = all(torch.equal(start, one) for one in weights(model))
    one_before = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.arange(12).reshape(1, 12)
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    embedding, output = weights(model)
    print(
        json.dumps(
            {
                "loaded": loaded,
                "one_before": one_before,
                "one_after": model.get_output_embeddings().weight is model.get_input_embeddings().weight,
                "moved": float((embedding - start).abs().max()),
                "apart": float((embedding - output).abs().max()),
                "parameters": len(list(model.parameters())),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
