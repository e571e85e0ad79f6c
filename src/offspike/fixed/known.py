"""What is known of a network's values before it is put on a grid: their shapes, and which of them are constants."""

from collections.abc import Collection
from typing import Any

from torch import Tensor

from offspike.graph import GraphNetwork, Node, fill, refs_in, values_in
from offspike.inspection.sites import SHAPED

__all__ = ["constants", "refuse", "values"]


def values(network: GraphNetwork, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """The value of every node for one sample."""
    waiting, found = list(inputs), dict[str, Any]()
    for node in network.graph.nodes:
        args, kwargs = fill(node.args, found), fill(node.kwargs, found)
        found[node.name] = waiting.pop(0).clone() if node.kind == "input" else network.call(node, args, kwargs)
    return found


def constants(network: GraphNetwork, known: dict[str, Any]) -> frozenset[str]:
    """The nodes made of parameters, buffers and sizes alone: their ``known`` values are numbers, whatever made them."""
    found: set[str] = set()
    for node in network.graph.nodes:
        tensors = {name for name in _taken(node) if values_in(known[name], Tensor)}
        made = bool(tensors) and found.issuperset(tensors) and node.kind != "output"
        if node.kind == "attribute" or (made and values_in(known[node.name], Tensor)):
            found.add(node.name)
    return frozenset(found)


def refuse(node: Node, found: Collection[str]) -> None:
    """Raise a ValueError if a node takes one of the constants ``found``: sums and products alone can be given one."""
    for name in (name for name in node.refs if name in found):
        raise ValueError(
            f"snap cannot put {node.target} of {name} on a grid, which is made of parameters or buffers: add it, "
            "multiply by it, or make it part of a layer"
        )


def _taken(node: Node) -> tuple[str, ...]:
    """The nodes whose values it takes; of some only the shape matters."""
    shaped = node.kind == "method" and node.target in SHAPED
    return refs_in(node.args[:1]) if shaped else node.refs
