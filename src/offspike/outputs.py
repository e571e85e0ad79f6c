"""What a model returns, with a time axis in front: a tensor, or tuples, lists and dictionaries of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from offspike.clock import Clock
from offspike.graph import Graph, Node, Ref, map_values, values_in
from offspike.layers import SpikingLayer

__all__ = ["beside", "joined", "over_time", "rows"]


def rows(graph: Graph, model: nn.Module) -> Any:
    """Of each value that the model returns, whether it has a row for each sample."""
    common = _common(graph, model)
    return map_values(graph.nodes[-1].args[0], lambda leaf: isinstance(leaf, Ref) and leaf.name not in common)


def over_time(out: Any, rows: Any, clock: Clock, bad: Tensor | None) -> Any:
    """What one pass returned, ``[T·B, …]``, as ``[T, B, …]``; what has no ``rows`` is the same at each step.

    ``rows`` True: all values have them. ``bad``, if any, is added to each sample.
    """

    def unfold(leaf: Any, in_rows: bool) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if not in_rows:
            return clock.repeat(leaf)
        out = clock.unfold(leaf)
        return out if bad is None else out + bad.to(out.dtype).view(1, -1, *[1] * (out.ndim - 2))

    each = iter(_each_leaf(out, rows))
    return map_values(out, lambda leaf: unfold(leaf, next(each)))


def joined(pieces: list[Any], steps: int) -> Any:
    """The first ``steps`` steps of all pieces."""

    def join(*leaves: Any) -> Any:
        if not isinstance(leaves[0], Tensor):
            return leaves[0]
        return (leaves[0] if len(leaves) == 1 else torch.cat(leaves))[:steps]

    return _together(pieces, join)


def beside(parts: list[Any], rows: Any) -> Any:
    """What was returned for all parts of a batch, ``[T, B, …]``; what has no ``rows`` is the same for each."""
    each = iter(_each_leaf(parts[0], rows))

    def join(*leaves: Any) -> Any:
        in_rows = next(each) and isinstance(leaves[0], Tensor)
        return torch.cat(leaves, 1) if in_rows and len(leaves) > 1 else leaves[0]

    return _together(parts, join)


def _together(values: list[Any], join: Callable[..., Any]) -> Any:
    """The first of values built alike, with ``join`` of the leaves of all of them."""
    rest = [iter(values_in(value, object)) for value in values[1:]]
    return map_values(values[0], lambda leaf: join(leaf, *(next(leaves) for leaves in rest)))


def _common(graph: Graph, model: nn.Module) -> set[str]:
    """The nodes that have nothing to do with samples: parameters, sizes but the batch's, and what is made of them."""
    common: set[str] = set()
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        neuron = node.kind == "module" and isinstance(model.get_submodule(node.target), SpikingLayer)
        made = node.kind != "input" and not neuron and common.issuperset(node.refs)
        if made or (node.kind in ("function", "method") and _is_a_size(node, nodes)):
            common.add(node.name)
    return common


def _is_a_size(node: Node, nodes: dict[str, Node]) -> bool:
    """Whether a node asks how large samples are: ``x.size(1)``, ``x.shape[2:]``, ``x.ndim``; not how many."""
    if node.target in ("ndim", "dim"):
        return True
    owner = nodes[node.args[0].name] if node.target == "operator.getitem" and isinstance(node.args[0], Ref) else node
    if owner.kind not in ("function", "method") or owner.target not in ("size", "shape"):
        return False
    axis = node.kwargs.get("dim", *node.args[1:2])
    first = axis.start if isinstance(axis, slice) else axis
    return isinstance(first, int) and (first > 0 or axis == -1)


def _each_leaf(out: Any, rows: Any) -> list[bool]:
    """``rows``, which holds one value where ``out`` may hold a list of tensors, for every leaf of ``out``."""
    if isinstance(rows, bool):
        return [rows] * len(values_in(out, object))
    pairs = [(out[key], rows[key]) for key in out] if isinstance(rows, dict) else zip(out, rows, strict=True)
    return [leaf for pair in pairs for leaf in _each_leaf(*pair)]
