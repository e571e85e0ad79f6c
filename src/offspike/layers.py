"""SpikingLayer: where clock, threshold, policy and neuron meet."""

from typing import Any

import torch
from torch import Tensor, nn

from offspike.clock import active_clock
from offspike.fused import Drive, Product
from offspike.initial import Policy, Uniform
from offspike.leaves import register_leaf
from offspike.methods import Method

__all__ = ["SpikingLayer"]


class SpikingLayer(nn.Module):
    """Stands where an activation stood: currents in, ``θ·s(t)`` out, nothing kept between calls.

    ``theta`` is the threshold, a scalar or broadcastable to a sample. ``levels`` is L of the activation it replaces
    (None: not quantised). ``steady`` says that the current does not change over time (it comes from the image alone).
    ``seed`` is the layer's own, where the method draws v(0) at random.

    Corrections for a whole data set (`corrections.py`): ``shift`` is added to the current of every step, ``start`` to
    v(0). None: no correction.
    """

    theta: Tensor
    shift: Tensor | None
    start: Tensor | None

    def __init__(
        self,
        theta: Tensor,
        method: Method,
        *,
        levels: int | None = None,
        steady: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not theta.is_meta and not bool((theta.isfinite() & (theta > 0)).all()):  # a meta tensor has no values
            raise ValueError(f"thresholds must be positive and finite, got {theta.min().item():g}")
        if seed is not None and not isinstance(method.initial, Uniform):
            raise ValueError(f"{method.initial} draws nothing at random: it takes no seed")
        self.register_buffer("theta", theta.detach().clone())
        self.register_buffer("shift", None)
        self.register_buffer("start", None)
        self.seed = seed
        self.policy: Policy = method.initial if seed is None else Uniform(seed)
        self.neuron = method.neuron
        self.levels = levels
        self.steady = steady

    def forward(self, current: Tensor) -> Tensor:
        """``[T·B, …]`` (``[B, …]`` if steady) to ``[T·B, …]``."""
        clock = active_clock()
        current = self.unfold(current)
        return self.fire(Drive(current[:1] if self.steady else current, clock.steps))

    def fire(self, drive: Drive | Product) -> Tensor:
        """What the layer sends, ``[T·B, …]``, in this pass."""
        if isinstance(drive, Drive) and drive.current.ndim == 2:  # one neuron a sample, not B of one
            return self.send(active_clock().phase.fire(self, drive.with_an_axis()).squeeze(-1))
        return self.send(active_clock().phase.fire(self, drive))

    def send(self, out: Tensor) -> Tensor:
        """Spikes ``[T, B, …]`` on their way: who listens is told, and time is folded."""
        clock = active_clock()
        if clock.heard is not None:
            clock.heard(self, out)
        return clock.fold(out)

    def unfold(self, current: Tensor) -> Tensor:
        """The current of each step, ``[T, B, …]``, corrected."""
        clock = active_clock()
        if self.shift is not None:
            current = current + self.shift.to(current.dtype)
        return clock.hold(current) if self.steady else clock.unfold(current)

    def begin(self, current: Tensor) -> Tensor:
        """v(0) for currents ``[T, B, …]``."""
        v0 = self.policy(current, self.theta)
        return v0 if self.start is None else v0 + self.start

    def extra_repr(self) -> str:
        """What a reader of ``print(snn)`` wants to know."""
        theta = f"{self.theta.item():.4g}" if self.theta.numel() == 1 else f"{tuple(self.theta.shape)}"
        names = [name for name in ("shift", "start") if getattr(self, name) is not None]
        corrected = f", corrected: {', '.join(names)}" if names else ""
        return f"theta={theta}, {self.policy}{', steady' if self.steady else ''}{corrected}"


def _describe(layer: SpikingLayer) -> dict[str, Any]:
    corrections = {"shift": layer.shift, "start": layer.start}
    parts: dict[str, Any] = {name: list(x.shape) for name, x in corrections.items() if x is not None}
    if layer.seed is not None:
        parts["seed"] = layer.seed
    return {"shape": list(layer.theta.shape), "levels": layer.levels, "steady": layer.steady, **parts}


def _build(fields: dict[str, Any]) -> SpikingLayer:
    """``fields`` as described, and the method of the network."""
    if fields["method"] is None:
        raise ValueError("a spiking layer outside a spiking network: save the SpikingNetwork, not its model")
    options = {"levels": fields["levels"], "steady": bool(fields["steady"]), "seed": fields.get("seed")}
    layer = SpikingLayer(torch.ones(fields["shape"]), fields["method"], **options)
    layer.shift = torch.zeros(fields["shift"]) if "shift" in fields else None
    layer.start = torch.zeros(fields["start"]) if "start" in fields else None
    return layer


register_leaf(SpikingLayer, _describe, _build)
