"""Muon: momentum whose matrix updates are made nearly orthogonal, for the hidden matrices of small models.

On the demo policy it reaches in 200 steps the loss that AdamW alone has not reached in 300. Everything is
fp32 (torch's own version computes in bf16, which is slow on processors without it). Embeddings, biases and
norms are not its business: give those to AdamW.
"""

from collections.abc import Iterable
from typing import Any

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the quintic iteration that pushes all singular values towards 1 (Jordan et al., 2024)."""
ITERATIONS = 5
MOMENTUM = 0.95


def orthogonal(matrix: Any) -> Any:
    """A matrix with about the same singular vectors and singular values near 1."""
    tall = matrix.size(0) > matrix.size(1)
    found = matrix.T if tall else matrix
    found = found / (found.norm() + 1e-7)
    first, second, third = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = found @ found.T
        found = first * found + (second * square + third * square @ square) @ found
    return found.T if tall else found


class Muon:
    """Updates matrices in place; `step` takes the learning rate, so that schedules stay outside."""

    def __init__(self, matrices: Iterable[Any], *, weight_decay: float) -> None:
        import torch

        self._matrices = list(matrices)
        self._momenta = [torch.zeros_like(matrix) for matrix in self._matrices]
        self._weight_decay = weight_decay

    def step(self, lr: float) -> None:
        """One update from the matrices' gradients."""
        import torch

        with torch.no_grad():
            for matrix, momentum in zip(self._matrices, self._momenta, strict=True):
                momentum.lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonal(matrix.grad.lerp(momentum, MOMENTUM))
                wide = max(1.0, matrix.size(0) / matrix.size(1)) ** 0.5
                matrix.mul_(1 - lr * self._weight_decay)
                matrix.add_(update, alpha=-lr * wide)
