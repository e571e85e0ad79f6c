"""SpikingLayer: where clock, threshold, policy and neuron meet."""

from torch import Tensor, nn

from offspike.clock import active_clock
from offspike.methods import Method

__all__ = ["SpikingLayer"]


class SpikingLayer(nn.Module):
    """Stands where an activation stood: currents in, ``θ·s(t)`` out, nothing kept between calls.

    ``theta`` is the threshold, a scalar or broadcastable to a sample. ``levels`` is L of the activation it replaces
    (None: not quantised). ``steady`` says that the current does not change over time (it comes from the image alone).
    """

    theta: Tensor

    def __init__(self, theta: Tensor, method: Method, *, levels: int | None = None, steady: bool = False) -> None:
        super().__init__()
        if not bool((theta.isfinite() & (theta > 0)).all()):
            raise ValueError(f"thresholds must be positive and finite, got {theta.min().item():g}")
        self.register_buffer("theta", theta.detach().clone())
        self.policy = method.initial
        self.neuron = method.neuron
        self.levels = levels
        self.steady = steady

    def forward(self, current: Tensor) -> Tensor:
        """``[T·B, …]`` (``[B, …]`` if steady) to ``[T·B, …]``."""
        clock = active_clock()
        current = self.unfold(current)
        spikes = clock.phase.fire(self, current)
        return clock.fold(spikes * self.theta.to(spikes.dtype))

    def unfold(self, current: Tensor) -> Tensor:
        """The current of each step, ``[T, B, …]``."""
        clock = active_clock()
        return clock.hold(current) if self.steady else clock.unfold(current)

    def extra_repr(self) -> str:
        """What a reader of ``print(snn)`` wants to know."""
        theta = f"{self.theta.item():.4g}" if self.theta.numel() == 1 else f"{tuple(self.theta.shape)}"
        return f"theta={theta}, {self.policy}{', steady' if self.steady else ''}"
