"""BatchNorm folded: the same function, checked in numbers; what cannot be folded stays and works."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from models import trained
from offspike.folding import fold

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
