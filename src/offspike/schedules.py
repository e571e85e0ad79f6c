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

from offspike import fused
from offspike.clock import Phase, active_clock
from offspike.equations import desired_count
from offspike.fused import Drive, Product
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.neurons import IF

__all__ = ["Count", "run", "shortest"]

Pass = Callable[[int, Phase, dict[Any, Tensor] | None], Any]  # whatever the model returns, over that many steps


class Layerwise:
    """Listen, calibrate and fire in one go."""

    final: ClassVar[bool] = True

    def fire(self, layer: SpikingLayer, drive: Drive | Product) -> Tensor:
        """Policy and neuron, fused where the neuron is the plain one (it is for every product)."""
        if isinstance(drive, Product) or (layer.neuron == IF() and layer.start is None):
            return _kept(layer, *fused.run(drive, layer.theta, policy=layer.policy, keep=_continues()))
        current = drive.total()
        return _send(layer, drive, current, layer.begin(current))


class Listen:
    """Phase 1 of the causal schedule: run from θ/2, note where each layer should start."""

    final: ClassVar[bool] = False

    def __init__(self) -> None:
        self.starts: dict[SpikingLayer, Tensor] = {}

    def fire(self, layer: SpikingLayer, drive: Drive) -> Tensor:
        """Uncalibrated spikes."""
        current = drive.total()
        self.starts[layer] = layer.begin(current)
        return _send(layer, drive, current, layer.theta / 2)


class Start:
    """Every layer starts at a given potential: where phase 1 of the causal schedule said, or where it was before."""

    final: ClassVar[bool] = True

    def __init__(self, starts: dict[SpikingLayer, Tensor]) -> None:
        self.starts = starts

    def fire(self, layer: SpikingLayer, drive: Drive | Product) -> Tensor:
        """Calibrated spikes."""
        if isinstance(drive, Product) or layer.neuron == IF():
            return _kept(layer, *fused.run(drive, layer.theta, v0=self.starts[layer], keep=_continues()))
        return _send(layer, drive, drive.total(), self.starts[layer])


class Count:
    """One pass of the quantised ANN: every neuron sends at once the mean of what it would send in L steps.

    ``k/L`` spikes, ``k = clip(⌊L·I/θ + ½⌋, 0, L)``. What comes out is the readout at T = ρ = L, if that is exact.
    """

    final: ClassVar[bool] = True

    def fire(self, layer: SpikingLayer, drive: Drive) -> Tensor:
        """Shares of spikes, ``[1, B, …]``."""
        if layer.levels is None:
            raise ValueError("a count needs levels L: this layer stands for an activation that is not quantised")
        current = drive.total()
        count = desired_count(current * layer.levels, layer.theta.to(current.dtype), layer.levels)
        return drive.write(count * (1 / layer.levels), layer.theta)


def shortest(method: Method, steps: int) -> int:
    """The fewest steps that can be run at a time: what a layer listens to, or all if neurons remember more than v."""
    return max(1, method.rho) if isinstance(method.neuron, IF) else steps


def run(method: Method, steps: int, one_pass: Pass, *, piece: int | None = None) -> list[Any]:
    """Run the passes that a method's schedule asks for; the outputs, piece by piece: ``steps`` or more in all.

    ``piece`` is how many steps are run at a time; the first has at least the ``shortest``.
    """
    carry: dict[Any, Tensor] = {}
    first: Phase = Layerwise()
    total = max(steps, method.rho)
    if method.schedule == "causal" and method.rho:
        listen = Listen()
        one_pass(method.rho, listen, None)
        first, total = Start(listen.starts), steps
    if piece is None or max(piece, shortest(method, total)) >= total:
        return [one_pass(total, first, None)]
    done = max(piece, method.rho)
    outputs = [one_pass(done, first, carry)]
    while done < total:
        outputs.append(one_pass(min(piece, total - done), Start(carry), carry))
        done += piece
    return outputs


def _continues() -> bool:
    return active_clock().carry is not None


def _kept(layer: SpikingLayer, out: Tensor, v_end: Tensor | None) -> Tensor:
    """What is sent, once v(T) is put where the next piece finds it."""
    carry = active_clock().carry
    if carry is not None and v_end is not None:
        carry[layer] = v_end
    return out


def _send(layer: SpikingLayer, drive: Drive, current: Tensor, v0: Tensor) -> Tensor:
    spikes, v_end = layer.neuron(current, layer.theta, v0)
    return _kept(layer, drive.write(spikes, layer.theta), v_end)
