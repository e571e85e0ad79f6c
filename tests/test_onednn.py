"""Products of whole numbers on a CPU: the sums that float64 has, whoever makes them."""

import pytest
import torch

from offspike.ops import onednn, reference


@pytest.fixture(params=[True, False], ids=["oneDNN", "float32"])
def available(request, monkeypatch):
    if request.param and not onednn.available():
        pytest.skip("PyTorch has no 8-bit products for this processor")
    monkeypatch.setattr(onednn, "available", lambda: request.param)


def numbers(*shape, low=-128, high=128, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int8)


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("laid", [torch.channels_last, torch.contiguous_format])
def test_convolutions(available, digits, size, stride, laid):
    weight, scale = numbers(digits, 11, size, size, 7), torch.logspace(-9, 1, 11, base=2)
    x = numbers(3, 7, 6, 9, low=0)
    wanted = reference.convolve(x.permute(0, 2, 3, 1)[None], weight, scale, stride=stride)[0].permute(0, 3, 1, 2)
    got = onednn.multiplier(weight, scale, image=True, stride=stride)(x.contiguous(memory_format=laid))
    assert got.dtype == torch.float32
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3), (0,)])
def test_linear_layers(available, digits, shape):
    weight, scale = numbers(digits, 13, 1, 1, 33), torch.full((13,), 2.0**-7)
    x = numbers(*shape, 33, low=0)
    whole = sum(256 ** (digits - 1 - place) * digit[:, 0, 0].double() for place, digit in enumerate(weight))
    wanted = (x.double() @ whole.t() * 2.0**-7).float()
    assert torch.equal(onednn.multiplier(weight, scale, image=False)(x), wanted)


def test_the_largest_sums_are_exact(available):
    """1,040 products of 127 and -128 or 127: 24 bits, and pairs of them at the edge of 16."""
    weight = torch.stack([torch.full((1, 1, 1040), value, dtype=torch.int8) for value in (-128, 127)])
    x = torch.full((2, 1040), 127, dtype=torch.int8)
    got = onednn.multiplier(weight[None], torch.ones(2), image=False)(x)
    assert got.tolist() == [[-128 * 127 * 1040, 127 * 127 * 1040]] * 2


def test_what_overflows_on_the_way_comes_back(available):
    """The highest digit alone is 2^31."""
    weight = torch.tensor([64, -1, 0], dtype=torch.int8)[:, None, None, None, None].repeat(1, 1, 1, 1, 8)
    x = torch.full((1, 8), 64, dtype=torch.int8)
    assert onednn.multiplier(weight, torch.ones(1), image=False)(x).tolist() == [[64 * 64 * 8 * 65536 - 64 * 8 * 256]]


def test_operators_with_other_arguments_are_not_called(monkeypatch):
    onednn.available.cache_clear()
    monkeypatch.setitem(onednn._TAKES, "qlinear_prepack", "weight shape_of_x")
    try:
        assert not onednn.available()
    finally:
        onednn.available.cache_clear()
