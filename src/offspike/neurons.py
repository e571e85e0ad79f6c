"""Neuron models: ``neuron(current, theta, v0) -> (spikes, v(T))``. They keep nothing between calls."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from offspike import ops

__all__ = ["IF", "NEURONS", "Neuron", "SignedIF"]


class Neuron(Protocol):
    """What turns currents into spikes."""

    def __call__(self, current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor]:
        """Spikes ``[T, …]`` and the residual potential ``[…]``."""
        ...


@dataclass(frozen=True)
class IF:
    """Integrate-and-fire with reset by subtraction (Eq. 2 and 4): ``m = v + I;  s = [m ≥ θ];  v = m − s·θ``."""

    def __call__(self, current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor]:
        """Spikes ``[T, …]`` and the residual potential ``[…]``."""
        return ops.fire(current, theta, v0)


@dataclass(frozen=True)
class SignedIF:
    """A signed neuron with memory (SNM): ``s = [m ≥ θ] − [m ≤ −θ and Σs > 0];  v = m − s·θ``.

    It remembers how many spikes it has sent and takes back those that were too many, so its sum is never below 0.
    """

    def __call__(self, current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor]:
        """Spikes ``[T, …]`` in {−1, 0, 1} and the residual potential ``[…]``."""
        return ops.fire_signed(current, theta, v0)


NEURONS = (IF, SignedIF)
