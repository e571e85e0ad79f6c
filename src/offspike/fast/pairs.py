"""Narrow convolutions on a GPU, over pairs of neighbouring pixels: the same sums, in a shape that tensor cores like.

Channels-last memory ``[B, H, W, C]`` is, without a copy, ``[B, H, W/2, 2C]``: two pixels side by side become one with
twice the channels. A 3x3 convolution of stride 1 is again one there. Its weights are those of the first wherever a
pixel of the pair in question lies within reach, and 0 elsewhere: twice the products, and still less than half the
time at 16 channels, which fill only a quarter of a tile.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["run", "widened"]

WIDEST = 16  # channels that are taken in pairs


def widened(conv: nn.Module) -> Tensor | None:
    """The weights over pairs, ``[2O, 2C, 3, 3]``; None for a convolution that is not of this kind, or wide enough."""
    if type(conv) is not nn.Conv2d or conv.out_channels > WIDEST or conv.in_channels > WIDEST:
        return None
    plain = (conv.kernel_size, conv.stride, conv.dilation, conv.groups) == ((3, 3), (1, 1), (1, 1), 1)
    if not plain or conv.padding not in ((1, 1), "same") or conv.padding_mode != "zeros":
        return None
    weight = conv.weight.detach()
    out, channels = weight.shape[:2]
    wide = weight.new_zeros(2, out, 2, channels, 3, 3)  # to which pixel of a pair, from which, at which pair
    for to in (0, 1):
        for source in (0, 1):
            for pair in (0, 1, 2):
                column = 2 * (pair - 1) + source - to + 1  # of the 3x3 kernel
                if 0 <= column <= 2:
                    wide[to, :, source, :, :, pair] = weight[:, :, :, column]
    return wide.reshape(2 * out, 2 * channels, 3, 3).contiguous(memory_format=torch.channels_last)


def run(conv: nn.Module, wide: Tensor, x: Tensor) -> Tensor:
    """``conv(x)``, by pairs where x has an even width and lies channels-last."""
    batch, channels, height, width = x.shape
    if width % 2 or not x.is_contiguous(memory_format=torch.channels_last):
        return conv(x)  # type: ignore[no-any-return]
    seen = x.permute(0, 2, 3, 1).reshape(batch, height, width // 2, 2 * channels).permute(0, 3, 1, 2)
    y = F.conv2d(seen, wide, padding=1)
    return y.permute(0, 2, 3, 1).reshape(batch, height, width, len(wide) // 2).permute(0, 3, 1, 2)
