"""Linear layers event by event: the same sums as the matrix product."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike import rivals
from offspike.fast import events

kernel = pytest.importorskip("offspike.ops.events")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_on_a_grid_it_is_the_product(rows, rate, bias):
    torch.manual_seed(0)
    layer = dyadic(nn.Sequential(nn.Linear(300, 257, bias=bias)))[0]
    x = (torch.rand(rows, 300) < rate) * torch.randint(1, 5, (rows, 300)) / 4
    assert torch.equal(kernel.linear(x, layer.weight.detach().t().contiguous(), layer.bias), layer(x))


def test_few_spikes_are_sent_one_by_one_and_many_multiplied():
    assert kernel.worth(torch.eye(64, 1024))
    assert not kernel.worth(torch.ones(64, 1024))
    assert kernel.worth((torch.arange(1024) % 8 == 0).float()[None])
    assert not kernel.worth((torch.arange(1024) % 8 == 0).float().repeat(64, 1))


def test_a_network_takes_whichever_way_and_answers_the_same(monkeypatch):
    layers = [nn.Linear(6, 300), osp.QCFS(4), nn.Linear(300, 260), osp.QCFS(4), nn.Linear(260, 3)]
    ann, x = dyadic(nn.Sequential(*layers)), dyadic_images(4, 6)
    snn = osp.convert(ann, osp.methods.exact(4))
    with rivals.reference(snn):
        expected = snn(x, steps=5)
    for always in (True, False):
        monkeypatch.setattr(kernel, "worth", lambda x, always=always: always)
        assert torch.equal(snn(x, steps=5), expected)


def test_only_large_layers_on_a_cpu():
    assert events.possible(nn.Linear(256, 300))
    assert not events.possible(nn.Linear(255, 300))
    assert not events.possible(nn.Linear(256, 300).double())
    assert not events.possible(nn.Linear(256, 300, device="meta"))
    assert not events.possible(nn.Conv2d(256, 300, 1))
