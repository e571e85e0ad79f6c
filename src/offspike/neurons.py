"""Neuron models: ``neuron(current, theta, v0) -> (spikes, v(T))``. They keep nothing between calls."""

from dataclasses import dataclass

from torch import Tensor

from offspike import ops

__all__ = ["IF"]


@dataclass(frozen=True)
class IF:
    """Integrate-and-fire with reset by subtraction (Eq. 2 and 4): ``m = v + I;  s = [m ≥ θ];  v = m − s·θ``."""

    def __call__(self, current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor]:
        """Spikes ``[T, …]`` and the residual potential ``[…]``."""
        return ops.fire(current, theta, v0)
