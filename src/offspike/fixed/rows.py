"""Weights as small whole numbers times a power of two, with little loss.

A row is what one output channel multiplies its inputs with. Its grid is ``2^-k``: k is chosen for least squared error,
by channel or for the whole layer. With data, rounding is *compensated*: the error made with one weight is taken up by
those that are still to be rounded, so that the layer's output changes least (optimal brain surgeon; Frantar & Alistarh
2022). ``H = X·Xᵀ`` holds what has to be known of the inputs.
"""

import math
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Per", "compensated", "exponents", "nearest"]

Per = Literal["channel", "layer"]
CLIPPED = 3  # how many finer grids, which clip the largest weights, are tried
DAMPING = 0.01  # of the mean of H's diagonal
BLOCK = 128


def exponents(rows: Tensor, bits: int, *, per: Per = "channel", finest: int, weights: Tensor | None = None) -> Tensor:
    """k for each row of weights ``[O, K]``: the grid ``2^-k`` of least squared error, ``k <= finest``.

    ``weights`` says how much an error counts in each column (the mean square of its input).
    """
    most = rows.abs().amax(1) if per == "channel" else rows.abs().max().expand(len(rows))
    safe = torch.where(most > 0, most, 2.0**-finest)
    first = (math.log2(_largest(bits)) - safe.log2()).floor()
    best, least = first.clamp(max=finest), torch.full_like(first, torch.inf)
    for extra in range(CLIPPED + 1):
        tried = (first + extra).clamp(max=finest)
        square = (nearest(rows, tried, bits) - rows).square()
        error = (square if weights is None else square * weights).sum(1)
        error = error if per == "channel" else error.sum().expand(len(rows))
        better = error < least
        best, least = torch.where(better, tried, best), torch.where(better, error, least)
    return best


def nearest(rows: Tensor, k: Tensor, bits: int) -> Tensor:
    """Each weight on the grid of its row: ``clip(⌊w·2^k⌉, −2^(b−1), 2^(b−1) − 1)·2^-k``."""
    unit = torch.exp2(-k)[:, None]
    return (rows / unit).round().clamp(-_largest(bits) - 1, _largest(bits)) * unit


def compensated(rows: Tensor, k: Tensor, bits: int, hessian: Tensor) -> Tensor:
    """Rows on their grids with least ``Σ (Δw·H·Δw)``, one column after the other, those that matter most first."""
    order = hessian.diagonal().argsort(descending=True)
    hessian = hessian[order][:, order]
    damping = DAMPING * hessian.diagonal().mean().clamp(min=1e-12)
    hessian = hessian + damping * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
    left = rows[:, order].to(hessian.dtype)
    done = torch.empty_like(left)
    k = k.to(hessian.dtype)
    for start in range(0, left.shape[1], BLOCK):
        stop = min(start + BLOCK, left.shape[1])
        errors = torch.empty_like(left[:, start:stop])
        for j in range(start, stop):
            done[:, j] = nearest(left[:, j : j + 1], k, bits)[:, 0]
            errors[:, j - start] = (left[:, j] - done[:, j]) / upper[j, j]
            left[:, j + 1 : stop] -= errors[:, j - start, None] * upper[j, j + 1 : stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    return done[:, order.argsort()].to(rows.dtype)


def _largest(bits: int) -> int:
    return int(2 ** (bits - 1)) - 1
