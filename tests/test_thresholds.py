"""Thresholds from data: the rules' values, and that order and size of batches do not matter."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.equations import qcfs
from offspike.thresholds import Learned, LeastError, Maximum, Percentile, Seen, measure

RULES = [
    Maximum(), Maximum(0.8, per="channel"), Maximum(per="neuron"), Percentile(99.0), Percentile(90.0, per="channel"),
    LeastError(4, per="layer"), LeastError(4), LeastError(8, candidates=20, shift=0.0),
]  # fmt: skip


def cnn():
    layers = [nn.Conv2d(2, 4, 3), osp.ReLU(), nn.Conv2d(4, 3, 3), osp.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
    return dyadic(nn.Sequential(*layers)), dyadic_images(24, 2, 6, 6)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("size", [1, 5])
def test_batches_do_not_matter(rule, size):
    ann, x = cnn()
    whole, parts = measure(ann, rule, [x]), measure(ann, rule, x.flip(0).split(size))
    assert whole.keys() == parts.keys() == {"1", "3"}
    for name in whole:
        assert torch.equal(whole[name], parts[name])
        assert bool((whole[name] > 0).all())
    assert whole["1"].shape == {"layer": (), "channel": (4, 1, 1), "neuron": (4, 4, 4)}[rule.per]


@pytest.mark.parametrize("size", [1, 7, 70])  # 70: the last batch is a single image
def test_nor_do_they_where_sums_are_rounded(size):
    torch.manual_seed(0)
    ann = nn.Sequential(nn.Conv2d(3, 8, 3), osp.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16), osp.ReLU()).eval()
    x = torch.randn(71, 3, 8, 8)
    for rule in (Maximum(per="neuron"), Percentile(99.0), LeastError(4)):
        whole, parts = measure(ann, rule, [x]), measure(ann, rule, x.split(size))
        assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
@pytest.mark.parametrize("rule", [Maximum(), Percentile(), LeastError(4)], ids=str)
def test_what_is_not_finite_is_refused(rule, bad):
    ann, x = cnn()
    x[3, 0, 2, 2] = bad
    ann[0].weight.data.fill_(2.0)
    with pytest.raises(ValueError, match="NaN or infinite on the calibration data"):
        measure(ann, rule, [x])


def test_several_inputs_are_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.act = nn.Linear(3, 4), nn.Linear(2, 4), osp.ReLU()

        def forward(self, x, y):
            return self.act(self.a(x) + self.b(y))

    x = torch.rand(5, 3), torch.rand(5, 2)
    with pytest.raises(TypeError, match="network of several inputs"):
        osp.convert(Two().eval(), osp.methods.rmp(), example=x, calibration=[(x, None)])


def seen(values, per="layer", parts=1):
    found = Seen(per)
    for part in values.chunk(parts):
        found.add(part)
    return found


@given(st.integers(0, 10_000), st.sampled_from([50.0, 90.0, 99.0, 100.0]))
def test_percentile_is_numpys_within_a_bin(seed, q):
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(500, 3, generator=draw).mul(10.0 ** torch.randint(-3, 4, (1,), generator=draw)).clamp(min=0)
    found = seen(values, parts=4)
    exact = np.quantile(values.numpy(), q / 100, method="inverted_cdf")
    assert -1e-6 * found.top <= Percentile(q)(found) - exact <= found.width + 1e-6 * found.top


def test_least_error_is_that_of_the_values_themselves():
    values = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)).clamp(min=0) * torch.tensor([1.0, 30.0])
    theta = LeastError(4)(seen(values, "channel", parts=7))
    for k in range(2):
        grid = values[:, k].max() * torch.arange(1, 96) / 95
        errors = torch.stack([(values[:, k] - qcfs(values[:, k], g, 4)).square().sum() for g in grid])
        chosen = (values[:, k] - qcfs(values[:, k], theta[k], 4)).square().sum()
        assert chosen <= errors.min() * 1.001


def test_a_dead_channel_gets_its_layers_threshold():
    model = nn.Sequential(nn.Linear(2, 3), osp.ReLU(), nn.Linear(3, 2)).eval()
    model[0].weight.data, model[0].bias.data = torch.eye(3, 2) * 2, torch.tensor([0.0, 0.0, -9.0])
    theta = measure(model, Maximum(per="channel"), [torch.tensor([[1.0, 0.5]])])["1"]
    assert theta.tolist() == [2.0, 1.0, 2.0]


def test_a_bounded_activation_bounds_what_is_seen():
    model = nn.Sequential(nn.Linear(1, 1), osp.ClippedReLU(1.5), nn.Linear(1, 1)).eval()
    model[0].weight.data.fill_(1.0)
    model[0].bias.data.fill_(0.0)
    assert measure(model, Maximum(), [torch.tensor([[7.0]])])["1"].item() == 1.5


def test_a_relu_needs_data():
    ann, x = cnn()
    with pytest.raises(ValueError, match=r"1 is a ReLU and has no threshold.*LeastError\(16\)"):
        osp.convert(ann, osp.methods.exact(4))
    with pytest.raises(ValueError, match="rmp takes thresholds or corrections from data: pass calibration"):
        osp.convert(ann, osp.methods.rmp())
    with pytest.raises(ValueError, match="calibration data is empty"):
        osp.convert(ann, osp.methods.rmp(), calibration=[])
    labelled = [(x[:8], torch.zeros(8)), (x[8:], torch.zeros(16))]
    a, b = (osp.convert(ann, osp.methods.rmp(), calibration=data)(x, 4) for data in (x, labelled))
    assert torch.equal(a, b)


def test_a_relu_network_converts_without_training_as_closely_as_one_likes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4)).eval()
    x = torch.randn(50, 6)
    ann = osp.prepare(model, osp.ReLU(), example=x).eval()
    assert torch.equal(ann(x), model(x))
    snn = osp.convert(ann, osp.methods.exact(64, threshold=LeastError(64)), calibration=x)
    assert (snn(x, 64).mean(0) - model(x)).abs().max() < 0.05
    assert isinstance(osp.prepare(model, osp.ReLU(), example=x)[1], osp.ReLU)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Percentile(0.0), "percentage"),
        (lambda: Percentile(per="neuron"), "per must be one of layer, channel"),
        (lambda: LeastError(0), "levels must be >= 1, got 0"),
        (lambda: Maximum(scale=0.0), "scale must be > 0"),
        (lambda: Learned()(Seen("layer")), "does not come from data"),
    ],
)
def test_nonsense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
