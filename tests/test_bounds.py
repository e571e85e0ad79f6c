"""Grids and bounds: compared with enumeration and with exact fractions."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from offspike.arithmetic.bounds import survey
from offspike.arithmetic.grids import InputGrid, finest, significant_bits
from offspike.arithmetic.reach import UNKNOWN, Sum, bits_for
from offspike.capture import captured


def grid(values):
    return InputGrid(
        torch.ones(1), torch.zeros(1), unit=1.0, lowest=-torch.tensor([values]), highest=torch.tensor([values])
    )


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_the_finest_grid_of_a_number(value):
    found = finest(torch.tensor([value], dtype=torch.float64)).item()
    if value == 0:
        assert found == math.inf
    else:
        multiple = Fraction(value) / Fraction(2) ** int(found)
        assert multiple.denominator == 1
        assert multiple.numerator % 2 == 1  # no coarser grid has it
        assert significant_bits(torch.tensor([value], dtype=torch.float64)) == abs(multiple.numerator).bit_length()


@given(st.integers(1, 2**40))
def test_bits_hold_the_number(units):
    bits = bits_for(float(units))
    assert units <= 2**bits
    assert bits == 0 or units > 2 ** (bits - 1)


def test_the_bound_of_a_filter_is_attained_and_never_passed():
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    layer.weight.data = (2 * torch.randint(-4, 4, (3, 6)) + 1) / 16  # odd numbers: no coarser grid
    layer.bias.data = (2 * torch.randint(-4, 4, (3,)) + 1) / 16
    network = captured(nn.Sequential(nn.Linear(4, 6, bias=False), osp.QCFS(2), layer))
    # Spikes are 0 or 1: all 64 patterns. The bound takes absolute values, so signs of weights and bias go with them.
    patterns = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)))
    most = (patterns @ layer.weight.detach().abs().T + layer.bias.detach().abs()).max()
    found = survey(network, (torch.zeros(1, 4),), spikes=True)
    assert found.sums["2"].bound == most.item() * 16
    assert found.sums["2"].input_bits == 0
    assert "0: its input is not on a grid" in found.doubts
    ann = survey(network, (torch.zeros(1, 4),), spikes=False)
    assert ann.sums["2"].bound == most.item() * 32  # activations are 0, 1/2, 1
    assert ann.sums["2"].input_bits == 1


@pytest.mark.parametrize("make", [
    lambda: nn.Sequential(nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.Flatten()),
    lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), nn.Flatten()),
    lambda: nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    lambda: nn.Sequential(nn.AvgPool2d(3, 2, padding=1, divisor_override=1), nn.Conv2d(4, 2, 1, bias=False)),
])  # fmt: skip
@torch.no_grad()
def test_sums_stay_within_their_bounds_and_on_their_grids(make):
    torch.manual_seed(1)
    model = nn.Sequential(grid(3), make()).eval()
    for parameter in model.parameters():
        parameter.data = torch.randint(-15, 16, parameter.shape) / 2.0 ** torch.randint(2, 5, parameter.shape)
    network = captured(model)
    found = survey(network, (torch.zeros(1, 4, 8, 8),), spikes=True)
    assert not found.doubts
    name, made = list(found.sums.items())[-1]
    seen = []
    layer = network.get_submodule(name)
    layer.register_forward_hook(lambda m, args, out: seen.append(out))
    network.double()(torch.randint(-9, 10, (64, 4, 8, 8)).double())
    channels = seen[0].transpose(0, 1).flatten(1)
    units = channels.abs().amax(1) / finest(channels).amin(1).exp2()  # each channel on its own finest grid
    assert units.max() <= made.bound


def test_what_is_exact_in_which_arithmetic():
    assert Sum(1.0, 24, 8, 8).exact_in == ("float32", "tf32", "bf16", "int32")
    assert Sum(1.0, 24, 9, 8).exact_in == ("float32", "tf32", "int32")
    assert Sum(1.0, 24, 12, 1).exact_in == ("float32", "int32")
    assert Sum(1.0, 25, 8, 8).exact_in == ("int32",)
    assert Sum(1.0, 32, 8, 8).exact_in == ()


@pytest.mark.parametrize(("layer", "said"), [
    (nn.AvgPool2d(3), "divides by 9"),
    (nn.AvgPool2d(2, padding=1, count_include_pad=False), "divides by different numbers"),
    (nn.AdaptiveAvgPool2d(3), "divides by different numbers"),
    (nn.BatchNorm2d(2), "not known to be exact"),
    (nn.Upsample(scale_factor=2.0, mode="bilinear"), "not known to be exact"),
])  # fmt: skip
def test_what_is_not_exact_is_doubted(layer, said):
    model = nn.Sequential(grid(1), layer, nn.Conv2d(2, 2, 1)).eval()
    found = survey(captured(model), (torch.zeros(1, 2, 7, 7),), spikes=True)
    assert any(said in doubt for doubt in found.doubts), found.doubts
    assert found.sums["2"].bits >= UNKNOWN
