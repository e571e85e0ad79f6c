"""A network trained elsewhere with plain ReLUs is converted without a line of its code changed."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import offspike as osp
from gallery.residual import CifarResNet

NAME = "resnet20-cifar10-relu.safetensors"
FILE = Path(os.environ.get("OFFSPIKE_WEIGHTS", Path(__file__).parents[2] / "shared" / "weights")) / NAME


@pytest.fixture(scope="module")
def model():
    if not FILE.exists():
        pytest.skip(f"{FILE} is not at hand: set OFFSPIKE_WEIGHTS to the folder that holds {NAME}")
    network = CifarResNet(depth=3, width=16, classes=10)
    network.load_state_dict(load_file(FILE))
    return network.eval()


@torch.no_grad()
def test_the_relu_resnet20_converts(model):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    ann = osp.prepare(model, osp.QCFS(levels=8), example=x)
    assert sum(isinstance(m, osp.QCFS) for m in ann.modules()) == 19
    assert "layer1.0.relu_1" in dict(ann.named_modules())
    osp.init_thresholds(ann, x)
    snn = osp.convert(ann, osp.methods.exact(rho=8))
    logits = snn(x, steps=8)
    assert logits.shape == (8, 2, 10)
    assert torch.allclose(logits.mean(0), ann(x), atol=0.05 * float(ann(x).abs().max()))
    assert torch.equal(logits.mean(0).argmax(1), ann(x).argmax(1))


@torch.no_grad()
def test_prepared_with_plain_relus_it_is_the_network(model):
    x = torch.randn(2, 3, 32, 32)
    same = osp.prepare(model, osp.activations.Rectifier(), example=x)
    assert torch.allclose(same(x), model(x), atol=1e-4)
