"""What a spiking network spends: synaptic operations, multiply-accumulates, membrane updates, and joules.

- A *synaptic operation* is one event on one connection: an input entry of a linear layer that is not 0 at a step costs
  as many as it has outgoing connections, its *fan-out* (borders, strides, dilation and groups included). Events that
  average pooling or a sum merged before the weights count once.
- Linear layers that see the image (no spike before them) multiply: their MACs, once, since their input does not change.
- A *membrane update* is one neuron at one step. Phase 1 is included: the causal schedule's events, and the updates of
  every schedule (`latency.py`).

The ANN's MACs are counted beside them: also where the spiking network loses. Only layers count (convolutions and
linear layers), not functional calls; nor batch norms, which fold into the weights, nor a shortcut's own addition.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.func import functional_call

from offspike.capture import capture
from offspike.clock import active_clock
from offspike.latency import cost
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork

__all__ = ["CostModel", "Energy", "energies", "energy", "fan_out"]

LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


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
    """Sums over ``samples``; two of them add up exactly."""

    samples: int = 0
    synaptic_operations: int = 0
    macs: int = 0
    membrane_updates: int = 0
    ann_macs: int = 0

    def __add__(self, other: "Energy") -> "Energy":
        return Energy(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def joules(self, model: CostModel = DEFAULT) -> float:
        """Mean energy of the spiking network for one sample."""
        spent = self.synaptic_operations * model.accumulate + self.membrane_updates * model.update
        return (spent + self.macs * model.mac) / self.samples

    def ann_joules(self, model: CostModel = DEFAULT) -> float:
        """Mean energy of the ANN for one sample."""
        return self.ann_macs * model.mac / self.samples


def energy(
    snn: SpikingNetwork,
    batches: Iterable[Tensor | tuple[Tensor, Tensor]],
    steps: int,
    *,
    progress: Callable[[int], None] | None = None,
) -> Energy:
    """What ``steps`` time-steps of ``snn`` cost over batches (labels are ignored)."""
    return energies(snn, batches, steps, progress=progress)[-1]


def energies(
    snn: SpikingNetwork,
    batches: Iterable[Tensor | tuple[Tensor, Tensor]],
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
            x = (batch if isinstance(batch, Tensor) else batch[0]).to(device)
            meter.clear()
            snn(x, steps)
            for index, each in enumerate(costs):
                run = each.steps if each.schedule == "causal" else max(each.steps, each.rho)
                operations = meter.listening + sum(meter.operations[:run])
                spent = (operations, meter.macs, meter.neurons * each.membrane_updates, meter.ann_macs)
                totals[index] += Energy(len(x), *spent)
            if progress is not None:
                progress(len(x))
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


class _Meter:
    """Counts of one batch."""

    def __init__(self, on_image: frozenset[str]) -> None:
        self.on_image = on_image
        self._fans: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self.clear()

    def clear(self) -> None:
        """Ready for the next batch."""
        self.listening = self.macs = self.ann_macs = self.neurons = 0
        self.operations: list[int] = []  # of each step that is run to the end

    def linear(self, name: str, layer: nn.Module, x: Tensor) -> None:
        key = (name, tuple(x.shape[1:]))
        if key not in self._fans:
            self._fans[key] = fan_out(layer, key[1])
        fan, clock = self._fans[key], active_clock()
        if name in self.on_image:
            self.macs += len(x) * int(fan.sum()) if clock.phase.final else 0  # phase 1 has computed the same
        else:
            events = torch.count_nonzero(clock.unfold(x), 1) * fan
            self._events(events.flatten(1).sum(1).tolist(), final=clock.phase.final)
        if clock.phase.final:
            self.ann_macs += clock.batch * int(fan.sum())

    def _events(self, counts: list[int], *, final: bool) -> None:
        if final:
            self.operations = [a + b for a, b in zip(self.operations or [0] * len(counts), counts, strict=True)]
        else:
            self.listening += sum(counts)

    def spiking(self, output: Tensor) -> None:
        clock = active_clock()
        if clock.phase.final:
            self.neurons += output.numel() // clock.steps


@contextmanager
def _metering(snn: SpikingNetwork) -> Iterator[_Meter]:
    meter = _Meter(_on_image(snn.model))
    with ExitStack() as stack:
        for name, module in snn.model.named_modules():
            if isinstance(module, LINEAR):
                hook = module.register_forward_hook(lambda m, args, out, name=name: meter.linear(name, m, args[0]))
                stack.callback(hook.remove)
            elif isinstance(module, SpikingLayer):
                stack.callback(module.register_forward_hook(lambda m, args, out: meter.spiking(out)).remove)
        yield meter


def _on_image(model: nn.Module) -> frozenset[str]:
    """The layers that no spike reaches."""
    reached: set[str] = set()
    found: set[str] = set()
    for node in capture(model).nodes:
        if reached.intersection(node.refs):
            reached.add(node.name)
        elif node.kind == "module":
            if isinstance(model.get_submodule(node.target), SpikingLayer):
                reached.add(node.name)
            else:
                found.add(node.target)
    return frozenset(found)
