"""A convolution in whole numbers and its neurons in one kernel: the bits of the one after the other.

Through Triton's interpreter where there is no GPU.
"""

import importlib

import pytest
import torch

from offspike import fused
from offspike.fused import Drive, Product, Synapses
from offspike.initial import Exact, Residual, Shift
from offspike.ops import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


@pytest.fixture(scope="module", autouse=True)
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


def layer(steps, batch, size, channels, outputs, kernel, *, stride=1, most=1, digits=1):
    """Spikes (or counts of them, up to ``most``), and whole weights whose rows have units of their own."""
    draw = torch.Generator().manual_seed(steps + size + channels)
    sizes = (size, size + 3) if size > 1 else (1, 1)
    spikes = torch.randint(0, most + 1, (steps, batch, channels, *sizes), generator=draw)
    spikes = spikes * (torch.rand(spikes.shape, generator=draw) < 0.5)
    weight = torch.randint(-128, 128, (digits, outputs, kernel, kernel, channels), generator=draw)
    if digits > 1:
        weight[0] = weight[0].div(16, rounding_mode="trunc")  # so that sums fit 32 bits
    scale = torch.exp2(torch.randint(-9, -6, (outputs,), generator=draw) - (8 * digits - 12 if digits > 1 else 0))
    spikes = spikes.to(DEVICE, torch.int8)
    return spikes, Synapses(weight.to(DEVICE, torch.int8), scale.to(DEVICE), stride)


def both(policy, spikes, synapses, theta=1.0, *, beside=None, gain=None, bias=None, pool=False, **options):
    """What the kernel says, and convolution, policy and neuron one after the other."""
    theta, linear = number(theta), spikes.ndim < 5
    images = spikes.reshape(*spikes.shape[:2], -1, 1, spikes.shape[-1]) if linear else spikes.permute(0, 1, 3, 4, 2)
    current = reference.convolve(images, synapses.weight, synapses.scale, stride=synapses.stride)
    shape = None if bias is None else bias.view(-1, 1, 1)
    current = current.permute(0, 1, 4, 2, 3)
    if linear:
        current, shape = current.movedim(2, -1).reshape(*spikes.shape[:-1], -1), bias
    drive = Drive(current, len(spikes), beside=beside, gain=gain, bias=shape, unit=True)
    wanted, v = fused.run(drive, theta, policy=policy, keep=True)
    if pool:
        wanted = torch.nn.functional.avg_pool2d(wanted.flatten(0, 1), 2, divisor_override=1).unflatten(
            0, wanted.shape[:2]
        )
    product = Product(spikes, synapses, beside=beside, gain=gain, bias=bias, pool=pool, **options)
    got, v_end = fused.run(product, theta, policy=policy, keep=len(spikes) % 2 == 0)
    assert got.dtype == options.get("dtype", torch.int8)
    assert v_end is None if len(spikes) % 2 else torch.equal(v_end, v)
    return got.float(), wanted


def number(x):
    return torch.tensor([x], device=DEVICE)


CASES = [(name, 3, 2) for name in POLICIES] + [(name, n, n) for name in ("cos", "even") for n in (1, 8)]


@pytest.mark.parametrize(("name", "steps", "rho"), CASES)
def test_every_policy(name, steps, rho):
    got, wanted = both(POLICIES[name](rho), *layer(steps, 2, 4, 20, 24, 3))
    assert torch.equal(got, wanted)
    assert 0.05 < got.mean() < 0.95


@pytest.mark.parametrize("steps", [1, 4])
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
    ids=["odd", "wide-stride-2", "stride-2", "1x1", "1x1-stride-2", "many", "one", "5x5", "none"],
)
def test_shapes(batch, size, channels, outputs, kernel, stride, steps):
    got, wanted = both(Exact(steps), *layer(steps, batch, size, channels, outputs, kernel, stride=stride))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("digits", [2, 3])
@pytest.mark.parametrize(("steps", "pool"), [(1, False), (4, False), (4, True), (9, False)])
def test_long_weights_come_digit_by_digit(steps, pool, digits):
    spikes, synapses = layer(steps, 2, 5, 40, 24, 3, most=4, digits=digits)
    got, wanted = both(Exact(min(steps, 4)), spikes[:, :, :, :4], synapses, 0.7, pool=pool)
    assert torch.equal(got, wanted)
    assert 0.05 < got.float().mean() < 3.8
    short = Synapses(synapses.weight[:1], synapses.scale * 256 ** (digits - 1), synapses.stride)
    assert not torch.equal(both(Exact(min(steps, 4)), spikes[:, :, :, :4], short, 0.7, pool=pool)[0], got)


@pytest.mark.parametrize("steps", [1, 4])
def test_sums_of_32_bits_overflow_on_their_way_and_come_back(steps):
    """Of two filters that add up to nearly 2^31 each, digit by digit, only the last sum counts."""
    whole = torch.tensor([[2**22, -(2**22)], [-(2**22), 2**22 - 1]]).repeat_interleave(510, 1)
    synapses = Synapses(digits_of(whole)[:, :, None, None], torch.full((2,), 2.0**-31, device=DEVICE))
    spikes = torch.zeros(steps, 1, 1020, dtype=torch.int8, device=DEVICE)
    spikes[:, :, :510] = 1
    got, wanted = both(Exact(1), spikes, synapses)
    assert torch.equal(got, wanted)
    assert got[:, 0].tolist() == [[1, 0]] * steps


def digits_of(whole):
    """Whole numbers to the base 256, from −128 to 127, three of them."""
    found = []
    for _ in range(3):
        found.insert(0, (whole + 128) % 256 - 128)
        whole = (whole - found[0]) // 256
    return torch.stack(found).to(DEVICE, torch.int8)


@pytest.mark.parametrize("rows", [(), (3,)], ids=["vectors", "sequences"])
def test_linear_layers(rows):
    spikes, synapses = layer(4, 5, 1, 40, 24, 1)
    spikes = spikes.flatten(2)
    if rows:
        spikes = spikes[:, :, None].repeat(1, 1, *rows, 1)
    bias = torch.randn(24, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    got, wanted = both(Exact(4), spikes, synapses, bias=bias)
    assert got.shape == (4, 5, *rows, 24)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["cos", "even"])
@pytest.mark.parametrize("shortcut", [torch.int8, torch.float32], ids=str)
def test_shortcut_and_bias(shortcut, name):
    spikes, synapses = layer(4, 2, 5, 40, 36, 3, most=4)
    draw = torch.Generator().manual_seed(0)
    beside = torch.randint(-1, 2, (4, 2, 36, 5, 8), generator=draw).to(DEVICE, shortcut)
    bias = (torch.randn(36, generator=draw) * 0.3).to(DEVICE)
    extra = {"beside": beside, "gain": number(0.37), "bias": bias}
    got, wanted = both(POLICIES[name](4), spikes, synapses, 0.9, **extra)
    assert torch.equal(got, wanted)
    plain, _ = both(POLICIES[name](4), spikes, synapses, 0.9)
    assert not torch.equal(got, plain)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32], ids=str)
@pytest.mark.parametrize("steps", [1, 8])
def test_windows_are_counted(steps, dtype):
    spikes, synapses = layer(steps, 2, 5, 24, 24, 3)
    got, wanted = both(Exact(steps), spikes[:, :, :, :4, :6], synapses, pool=True, dtype=dtype)
    assert torch.equal(got, wanted)
    assert got.max() == 4


def test_pooled_currents_lie_channels_last():
    """Windows are found by where a neuron lies in memory: in another order they would be wrong without a word."""
    current = torch.rand(4, 2, 3, 4, 4, device=DEVICE)
    with pytest.raises(ValueError, match="channels lie innermost"):
        fused.run(Drive(current, 4, unit=True, pool=True), number(1.0), policy=Exact(4))


@pytest.mark.parametrize("tile", [(4, 128, 64, 3, 8), (8, 64, 128, 2, 1), (4, 32, 32, 4, 2)], ids=str)
def test_tiles_make_no_difference(conv, monkeypatch, tile):
    monkeypatch.setattr(conv, "tile_for", lambda *_, **__: conv.Tile(*tile))
    got, wanted = both(Exact(4), *layer(4, 1, 4, 64, 128, 3))
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("length", [4, 8])
@pytest.mark.parametrize("steps", [1, 8, 9, 12, 16, 17])
def test_runs_follow_each_other(conv, monkeypatch, steps, length):
    monkeypatch.setattr(conv, "RUN", length)
    for rho in range(min(steps, 8) + 1):
        first, often, rest = conv.runs(steps, rho)
        assert first + often * length + rest == steps
        assert rho <= first <= 8
        assert 0 <= rest < length
        assert first <= max(rho, length) or rho > length


@pytest.mark.parametrize(
    ("steps", "rho", "length"), [(9, 1, 4), (9, 8, 8), (12, 4, 8), (16, 8, 4), (16, 4, 8), (17, 4, 4), (17, 1, 8)]
)
@pytest.mark.parametrize("name", ["light", "cos", "even"])
def test_potentials_go_from_run_to_run(conv, monkeypatch, name, steps, rho, length):
    monkeypatch.setattr(conv, "RUN", length)
    got, wanted = both(POLICIES[name](rho), *layer(steps, 1, 3, 9, 7, 3))
    assert torch.equal(got, wanted)
    assert 0.05 < got.mean() < 0.95


@pytest.mark.parametrize(("steps", "length"), [(9, 4), (16, 8)])
def test_long_runs_with_all_that_a_layer_may_have(conv, monkeypatch, steps, length):
    monkeypatch.setattr(conv, "RUN", length)
    spikes, synapses = layer(steps, 2, 5, 17, 19, 3, stride=2, most=4)
    draw = torch.Generator().manual_seed(0)
    bias = (torch.randn(19, generator=draw) * 0.3).to(DEVICE)
    beside = torch.randint(-1, 2, (steps, 2, 19, 3, 4), generator=draw).to(DEVICE, torch.int8)
    extra = {"beside": beside, "gain": number(0.37), "bias": bias}
    got, wanted = both(Exact(4), spikes, synapses, 0.9, **extra)
    assert torch.equal(got, wanted)
    extra["beside"] = beside[:, :, :, :2]
    pooled, wanted = both(Shift(4), spikes[:, :, :, :4, :7], synapses, 0.9, pool=True, dtype=torch.float32, **extra)
    assert torch.equal(pooled, wanted)
    assert pooled.max() == 4
    tokens = spikes.flatten(3).transpose(2, 3)[:, :, :6]
    got, wanted = both(Exact(8), tokens, Synapses(synapses.weight[:, :, :1, :1], synapses.scale), bias=bias)
    assert got.shape == (steps, 2, 6, 19)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("linear", [False, True])
def test_a_run_can_be_continued(linear):
    spikes, synapses = layer(15, 2, 3, 9, 7, 1)
    spikes = spikes[..., 0, 0] if linear else spikes
    whole, v = fused.run(Product(spikes, synapses), 1.0, policy=Exact(4), keep=True)
    first, between = fused.run(Product(spikes[:5], synapses), 1.0, policy=Exact(4), keep=True)
    rest, v_end = fused.run(Product(spikes[5:], synapses), 1.0, v0=between, keep=True)
    assert torch.equal(torch.cat([first, rest]), whole)
    assert torch.equal(v_end, v)


def test_what_does_not_fit_is_refused(conv):
    spikes, synapses = layer(9, 1, 2, 4, 4, 3)
    spikes, theta = spikes.permute(0, 1, 3, 4, 2), number(1.0)
    others = (synapses.weight, synapses.scale, theta, "shift-keep", 4)
    with pytest.raises(ValueError, match="at most 8 steps: got rho=9"):
        conv.conv_and_fire(spikes, *others[:-1], 9)
    with pytest.raises(ValueError, match='go with the rule "given"'):
        conv.conv_and_fire(spikes, *others[:3], "given", 0)
    with pytest.raises(TypeError, match="must be int8"):
        conv.conv_and_fire(spikes[:4].bfloat16(), *others)
    with pytest.raises(ValueError, match="weights for 5 channels do not fit spikes of 4"):
        conv.conv_and_fire(spikes[:4], torch.cat([synapses.weight, synapses.weight[..., :1]], -1), *others[1:])
    with pytest.raises(ValueError, match="k odd"):
        conv.conv_and_fire(spikes[:4], synapses.weight[:, :, :2, :2], *others[1:])
    with pytest.raises(ValueError, match="phases"):
        conv.conv_and_fire(spikes[:4], *others[:3], "exact-even", 4)
    with pytest.raises(ValueError, match="listens to rho=4"):
        conv.conv_and_fire(spikes[:3], *others)
    with pytest.raises(ValueError, match="powers of two"):
        Synapses(synapses.weight, synapses.scale * 3)
