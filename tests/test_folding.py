"""BatchNorm folded: the same function, checked in numbers; what cannot be folded stays and works."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from models import trained
from offspike.folding import fold
from offspike.leaves import LEAVES

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# How many BatchNorms stay, of how many.
STAY = {
    "vgg": (0, 3), "vision resnet": (0, 6), "cifar resnet": (0, 7), "pre-activation resnet": (2, 4),
    "densenet": (4, 4), "mobilenet": (0, 7), "signal": (0, 1), "video": (0, 2), "normalised mlp": (0, 3),
    "batch norm after relu": (2, 2), "shufflenet": (0, 4), "shared block": (1, 1),
}  # fmt: skip


def count(model):
    return sum(isinstance(module, NORMS) for module in model.modules())


@pytest.mark.parametrize("name", STAY)
@torch.no_grad()
def test_the_same_function(name):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    model = trained(make()).double()
    x = torch.randn(3, *shapes[0], dtype=torch.float64)
    folded = fold(model, example=x)
    assert (count(folded), count(model)) == STAY[name]
    assert torch.allclose(folded(x.clone()), model(x.clone()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", STAY)
@torch.no_grad()
def test_on_a_grid_the_folded_network_is_equal(name):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    x = dyadic_images(5, *shapes[0])
    ann = dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=x))
    folded = fold(ann)
    assert torch.equal(folded(x), ann(x))
    snn = osp.convert(folded, osp.methods.exact(4))
    assert torch.equal(snn(x, steps=4).mean(0), ann(x))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("axes", [1, 2, 3])
@torch.no_grad()
def test_transposed_convolutions(axes, groups):
    torch.manual_seed(0)
    conv = getattr(nn, f"ConvTranspose{axes}d")(4, 6, 3, stride=2, groups=groups, bias=groups == 1)
    model = trained(nn.Sequential(conv, NORMS[axes - 1](6))).double()
    x = torch.randn(2, 4, *[5] * axes, dtype=torch.float64)
    folded = fold(model)
    assert count(folded) == 0
    assert torch.allclose(folded(x), model(x), rtol=1e-10, atol=1e-10)


def test_the_axis_of_a_linear_layer_must_be_known():
    model = trained(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    assert count(fold(model)) == 1
    assert count(fold(model, example=torch.zeros(2, 4))) == 0
    assert count(fold(model, example=torch.zeros(2, 3, 4))) == 1  # it normalises axis 1, the layer works on axis 2


def test_what_is_used_elsewhere_stays():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)

        def forward(self, x):
            y = self.conv(x)
            return y + self.bn(y)

    assert count(fold(Twice())) == 1
    same = nn.Conv2d(2, 2, 1)
    assert count(fold(nn.Sequential(same, nn.BatchNorm2d(2), same, nn.BatchNorm2d(2)))) == 2
    assert count(fold(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)))) == 1


def test_the_model_is_not_touched():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    fold(model)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Named(nn.Module):
    """Each layer has two names, and ``forward`` uses the later one."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.block = nn.Sequential(self.conv, self.bn)

    def forward(self, x):
        return self.block(x)


class Unpacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)])
        self.conv, self.bn = self.layers

    def forward(self, x):
        return self.bn(self.conv(x))


class Reused(Named):
    def forward(self, x):
        return self.block(x) + F.conv2d(x, self.conv.weight)


class Listed(nn.Module):
    """A layer that is also kept where no name reaches it."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.order = [self.conv, self.bn]

    def forward(self, x):
        for layer in self.order:
            x = layer(x)
        return x


class Curious(Listed):
    """Does something else once there is no BatchNorm."""

    def forward(self, x):
        y = self.bn(self.conv(x))
        return y if isinstance(self.bn, nn.BatchNorm2d) else 2 * y


IMAGES = torch.randn(2, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("example", [None, IMAGES], ids=["unknown", "known"])
@pytest.mark.parametrize(("build", "stay"), [(Named, 0), (Unpacked, 0), (Reused, 1)])
@torch.no_grad()
def test_a_layer_of_two_names_is_folded_under_both(build, stay, example):
    model = trained(build()).double()
    folded = fold(model, example=example)
    assert count(folded) == stay
    assert torch.allclose(folded(IMAGES), model(IMAGES), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("example", [None, IMAGES], ids=["unknown", "known"])
@pytest.mark.parametrize("build", [Listed, Curious])
@torch.no_grad()
def test_what_would_change_the_model_stays_with_a_warning(build, example):
    model = trained(build()).double()
    with pytest.warns(UserWarning, match="bn stays: with it folded into conv"):
        folded = fold(model, example=example)
    assert count(folded) == 1
    assert torch.equal(folded(IMAGES), model(IMAGES))


def test_one_that_would_change_the_model_does_not_keep_the_others():
    model = trained(nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), Curious())).double()
    with pytest.warns(UserWarning, match="2.bn stays"):
        assert count(fold(model)) == 1


class Asks(nn.Module):
    """Goes another way for small maps, of which it asks behind a layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.bn(self.conv(x))
        return y if y.shape[2] > 2 else x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_a_model_that_asks_for_sizes(dtype):
    model, x = trained(Asks()).to(dtype), IMAGES.to(dtype)
    folded = fold(model, example=x)
    assert count(folded) == 0
    assert torch.allclose(folded(x), model(x), atol=1e-5)


class Standardised(nn.Conv2d):
    """Makes its weight anew at every call."""

    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, w / w.std((1, 2, 3), keepdim=True), self.bias)


@torch.no_grad()
def test_a_layer_that_makes_its_own_weight_is_left_alone(monkeypatch):
    leaf = LEAVES[nn.Conv2d]._replace(build=lambda fields: Standardised(**fields))
    monkeypatch.setitem(LEAVES, Standardised, leaf)
    model = trained(nn.Sequential(Standardised(2, 3, 3), nn.BatchNorm2d(3))).double()
    folded = fold(model)
    assert count(folded) == 1
    assert torch.equal(folded(IMAGES), model(IMAGES))


def pruned(layer, name="weight"):
    return prune.l1_unstructured(layer, name, amount=0.5)


COMPUTED = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "old weight_norm": weight_norm,
    "old spectral_norm": spectral_norm,
    "pruned": pruned,
    "both": lambda layer: pruned(parametrizations.weight_norm(layer), "bias"),
}


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
def test_computed_weights_become_plain_ones_on_the_copy_alone(name):
    model = trained(nn.Sequential(COMPUTED[name](nn.Conv2d(2, 3, 3).double()), nn.BatchNorm2d(3).double()))
    state, expected = {key: x.clone() for key, x in model.state_dict().items()}, model(IMAGES)
    folded = fold(model)
    assert type(folded[0]) is nn.Conv2d
    assert set(folded.state_dict()) == {"0.weight", "0.bias"}
    assert torch.allclose(folded(IMAGES), expected, rtol=1e-10, atol=1e-10)
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(x, state[key]) for key, x in model.state_dict().items())
    assert torch.equal(model(IMAGES), expected)
    assert model(IMAGES).requires_grad


@torch.no_grad()
def test_a_layer_with_hooks_is_left_alone():
    for k in (0, 1):
        model = trained(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))).double()
        model[k].register_forward_hook(lambda module, args, out: out.clamp(-0.1, 0.1))
        folded = fold(model)
        assert count(folded) == 1
        assert torch.equal(folded(IMAGES), model(IMAGES))


class Casts(nn.Module):
    """Runs in float32 alone."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.act, self.head = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), osp.QCFS(4), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.act(self.bn(self.conv(x.float()))).mean((2, 3)))


@torch.no_grad()
def test_a_model_that_does_not_run_in_float64_keeps_its_batch_norms_with_a_warning():
    ann, x = dyadic(Casts().eval()), dyadic_images(4, 2, 4, 4)
    with pytest.warns(UserWarning, match=r"batch norms stay .* take longer.*float64.*does not run.*x.float\(\)"):
        snn = osp.convert(ann, osp.methods.exact(4), example=x)
    assert count(snn) == 1
    assert torch.equal(snn(x, steps=4).mean(0), ann(x))
