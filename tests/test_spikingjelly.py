"""SpikingJelly modules: the same spikes and logits, step by step."""

import sys

import pytest
import torch

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED


def build(name, method):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    x = dyadic_images(5, *shapes[0])
    return osp.convert(dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=x)), method), x


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["functional mlp", "cifar resnet", "u-net", "patches", "image meets spikes"])
@torch.no_grad()
def test_the_same_logits_at_every_step(name):
    reason = "SpikingJelly is not installed; constraints-export.txt has the version that was tested"
    functional = pytest.importorskip("spikingjelly.activation_based.functional", reason=reason)
    snn, x = build(name, osp.methods.qcfs())
    net = osp.to_spikingjelly(snn)
    for _ in range(2):  # the second time after a reset
        functional.reset_net(net)
        assert torch.equal(torch.stack([net(x.clone()) for _ in range(6)]), snn(x, 6))
    with pytest.raises(ValueError, match="for each image"):
        osp.to_spikingjelly(build(name, osp.methods.cos(4))[0])
    with pytest.raises(ValueError, match="variant='spikingjelly'"):
        osp.to_spikingjelly(osp.freeze(build(name, osp.methods.cos(4))[0], x))


def test_without_spikingjelly_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "spikingjelly.activation_based", None)
    with pytest.raises(RuntimeError, match="pip install spikingjelly"):
        osp.to_spikingjelly(build("functional mlp", osp.methods.qcfs())[0])
