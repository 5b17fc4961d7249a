"""Which rollouts meet a fault: a share of them by their ids, the same in every attempt and every process."""

import hashlib
from collections.abc import Mapping


def injected(trajectory_id: str, faults: Mapping[str, float]) -> str:
    """The fault of this rollout, the same in every attempt; empty for none. `faults`: share of each."""
    digest = hashlib.sha256(trajectory_id.encode()).digest()
    chance = int.from_bytes(digest[:8], "big") / 2**64
    for name, share in faults.items():
        if chance < share:
            return name
        chance -= share
    return ""
