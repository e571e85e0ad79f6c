"""A convolution and its neurons in one kernel: the bits of the one after the other, where sums are exact.

Through Triton's interpreter where there is no GPU.
"""

import importlib

import pytest
import torch

from offspike import fused
from offspike.initial import Exact, Residual, Shift
from offspike.ops import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter multiplies the bits of bfloat16
FORMATS = [(torch.int8, torch.int8), (torch.int8, HALF), (HALF, HALF)]
POLICIES = {
    "light": Residual,
    "cos": Shift,
    "twice": lambda rho: Shift(rho, iterations=2, saturated="pin"),
    "even": Exact,
    "first": lambda rho: Exact(rho, "first"),
    "middle": lambda rho: Exact(rho, "middle"),
}

# An interpreter in numpy warns of ∞ − ∞, where PyTorch and GPUs are silent.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture(scope="module")
def conv():
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE == "cpu":
            patch.setenv("TRITON_INTERPRET", "1")
        yield importlib.import_module("offspike.ops.conv")


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Memory that nobody wrote shows as 77."""
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **options: real(*args, **options).fill_(77))


def layer(steps, batch, size, channels, outputs, kernel, formats=FORMATS[0]):
    """Spikes and whole 8-bit weights: sums are exact in every format."""
    draw = torch.Generator().manual_seed(steps + size + channels)
    spikes = (torch.rand(steps, batch, *size_of(size), channels, generator=draw) < 0.3).to(DEVICE, formats[0])
    weight = torch.randint(-127, 128, (outputs, kernel, kernel, channels), generator=draw).to(DEVICE, formats[1])
    return spikes, weight


def size_of(size):
    return (size, size + 3) if size > 1 else (1, 1)


def both(
    conv, policy, spikes, weight, theta, *, stride=1, scale=None, beside=None, gain=None, bias=None, **options
):  # fmt: skip
    """What the kernel says, and convolution, policy and neuron one after the other."""
    current = reference.convolve(spikes, weight, stride=stride, scale=scale).permute(0, 1, 4, 2, 3)
    drive = fused.Drive(
        current, len(spikes), gain=gain, unit=True,
        beside=None if beside is None else beside.permute(0, 1, 4, 2, 3),
        bias=None if bias is None else bias.view(-1, 1, 1), pool=options.get("pool", False),
    )  # fmt: skip
    wanted, _ = fused.run(drive, theta, policy=policy)
    rule = fused._rule(policy)
    phase = fused._phases(fused.ops.flatten(current, theta), current) if rule["rule"] == "exact-even" else None
    got = conv.conv_and_fire(
        spikes, weight, theta.reshape(1), rule["rule"], iterations=rule["iterations"], eps=rule["eps"], stride=stride,
        scale=scale, beside=beside, gain=gain, bias=bias, phase=phase, **options,
    )  # fmt: skip
    assert got.dtype == options.get("dtype", spikes.dtype)
    return got.float(), wanted.permute(0, 1, 3, 4, 2)


def number(x):
    return torch.tensor([x], device=DEVICE)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("steps", [1, 3, 4, 8])
def test_every_policy(conv, steps, name):
    spikes, weight = layer(steps, 2, 4, 20, 24, 3)
    got, wanted = both(conv, POLICIES[name](steps), spikes, weight, number(256.0))
    assert torch.equal(got, wanted)
    assert 0.05 < got.mean() < 0.95


@pytest.mark.parametrize("formats", FORMATS, ids=["int8", "mixed", "half"])
@pytest.mark.parametrize("steps", [1, 4])
def test_every_format(conv, steps, formats):
    spikes, weight = layer(steps, 2, 4, 36, 24, 3, formats)
    got, wanted = both(conv, Shift(steps), spikes, weight, number(256.0))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
@pytest.mark.parametrize(
    ("batch", "size", "channels", "outputs", "kernel", "stride"),
    [
        (1, 5, 3, 7, 3, 1),
        (1, 5, 33, 130, 3, 2),
        (3, 4, 16, 16, 3, 2),
        (2, 6, 65, 17, 1, 1),
        (2, 7, 32, 64, 1, 2),
        (70, 1, 100, 33, 1, 1),
        (1, 1, 1, 1, 1, 1),
        (1, 2, 8, 8, 5, 1),
        (0, 4, 8, 8, 3, 1),
    ],
    ids=["odd", "wide-stride-2", "stride-2", "1x1", "1x1-stride-2", "linear", "one", "5x5", "none"],
)
def test_shapes(conv, batch, size, channels, outputs, kernel, stride, steps):
    spikes, weight = layer(steps, batch, size, channels, outputs, kernel)
    got, wanted = both(conv, Exact(steps), spikes, weight, number(300.0), stride=stride)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["cos", "even"])
@pytest.mark.parametrize("shortcut", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_shortcut_bias_and_scale(conv, shortcut, name):
    spikes, weight = layer(4, 2, 5, 40, 36, 3)
    draw = torch.Generator().manual_seed(0)
    beside = torch.randint(-1, 2, (4, 2, 5, 8, 36), generator=draw).to(DEVICE, shortcut)
    bias, scale = (torch.randn(2, 36, generator=draw) * torch.tensor([[0.3], [0.004]])).to(DEVICE)
    policy = POLICIES[name](4)
    extra = {"scale": scale, "beside": beside, "gain": number(0.37), "bias": bias}
    got, wanted = both(conv, policy, spikes, weight, number(0.9), **extra)
    assert torch.equal(got, wanted)
    plain, _ = both(conv, policy, spikes, weight, number(0.9), scale=scale)
    assert not torch.equal(got, plain)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32], ids=str)
@pytest.mark.parametrize("steps", [1, 4, 8])
def test_pooled(conv, steps, dtype):
    """Windows of 2x2: their sums in int8, their means elsewhere."""
    spikes, weight = layer(steps, 3, 5, 32, 48, 3)
    spikes = spikes[:, :, :4, :6]
    got, wanted = both(conv, Exact(steps), spikes, weight, number(256.0), pool=True, dtype=dtype)
    assert torch.equal(got * (0.25 if dtype == torch.int8 else 1), wanted)


@pytest.mark.parametrize("tile", [(4, 128, 64, 3, 8), (8, 64, 128, 2, 1), (4, 32, 32, 4, 2, True)], ids=str)
def test_tiles_make_no_difference(conv, tile):
    spikes, weight = layer(4, 1, 9, 64, 128, 3)
    got, wanted = both(conv, Exact(4), spikes, weight, number(256.0), tile=conv.Tile(*tile))
    assert torch.equal(got, wanted)


def test_what_does_not_fit_is_refused(conv):
    spikes, weight = layer(9, 1, 2, 4, 4, 3)
    theta = number(1.0)
    with pytest.raises(ValueError, match="1 to 8 steps"):
        conv.conv_and_fire(spikes, weight, theta, "shift-keep")
    with pytest.raises(TypeError, match="like the weights"):
        conv.conv_and_fire(spikes[:4].bfloat16(), weight, theta, "shift-keep")
    with pytest.raises(ValueError, match="k odd"):
        conv.conv_and_fire(spikes[:4], weight[:, :2, :2], theta, "shift-keep")
    with pytest.raises(ValueError, match="phases"):
        conv.conv_and_fire(spikes[:4], weight, theta, "exact-even")
