"""Fixed-point networks in whole numbers: the spikes and logits of ``exact32``, bit for bit.

Product and neurons as one kernel, as on a GPU (through Triton's interpreter where there is none), and as two, as on a
CPU (oneDNN's products, and those in float32 where PyTorch has none).
"""

import importlib

import pytest
import torch
from torch import nn

import offspike as osp
from offspike.fast import joins
from offspike.initial import Constant
from offspike.methods import Method
from offspike.neurons import SignedIF
from offspike.ops import onednn
from offspike.zoo.resnet import ResNet
from offspike.zoo.vgg import VGG

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
METHODS = {
    "light": osp.methods.cos_light(2),
    "cos": osp.methods.cos(4),
    "even": osp.methods.exact(4),
    "first": osp.methods.exact(4, place="first"),
}

# An interpreter in numpy warns of ∞ − ∞, where PyTorch and GPUs are silent.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture(autouse=True, params=["one kernel", "two kernels", "two kernels, float32"])
def kernels(request, monkeypatch):
    """Who multiplies; everything else is the same."""
    if request.param == "one kernel":
        pytest.importorskip("triton")
        if DEVICE == "cpu":
            monkeypatch.setenv("TRITON_INTERPRET", "1")
            monkeypatch.setattr(joins, "fuses", lambda device: True)
        importlib.import_module("offspike.ops.conv")
    else:
        monkeypatch.setattr("test_whole.DEVICE", "cpu")
        has = request.param == "two kernels"
        if has and not onednn.available():
            pytest.skip("PyTorch has no 8-bit products for this processor")
        monkeypatch.setattr(onednn, "available", lambda: has)
    return request.param


class Odd(nn.Module):
    """A shortcut written first, a pool that is no window of 2x2, channels in groups, an even kernel, a sequence."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.grouped = nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.short = nn.Conv2d(6, 8, 1, stride=2)
        self.wide = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.even = nn.Conv2d(8, 8, 2)
        self.last = nn.Conv2d(8, 8, 3, padding="same")
        self.tokens = nn.Linear(8, 6)
        self.head = nn.Linear(6, 4)
        self.acts = nn.ModuleList(osp.QCFS(4) for _ in range(6))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.acts[0](self.stem(x))
        y = self.acts[1](self.grouped(x))
        x = self.acts[2](self.drop(self.short(x) + self.wide(y)))
        x = self.acts[3](self.even(x))
        x = nn.functional.avg_pool2d(self.acts[4](self.last(x)), 3, 1, padding=1)
        x = self.acts[5](self.tokens(x.flatten(2).transpose(1, 2)))
        return self.head(x.sum(1))


def residual():
    return ResNet((6, 8), (1, 2), classes=5, activation=osp.QCFS(4), size=4)


def pooled():
    return VGG((6, 8, "A", 10, "A"), (12, 12), classes=5, activation=osp.QCFS(4), channels=3, size=4)


def snapped(build, bits=8):
    """As if trained, in fixed point, and images for it."""
    torch.manual_seed(0)
    model, x = build(), torch.randn(2, 3, 8 if build is Odd else 4, 8 if build is Odd else 4)
    osp.init_thresholds(model.eval(), x)
    return osp.snap(model.eval(), bits=bits, example=x).to(DEVICE), x.to(DEVICE)


def heard(snn, x, steps):
    """Logits, and each layer's spikes."""
    spikes = {}
    names = {layer: name for name, layer in snn.layers.items()}
    logits = snn(x, steps=steps, heard=lambda layer, out: spikes.update({names[layer]: out.float()}))
    return logits, spikes


@pytest.mark.parametrize(
    ("build", "name"),
    [(residual, "light"), (residual, "cos"), (residual, "even"), (pooled, "cos"), (pooled, "even"), (Odd, "first")],
    ids=lambda what: what if isinstance(what, str) else what.__name__,
)
def test_the_spikes_are_those_of_exact32(name, build):
    ann, x = snapped(build)
    wanted, spikes = heard(osp.convert(ann, METHODS[name]).cpu(), x.cpu(), 4)
    snn = osp.convert(ann, METHODS[name], example=x, precision="int8")
    logits, others = heard(snn, x, 4)
    assert torch.equal(logits.cpu(), wanted)
    assert spikes.keys() == others.keys()
    for layer, out in spikes.items():
        assert torch.equal(others[layer].cpu(), out), layer
        assert 0.01 < out.mean() < 0.99
    if build is pooled:  # without anybody listening pools are part of the kernels
        assert torch.equal(snn(x, steps=4).cpu(), wanted)
        assert torch.equal(snn(x, steps=2).cpu(), wanted[:2])


@pytest.mark.parametrize(
    ("build", "method", "steps"),
    [
        (pooled, osp.methods.cos(4), 12),
        (residual, osp.methods.exact(8), 9),
        (Odd, osp.methods.cos_light(4), 9),
    ],
    ids=["pooled", "residual", "odd"],
)
def test_a_long_time_is_exact32_too(build, method, steps):
    ann, x = snapped(build)
    wanted, spikes = heard(osp.convert(ann, method).cpu(), x.cpu(), steps)
    snn = osp.convert(ann, method, example=x, precision="int8")
    logits, others = heard(snn, x, steps)
    assert torch.equal(logits.cpu(), wanted)
    assert all(torch.equal(others[layer].cpu(), out) for layer, out in spikes.items())
    if build is pooled:
        assert torch.equal(snn(x, steps=steps).cpu(), wanted)


@pytest.mark.parametrize(("build", "piece"), [(pooled, 9), (residual, 3)])
def test_time_in_pieces(build, piece):
    ann, x = snapped(build)
    wanted = osp.convert(ann, METHODS["cos"]).cpu()(x.cpu(), steps=10)
    snn = osp.convert(ann, METHODS["cos"], example=x, precision="int8")
    assert torch.equal(snn(x, steps=10, piece=piece).cpu(), wanted)


def test_most_products_are_made_in_whole_numbers_and_spikes_are_bytes():
    ann, x = snapped(residual)
    snn = osp.convert(ann, METHODS["cos"], precision="int8")
    plan = snn.prepared()[0]
    convolutions = [node.target for node, _, _ in plan.program if isinstance(plan.reading.module(node), nn.Conv2d)]
    assert convolutions == ["stem.0", "stages.1.shortcut.0"]  # the image's, and the second one of a sum
    assert not any(node.target.endswith("_scale") for node, _, _ in plan.program)
    seen = []
    snn(x, steps=4, heard=lambda layer, spikes: seen.append(spikes.dtype))
    assert seen == [torch.int8] * 6 + [torch.float32]  # a sum over pixels follows the last


def test_evaluation_counts_the_same_spikes():
    ann, x = snapped(pooled)
    data = [(x, torch.zeros(2, dtype=torch.long, device=DEVICE))]
    snn = osp.convert(ann, METHODS["cos"])
    wanted = osp.evaluate(snn, data, steps=4, precision="tf32")
    got = osp.evaluate(snn, data, steps=4, precision="int8")
    assert (got.correct == wanted.correct).all()
    for name, activity in wanted.layers.items():
        assert (got.layers[name].spikes == activity.spikes).all()


def tiny():
    layers = (nn.Conv2d(3, 4, 3), osp.QCFS(4), nn.Conv2d(4, 4, 1), osp.QCFS(4), nn.Flatten(), nn.Linear(16, 2))
    return nn.Sequential(*layers)


def test_networks_that_are_not_of_this_kind_are_refused(kernels):
    with pytest.raises(ValueError, match=r"snap it first: osp\.snap\(ann, bits=8, example=x\)"):
        osp.convert(tiny().eval(), METHODS["cos"], precision="int8")
    long, x = snapped(tiny, bits={"": 8, "2": 9})
    with pytest.raises(ValueError, match="2: its weights have more than 8 bits"):
        osp.convert(long, METHODS["cos"], example=x, precision="int8")
    ann, x = snapped(tiny)
    ann.input_shape = None  # as in a network that was put together by hand
    with pytest.raises(ValueError, match="shape of the one input: convert with example=x"):
        osp.convert(ann, METHODS["cos"], precision="int8")
    with pytest.raises(ValueError, match="knows neurons that send 0 and 1; 1 has SignedIF"):
        osp.convert(ann, Method("signed", Constant(0.5), neuron=SignedIF()), example=x, precision="int8")
    if kernels == "one kernel":
        with pytest.raises(ValueError, match=r"knows osp\.methods\.cos_light, cos and exact"):
            osp.convert(ann, osp.methods.qcfs(), example=x, precision="int8")
        with pytest.raises(ValueError, match='hands on along whole maps: take place="even", or precision="tf32"'):
            osp.convert(ann, osp.methods.exact(4, place="carry"), example=x, precision="int8")
    ann.get_submodule("5").weight.data[0, 0] = 1 / 3
    with pytest.raises(ValueError, match="needs exact sums, but 5: its weights, inputs or sums are too long"):
        osp.convert(ann, METHODS["cos"], example=x, precision="int8")


def test_layers_that_were_changed_are_refused():
    ann, x = snapped(tiny)
    snn = osp.convert(ann, METHODS["cos"], example=x, precision="int8")
    first = snn.layers["1"]
    first.shift = torch.tensor(0.5)
    with pytest.raises(ValueError, match="1 is corrected"):
        snn(x, steps=4)
    first.shift, first.theta = None, torch.tensor(0.5)
    with pytest.raises(ValueError, match="the threshold of 1 is not 1"):
        snn(x, steps=4)


ONLY_IN_TWO = {
    "rho = 9": osp.methods.cos(9),
    "causal": osp.methods.exact(4, schedule="causal"),
    "qcfs": osp.methods.qcfs(),
    "carry": osp.methods.exact(4, place="carry"),
}


@pytest.mark.parametrize("words", ONLY_IN_TWO)
def test_what_one_kernel_refuses_two_can_do(kernels, words):
    ann, x = snapped(residual)
    method = ONLY_IN_TWO[words]
    if kernels != "one kernel":
        wanted, spikes = heard(osp.convert(ann, method), x, 10)
        logits, others = heard(osp.convert(ann, method, example=x, precision="int8"), x, 10)
        assert torch.equal(logits, wanted)
        assert all(torch.equal(others[layer], out) for layer, out in spikes.items())
    elif words in ("rho = 9", "causal"):
        with pytest.raises(ValueError, match=words):
            osp.convert(ann, method, example=x, precision="int8")(x, steps=10)


def test_a_certificate_covers_whole_numbers():
    ann, x = snapped(residual)
    snn = osp.convert(ann, osp.methods.exact(4), example=x, precision="int8")
    certificate = osp.certify(ann, snn, [x])
    assert certificate.proved
    assert certificate.observed
    assert torch.equal(snn.fast(x), snn(x, steps=4).mean(0))
