"""A folder that vLLM can serve, out of whatever a person calls a policy.

A Hugging Face folder or hub id is itself. Of a run folder it is the last checkpoint, of a checkpoint the
export of the same step where there is one (`skyrl.trainer.hf_save_interval`), else its weights when one
process wrote them all. Weights that several processes share cannot be joined here: their run must export
them.
"""

import json
import shutil
from pathlib import Path

WEIGHTS = "model_world_size_1_rank_0.pt"
"""SkyRL's name of the weights that one process wrote."""
LATEST = "latest_ckpt_global_step.txt"


class NoModelError(ValueError):
    """Nothing there can be served; the message says what to do."""


def servable_model(name: str, scratch: Path) -> str:
    """Folder or hub id to serve. A conversion is written below `scratch`. Raises NoModelError."""
    found = find_model(name)
    if isinstance(found, str) or (found / "config.json").is_file():
        return str(found)
    return str(_converted(found, scratch / found.parent.name))


def find_model(name: str) -> Path | str:
    """What is served: a folder, or the id of a hub, or the folder of a checkpoint's weights, which must be
    converted first. Only looks. Raises NoModelError."""
    path = Path(name)
    if not path.exists():
        if name.startswith(("/", ".", "~")):
            raise NoModelError(f"{name} does not exist")
        return name  # an id of the hub
    if (path / "config.json").is_file():
        return path
    checkpoint = _checkpoint_of(path)
    export = checkpoint.parents[1] / "exports" / checkpoint.name / "policy"
    if (export / "config.json").is_file():
        return export
    if not (checkpoint / "policy" / WEIGHTS).is_file():
        raise NoModelError(
            f"{checkpoint / 'policy'} is shared by several processes: set skyrl.trainer.hf_save_interval in "
            "its run, which writes a model to serve below exports/"
        )
    return checkpoint / "policy"


def tokenizer_fault(found: Path | str) -> str | None:
    """Why the agent cannot speak to a model found, in one line; None when it can. Imports transformers."""
    from transformers import AutoTokenizer

    from recipes.swe.chat import ChatCodec

    converted = isinstance(found, Path) and not (found / "config.json").is_file()
    try:
        ChatCodec(AutoTokenizer.from_pretrained(found / "huggingface" if converted else found))  # type: ignore[operator]
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())[:300]
    return None


def _checkpoint_of(path: Path) -> Path:
    """The folder `global_step_N` that is meant."""
    if (path / "policy").is_dir():
        return path.resolve()
    checkpoints = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    try:
        step = int((checkpoints / LATEST).read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        raise NoModelError(f"{path} is neither a model, nor a checkpoint, nor a run with one") from error
    return (checkpoints / f"global_step_{step}").resolve()


def _converted(policy: Path, target: Path) -> Path:
    """A Hugging Face folder of a checkpoint that one process wrote."""
    import torch
    from safetensors.torch import save_file

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(policy / "huggingface", target)
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    state = torch.load(policy / WEIGHTS, map_location="cpu", weights_only=True, mmap=True)
    if config.get("tie_word_embeddings"):
        state.pop("lm_head.weight", None)
    kept = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target
