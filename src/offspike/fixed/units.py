"""Units as tensors ``[1, …]``, one number for each element of a sample; and weights that take units up."""

from typing import Any

import torch
from torch import Tensor, nn

from offspike.arithmetic.roles import TRANSPOSED
from offspike.graph import Node

__all__ = ["along", "filled_up", "reduced", "rescale", "smallest", "uniform"]


def rescale(layer: Any, unit: Tensor, wanted: Tensor) -> None:
    """Input in ``unit`` for each input channel, output in ``wanted`` for each output channel."""
    weight = layer.weight.double()
    if isinstance(layer, TRANSPOSED):
        per_group = weight.unflatten(0, (layer.groups, -1)) / wanted.view(layer.groups, 1, -1, *[1] * (weight.ndim - 2))
        weight = per_group.flatten(0, 1) * unit.view(-1, *[1] * (weight.ndim - 1))
    else:
        groups = getattr(layer, "groups", 1)
        per_group = weight.unflatten(0, (groups, -1)) * unit.view(groups, 1, -1, *[1] * (weight.ndim - 2))
        weight = per_group.flatten(0, 1) / wanted.view(-1, *[1] * (weight.ndim - 1))
    layer.weight = nn.Parameter(weight)
    layer.bias = None if layer.bias is None else nn.Parameter(layer.bias.double() / wanted)


def along(unit: Tensor, axis: int) -> Tensor | None:
    """The unit of each channel; None where it is not the same all over a channel."""
    rows = unit.movedim(axis, 0).flatten(1)
    return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else None


def uniform(unit: Tensor) -> float | None:
    """The one value that it has everywhere; None where it has several."""
    first = unit.flatten()[0]
    return float(first) if bool((unit == first).all()) else None


def smallest(values: Tensor) -> Tensor:
    """The same values for a sample in as few numbers as broadcast to it."""
    if uniform(values) is not None:
        return values.flatten()[:1].clone()
    if values.ndim > 1 and (channels := along(values, 0)) is not None:
        return channels.view(-1, *[1] * (values.ndim - 1))
    return values.clone()


def reduced(target: Tensor, unit: Tensor, node: Node) -> Tensor:
    """The unit of a sum for a side that is broadcast in it."""
    one = uniform(target)
    if one is None:
        raise ValueError(f"{node.target} adds values of different shapes and thresholds: give them one threshold")
    return torch.full_like(unit, one)


def filled_up(unit: Any) -> Any:
    """Padding has no unit of its own: zero is zero in any."""
    if not isinstance(unit, Tensor) or not unit.is_floating_point() or not unit.numel():
        return unit
    return torch.where(unit == 0, unit.max(), unit)
