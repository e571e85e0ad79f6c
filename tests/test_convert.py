"""What convert takes, and what it refuses with which words."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import offspike as osp
from offspike.preprocess import Preprocess


def net(*extra):
    return nn.Sequential(nn.Linear(4, 8), *extra, osp.QCFS(4), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.ReLU(), "1: ReLU is an activation without a threshold. osp.prepare"),
        (nn.MaxPool1d(2), "1: MaxPool1d is max-pooling. the maximum over spikes"),
        (nn.Sigmoid(), "1: Sigmoid is an activation that spikes cannot follow"),
        (nn.GELU(), "GELU"),
        (nn.LayerNorm(8), "LayerNorm is a normalisation over each sample"),
        (nn.Softmax(1), "leave it out"),
        (nn.LSTM(8, 8), "recurrent"),
    ],
)
def test_what_spikes_cannot_follow_is_named_with_its_fix(layer, message):
    with pytest.raises(ValueError, match=message):
        osp.convert(net(layer), osp.methods.cos(4))


def test_every_obstacle_is_named_at_once():
    with pytest.raises(ValueError, match=r"(?s)1: ReLU.*2: Sigmoid"):
        osp.convert(net(nn.ReLU(), nn.Sigmoid()), osp.methods.cos(4))


def test_nothing_to_convert():
    with pytest.raises(ValueError, match="there is nothing to convert: no QCFS or ClippedReLU"):
        osp.convert(nn.Sequential(nn.Linear(2, 2)), osp.methods.cos(4))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_must_be_finite(value):
    model = net()
    model[0].weight.data[0, 0] = value
    with pytest.raises(ValueError, match=r"0.weight: it holds NaN or infinite values"):
        osp.convert(model, osp.methods.cos(4))


def test_an_activation_used_twice_is_named():
    act = osp.QCFS(4)
    model = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"used 2 times|more than once|twice"):
        osp.convert(model, osp.methods.cos(4), example=torch.zeros(1, 4))


def test_a_method_is_a_value_not_a_name():
    with pytest.raises(TypeError, match=r"osp.methods.cos\(rho=4\)"):
        osp.convert(net(), "cos")


def test_clipped_relu_converts_too():
    model = nn.Sequential(nn.Linear(4, 8), osp.ClippedReLU(2.0), nn.Linear(8, 3)).eval()
    x = torch.rand(5, 4)
    close = osp.convert(model, osp.methods.exact(64))(x, steps=64).mean(0)
    assert torch.allclose(close, model(x), atol=8 * 2.0 / 64)


def test_thresholds_may_differ_by_channel():
    act = osp.QCFS(4, lam=torch.tensor([1.0, 2.0, 0.5]).view(3, 1, 1))
    model = nn.Sequential(nn.Conv2d(1, 3, 1), act, nn.Flatten(), nn.Linear(12, 2)).eval()
    x = torch.rand(5, 1, 2, 2)
    snn = osp.convert(model, osp.methods.exact(4))
    assert torch.allclose(snn(x, steps=4).mean(0), model(x), atol=1e-6)


def test_replace_works_on_a_copy_and_on_the_model_itself():
    from offspike.surgery import replace

    model = net()
    other = replace(model, osp.QCFS, lambda name, module: nn.Identity())
    assert isinstance(model[1], osp.QCFS)
    assert isinstance(other[1], nn.Identity)
    assert isinstance(replace(osp.QCFS(2), osp.QCFS, lambda name, module: nn.Identity()), nn.Identity)


def test_preprocessing_is_carried_over():
    model = net()
    assert not hasattr(osp.convert(model, osp.methods.cos(4)), "preprocess")
    model.preprocess = Preprocess([0.5], [0.25])
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    snn = osp.convert(model, osp.methods.cos(4))
    assert snn.preprocess == model.preprocess
    assert snn.preprocess(images).flatten().tolist() == [-2.0, 2.0]


class Named(nn.Module):
    """Each layer has two names, and ``forward`` uses the later one."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn, self.act = nn.Linear(4, 4), nn.BatchNorm1d(4), osp.QCFS(4)
        self.block = nn.Sequential(self.fc, self.bn, self.act)

    def forward(self, x):
        return self.block(x)


@pytest.mark.parametrize("example", [None, torch.rand(2, 4)], ids=["unknown", "known"])
@torch.no_grad()
def test_an_activation_of_two_names_is_one_layer(example):
    ann, x = Named().eval(), torch.rand(5, 4)
    ann.bn.running_mean.uniform_(-1, 1)
    ann.bn.running_var.uniform_(0.5, 2)
    snn = osp.convert(ann, osp.methods.exact(4), example=example)
    assert list(snn.layers) == ["act"]
    assert snn.model.act is snn.model.block[2]
    assert torch.allclose(snn(x, steps=4).mean(0), ann(x), atol=1e-6)


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("layers", [[], [nn.BatchNorm1d(8)]], ids=["alone", "with a batch norm"])
@torch.no_grad()
def test_computed_weights_become_plain_ones(norm, layers, tmp_path):
    ann = nn.Sequential(norm(nn.Linear(4, 8)), *layers, osp.QCFS(4), nn.Linear(8, 3)).eval()
    x = torch.rand(5, 4)
    expected = ann(x)
    snn = osp.convert(ann, osp.methods.exact(4), example=x)
    assert type(snn.model[0]) is nn.Linear
    assert torch.allclose(snn(x, steps=4).mean(0), expected, atol=1e-6)
    assert torch.equal(ann(x), expected), "the ANN is as it was"
    for network in (ann, snn):
        osp.save(network, tmp_path / "network")
    assert torch.equal(osp.load(tmp_path / "network")(x, steps=4), snn(x, steps=4))


class Keeps(nn.Module):
    """Keeps what it has seen, and how often."""

    def __init__(self):
        super().__init__()
        self.fc, self.act, self.calls, self.all = nn.Linear(4, 4), osp.QCFS(4), 0, []

    def forward(self, x):
        self.calls += 1
        self.seen = self.act(self.fc(x))
        self.all.append(self.seen)
        return self.seen


def test_neither_network_keeps_what_tracing_saw(tmp_path):
    ann, x = Keeps(), torch.rand(2, 4)
    snn = osp.convert(ann, osp.methods.exact(4, threshold=osp.thresholds.Maximum()), calibration=x)
    osp.save(ann, tmp_path / "ann")
    assert ann.calls == len(ann.all) == 0
    assert not hasattr(ann, "seen")
    snn(x, steps=4)
    copy = deepcopy(snn).model
    assert copy.calls == len(copy.all) == 0


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(4, 6), nn.Linear(5, 6), nn.ReLU()

    def forward(self, x, y):
        assert x.shape[1] == 4
        assert y.shape[-1] == 5
        return self.relu(self.a(x) + self.b(y))


@torch.no_grad()
def test_the_shapes_of_all_inputs_are_remembered(tmp_path):
    inputs = torch.rand(3, 4), torch.rand(3, 5)
    ann = osp.prepare(Two(), osp.QCFS(4), example=inputs).eval()
    assert type(ann) is Two
    snn = osp.convert(ann, osp.methods.exact(4))
    assert torch.allclose(snn(*inputs, steps=4).mean(0), ann(*inputs), atol=1e-6)
    osp.save(ann, tmp_path / "ann")
    osp.save(snn, tmp_path / "snn")
    assert torch.equal(osp.load(tmp_path / "ann")(*inputs), ann(*inputs))
    assert torch.equal(osp.load(tmp_path / "snn")(*inputs, steps=4), snn(*inputs, steps=4))
    unprepared = Two()
    unprepared.relu = osp.QCFS(4)
    osp.save(osp.convert(unprepared, osp.methods.exact(4), example=inputs), tmp_path / "given")


def test_a_number_called_input_shape_is_no_shape():
    ann = net()
    ann.input_shape = 4
    assert osp.convert(ann, osp.methods.exact(4)).input_shape is None
