"""When calibrated layers listen: layer by layer (the paper), or all at once (causal).

A schedule is one or two passes over the network; a pass tells its spiking layers what to do (`clock.Phase`).

- *layerwise*: a layer listens to the first ρ steps of its input, chooses v(0), and replays them. The next layer listens
  to the outcome. Exact, but on step-synchronous hardware the last of n layers starts nρ ticks late.
- *causal*: every layer runs ρ steps from θ/2 and notes the v(0) that it would have liked; then all start together from
  there. Only ρ ticks late, but what a layer heard is not what it will get.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from offspike.clock import Phase
from offspike.equations import desired_count
from offspike.initial import calibrate_and_fire
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.neurons import IF

__all__ = ["Count", "run"]

Pass = Callable[[int, Phase], Any]  # whatever the model returns, over that many steps


class Layerwise:
    """Listen, calibrate and fire in one go."""

    final: ClassVar[bool] = True

    def fire(self, layer: SpikingLayer, current: Tensor) -> Tensor:
        """Policy and neuron, fused where the neuron is the plain one."""
        if layer.neuron == IF() and layer.start is None:
            spikes, _ = calibrate_and_fire(layer.policy, current, layer.theta)
        else:
            spikes, _ = layer.neuron(current, layer.theta, layer.begin(current))
        return spikes


class Listen:
    """Phase 1 of the causal schedule: run from θ/2, note where each layer should start."""

    final: ClassVar[bool] = False

    def __init__(self) -> None:
        self.starts: dict[SpikingLayer, Tensor] = {}

    def fire(self, layer: SpikingLayer, current: Tensor) -> Tensor:
        """Uncalibrated spikes."""
        self.starts[layer] = layer.begin(current)
        spikes, _ = layer.neuron(current, layer.theta, layer.theta / 2)
        return spikes


class Start:
    """Phase 2 of the causal schedule: every layer starts where phase 1 said."""

    final: ClassVar[bool] = True

    def __init__(self, starts: dict[SpikingLayer, Tensor]) -> None:
        self.starts = starts

    def fire(self, layer: SpikingLayer, current: Tensor) -> Tensor:
        """Calibrated spikes."""
        spikes, _ = layer.neuron(current, layer.theta, self.starts[layer])
        return spikes


class Count:
    """One pass of the quantised ANN: every neuron sends at once the mean of what it would send in L steps.

    ``k/L`` spikes, ``k = clip(⌊L·I/θ + ½⌋, 0, L)``. What comes out is the readout at T = ρ = L, if that is exact.
    """

    final: ClassVar[bool] = True

    def fire(self, layer: SpikingLayer, current: Tensor) -> Tensor:
        """Shares of spikes, ``[1, B, …]``."""
        if layer.levels is None:
            raise ValueError("a count needs levels L: this layer stands for an activation that is not quantised")
        return desired_count(current * layer.levels, layer.theta.to(current.dtype), layer.levels) * (1 / layer.levels)


def run(method: Method, steps: int, one_pass: Pass) -> Any:
    """Run the passes that a method's schedule asks for and return the last one's outputs: ``steps`` or more."""
    if method.schedule == "causal" and method.rho:
        listen = Listen()
        one_pass(method.rho, listen)
        return one_pass(steps, Start(listen.starts))
    return one_pass(max(steps, method.rho), Layerwise())
