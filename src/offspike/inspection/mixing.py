"""Does each sample go its own way? Found by trying: a node's value for two batches at once must be the two values.

Time is folded into the batch axis, so a model that mixes samples would mix time-steps as well. Each node is tried by
itself, with the inputs that two small batches gave it, so that one offender does not make its followers suspect.
Neurons, and what the network returns, need one row a sample besides.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.graph import GraphNetwork, Node, fill, values_in

__all__ = ["Places", "alike", "mixers", "random_inputs"]

# These treat samples apart by construction, and take most of the time.
_APART = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.AvgPool2d, nn.MaxPool2d, nn.Dropout, nn.Flatten, Activation)
ROWS = 2


def random_inputs(shapes: list[tuple[int, ...]], *, like: Tensor, seed: int = 0) -> list[Tensor]:
    """A small batch of samples of these shapes, for a network with weights ``like`` this one."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, *shape, generator=draw).to(like) for shape in shapes]


@torch.no_grad()
def alike(first: nn.Module, second: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether two networks give the same answer, up to rounding."""
    wanted, got = (values_in(network(*(x.clone() for x in inputs)), Tensor) for network in (first, second))
    return len(wanted) == len(got) and all(map(_same, got, wanted))


@dataclass(frozen=True)
class Places:
    """By name of node what is known of its rows: ``constants`` have none, in those ``aside`` samples lie on axis 1.

    ``neurons`` need one row a sample.
    """

    constants: Collection[str] = ()
    aside: Collection[str] = ()
    neurons: Collection[str] = ()


@torch.no_grad()
def mixers(network: GraphNetwork, shapes: list[tuple[int, ...]], *, like: Tensor, places: Places) -> dict[str, str]:
    """The nodes of ``network`` (in eval mode) that mix or reorder samples of these shapes; ``like`` is a weight.

    Those that merge samples with another axis are named where a neuron, or the output, sees it.
    """
    inputs = [random_inputs(shapes, like=like, seed=seed) for seed in range(2)]
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    both: dict[str, Any] = {}
    found: dict[str, str] = {}
    tainted: set[str] = set()
    merged: dict[str, str] = {}  # by name the node where its samples were merged
    for node in network.graph.nodes:
        if node.kind == "input":
            first[node.name], second[node.name] = inputs[0].pop(0), inputs[1].pop(0)
            both[node.name] = torch.cat([first[node.name], second[node.name]])
            continue
        joined = None if tainted & {*node.refs} else _joined(node, first, second, both, places)
        first[node.name], second[node.name] = _run(network, node, first), _run(network, node, second)
        origins = [merged[name] for name in node.refs if name in merged]
        if node.name in places.neurons or node.kind == "output":
            found = dict.fromkeys(origins, "merges") | found
        elif node.name not in places.constants and _rows(first[node.name], node.name in places.aside) != ROWS:
            merged[node.name] = next(iter(origins), node.name)
        if joined is None or _apart(network, node):
            tainted |= {node.name} if joined is None else set()
            both[node.name] = None
            continue
        both[node.name], same = _tried(network, node, joined, (first[node.name], second[node.name]), places)
        if not same:
            found[node.name] = "mixes"
            tainted.add(node.name)
    return found


def _apart(network: GraphNetwork, node: Node) -> bool:
    """Whether a node need not be tried."""
    return node.kind == "output" or (node.kind == "module" and isinstance(network.get_submodule(node.target), _APART))


def _tried(
    network: GraphNetwork, node: Node, joined: dict[str, Any], alone: tuple[Any, Any], places: Places
) -> tuple[Any, bool]:
    """The value of a node for both batches at once, and whether it is their values ``alone``."""
    try:
        value = _run(network, node, joined)
        if node.name in places.constants:
            return value, True
        return value, _same(value, _join(*alone, value, axis=int(node.name in places.aside)))
    except (RuntimeError, ValueError, IndexError, TypeError):  # it cannot even run on another number of samples
        return None, False


def _rows(value: Any, aside: bool) -> int:
    """How many rows a value has; as many as there are samples where it has none."""
    tensors = [x for x in values_in(value, Tensor) if x.ndim > int(aside)]
    return int(tensors[0].shape[int(aside)]) if tensors else ROWS


def _joined(
    node: Node, first: dict[str, Any], second: dict[str, Any], both: dict[str, Any], places: Places
) -> dict[str, Any]:
    return {name: _join(first[name], second[name], both[name], axis=int(name in places.aside)) for name in node.refs}


def _run(network: GraphNetwork, node: Node, values: dict[str, Any]) -> Any:
    return network.call(node, fill(node.args, values), fill(node.kwargs, values))


def _join(first: Any, second: Any, both: Any, *, axis: int = 0) -> Any:
    """What the two batches give together: samples one after the other; sizes and constants as they are."""
    if isinstance(first, tuple | list):
        size = not any(isinstance(value, Tensor) for value in first)
        rest = both if isinstance(both, tuple | list) else [None] * len(first)
        return both if size else type(first)(map(_join, first, second, rest))
    if not isinstance(first, Tensor):
        return first if both is None else both
    if first is second or (isinstance(both, Tensor) and both.shape == first.shape and torch.equal(first, second)):
        return first  # a parameter, or made of sizes alone
    if first.ndim == 0 or first.shape[1:] != second.shape[1:]:
        raise ValueError("not one row a sample")
    return torch.cat([first, second], axis)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if not isinstance(value, Tensor):
        return True
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return value.shape == expected.shape and torch.allclose(value, expected, rtol=1e-3, atol=1e-5 * (1 + scale))
