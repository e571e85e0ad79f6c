"""Average pools, however they are written: by how much they divide, and the same pool as a plain sum."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from offspike.arithmetic.roles import bare
from offspike.graph import GraphNetwork, Node, Ref, map_values

__all__ = ["divisor", "sum_pool"]

NAMES = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def divisor(
    network: GraphNetwork, node: Node, before: Tensor, after: Tensor, known: Callable[[str], Any]
) -> float | None:
    """By what ``node`` (an average pool, or a mean) divides everywhere; None where that depends on the place.

    ``before`` and ``after`` have the shapes of what goes in and comes out; ``known(name)`` is the value of a node that
    is a size.
    """
    if bare(node) == "mean":
        return before.numel() / after.numel()
    sizes = list(zip(before.shape[2:], after.shape[2:], strict=True))
    if _adaptive(network, node):
        return math.prod(a / b for a, b in sizes) if all(a % b == 0 for a, b in sizes) else None
    given = options(network, node, known)
    if given.get("divisor_override"):
        return float(given["divisor_override"])
    window, stride, padding = (_each(given.get(name), len(sizes)) for name in NAMES[:3])
    steps = stride if any(stride) else window
    inside = all((b - 1) * s + k <= a + 2 * p for (a, b), k, s, p in zip(sizes, window, steps, padding, strict=True))
    padded = any(padding) and not given.get("count_include_pad", True)
    return float(math.prod(window)) if inside and not padded else None


def sum_pool(network: GraphNetwork, node: Node, before: Tensor, after: Tensor, x: Any) -> nn.Module | Node | None:
    """A layer, or a node on ``x``, that sums where ``node`` averages; None where PyTorch has none (one axis)."""
    axes = before.ndim - 2
    if axes == 1:
        return None
    layer = network.get_submodule(node.target) if node.kind == "module" else None
    window: Any = tuple(a // b for a, b in zip(before.shape[2:], after.shape[2:], strict=True))
    if _adaptive(network, node):
        if layer is not None:
            return (nn.AvgPool2d if axes == 2 else nn.AvgPool3d)(window, divisor_override=1)
        return Node(node.name, "function", f"F.avg_pool{axes}d", (x, window), {"divisor_override": 1})
    if layer is not None:
        total: Any = deepcopy(layer)
        total.divisor_override = 1
        return total  # type: ignore[no-any-return]
    given = dict(zip(NAMES, node.args[1:], strict=False)) | node.kwargs
    return Node(node.name, "function", node.target, (x,), {**given, "divisor_override": 1})


def options(network: GraphNetwork, node: Node, known: Callable[[str], Any]) -> dict[str, Any]:
    """The options of a pool, by name."""
    if node.kind == "module":
        return {name: getattr(network.get_submodule(node.target), name, None) for name in NAMES}
    given = dict(zip(NAMES, node.args[1:], strict=False)) | node.kwargs
    return dict(map_values(given, lambda leaf: known(leaf.name) if isinstance(leaf, Ref) else leaf))


def _adaptive(network: GraphNetwork, node: Node) -> bool:
    name = type(network.get_submodule(node.target)).__name__ if node.kind == "module" else bare(node)
    return name.lower().startswith("adaptive")


def _each(value: Any, axes: int) -> list[int]:
    """One number for each axis; 0 for None."""
    if isinstance(value, tuple | list):
        return [int(v) for v in value] * (axes if len(value) == 1 else 1)
    return [int(value or 0)] * axes
