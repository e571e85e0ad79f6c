"""A network from its wiring diagram: the inverse of ``wire``, for files that come from outside."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offspike.exchange.parts import Part
from offspike.graph import Graph, GraphNetwork, Node, Ref
from offspike.initial import Constant
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.network import SpikingNetwork

__all__ = ["assemble"]


def assemble(parts: Sequence[Part]) -> SpikingNetwork:
    """The spiking network that runs these parts, given in an order in which they can run."""
    half = all(torch.equal(p.values["v0"], p.values["theta"] / 2) for p in parts if p.kind == "neurons")
    method = Method("static", Constant(0.5 if half else 0.0))
    names = {part.name: part.name for part in parts}  # the node that holds what a part sends on
    nodes: list[Node] = []
    leaves: dict[str, nn.Module | Tensor] = {}
    for part in _without_needless_scales(parts):
        x = _sum(nodes, part, names)
        if part.kind in ("input", "output"):
            nodes.append(Node(part.name, part.kind, part.name, () if x is None else (x,)))
        elif part.kind == "scale":
            _arithmetic(nodes, leaves, part.name, "operator.mul", x, part.values["scale"])
        else:
            leaves[part.name] = _layer(part, method)
            nodes.append(Node(part.name, "module", part.name, (x,)))
        if part.kind == "neurons" and not part.values.get("scaled"):
            names[part.name] = f"{part.name}_spikes"  # spiking layers send on θ
            theta = part.values["theta"]
            _arithmetic(nodes, leaves, names[part.name], "operator.truediv", Ref(part.name), theta)
    shape = next(part.shape for part in parts if part.kind == "input")
    network = GraphNetwork(Graph(tuple(nodes)), leaves, input_shape=shape).eval()
    steady = network.graph.steady(network, neuron=lambda module: isinstance(module, SpikingLayer))
    for name, layer in network.named_modules():
        if isinstance(layer, SpikingLayer):
            layer.steady = steady is not None and name in steady
    return SpikingNetwork(network, method, input_shape=shape, repeat_input=steady is None)


def _without_needless_scales(parts: Sequence[Part]) -> list[Part]:
    """Spiking layers multiply by θ themselves: a scale that does just this, and is all that follows, is left out."""
    users: dict[str, list[Part]] = {part.name: [] for part in parts}
    for part in parts:
        for source in part.sources:
            users[source].append(part)
    skip: dict[str, str] = {}
    scaled = set()
    for part in parts:
        follow = users[part.name]
        if part.kind == "neurons" and follow and all(
            user.kind == "scale" and len(user.sources) == 1 and torch.equal(user.values["scale"], part.values["theta"])
            for user in follow
        ):  # fmt: skip
            skip.update({user.name: part.name for user in follow})
            scaled.add(part.name)
    return [
        Part(
            part.name, part.kind, tuple(skip.get(source, source) for source in part.sources), part.shape,
            {**part.values, "scaled": True} if part.name in scaled else part.values,
        )
        for part in parts
        if part.name not in skip
    ]  # fmt: skip


def _sum(nodes: list[Node], part: Part, names: dict[str, str]) -> Ref | None:
    """Nodes that add up what a part gets, in the order of its sources."""
    total: Ref | None = None
    for k, source in enumerate(part.sources):
        term = Ref(names[source])
        if total is None:
            total = term
        else:
            nodes.append(Node(f"{part.name}_sum_{k}", "function", "torch.add", (total, term)))
            total = Ref(f"{part.name}_sum_{k}")
    return total


def _arithmetic(nodes: list[Node], leaves: dict[str, Any], name: str, target: str, x: Any, value: Tensor) -> None:
    """``x · value`` or ``x / value``; a buffer, as a GPU would not divide by a number but multiply by its inverse."""
    same = value.flatten()[:1]
    leaves[f"{name}_values"] = same if bool((value == same).all()) else value
    nodes.append(Node(f"{name}_values", "attribute", f"{name}_values"))
    nodes.append(Node(name, "function", target, (x, Ref(f"{name}_values"))))


def _layer(part: Part, method: Method) -> nn.Module:
    values = part.values
    if part.kind == "neurons":
        return _neurons(part, method)
    if part.kind == "flatten":
        return nn.Flatten()
    if part.kind == "pool":
        return nn.AvgPool2d(values["kernel"], values["stride"], values["padding"])
    weight = values["weight"]
    layer: Any
    if part.kind == "affine":
        layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    else:
        kind: Any = nn.Conv1d if weight.ndim == 3 else nn.Conv2d
        options = {name: values[name] for name in ("stride", "padding", "dilation", "groups")}
        inputs = weight.shape[1] * values["groups"]
        layer = kind(inputs, len(weight), tuple(weight.shape[2:]), **options, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(values["bias"])
    return layer  # type: ignore[no-any-return]


def _neurons(part: Part, method: Method) -> SpikingLayer:
    theta, v0 = part.values["theta"], part.values["v0"]
    if bool((theta == theta.flatten()[0]).all()):
        theta = theta.flatten()[0]
    layer = SpikingLayer(theta, method, levels=part.values.get("levels"))
    if method.initial == Constant(0.0):
        layer.start = v0
    if part.values.get("offset") is not None:
        layer.shift = part.values["offset"]
    return layer
