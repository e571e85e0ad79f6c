"""What the ANN is trained with: activations that a spiking neuron can follow exactly."""

import math
from typing import Self

import torch
from torch import Tensor, nn

from offspike import equations
from offspike.clock import whole

__all__ = ["QCFS", "Activation", "Bounded", "ClippedReLU", "Rectifier"]


class Activation(nn.Module):
    """What a spiking layer can stand for: ``clip(x, 0, λ)``, perhaps quantised."""

    @property
    def lam(self) -> Tensor:
        """The threshold λ, the largest value that this activation returns; +∞ where there is none."""
        return torch.tensor(torch.inf)


class Rectifier(Activation):
    """``max(x, 0)``: a ReLU as it is (``osp.ReLU``), for networks that are converted without training.

    It has no threshold of its own: convert with a method that takes one from data (`thresholds.py`).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Not in place."""
        return x.clamp(min=0)


class Bounded(Activation):
    """An activation bounded by a trained threshold λ > 0, scalar or broadcastable to a sample (``[C, 1, 1]``).

    λ = 2^p and p is what is trained: λ is positive by construction, and exact whenever it is a power of two.
    ``cap`` is the bound of the activation that it stands for (6 for a ReLU6): a λ taken from data is no larger.
    """

    cap: float = math.inf

    def __init__(self, lam: float | Tensor = 1.0) -> None:
        super().__init__()
        lam = torch.as_tensor(lam, dtype=torch.float32)
        _check_threshold(lam)
        self.log2_lam = nn.Parameter(lam.log2())

    @property
    def lam(self) -> Tensor:
        """The threshold λ, the largest value that this activation returns."""
        return self.log2_lam.exp2()

    @torch.no_grad()
    def set_threshold(self, lam: float | Tensor) -> Self:
        """Make λ this value, in place; the shape may change. Returns the module."""
        lam = torch.as_tensor(lam, dtype=torch.float32, device=self.log2_lam.device)
        _check_threshold(lam)
        self.log2_lam.data = lam.log2()
        return self


class QCFS(Bounded):
    """Quantisation clip-floor-shift (Eq. 7): ``λ/L · clip(⌊x·L/λ + ½⌋, 0, L)``, L = ``levels``."""

    def __init__(self, levels: int, *, lam: float | Tensor = 1.0) -> None:
        super().__init__(lam)
        self.levels = whole("levels", levels)

    def forward(self, x: Tensor) -> Tensor:
        """λ is float32 whatever the input; the result has the input's dtype."""
        return equations.qcfs(x.to(torch.promote_types(x.dtype, torch.float32)), self.lam, self.levels).to(x.dtype)

    def extra_repr(self) -> str:
        """Show L."""
        return f"levels={self.levels}"


class ClippedReLU(Bounded):
    """``clip(x, 0, λ)``: QCFS with infinitely many levels, for the first part of a training."""

    def forward(self, x: Tensor) -> Tensor:
        """λ is float32 whatever the input; the result has the input's dtype."""
        lam = self.lam
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return ((wide / lam).clamp(0, 1) * lam).to(x.dtype)


def _check_threshold(lam: Tensor) -> None:
    if not lam.is_meta and not bool((lam.isfinite() & (lam > 0)).all()):  # a meta tensor has no values
        raise ValueError(f"thresholds must be positive and finite, got {lam.min().item():g} … {lam.max().item():g}")
