"""Weights as sums of two TF32 numbers: tensor cores then multiply them as they are.

TF32 holds 11 significant bits. Spikes are 0 and 1, so of ``w = high + low`` no product is rounded, and the two together
are within ``2^-23·|w|`` of w: float32, less one bit. Weights of at most 11 bits are one part.
"""

import torch
from torch import Tensor, nn

from offspike.arithmetic.grids import InputGrid
from offspike.arithmetic.reach import OPERANDS

__all__ = ["in_fixed_point", "rounds", "split"]

DROPPED = 24 - OPERANDS["tf32"]  # bits of a float32 that TF32 does not have


def split(weight: Tensor) -> list[Tensor]:
    """The one or two parts of a weight, float32 tensors of TF32 numbers."""
    whole = weight.double()
    high = _nearest(whole.float())
    low = _nearest((whole - high.double()).float())
    return [high, low] if bool(low.any()) else [high]


def rounds(device: torch.device) -> bool:
    """Whether products on a device are cut to TF32 where that is allowed: on a GPU's tensor cores, not on a CPU."""
    return device.type == "cuda"


def in_fixed_point(model: nn.Module) -> bool:
    """Whether a network was made for exact sums, and its input, too, is TF32 numbers."""
    grids = [module for module in model.modules() if isinstance(module, InputGrid)]
    return bool(grids) and all(bool((grid.bound <= 2 ** OPERANDS["tf32"] * grid.unit).all()) for grid in grids)


def _nearest(x: Tensor) -> Tensor:
    """The TF32 number next to each float32, of two the even one."""
    bits = x.view(torch.int32)
    odd = (bits >> DROPPED) & 1
    half = (1 << (DROPPED - 1)) - 1
    near = ((bits + half + odd) & -(1 << DROPPED)).view(torch.float32)
    return torch.where(x.isfinite(), near, x)  # adding to the bits of a NaN may give any number
