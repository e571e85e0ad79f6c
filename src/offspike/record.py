"""Offset spikes, layer by layer: how far each spiking layer is from what the ANN wanted of it.

``with record(snn, reference=ann) as records:`` watches every call of ``snn`` inside the block. Two judgements (paper,
appendix A.1), both over all T steps that a layer ran:

- *unconstrained*: ``ψ = a·T/θ − n`` against the ANN's own activation a of the same image: errors of earlier layers
  count too;
- *constrained*: against what the ANN's activation makes of the input that this layer really got, ``a = f(mean I)``: the
  layer's own error alone.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.clock import active_clock
from offspike.equations import qcfs
from offspike.hooks import after
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork, check_reference, check_spiking

__all__ = ["Judgement", "LayerRecord", "record"]

# Two rates are equal if they differ by less than this fraction of a spike: far above rounding, far below a spike.
TOLERANCE = 1e-3


@dataclass
class Judgement:
    """Sums over neurons and samples; ratios are derived last, so that two judgements add up exactly."""

    total: int = 0
    equal: int = 0
    squares: float = 0.0
    histogram: Counter[int] = field(default_factory=Counter)

    def add(self, psi: Tensor, *, tolerance: float = TOLERANCE) -> None:
        """Count the offset spikes of one batch."""
        psi = psi.double()
        self.total += psi.numel()
        self.equal += int((psi.abs() <= tolerance).sum())
        self.squares += float(psi.square().sum())
        whole = psi.round().to(torch.int64).flatten()
        least = int(whole.min())
        for value, count in enumerate(torch.bincount(whole - least).tolist(), least):
            if count:
                self.histogram[value] += count

    def __add__(self, other: "Judgement") -> "Judgement":
        """The judgement on both."""
        total, equal, squares = self.total + other.total, self.equal + other.equal, self.squares + other.squares
        return Judgement(total, equal, squares, self.histogram + other.histogram)

    @property
    def ratio(self) -> float:
        """The share of neurons with ψ = 0."""
        return self.equal / self.total

    @property
    def mse(self) -> float:
        """The mean of ψ²; 0 where all are equal, for what is left of ψ then is rounding."""
        return self.squares / self.total if self.equal < self.total else 0.0


@dataclass
class LayerRecord:
    """What was seen of one layer. ``unconstrained``, ``inputs`` and ``near`` stay empty without a reference."""

    constrained: Judgement = field(default_factory=Judgement)
    unconstrained: Judgement = field(default_factory=Judgement)
    inputs: Judgement = field(default_factory=Judgement)  # ΣI against T times the ANN's input, in units of θ, exactly
    near: Judgement = field(default_factory=Judgement)  # the same within TOLERANCE: rounding forgiven

    def __add__(self, other: "LayerRecord") -> "LayerRecord":
        """What was seen by both."""
        return LayerRecord(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            name: {**vars(judgement), "histogram": dict(sorted(judgement.histogram.items()))}
            for name, judgement in vars(self).items()
            if judgement.total
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "LayerRecord":
        """The inverse of ``to_dict``, also after JSON, which knows no whole numbers as keys."""
        whole = {name: {**sums, "histogram": _whole(sums["histogram"])} for name, sums in data.items()}
        return cls(**{name: Judgement(**sums) for name, sums in whole.items()})


@contextmanager
def record(snn: SpikingNetwork, *, reference: nn.Module | None = None) -> Iterator[dict[str, LayerRecord]]:
    """Watch ``snn`` inside a ``with`` block; yields a record for each spiking layer, by name."""
    check_spiking(snn, "record")
    records = {name: LayerRecord() for name in snn.layers}
    answers: dict[str, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def ask(ann: nn.Module, args: tuple[Any, ...]) -> None:
        ann(*(x for x in args if isinstance(x, Tensor)))  # without the steps

    def keep(name: str, activation: Activation, args: tuple[Tensor, ...], output: Tensor) -> None:
        answers[name] = (args[0], output)

    def judge(name: str, layer: SpikingLayer, args: tuple[Tensor, ...], output: Tensor) -> None:
        _judge(records[name], layer, args[0], output, answers.get(name))

    with ExitStack() as stack:
        if reference is not None:
            check_reference(reference)
            ann = deepcopy(reference).eval()
            activations = {n: m for n, m in ann.named_modules() if isinstance(m, Activation)}
            if set(activations) != set(records):
                raise ValueError("the reference must be the ANN that was converted: its activations have other names")
            stack.enter_context(after(activations, keep))
            stack.callback(snn.register_forward_pre_hook(lambda m, args: ask(ann, args)).remove)
        stack.enter_context(after(snn.layers, judge))
        yield records


def _judge(
    record: LayerRecord, layer: SpikingLayer, current: Tensor, output: Tensor, answer: tuple[Tensor, Tensor] | None
) -> None:
    steps = active_clock().steps
    mean = layer.unfold(current).to(layer.theta.dtype).sum(0) / steps
    count = active_clock().unfold(output).sign().sum(0)
    levels = layer.levels or steps
    record.constrained.add(qcfs(mean, layer.theta, levels) * steps / layer.theta - count)
    if answer is not None:
        z, a = answer
        record.unconstrained.add(a * steps / layer.theta - count)
        difference = (z - mean) * steps / layer.theta
        record.inputs.add(difference, tolerance=0.0)
        record.near.add(difference)


def _whole(histogram: dict[Any, int]) -> Counter[int]:
    return Counter({int(psi): count for psi, count in histogram.items()})
