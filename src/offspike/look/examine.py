"""``examine``: one network under several methods, looked at from every side that was asked for."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor, nn

from offspike import distributed
from offspike.convert import convert
from offspike.energy import energy
from offspike.evaluate import Progress, evaluate
from offspike.experiment import Bar, Batches, layers_of
from offspike.fast.precision import Precision
from offspike.look.answers import Answers
from offspike.look.closeup import CloseUp, close_up
from offspike.look.findings import Findings
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.record import record

__all__ = ["examine", "look_closely"]


def _no_bar(name: str, total: int) -> Progress:
    return lambda done: None


def examine(
    ann: nn.Module,
    batches: Batches,
    line: dict[str, Method],
    *,
    steps: int,
    count: int,
    progress: Bar = _no_bar,
    calibration: Sequence[Tensor] | None = None,
    precision: Precision = "exact32",
    with_energy: bool = False,
    with_answers: bool = False,
    with_layers: bool = False,
    classes: tuple[str, ...] = (),
) -> Findings:
    """Evaluate ``ann`` under each method of the ``line`` over ``count`` samples; several processes merge their sums.

    ``calibration`` is a list of batches for the methods that take thresholds or corrections from data; ``precision`` is
    that of the evaluation. ``with_energy`` meters what each method spends, ``with_answers`` keeps answers sample by
    sample (for early exit, confusions, differences), ``with_layers`` judges offset spikes and looks closely at one
    sample.
    """
    found = Findings(classes=classes)
    networks = {
        name: convert(ann, method, calibration=calibration, progress=layers_of(progress, name))
        for name, method in line.items()
    }
    until = max(1, *(min(method.rho, steps) for method in line.values()))
    for name, snn in networks.items():
        seen = Answers(until, first=distributed.rank(), stride=distributed.world_size())
        bar, watch = progress(name, count), seen.add if with_answers else None
        found.reports[name] = merged(
            evaluate(snn, batches(), steps=steps, reference=ann, progress=bar, watch=watch, precision=precision)
        )  # fmt: skip
        if with_answers:
            found.answers[name] = merged(seen)
    if with_energy or with_layers:
        for name, snn in networks.items():
            _meter(found, name, snn, ann if with_layers else None, batches, progress(f"{name}, layers", count))
    if with_layers:
        name = found.focus(networks)
        found.close_up = look_closely(networks[name], batches, name=name, steps=steps, reference=ann)
    return found


def _meter(
    found: Findings, name: str, snn: SpikingNetwork, ann: nn.Module | None, batches: Batches, bar: Progress
) -> None:
    """Energy at T = ``found.chosen``, and with ``ann`` the offset spikes, in one pass."""
    with ExitStack() as stack:
        records = None if ann is None else stack.enter_context(record(snn, reference=ann))
        found.energies[name] = merged(energy(snn, batches(), found.chosen, progress=bar))
    if records is not None:
        found.records[name] = {layer: merged(seen) for layer, seen in records.items()}


def look_closely(
    snn: SpikingNetwork, batches: Batches, *, name: str, steps: int, reference: nn.Module | None = None
) -> CloseUp:
    """The first sample, neuron by neuron, for twice the steps that the network listens to, or 8 if that is more."""
    x, labels = next(iter(batches()))
    device = next(iter(snn.state_dict().values())).device
    sample, label = x[0].to(device), int(labels[0])
    shown = min(steps, max(8, 2 * snn.method.rho))
    seen = close_up(snn, sample, label=label, steps=shown, reference=reference)
    return replace(seen, method=name)


def merged(part: Any) -> Any:
    """The sum over all processes."""
    return reduce(add, distributed.gather(part))
