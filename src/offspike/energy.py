"""What a spiking network spends: synaptic operations, multiply-accumulates, membrane updates, and joules.

- A *synaptic operation* is one spike on one connection: a spike costs as many as it reaches of a linear layer, its
  *fan-out* (borders, strides, dilation and groups included). What only adds spikes up before the weights (average
  pooling, a mean, a sum, a constant factor) is taken as a part of the connections, and each spike as an event of its
  own: a value that merges j spikes costs j operations a connection, never one.
- Linear layers that see the image (no spike before them) multiply: their MACs, once, since their input does not change.
  Where an input is neither the image nor spikes (both together, or what other weights or an unknown operation made of
  spikes), each entry that is not 0 is a MAC for each of its connections, at every step.
- A *membrane update* is one neuron at one step. Phase 1 is included: the causal schedule's events, and the updates of
  every schedule (`latency.py`).

A gated max-pool sends spikes again, and these are counted. The ANN's MACs stand beside it all: also where the spiking
network loses. Only layers count (convolutions, linear layers and the one-to-one scales of fixed-point shortcuts), not
functional calls, of which a warning tells; nor pools, batch norms, which fold into the weights, or the addition of a
shortcut.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from offspike.arithmetic.roles import SYNAPSES, bare
from offspike.capture import PRODUCTS, captured
from offspike.clock import active_clock, whole
from offspike.fanout import Wiring, fan_out, wired
from offspike.graph import GraphNetwork
from offspike.hooks import after
from offspike.latency import Cost, cost
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork, check_spiking
from offspike.pooling import GatedMaxPool

__all__ = ["CostModel", "Energy", "energies", "energy", "fan_out"]

COUNTS = ("synaptic_operations", "macs", "membrane_updates", "ann_macs")


@dataclass(frozen=True)
class CostModel:
    """Joules an operation. The default is 32-bit floating point at 45 nm (Horowitz, ISSCC 2014), memory not counted.

    A membrane update is an addition and a comparison; it is charged as one accumulate unless told otherwise.
    """

    mac: float = 4.6e-12
    accumulate: float = 0.9e-12
    update: float = 0.9e-12


DEFAULT = CostModel()


@dataclass(frozen=True)
class Energy:
    """Sums over ``samples``; two of them add up exactly. ``layers`` has the same sums by the name of the module."""

    samples: int = 0
    synaptic_operations: int = 0
    macs: int = 0
    membrane_updates: int = 0
    ann_macs: int = 0
    layers: "dict[str, Energy]" = field(default_factory=dict)

    def __add__(self, other: "Energy") -> "Energy":
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("samples", *COUNTS)}
        names = dict.fromkeys([*self.layers, *other.layers])
        layers = {name: self.layers.get(name, Energy()) + other.layers.get(name, Energy()) for name in names}
        return Energy(**sums, layers=layers)

    def joules(self, model: CostModel = DEFAULT) -> float:
        """Mean energy of the spiking network for one sample."""
        return self.synaptic_joules(model) + self.mac_joules(model) + self.update_joules(model)

    def synaptic_joules(self, model: CostModel = DEFAULT) -> float:
        """The part of ``joules`` that events on connections cost."""
        return self.synaptic_operations * model.accumulate / self.samples

    def mac_joules(self, model: CostModel = DEFAULT) -> float:
        """The part of ``joules`` that multiplications cost: layers whose input is not spikes."""
        return self.macs * model.mac / self.samples

    def update_joules(self, model: CostModel = DEFAULT) -> float:
        """The part of ``joules`` that membranes cost."""
        return self.membrane_updates * model.update / self.samples

    def ann_joules(self, model: CostModel = DEFAULT) -> float:
        """Mean energy of the ANN for one sample."""
        return self.ann_macs * model.mac / self.samples

    def to_dict(self, model: CostModel = DEFAULT) -> dict[str, Any]:
        """Plain values, for JSON: the sums, and the joules of one sample."""
        own = {name: getattr(self, name) for name in ("samples", *COUNTS)}
        layers = {name: part.to_dict(model) for name, part in self.layers.items()}
        derived = {"joules": self.joules(model), "ann_joules": self.ann_joules(model)}
        return {**own, **derived, **({"layers": layers, "model": asdict(model)} if layers else {})}


def energy(
    snn: SpikingNetwork,
    batches: Iterable[Any],
    steps: int,
    *,
    progress: Callable[[int], None] | None = None,
) -> Energy:
    """What ``steps`` time-steps of ``snn`` cost over batches x or ``(x, labels)``; several inputs are a tuple x."""
    return energies(snn, batches, steps, progress=progress)[-1]


def energies(
    snn: SpikingNetwork,
    batches: Iterable[Any],
    steps: int,
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[Energy, ...]:
    """What t steps cost for every t from 1 to ``steps``, in one pass: the first t steps are those of a run to t."""
    check_spiking(snn, "energy")
    steps = whole("steps", steps)
    device = next(iter(snn.state_dict().values())).device
    costs = [cost(snn.method, layers=len(snn.layers), steps=t) for t in range(1, steps + 1)]
    totals = [Energy()] * steps
    with _metering(snn) as meter:
        for batch in batches:
            x = batch if isinstance(batch, Tensor) else batch[0]
            inputs = [value.to(device) for value in (x if isinstance(x, tuple | list) else (x,))]
            meter.begin(inputs)
            snn(*inputs, steps=steps)
            count = len(inputs[0])
            totals = [total + meter.spent(count, each) for total, each in zip(totals, costs, strict=True)]
            if progress is not None:
                progress(count)
    if not totals[-1].samples:
        raise ValueError("there are no batches: nothing was spent")
    return tuple(totals)


@dataclass
class _Events:
    """Events on connections: ``before`` the first step, in a phase of its own, and ``at`` each step."""

    before: int = 0
    at: list[int] = field(default_factory=list)

    def add(self, counts: Tensor, fan: Tensor) -> None:
        """``counts`` of each step and neuron (or entry), ``[T, …]``, each on ``fan`` connections."""
        events = (counts * fan).flatten(1).sum(1).tolist()
        if active_clock().phase.final:
            self.at = [a + b for a, b in zip_longest(self.at, events, fillvalue=0)]
        else:
            self.before += sum(events)

    def until(self, steps: int) -> int:
        """Of the first ``steps`` steps, and what comes before them."""
        return self.before + sum(self.at[:steps])


class _Meter:
    """Counts of one batch, by module."""

    def __init__(self, network: GraphNetwork) -> None:
        self.network = network
        self._wirings: dict[Any, Wiring] = {}

    def begin(self, inputs: list[Tensor]) -> None:
        """From 0, with a batch of these inputs."""
        shapes = tuple(x.shape[1:] for x in inputs)
        if shapes not in self._wirings:
            self._wirings[shapes] = wired(self.network, inputs)
        self.wiring = self._wirings[shapes]
        self.operations: defaultdict[str, _Events] = defaultdict(_Events)
        self.products: defaultdict[str, _Events] = defaultdict(_Events)
        self.calls: Counter[str] = Counter()

    def spent(self, samples: int, cost: Cost) -> Energy:
        """What the first ``cost.steps`` steps of this batch took."""
        run = cost.steps if cost.schedule == "causal" else max(cost.steps, cost.rho)
        layers = {}
        for name, one in self.wiring.layers.items():
            operations, products = self.operations[name].until(run), self.products[name].until(run)
            updates = samples * one.neurons * cost.membrane_updates
            layers[name] = Energy(samples, operations, samples * one.macs + products, updates, samples * one.ann_macs)
        sums = {name: sum(getattr(part, name) for part in layers.values()) for name in COUNTS}
        return Energy(samples, **sums, layers=layers)

    def sent(self, name: str, spikes: Tensor) -> None:
        """What neurons, or a gated pool, send to the layers behind them."""
        fans = self.wiring.fans.get(name)
        if fans is not None:
            counts = torch.count_nonzero(active_clock().unfold(spikes), 1)
            for layer, fan in fans.items():
                self.operations[layer].add(counts, fan)

    def seen(self, name: str, x: Tensor) -> None:
        """What a layer gets, in the next of its calls."""
        uses = self.wiring.uses[name]
        fan = uses[self.calls[name] % len(uses)]
        self.calls[name] += 1
        if fan is not None:
            self.products[name].add(torch.count_nonzero(active_clock().unfold(x), 1), fan)


@contextmanager
def _metering(snn: SpikingNetwork) -> Iterator[_Meter]:
    network = captured(_copied(snn.model))
    missed = sorted({node.target for node in network.graph.nodes if node.kind != "module" and bare(node) in PRODUCTS})
    if missed:
        message = (
            f"energy counts layers, not {', '.join(missed)}: make an nn.Linear or nn.Conv of it to have it counted"
        )
        warnings.warn(message, stacklevel=5)
    meter = _Meter(network)
    modules = dict(snn.model.named_modules())
    synapses = {name: m for name, m in modules.items() if isinstance(m, SYNAPSES)}
    senders = {name: m for name, m in modules.items() if isinstance(m, SpikingLayer | GatedMaxPool)}
    with (
        after(synapses, lambda name, m, args, out: meter.seen(name, args[0])),
        after(senders, lambda name, m, args, out: meter.sent(name, out)),
    ):
        yield meter


def _copied(model: nn.Module) -> nn.Module:
    """In float64, where counts are exact; without gradients and hooks of its own."""
    copy = deepcopy(model).double().requires_grad_(False)
    for module in copy.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return copy
