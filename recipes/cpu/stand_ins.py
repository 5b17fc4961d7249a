"""What SkyRL's FSDP workers import or call that a machine with no GPU lacks.

SkyRL 0.4.0 imports `flash_attn.bert_padding` unconditionally, though with `flash_attn: false` and
`remove_microbatch_padding: false` none of it is called, and asks `torch.cuda` for the current device.
`install_flash_attn` puts a module there that imports and raises when called; `point_cuda_at_cpu`
answers the device questions. Both act on the calling process only; nothing happens on import.
"""

import importlib.machinery
import importlib.util
import sys
import types
from typing import NoReturn

import torch


def _refuse(*_args: object, **_kwargs: object) -> NoReturn:
    raise RuntimeError(
        "flash-attn was called on a machine without it: set flash_attn and remove_microbatch_padding to false"
    )


def install_flash_attn() -> None:
    """Make `flash_attn.bert_padding` importable where flash-attn is not installed.

    The modules carry a real `__spec__`, since transformers looks for one before deciding whether the
    package is there, and refuses a module without.
    """
    if "flash_attn" in sys.modules or importlib.util.find_spec("flash_attn") is not None:
        return
    package = types.ModuleType("flash_attn", "Stand-in: importable, raises when called.")
    package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", loader=None, is_package=True)
    package.__path__ = []
    padding = types.ModuleType("flash_attn.bert_padding")
    padding.__spec__ = importlib.machinery.ModuleSpec("flash_attn.bert_padding", loader=None)
    for name in ("pad_input", "unpad_input", "index_first_axis", "rearrange"):
        setattr(padding, name, _refuse)
    package.bert_padding = padding  # type: ignore[attr-defined]
    sys.modules["flash_attn"] = package
    sys.modules["flash_attn.bert_padding"] = padding


def point_cuda_at_cpu() -> None:
    """Answer SkyRL's `torch.cuda.current_device()` with the CPU, and make synchronising free."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
    torch.cuda.set_device = lambda device: None  # type: ignore[assignment]
