"""A close look at a few neurons of each layer on one sample: the same input, before and after calibration.

*Before* is a start from θ/2, *after* from the v(0) that the method chose. Both see the current that really arrived, the
calibrated output of the layer before: the two phases of the paper's Figure 3.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offspike.clock import active_clock
from offspike.equations import offset_spikes
from offspike.hooks import after
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork
from offspike.schedules import Start

__all__ = ["CloseUp", "LayerView", "Run", "close_up"]


@dataclass(frozen=True)
class Run:
    """Some neurons of a layer from one v(0): spikes ``[T, n]``, potentials v(1) … v(T), ψ after each t."""

    v0: Tensor
    spikes: Tensor
    potential: Tensor
    psi: Tensor


@dataclass(frozen=True)
class LayerView:
    """Neurons of one layer. The first ``traced`` are the ones to look at: their start matters most."""

    name: str
    neurons: tuple[int, ...]  # places in the flattened layer
    traced: int
    theta: Tensor
    current: Tensor
    before: Run
    after: Run


@dataclass(frozen=True)
class CloseUp:
    """One sample in one network, judged after ``rho`` steps.

    ``given[t - 1]`` is the network's answer at t, ``expected`` the ANN's.
    """

    method: str
    rho: int
    sample: Tensor
    label: int
    given: tuple[int, ...]
    expected: int | None
    layers: tuple[LayerView, ...]

    @property
    def steps(self) -> int:
        """T."""
        return len(self.given)


def close_up(
    snn: SpikingNetwork,
    sample: Tensor,
    *,
    label: int,
    steps: int,
    reference: nn.Module | None = None,
    traced: int = 4,
    rows: int = 32,
) -> CloseUp:
    """Look at ``sample`` (without a batch axis): ``traced`` neurons of each layer, and ``rows`` for its raster."""
    views: dict[str, LayerView] = {}
    rho = min(snn.method.rho or steps, steps)

    def look(name: str, layer: SpikingLayer, args: tuple[Tensor, ...], output: Tensor) -> None:
        clock = active_clock()
        if clock.phase.final:
            current = layer.unfold(args[0])
            v0 = clock.phase.starts[layer] if isinstance(clock.phase, Start) else layer.begin(current)
            views[name] = _view(name, layer, current[:steps], v0, rho, traced, rows)

    with after(snn.layers, look):
        logits = snn(sample[None], steps=steps)
    expected = None
    if reference is not None:
        with torch.no_grad():
            expected = int(reference(sample[None]).argmax())
    given = tuple(logits.cumsum(0).argmax(-1).flatten().tolist())
    return CloseUp(snn.method.name, rho, sample.cpu(), label, given, expected, tuple(views.values()))


def _view(name: str, layer: SpikingLayer, current: Tensor, v0: Tensor, rho: int, traced: int, rows: int) -> LayerView:
    """Trace the neurons that owe most from θ/2; among equals those that fire, but not always."""
    steps, shape = len(current), current.shape[1:]
    theta = layer.theta.expand(shape).flatten()
    flat, v0 = current.reshape(steps, -1), v0.expand(shape).flatten()
    before, after = _run(layer, flat, theta, theta / 2), _run(layer, flat, theta, v0)
    count = after.spikes[:rho].sum(0)
    worth = 2 * before.psi[rho - 1].abs() + ((count > 0) & (count < rho))
    finite = v0.isfinite()
    order = torch.where(finite, worth, -torch.inf).argsort(descending=True, stable=True)
    chosen = order[: min(traced, int(finite.sum()))]
    spread = torch.linspace(0, len(theta) - 1, min(rows, len(theta)), device=theta.device).round().long()
    others = spread[~torch.isin(spread, chosen)][: max(0, rows - len(chosen))]
    keep = torch.cat([chosen, others])
    runs = [Run(run.v0[keep].cpu(), *(x[:, keep].cpu() for x in (run.spikes, run.potential, run.psi)))
            for run in (before, after)]  # fmt: skip
    return LayerView(name, tuple(keep.tolist()), len(chosen), theta[keep].cpu(), flat[:, keep].double().cpu(), *runs)


def _run(layer: SpikingLayer, current: Tensor, theta: Tensor, v0: Tensor) -> Run:
    """The layer's own neuron; potentials by conservation, ``v(t) = v(0) + ΣI − θ·Σs``."""
    spikes, _ = layer.neuron(current, theta, v0)
    counts = spikes.double().cumsum(0)
    potential = v0.double() + current.double().cumsum(0) - theta.double() * counts
    psi = [
        offset_spikes(n, v, v0.double(), theta.double(), t)
        for t, (n, v) in enumerate(zip(counts, potential, strict=True), 1)
    ]
    return Run(v0.double(), spikes, potential, torch.stack(psi))
