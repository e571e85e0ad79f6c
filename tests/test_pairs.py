"""Convolutions over pairs of pixels: the same sums."""

import pytest
import torch
from torch import nn

from offspike.fast import pairs


@pytest.mark.parametrize("size", [(1, 2), (4, 6), (5, 8), (3, 7)])
@pytest.mark.parametrize("channels", [(1, 1), (3, 5), (16, 16)])
def test_the_same_sums(channels, size):
    torch.manual_seed(0)
    conv = nn.Conv2d(*channels, 3, padding=1, bias=False).double()
    x = torch.randn(2, channels[0], *size, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        got, wanted = pairs.run(conv, pairs.widened(conv), x), conv(x)
        assert torch.allclose(got, wanted, rtol=1e-12, atol=1e-12)
        assert got.shape == wanted.shape
        assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Linear(4, 4), nn.Conv2d(17, 4, 3, padding=1), nn.Conv2d(4, 17, 3, padding=1), nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, 2, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Conv2d(4, 4, 5, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.Conv2d(4, 4, 3, padding=2, dilation=2),
    ],
)  # fmt: skip
def test_only_narrow_plain_convolutions_are_paired(conv):
    assert pairs.widened(conv) is None
