"""What is known of a number for any input: how large it can be, and on which grid it lies."""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from offspike.arithmetic.grids import Scale, finest
from offspike.arithmetic.roles import TRANSPOSED

__all__ = ["ACCUMULATORS", "OPERANDS", "UNKNOWN", "Reach", "Sum", "absolute", "bits_for", "grid_of_sums"]

ACCUMULATORS = {"float32": 24, "tf32": 24, "bf16": 24, "int32": 31}  # bits of an exact sum
OPERANDS = {"float32": 24, "tf32": 11, "bf16": 8, "int32": 31}  # bits of an exact weight or input
UNKNOWN = 10_000  # bits of a value of which nothing is known


def bits_for(units: float) -> int:
    """The least b with ``units <= 2^b``: whole numbers up to units fit into b bits and a sign."""
    if not math.isfinite(units):
        return UNKNOWN
    mantissa, exponent = math.frexp(units)
    return max(0, exponent - 1 if mantissa == 0.5 else exponent)


class Reach(NamedTuple):
    """What is known of one sample's value, element by element (``[1, …]``, float64)."""

    grid: Tensor
    bound: Tensor

    @property
    def units(self) -> float:
        """The largest value as a multiple of its own grid; ∞ where nothing is known."""
        units = torch.where(self.bound > 0, self.bound * (-self.grid).exp2(), 0.0)
        return float(units.nan_to_num(nan=torch.inf, posinf=torch.inf).max())

    @property
    def bits(self) -> int:
        """Bits that the largest value needs on its grid, without its sign."""
        return bits_for(self.units)


@dataclass(frozen=True)
class Sum:
    """The sums of one layer with weights: how many bits they, the weights and the inputs need (without sign)."""

    bound: float  # the largest sum, in units of the finest grid of its channel
    bits: int
    weight_bits: int
    input_bits: int

    def excess(self, arithmetic: str) -> int:
        """By how many bits a sum, a weight or an input is too long; 0 or less: it is exact."""
        longest = max(self.weight_bits, self.input_bits)
        return max(self.bits - ACCUMULATORS[arithmetic], longest - OPERANDS[arithmetic])

    @property
    def exact_in(self) -> tuple[str, ...]:
        """The arithmetics that make no rounding error here."""
        return tuple(name for name in ACCUMULATORS if self.excess(name) <= 0)


def absolute(layer: Any) -> nn.Module:
    """The layer with the absolute values of its weights, in float64: what it makes of bounds is a bound."""
    copy: nn.Module = deepcopy(layer).cpu().double()
    for parameter in copy.parameters():
        parameter.data = parameter.abs()
    if isinstance(copy, Scale):
        return _Plain(copy)
    return copy


class _Plain(nn.Module):
    """A `Scale` in float64."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        bias = 0 if self.scale.bias is None else self.scale.bias
        return x * self.scale.weight + bias


def grid_of_sums(layer: Any, grid: Tensor) -> Tensor:
    """The grid of each output channel: the finest product, or the bias. Shaped to broadcast to the output."""
    weight = finest(layer.weight.cpu())
    bias = None if layer.bias is None else finest(layer.bias.cpu())
    if isinstance(layer, Scale):
        out = (weight + grid).nan_to_num(nan=torch.inf)
        return out if bias is None else torch.minimum(out, bias)
    linear = isinstance(layer, nn.Linear)
    inputs = (grid.flatten(0, -2) if linear else grid.movedim(1, -1).flatten(0, -2)).amin(0)
    groups = getattr(layer, "groups", 1)
    if isinstance(layer, TRANSPOSED):
        weight = weight.reshape(groups, -1, *weight.shape[1:]).movedim(2, 1).flatten(0, 1)
    per_pair = weight.flatten(2).amin(2) if weight.ndim > 2 else weight
    sums = per_pair.reshape(groups, -1, per_pair.shape[1]) + inputs.view(groups, 1, -1)
    out = sums.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amin(2).flatten()
    out = out if bias is None else torch.minimum(out, bias)
    return out if linear else out.view(-1, *[1] * (grid.ndim - 2))
