"""Numbers on power-of-two grids, and the two layers that a fixed-point network has besides the usual ones."""

from typing import Any

import torch
from torch import Tensor, nn

from offspike.leaves import register_leaf

__all__ = ["InputGrid", "Scale", "finest", "significant_bits", "was_snapped"]

MANTISSA = 53  # bits of a float64


class InputGrid(nn.Module):
    """The network's input on a grid: ``unit · clip(⌊x·gain + offset⌉, lowest, highest)``, element by element.

    Whatever comes in, what goes on is a whole number of ``unit`` (a power of two) between two known bounds: sums over
    it can be bounded in advance. ``gain`` and ``offset`` are ``[C, 1, 1]`` or ``[1]``; with a network's own
    preprocessing, ``⌊x·gain + offset⌉`` is the 8-bit pixel again, less a whole number.
    """

    gain: Tensor
    offset: Tensor
    unit: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(self, gain: Tensor, offset: Tensor, *, unit: float, lowest: Tensor, highest: Tensor) -> None:
        super().__init__()
        for name, value in {"gain": gain, "offset": offset, "lowest": lowest, "highest": highest}.items():
            self.register_buffer(name, value.detach().clone().to(torch.float32))
        self.register_buffer("unit", torch.tensor(float(unit)))

    def forward(self, x: Tensor) -> Tensor:
        """Product and sum are rounded one after the other: the same bits on every device."""
        scaled = x * self.gain.to(x.dtype)
        whole = (scaled + self.offset.to(x.dtype)).round()
        whole = torch.minimum(torch.maximum(whole, self.lowest.to(x.dtype)), self.highest.to(x.dtype))
        return whole * self.unit.to(x.dtype)

    @property
    def bound(self) -> Tensor:
        """The largest absolute value that this layer returns, ``[C, 1, 1]`` or ``[1]``."""
        return torch.maximum(self.lowest.abs(), self.highest.abs()) * self.unit


class Scale(nn.Module):
    """``x·weight + bias`` for each channel, or with one number for all: a synapse from each neuron to one other.

    ``weight`` and ``bias`` broadcast to a sample (``[C, 1, 1]``, ``[C]`` or ``[1]``).
    """

    bias: nn.Parameter | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone().to(torch.float32))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone().to(torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Product first, then sum."""
        scaled: Tensor = x * self.weight.to(x.dtype)
        return scaled if self.bias is None else scaled + self.bias.to(x.dtype)

    def extra_repr(self) -> str:
        """The number, where it is one."""
        return f"{self.weight.item():g}" if self.weight.numel() == 1 else f"{tuple(self.weight.shape)}"


def finest(values: Tensor) -> Tensor:
    """For each value the largest g such that it is a whole multiple of ``2^g``; +∞ for 0."""
    mantissa, exponent = torch.frexp(values.detach().double())
    whole = (mantissa * 2.0**MANTISSA).to(torch.int64)
    last = torch.frexp((whole & -whole).double())[1] - 1
    grid = (exponent - MANTISSA + last).double()
    return torch.where(whole == 0, torch.inf, grid)


def significant_bits(values: Tensor) -> int:
    """How many bits the longest of the values has, without sign and exponent: what a number format must hold."""
    values = values.detach().double().flatten()
    values = values[values != 0]
    if not len(values):
        return 0
    return int((torch.frexp(values)[1].double() - finest(values)).max())


def was_snapped(model: nn.Module) -> bool:
    """Whether a network is in fixed point: it puts its input on a grid."""
    return any(isinstance(module, InputGrid) for module in model.modules())


def _describe_grid(layer: InputGrid) -> dict[str, Any]:
    return {"shape": list(layer.gain.shape)}


def _build_grid(fields: dict[str, Any]) -> InputGrid:
    ones = torch.ones(fields["shape"])
    return InputGrid(ones, ones, unit=1.0, lowest=ones, highest=ones)


def _describe_scale(layer: Scale) -> dict[str, Any]:
    return {"shape": list(layer.weight.shape), "bias": layer.bias is not None}


def _build_scale(fields: dict[str, Any]) -> Scale:
    ones = torch.ones(fields["shape"])
    return Scale(ones, ones if fields["bias"] else None)


register_leaf(InputGrid, _describe_grid, _build_grid)
register_leaf(Scale, _describe_scale, _build_scale)
