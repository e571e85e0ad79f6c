"""Does each sample go its own way? Found by trying: a node's value for two batches at once must be the two values.

Time is folded into the batch axis, so a model that mixes samples would mix time-steps as well. Each node is tried by
itself, with the inputs that two small batches gave it, so that one offender does not make its followers suspect.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.graph import GraphNetwork, Node, fill, values_in

__all__ = ["alike", "mixers", "random_inputs"]

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


@torch.no_grad()
def mixers(network: GraphNetwork, shapes: list[tuple[int, ...]], *, like: Tensor) -> list[str]:
    """The nodes of ``network`` (in eval mode) that mix or reorder samples of these shapes; ``like`` is a weight."""
    inputs = [random_inputs(shapes, like=like, seed=seed) for seed in range(2)]
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    both: dict[str, Any] = {}
    found: list[str] = []
    tainted: set[str] = set()
    for node in network.graph.nodes:
        if node.kind == "input":
            first[node.name], second[node.name] = inputs[0].pop(0), inputs[1].pop(0)
            both[node.name] = torch.cat([first[node.name], second[node.name]])
            continue
        joined = None if tainted & {*node.refs} else _joined(node, first, second, both)
        first[node.name], second[node.name] = _run(network, node, first), _run(network, node, second)
        apart = node.kind == "output" or (
            node.kind == "module" and isinstance(network.get_submodule(node.target), _APART)
        )
        if joined is None or apart:
            tainted |= {node.name} if joined is None else set()
            both[node.name] = None
            continue
        try:
            both[node.name] = _run(network, node, joined)
            same = _same(both[node.name], _join(first[node.name], second[node.name], both[node.name]))
        except (RuntimeError, ValueError, IndexError, TypeError):  # it cannot even run on another number of samples
            both[node.name], same = None, False
        if not same:
            found.append(node.name)
            tainted.add(node.name)
    return found


def _joined(node: Node, *values: dict[str, Any]) -> dict[str, Any]:
    return {name: _join(*(value[name] for value in values)) for name in node.refs}


def _run(network: GraphNetwork, node: Node, values: dict[str, Any]) -> Any:
    return network.call(node, fill(node.args, values), fill(node.kwargs, values))


def _join(first: Any, second: Any, both: Any) -> Any:
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
    return torch.cat([first, second])


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) == len(expected) and all(map(_same, value, expected))
    if not isinstance(value, Tensor):
        return True
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return value.shape == expected.shape and torch.allclose(value, expected, rtol=1e-3, atol=1e-5 * (1 + scale))
