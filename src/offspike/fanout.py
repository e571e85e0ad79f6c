"""Which connections a spike reaches: the fan-out of each neuron through whatever only adds spikes up.

`energy.py` counts with it. One walk over a network's graph for inputs of one shape finds all of it.
"""

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from offspike.arithmetic.grids import Scale
from offspike.arithmetic.roles import Role, bare, role
from offspike.graph import GraphNetwork, Node, fill
from offspike.layers import SpikingLayer

__all__ = ["Wiring", "fan_out", "wired"]

SIZES = ("shape", "ndim", "size", "dim", "numel")
SAME = ("detach", "float")  # what goes in comes out, but without derivatives, or no longer in float64
ADDING = ("average", "mean", "total", "sum", "sign", "norm")  # each spike keeps a share of its own in what they make
COUNTED = {"spikes", "merged"}  # what a value carries whose spikes can be counted
MOVING = {*COUNTED, "weighted"}  # what changes from step to step; the image does not


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
class Fixed:
    """What one sample takes of a layer, whatever its spikes."""

    macs: int = 0
    neurons: int = 0
    ann_macs: int = 0


@dataclass
class Wiring:
    """Which connections each spike reaches, for inputs of one shape.

    ``fans`` has, by what sends spikes and by layer, the connections of each neuron. ``uses`` has, for each call of a
    layer in turn, those of each entry of its input where entries are multiplied at every step, else None.
    """

    layers: defaultdict[str, Fixed] = field(default_factory=lambda: defaultdict(Fixed))
    fans: defaultdict[str, dict[str, Tensor]] = field(default_factory=lambda: defaultdict(dict))
    uses: defaultdict[str, list[Tensor | None]] = field(default_factory=lambda: defaultdict(list))


def wired(network: GraphNetwork, inputs: list[Tensor]) -> Wiring:
    """The wiring of a network for inputs of these shapes."""
    return _Walk(network, inputs).wiring


class _Walk:
    """Follows every value of a graph as zeros, whose derivatives by the spikes say which of them it adds up.

    Besides, what a value carries: the image, "spikes" (of one height, at most one an entry), spikes "merged" into sums,
    or something "weighted", in which they cannot be counted any more.
    """

    def __init__(self, network: GraphNetwork, inputs: list[Tensor]) -> None:
        self.network = network
        self.wiring = Wiring()
        self.spikes: dict[str, Tensor] = {}
        self.values: dict[str, Any] = {}
        self.carried: dict[str, set[str]] = {}
        # Two samples, for networks with a squeeze() that takes every axis of one entry.
        waiting = [torch.zeros(2, *x.shape[1:], dtype=torch.float64, device=x.device) for x in inputs]
        with torch.enable_grad():
            for node in network.graph.nodes[:-1]:
                if node.kind == "input":
                    self.values[node.name], self.carried[node.name] = waiting.pop(0), {"image"}
                elif node.kind == "method" and node.target in SAME:
                    self.values[node.name], self.carried[node.name] = (
                        v[node.refs[0]] for v in (self.values, self.carried)
                    )
                else:
                    self.visit(node)

    def visit(self, node: Node) -> None:
        """Value, what it carries and, for layers, the connections of one node."""
        kind = role(node, self.network)
        layer = self.network.get_submodule(node.target) if node.kind == "module" else None
        moving = layer is not None or bare(node) not in SIZES
        met = [carried for name in node.refs if (carried := self.carried[name]) and moving]
        args, kwargs = fill(node.args, self.values), fill(node.kwargs, self.values)
        if kind == "synapse":
            self.connect(node.target, args[0], set[str]().union(*met))
        if isinstance(layer, Scale):
            kind = "product"  # one connection a neuron: behind it a spike is a spike of another height
        carried = _carries(kind, met)
        if isinstance(layer, SpikingLayer):
            alike = layer.theta.numel() in (1, args[0].shape[1])  # the neurons of a channel
            carried = {"spikes"} if alike else {"merged"}
        self.carried[node.name] = carried
        with torch.set_grad_enabled(carried <= COUNTED):
            self.values[node.name] = self.value(node, kind, args, kwargs)

    def value(self, node: Node, kind: Role, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a node adds up, with a factor of 1 for each spike in place of its own."""
        carried = self.carried[node.name]
        if kind == "neuron":
            self.wiring.layers[node.target].neurons = args[0][0].numel()
            return self.source(node.target, args[0])
        if "merged" in carried and kind in ("sum", "product", "sign", "norm"):
            return sum(value for name in node.refs if isinstance(value := self.values[name], Tensor))
        if "merged" in carried and kind == "average":
            return self.summed(node, args, kwargs)
        value = self.network.call(node, args, kwargs)
        if "merged" in carried and kind == "mean":
            return value * (args[0].numel() / value.numel())
        return self.source(node.target, value) if kind == "maximum" and carried == {"spikes"} else value

    def source(self, name: str, like: Tensor) -> Tensor:
        """Spikes of the neurons, or of the gated pool, of this name."""
        self.spikes[name] = torch.zeros_like(like, requires_grad=True)
        return self.spikes[name].clone()  # it may be changed in place

    def summed(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The sum of each window that the node averages; windows are boxes, so each axis can be asked by itself."""
        pool = type(self.network.get_submodule(node.target)).__name__ if node.kind == "module" else node.target
        axes = int(pool[-2])  # AvgPool2d, F.avg_pool2d
        total: Tensor = args[0]
        sizes = total.shape[-axes:]
        for axis in range(-axes, 0):
            slices = torch.eye(sizes[axis], dtype=total.dtype, device=total.device)
            slices = slices.reshape(-1, *[1] * (axes + axis + 1), sizes[axis], *[1] * (-axis - 1))
            seen = self.network.call(node, (slices.expand(-1, 1, *sizes), *args[1:]), kwargs)
            inside = (seen.movedim(axis, 1).flatten(2).amax(2) > 0).to(total.dtype)
            total = (total.movedim(axis, -1) @ inside).movedim(-1, axis)
        return total

    def connect(self, name: str, x: Tensor, met: set[str]) -> None:
        """The connections of a layer to what its input ``x`` carries."""
        fan = fan_out(self.network.get_submodule(name), tuple(x.shape[1:]))
        still, counted = not met & MOVING, met <= COUNTED
        self.wiring.layers[name].ann_macs += int(fan.sum())
        self.wiring.layers[name].macs += int(fan.sum()) if still else 0
        self.wiring.uses[name].append(None if still or counted else fan)
        if counted and not still:
            spikes = list(self.spikes.values())
            reached = torch.autograd.grad((x[0] * fan).sum(), spikes, retain_graph=True, allow_unused=True)
            for source, each in zip(self.spikes, reached, strict=True):
                if each is not None:
                    fans = self.wiring.fans[source]
                    fans[name] = fans.get(name, 0) + each[0].round().to(torch.int64)


def _carries(kind: Role, met: list[set[str]]) -> set[str]:
    """What a node of this role makes of values that carry this."""
    carried = set[str]().union(*met)
    if kind == "shape" or not carried & MOVING or (kind == "maximum" and carried == {"spikes"}):
        return carried
    if (kind in ADDING or (kind == "product" and len(met) == 1)) and "weighted" not in carried:
        return carried - {"spikes"} | {"merged"}
    return {"weighted"}
