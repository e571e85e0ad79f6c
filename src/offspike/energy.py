"""What a spiking network spends: synaptic operations, multiply-accumulates, membrane updates, and joules.

- A *synaptic operation* is one event on one connection: an input entry of a linear layer that is not 0 at a step costs
  as many as it has outgoing connections, its *fan-out* (borders, strides, dilation and groups included). Events that
  average pooling or a sum merged before the weights count once.
- Linear layers that see the image (no spike before them) multiply: their MACs, once, since their input does not change.
  Where image and spikes meet before the weights, each entry that is not 0 is a MAC for each of its connections.
- A *membrane update* is one neuron at one step. Phase 1 is included: the causal schedule's events, and the updates of
  every schedule (`latency.py`).

The ANN's MACs are counted beside them: also where the spiking network loses. Only layers count (convolutions, linear
layers and the one-to-one scales of fixed-point shortcuts), not functional calls, of which a warning tells; nor batch
norms, which fold into the weights, nor a shortcut's own addition.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from offspike.arithmetic.roles import SYNAPSES, bare
from offspike.capture import capture
from offspike.clock import active_clock
from offspike.graph import Graph
from offspike.latency import Cost, cost
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork

__all__ = ["CostModel", "Energy", "energies", "energy", "fan_out"]

COUNTS = ("synaptic_operations", "macs", "membrane_updates", "ann_macs")
SIZES = ("shape", "ndim", "size", "dim", "numel")
PRODUCTS = ("conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "matmul")


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
        """The part of ``joules`` that layers which see the image cost."""
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
    device = next(iter(snn.state_dict().values())).device
    costs = [cost(snn.method, layers=len(snn.layers), steps=t) for t in range(1, steps + 1)]
    totals = [Energy()] * steps
    with _metering(snn) as meter:
        for batch in batches:
            x = batch if isinstance(batch, Tensor) else batch[0]
            inputs = [value.to(device) for value in (x if isinstance(x, tuple | list) else (x,))]
            meter.counts.clear()
            snn(*inputs, steps=steps)
            count = len(inputs[0])
            totals = [total + meter.spent(count, each) for total, each in zip(totals, costs, strict=True)]
            if progress is not None:
                progress(count)
    if not totals[-1].samples:
        raise ValueError("there are no batches: nothing was spent")
    return tuple(totals)


def fan_out(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """How many outputs each entry of an input of this shape (one sample) reaches: ``Wᵀ1`` with ones for weights.

    It sums to the layer's MACs on this shape; what falls on padding is not counted.
    """
    bare = deepcopy(layer).double()
    bare._forward_hooks.clear()
    ones = {name: torch.full_like(p, float(name == "weight")) for name, p in bare.named_parameters()}
    x = torch.ones(1, *shape, dtype=torch.float64, device=ones["weight"].device, requires_grad=True)
    with torch.enable_grad():
        (reached,) = torch.autograd.grad(functional_call(bare, ones, (x,)).sum(), [x])
    return reached[0].round().to(torch.int64)


@dataclass
class _Counts:
    listening: int = 0  # synaptic operations of a phase of its own, before the first step
    operations: list[int] = field(default_factory=list)  # of each step
    macs: int = 0
    neurons: int = 0
    ann_macs: int = 0

    def add(self, operations: list[int], *, final: bool) -> None:
        if final:
            self.operations = [a + b for a, b in zip_longest(self.operations, operations, fillvalue=0)]
        else:
            self.listening += sum(operations)


class _Meter:
    """Counts of one batch, by module."""

    def __init__(self, on_image: set[str], on_both: set[str]) -> None:
        self.on_image, self.on_both = on_image, on_both
        self.counts: defaultdict[str, _Counts] = defaultdict(_Counts)
        self._fans: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def spent(self, samples: int, cost: Cost) -> Energy:
        """What the first ``cost.steps`` steps of this batch took."""
        run = cost.steps if cost.schedule == "causal" else max(cost.steps, cost.rho)
        layers = {}
        for name, n in self.counts.items():
            events = n.listening + sum(n.operations[:run])
            operations, macs = (0, events) if name in self.on_both else (events, n.macs)
            layers[name] = Energy(samples, operations, macs, n.neurons * cost.membrane_updates, n.ann_macs)
        sums = {name: sum(getattr(part, name) for part in layers.values()) for name in COUNTS}
        return Energy(samples, **sums, layers=layers)

    def linear(self, name: str, layer: nn.Module, x: Tensor) -> None:
        key = (name, tuple(x.shape[1:]))
        if key not in self._fans:
            self._fans[key] = fan_out(layer, key[1])
        fan, clock, counts = self._fans[key], active_clock(), self.counts[name]
        if name in self.on_image:
            counts.macs += clock.batch * int(fan.sum()) if clock.phase.final else 0  # phase 1 has computed the same
        else:
            events = torch.count_nonzero(clock.unfold(x), 1) * fan
            counts.add(events.flatten(1).sum(1).tolist(), final=clock.phase.final)
        if clock.phase.final:
            counts.ann_macs += clock.batch * int(fan.sum())

    def spiking(self, name: str, output: Tensor) -> None:
        clock = active_clock()
        if clock.phase.final:
            self.counts[name].neurons += output.numel() // clock.steps


@contextmanager
def _metering(snn: SpikingNetwork) -> Iterator[_Meter]:
    graph = capture(snn.model)
    missed = sorted({node.target for node in graph.nodes if node.kind != "module" and bare(node) in PRODUCTS})
    if missed:
        message = (
            f"energy counts layers, not {', '.join(missed)}: make an nn.Linear or nn.Conv of it to have it counted"
        )
        warnings.warn(message, stacklevel=5)
    meter = _Meter(*_reached(graph, snn.model))
    with ExitStack() as stack:
        for name, module in snn.model.named_modules():
            if isinstance(module, SYNAPSES):
                hook = module.register_forward_hook(lambda m, args, out, name=name: meter.linear(name, m, args[0]))
                stack.callback(hook.remove)
            elif isinstance(module, SpikingLayer):
                hook = module.register_forward_hook(lambda m, args, out, name=name: meter.spiking(name, out))
                stack.callback(hook.remove)
        yield meter


def _reached(graph: Graph, model: nn.Module) -> tuple[set[str], set[str]]:
    """The layers that no spike reaches, and those that the image and spikes reach together."""
    carried: dict[str, set[str]] = {}
    on_image, on_both = set(), set()
    for node in graph.nodes:
        met = set[str]().union(*(carried[name] for name in node.refs)) if bare(node) not in SIZES else set()
        if node.kind == "input":
            met = {"image"}
        elif node.kind == "module":
            if "spikes" not in met:
                on_image.add(node.target)
            elif "image" in met:
                on_both.add(node.target)
            if isinstance(model.get_submodule(node.target), SpikingLayer):
                met = {"spikes"}
        carried[node.name] = met
    return on_image, on_both
