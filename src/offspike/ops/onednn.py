"""Products of small whole numbers on a CPU (oneDNN): 8 bits times 8 bits, summed in 32, several times float32's rate.

Nothing is rounded: inputs are at most 127, so that even the 16-bit pair sums of processors without VNNI do not
overflow, and a sum of up to 24 bits is a float32. PyTorch calls these operators itself when it compiles quantised
models; where it has none, or others than are known here, a product is made in float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from offspike.ops.reference import BASE

__all__ = ["available", "multiplier"]

_TAKES = {
    "qconv_prepack": "weight w_scales x_scale x_zp stride padding dilation groups x_shape",
    "qconv2d_pointwise": "qx x_scale x_zero_point qw w_scale w_zero_point bias stride padding dilation groups "
    "output_scale output_zero_point output_dtype attr scalars algorithm",
    "qlinear_prepack": "weight x_shape",
    "qlinear_pointwise": "qx x_scale x_zero_point qw w_scale w_zero_point bias output_scale output_zero_point "
    "output_dtype post_op_name post_op_args post_op_algorithm",
}
# Sums leave times the weights' scales, in float32, and nothing is done to them besides.
_AS_THEY_ARE: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")


def multiplier(weight: Tensor, scale: Tensor, *, image: bool, stride: int = 1) -> Callable[[Tensor], Tensor]:
    """``x -> scale·Σ w·x``, float32; weights as in `Synapses`: ``weight [digits, O, k, k, C]`` and ``scale [O]``.

    Scales are powers of two. ``x`` holds whole numbers from 0 to 127, int8: an ``image`` is ``[N, C, H, W]`` and padded
    by k // 2, anything else ``[…, C]``, with k = 1. The sums of each digit fit 24 bits, those of all of them 32.
    """
    if len(weight) == 1:
        return _one_digit(weight[0], scale, image, stride)
    each = [_one_digit(digit, torch.ones_like(scale), image, stride) for digit in weight]
    factor = scale[:, None, None] if image else scale

    def multiply(x: Tensor) -> Tensor:
        total = each[0](x).int()
        for digit in each[1:]:
            total = total * BASE + digit(x).int()  # what overflows comes back: the last sum fits 32 bits
        return total.float() * factor

    return multiply


def _one_digit(weight: Tensor, scale: Tensor, image: bool, stride: int) -> Callable[[Tensor], Tensor]:
    if not (weight.device.type == "cpu" and available()):
        return _in_float32(weight.float() * scale[:, None, None, None], image, stride)
    multiply = _convolution(weight, scale, stride) if image else _linear(weight, scale)
    return lambda x: multiply(x.view(torch.uint8))


@functools.cache
def available() -> bool:
    """Whether PyTorch has these operators, with the arguments that are known here, and they are exact."""
    found = {name: getattr(torch.ops.onednn, name, None) for name in _TAKES}
    for name, takes in _TAKES.items():
        schema = None if found[name] is None else found[name].default._schema  # type: ignore[union-attr]
        if schema is None or [argument.name for argument in schema.arguments] != takes.split():
            return False
    return torch.backends.mkldnn.is_available() and _exact()  # type: ignore[no-untyped-call]


def _exact() -> bool:
    """The largest numbers there can be, against float64."""
    weight = torch.tensor([127, -128], dtype=torch.int8).repeat(16)[:, None, None, None].repeat(1, 3, 3, 32)
    scale, x = torch.ones(len(weight)), torch.full((2, 32, 4, 4), 127, dtype=torch.uint8)
    try:
        image = _convolution(weight, scale, 1)(x.contiguous(memory_format=torch.channels_last))
        line = _linear(weight[:, :1, :1], scale)(x[:, :, 0, 0].contiguous())
    except RuntimeError:  # no kernel for this processor
        return False
    taps = weight.permute(0, 3, 1, 2).double()
    wanted = F.conv2d(x.double(), taps, padding=1), F.linear(x[:, :, 0, 0].double(), taps[:, :, 0, 0])
    return torch.equal(image.double(), wanted[0]) and torch.equal(line.double(), wanted[1])


def _convolution(weight: Tensor, scale: Tensor, stride: int) -> Callable[[Tensor], Tensor]:
    pad, zeros = weight.shape[1] // 2, torch.zeros(len(weight), dtype=torch.int64)
    geometry = [stride, stride], [pad, pad], [1, 1], 1
    taps = weight.permute(0, 3, 1, 2).contiguous()
    packed = torch.ops.onednn.qconv_prepack(taps, scale, 1.0, 0, *geometry, None)

    def multiply(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.onednn.qconv2d_pointwise(
            x, 1.0, 0, packed, scale, zeros, None, *geometry, *_AS_THEY_ARE
        )
        return out

    return multiply


def _linear(weight: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
    zeros = torch.zeros(len(weight), dtype=torch.int64)
    packed = torch.ops.onednn.qlinear_prepack(weight[:, 0, 0].contiguous(), None)

    def multiply(x: Tensor) -> Tensor:
        out: Tensor = torch.ops.onednn.qlinear_pointwise(x, 1.0, 0, packed, scale, zeros, None, *_AS_THEY_ARE)
        return out

    return multiply


def _in_float32(weight: Tensor, image: bool, stride: int) -> Callable[[Tensor], Tensor]:
    taps = weight.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    if not image:
        return lambda x: F.linear(x.float(), taps[:, :, 0, 0])
    return lambda x: F.conv2d(x.float(), taps, stride=stride, padding=taps.shape[2] // 2)
