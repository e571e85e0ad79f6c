"""tf32 answers as float32 does: on tensor cores that are played by a CPU, which cut what they take to 11 bits."""

import numpy as np
import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.fast import pairs, plan
from offspike.fast.parts import rounds, split
from offspike.zoo.resnet import ResNet
from offspike.zoo.vgg import VGG

DROPPED = 0x1FFF  # the bits of a float32 that TF32 does not have


def tf32(x):
    """Round to nearest, ties to even, from the definition: of the two TF32 numbers around x the closer one."""
    bits = x.astype(np.float32).view(np.uint32)
    below = bits & ~np.uint32(DROPPED)
    low, high = below.view(np.float32), (below + np.uint32(DROPPED + 1)).view(np.float32)
    down, up = np.abs(x - low.astype(np.float64)), np.abs(high.astype(np.float64) - x)
    even = (below >> 13) & 1 == 0
    return np.where((down < up) | ((down == up) & even), low, high)


def is_tf32(x):
    return not (x.float().contiguous().view(torch.int32) & DROPPED).any()


def numbers():
    """Of all sizes, with ties and their neighbours, both signs."""
    draw = np.random.default_rng(0)
    spread = draw.standard_normal(20_000) * 2.0 ** draw.integers(-60, 60, 20_000)
    ties = (draw.integers(1 << 10, 1 << 11, 500) + 0.5) * 2.0 ** draw.integers(-9, 9, 500)
    edges = np.array([0.0, 1.0, 2047.0, 2047.5, 2048.5, 2.0**-100])
    some = np.concatenate([spread, ties, np.nextafter(ties.astype(np.float32), np.float32(0)), edges])
    return np.concatenate([some, -some])


def test_the_parts_are_tf32_numbers_and_together_the_weight():
    w = numbers()
    high, low = split(torch.from_numpy(w))
    np.testing.assert_array_equal(high.numpy(), tf32(w.astype(np.float32).astype(np.float64)))
    assert is_tf32(high)
    assert is_tf32(low)
    together = high.double().numpy() + low.double().numpy()
    assert (np.abs(w - together) <= 2.0**-23 * np.abs(w)).all()


def test_short_weights_are_one_part():
    w = torch.from_numpy(tf32(numbers()))
    (only,) = split(w)
    assert torch.equal(only, w)
    assert split(torch.tensor([float("nan")]))[0].isnan().all()


@pytest.fixture
def cores(monkeypatch):
    """Cut inputs and weights to 11 bits where TF32 is allowed; a list of what was multiplied, and how."""
    seen, convolve = [], nn.Conv2d._conv_forward

    def cut(x):
        return (x.contiguous().view(torch.int32) & ~DROPPED).view(torch.float32) if x.dtype == torch.float32 else x

    def run(x, weight, allowed, product):
        seen.append((weight, allowed, x.dtype))
        return product(cut(x), cut(weight)) if allowed else product(x, weight)

    def conv(self, x, weight, bias):
        allowed = torch.backends.cudnn.allow_tf32
        return run(x, weight, allowed, lambda x, weight: convolve(self, x, weight, bias))

    def linear(self, x):
        allowed = torch.backends.cuda.matmul.allow_tf32
        return run(x, self.weight, allowed, lambda x, weight: nn.functional.linear(x, weight, self.bias))

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", conv)
    monkeypatch.setattr(nn.Linear, "forward", linear)
    monkeypatch.setattr(plan, "rounds", lambda device: True)
    return seen


def residual():
    return ResNet((6, 12), (1, 2), classes=5, activation=osp.QCFS(4), size=8)


def pooled():
    return VGG((6, 8, "A", 10, "A"), (24, 24), classes=5, activation=osp.QCFS(4), channels=3, size=8)


def uneven():
    """Averages that TF32 would round, a functional one that it does not, and spikes that are worth one θ a channel."""

    class Uneven(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = (nn.Conv2d(a, b, 3) for a, b in ((3, 6), (6, 6), (6, 4)))
            self.last = nn.Linear(4, 5)
            self.acts = nn.ModuleList(osp.QCFS(4) for _ in range(3))

        def forward(self, x):
            x = nn.functional.avg_pool2d(self.acts[0](self.first(x)), 2)
            x = nn.functional.avg_pool2d(self.acts[1](self.second(x)), 3, 1, padding=1)
            return self.last(self.acts[2](self.third(x)).mean((2, 3)))

    return Uneven()


def network(build, size, precision="tf32"):
    torch.manual_seed(1)
    model, x = build().eval(), torch.randn(16, 3, size, size)
    osp.init_thresholds(model, x)
    # Not "exact": it starts neurons on edges, where the last bit of a sum decides when they fire.
    return osp.convert(model, osp.methods.cos(4), example=x, precision=precision), x


CASES = pytest.mark.parametrize(("build", "size"), [(residual, 8), (pooled, 8), (uneven, 12)])


def run(snn, x, cores, steps=6):
    """The logits, and what is multiplied for them."""
    snn(x, steps=steps)  # the first run looks how large the layers are, too
    cores.clear()
    return snn(x, steps=steps), [*cores]


def allowed(products):
    return [allowed for _, allowed, _ in products]


@CASES
def test_tensor_cores_answer_as_float32_does(cores, build, size):
    snn, x = network(build, size, "exact32")
    expected, products = run(snn, x, cores)
    assert not any(allowed(products))
    snn.precision = "tf32"
    got, products = run(snn, x, cores)
    assert any(allowed(products))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@CASES
def test_rounded_weights_would_answer_otherwise(build, size):
    """Else the test above could not fail."""
    snn, x = network(build, size, "exact32")
    expected = snn(x, steps=6)
    with torch.no_grad():
        for module in snn.model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(torch.from_numpy(tf32(module.weight.double().numpy())))
    assert (snn(x, steps=6) - expected).abs().max() > 1e-3


def test_two_products_between_spikes_and_float32_outside(cores):
    _, products = run(*network(pooled, 8), cores)
    # an image's convolution, two convolutions and two linear layers between spikes, the logits
    assert allowed(products) == [False, *[True] * 8, False]
    assert [is_tf32(weight) for weight, _, _ in products] == [False, *[True] * 8, False]


def test_a_cpu_rounds_nothing_and_makes_one_product(cores, monkeypatch):
    monkeypatch.setattr(plan, "rounds", rounds)
    snn, x = network(residual, 8)
    run(snn, x, cores)
    assert len(cores) == sum(isinstance(module, nn.Conv2d | nn.Linear) for module in snn.model.modules())


def test_short_weights_are_one_product_and_the_same_bits(cores):
    for build in (residual, pooled):
        snn = osp.convert(dyadic(build()), osp.methods.exact(4))
        x = dyadic_images(5, 3, 8, 8)
        expected, products = run(snn, x, cores)
        snn.precision = "tf32"
        got, again = run(snn, x, cores)
        assert torch.equal(got, expected)
        assert any(allowed(again))
        assert len(again) == len(products)


def test_what_tf32_would_round_is_not_for_tensor_cores(cores):
    snn, x = network(uneven, 12)
    assert allowed(run(snn, x, cores)[1]) == [False, True, True, False, False]  # the third takes averages of 9
    layer = snn.layers["acts.0"]
    layer.theta = layer.theta.expand(6, 1, 1) * torch.linspace(0.9, 1.1, 6).view(-1, 1, 1)
    assert allowed(run(snn, x, cores)[1]) == [False] * 4  # spikes are worth one θ a channel


def test_bf16_is_float32_outside_too(cores):
    _, products = run(*network(pooled, 8, "bf16"), cores)
    assert [dtype for _, _, dtype in products] == [torch.float32, *[torch.bfloat16] * 4, torch.float32]
    assert [allowed(products)[end] for end in (0, -1)] == [False, False]


def test_layer_by_layer_it_is_float32(cores):
    snn, x = network(residual, 8)
    for layer in snn.layers.values():
        layer.register_forward_hook(lambda *_: None)
    assert not any(allowed(run(snn, x, cores)[1]))


def test_fixed_point_stays_on_tensor_cores(cores):
    """Nothing is rounded there, and cuDNN's float32 convolutions need not add products (Winograd)."""
    torch.manual_seed(1)
    model, x = pooled().eval(), torch.randn(4, 3, 8, 8)
    osp.init_thresholds(model, x)
    snn = osp.convert(osp.snap(model, bits=8, example=x), osp.methods.exact(4))
    expected, products = run(snn, x, cores)
    snn.precision = "tf32"
    for hooks in (False, True):
        for layer in snn.layers.values() if hooks else ():
            layer.register_forward_hook(lambda *_: None)
        got, again = run(snn, x, cores)
        assert torch.equal(got, expected)
        assert allowed(again) == [True] * len(products)
    long = osp.convert(osp.snap(model, bits=5, input_bits=13, example=x), osp.methods.exact(4), precision="tf32")
    assert not allowed(run(long, x, cores)[1])[0]  # 13 bits of input are too many


def test_switches_are_put_back():
    backends = torch.backends
    before = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, backends.cudnn.benchmark
    snn, x = network(pooled, 8)
    snn(x, steps=4)
    assert before == (backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, backends.cudnn.benchmark)


def test_parts_over_pairs_of_pixels():
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 5, 3, padding=1, bias=False)
    x = torch.randint(0, 2, (2, 4, 6, 8)).float().contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted, total = conv(x), None
        for part in split(conv.weight.detach()):
            conv.weight.copy_(part)
            wide = pairs.widened(conv)
            assert is_tf32(wide)
            out = pairs.run(conv, wide, x)
            total = out if total is None else total.add_(out)
    torch.testing.assert_close(total, wanted, rtol=1e-6, atol=1e-6)
