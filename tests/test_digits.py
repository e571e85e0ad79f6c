"""tf32 on a GPU: weights as three digits of 8 bits, whose products are summed in whole numbers.

Through Triton's interpreter where there is no GPU.
"""

import importlib

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from offspike.fast import digits, joins, plan
from offspike.folding import fold
from offspike.initial import Constant
from test_plan import METHODS, pooled, residual
from test_whole import Odd, heard

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JOINED = ("light", "cos", "exact")

# An interpreter in numpy warns of ∞ − ∞, where PyTorch and GPUs are silent.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture
def gpu(monkeypatch):
    """Products and neurons in one kernel, as on a GPU."""
    pytest.importorskip("triton")
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(joins, "fuses", lambda device: True)
    importlib.import_module("offspike.ops.conv")


class OnCpu(digits.Digits):
    """The same products by oneDNN, then the neurons."""

    def __init__(self, reading, sizes):
        super().__init__(reading, sizes)
        self.fused = False


def odd():
    torch.manual_seed(0)
    return dyadic(Odd()), dyadic_images(3, 3, 8, 8)


def spiking(ann, method, x, precision="tf32"):
    ann = fold(ann).to(DEVICE)  # a GPU's batch norms refuse the epsilon of 0 that exact tests want
    return osp.convert(ann, method, example=x.to(DEVICE), precision=precision)


def joined(snn):
    """The spiking layers that make their product themselves."""
    made = snn.prepared()[0]
    return set() if made.joined is None else {made.reading.nodes[name].target for name in made.joined.joins}


@pytest.mark.parametrize("build", [residual, pooled, odd], ids=lambda build: build.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_weights_that_three_digits_hold_give_the_spikes_of_exact32(gpu, name, build):
    ann, x = build()
    x = x.to(DEVICE)
    wanted, spikes = heard(spiking(ann, METHODS[name], x, "exact32"), x, 6)
    snn = spiking(ann, METHODS[name], x)
    assert (len(joined(snn)) >= 2) == (name in JOINED)
    logits, others = heard(snn, x, 6)
    assert torch.equal(logits, wanted)
    for layer, out in spikes.items():
        sent = out if set(out.unique().tolist()) <= {0.0, 1.0, -1.0} else out / snn.layers[layer].theta
        assert torch.equal(others[layer], sent), layer
    assert torch.equal(snn(x, steps=6), wanted)  # nobody hears: pools are part of the kernels
    assert torch.equal(snn(x, steps=9, piece=3)[:6], wanted)


@pytest.mark.parametrize("build", [residual, pooled], ids=lambda build: build.__name__)
@pytest.mark.parametrize("name", JOINED)
def test_the_kernel_gives_the_bits_of_a_cpu(gpu, monkeypatch, name, build):
    """Of weights that three digits do not hold; only the image's layer and the logits' depend on the device."""
    torch.manual_seed(0)
    ann, x = build()[0], torch.randn(4, 3, 8, 8, device=DEVICE)
    for parameter in ann.parameters():
        parameter.data = torch.randn_like(parameter) * parameter.abs().mean()
    osp.init_thresholds(ann.to(DEVICE), x)
    _, spikes = heard(spiking(ann, METHODS[name], x), x, 6)
    monkeypatch.setattr(plan, "Digits", OnCpu)
    snn = spiking(ann, METHODS[name], x)
    _, others = heard(snn, x, 6)
    assert len(joined(snn)) >= 2
    for layer, out in spikes.items():
        assert torch.equal(others[layer], out), layer
    assert len({float(out.mean()) for out in spikes.values()}) > 2  # they fire


@pytest.mark.parametrize("name", ACCEPTED)
def test_whatever_can_be_converted_gives_the_same(gpu, name):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    inputs = tuple(dyadic_images(2, *shape, seed=seed) for seed, shape in enumerate(shapes))
    example = inputs if len(inputs) > 1 else inputs[0]
    ann = fold(dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=example)))
    snn = osp.convert(ann, osp.methods.cos(2), example=example).to(DEVICE)
    inputs = tuple(x.to(DEVICE) for x in inputs)
    expected = snn(*inputs, steps=3)
    snn.precision = "tf32"
    torch.testing.assert_close(snn(*inputs, steps=3), expected, rtol=0, atol=0)


def test_a_long_time_goes_in_runs(gpu):
    ann, x = pooled()
    wanted = spiking(ann, METHODS["cos"], x, "exact32")(x.to(DEVICE), steps=18)
    assert torch.equal(spiking(ann, METHODS["cos"], x)(x.to(DEVICE), steps=18), wanted)


def test_spikes_travel_as_bytes_and_pools_are_counted(gpu):
    ann, x = pooled()
    snn, seen = spiking(ann, METHODS["cos"], x), []
    program = snn.prepared()[0]
    program.watch = lambda node, taken, made: seen.append((type(program.reading.module(node)), made))
    snn(x.to(DEVICE), steps=4, heard=None)
    dtypes = [made.dtype for kind, made in seen if kind is osp.layers.SpikingLayer]
    assert dtypes == [torch.int8] * 4 + [torch.float32]  # the logits' layer multiplies in float32
    counts = [made for kind, made in seen if kind is nn.AvgPool2d]
    assert all(made.dtype == torch.int8 and made.max() <= 4 for made in counts)
    assert max(int(made.max()) for made in counts) > 1


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("shape", [(5, 3, 3, 64), (3, 1, 1, 4096), (2, 1, 1, 1)])
def test_digits_are_the_nearest_weights_whose_sums_fit(shape, most):
    torch.manual_seed(0)
    rows = torch.randn(shape, dtype=torch.float64)
    rows[0] = rows[0].abs() * 1e-3  # all of one sign: the largest sum there can be
    parts, scale = digits.digits(rows, most)
    assert parts.dtype == torch.int8
    assert torch.equal(scale.log2(), scale.log2().round())
    whole = sum(256.0 ** (2 - place) * part.double() for place, part in enumerate(parts))
    step = scale.double()[:, None, None, None]
    assert ((whole * step - rows).abs() <= step / 2).all()
    for sign in (whole.clamp_min(0), -whole.clamp_max(0)):
        assert (sign.flatten(1).sum(1) * most < 2**31).all()
    largest = rows.flatten(1).abs().amax(1)
    total = torch.maximum(rows.clamp_min(0).flatten(1).sum(1), -rows.clamp_max(0).flatten(1).sum(1)) * most
    coarser = (largest >= 127 * 2**15 * scale) | (total >= 2**29 * scale)  # with half the step one of them is too large
    assert coarser.all()


def test_a_row_of_zeros_has_digits():
    parts, scale = digits.digits(torch.zeros(2, 1, 1, 3, dtype=torch.float64), 1)
    assert not parts.any()
    assert (scale == 1).all()


def test_weights_that_are_no_power_of_two_give_nearly_the_same_currents(gpu):
    """Through one layer: the ANN's own sums, in float64, with θ and the weights as they come."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
    net = nn.Sequential(*net, nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 5)).eval()
    x = torch.randn(16, 3, 10, 10)
    ann = osp.prepare(net, osp.QCFS(4), example=x)
    osp.init_thresholds(ann, x)
    snn = spiking(ann, osp.methods.cos(4), x)
    assert len(joined(snn)) == 1  # not what takes averages
    wanted, spikes = heard(spiking(ann.double(), osp.methods.cos(4), x.double(), "exact32"), x.double().to(DEVICE), 4)
    logits, others = heard(snn, x.to(DEVICE), 4)
    moved = {layer: (others[layer] != (out > 0)).float().mean().item() for layer, out in spikes.items()}
    assert max(moved.values()) < 1e-3, moved
    torch.testing.assert_close(logits, wanted.float(), rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    "method",
    [
        osp.methods.cos(9),
        osp.methods.qcfs(),
        osp.methods.exact(4, place="carry"),
        osp.methods.exact(4, schedule="causal"),
        osp.Method("late", Constant(0.5)),
    ],
    ids=str,
)
def test_what_the_kernel_does_not_know_runs_as_ever(gpu, method):
    ann, x = residual()
    snn = spiking(ann, method, x)
    assert not joined(snn)
    assert torch.equal(snn(x.to(DEVICE), steps=10), spiking(ann, method, x, "exact32")(x.to(DEVICE), steps=10))


def test_layers_with_corrections_and_thresholds_for_each_channel_run_as_ever(gpu):
    ann, x = residual()
    snn = spiking(ann, METHODS["cos"], x)
    layer = snn.layers[max(joined(snn))]
    before = joined(snn)
    layer.shift = torch.tensor(0.25, device=DEVICE)
    assert len(joined(snn)) == len(before) - 1
    layer.shift, layer.theta = None, torch.full((len(layer.theta.flatten()) * 12, 1, 1), 0.5, device=DEVICE)
    assert len(joined(snn)) < len(before)


def test_without_the_shape_of_the_input_nothing_is_joined(gpu):
    ann, x = residual()
    snn = spiking(ann, METHODS["cos"], x)
    snn.input_shape = None
    snn._ready = None
    assert not joined(snn)
