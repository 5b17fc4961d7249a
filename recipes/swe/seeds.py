"""The sampling seed of a rollout, from what names it alone: asked again, it gets the same."""

import hashlib


def rollout_seed(run_seed: int, step: int, instance_id: str, repetition: int) -> int:
    """A seed of 31 bits for one rollout."""
    text = f"{run_seed}/{step}/{instance_id}/{repetition}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
