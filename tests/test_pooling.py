"""Max-pooling by counts: the pooled count is the maximum of the counts, in binary spikes, causally."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.clock import Clock
from offspike.pooling import GatedMaxPool

COS = osp.methods.cos(4, iterations=4, eps=2.0**-10)


def pooled(pool, x):
    """``[T, B, …]`` through the pool as in a network."""
    clock = Clock(len(x), x.shape[1], phase=None)
    with clock.ticking():
        return clock.unfold(pool(clock.fold(x)))


@given(st.integers(1, 9), st.floats(2.0**-6, 3.0, width=32), st.integers(0, 2**16))
def test_the_pooled_count_is_the_maximum_of_the_counts(steps, theta, seed):
    draw = torch.Generator().manual_seed(seed)
    spikes = torch.randint(0, 2, (steps, 2, 3, 8, 6), generator=draw).float()
    theta = torch.tensor(theta)
    out = pooled(GatedMaxPool(2, kernel_size=2), spikes * theta)
    assert bool(((out == 0) | (out == theta)).all()), "binary"
    for t in range(1, steps + 1):  # at every t, so it is causal too
        counts = (out[:t] > 0).sum(0)
        assert torch.equal(counts.float(), F.max_pool2d(spikes[:t].sum(0), 2))


def test_the_maximum_of_each_step_is_too_much():
    spikes = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).view(2, 1, 1, 2)  # two neurons take turns
    assert pooled(GatedMaxPool(1, kernel_size=2), spikes).sum() == 1
    assert pooled(nn.MaxPool1d(2), spikes).sum() == 2


@given(st.integers(0, 2**16))
def test_currents_add_up_as_well(seed):
    x = dyadic_images(5, 2, 3, 8, seed=seed)
    total = pooled(GatedMaxPool(1, kernel_size=3, stride=2, padding=1), x).sum(0)
    assert torch.equal(total, F.max_pool1d(x.sum(0), 3, 2, 1))


@pytest.mark.parametrize("order", ["after the activation", "before the activation"])
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d(2)], ids=str)
@pytest.mark.parametrize("method", [osp.methods.exact(4), COS], ids=lambda method: method.name)
@torch.no_grad()
def test_the_snn_with_max_pools_equals_its_ann_bit_for_bit(pool, method, order):
    torch.manual_seed(0)
    pair = (nn.ReLU(), pool) if order.startswith("after") else (pool, nn.ReLU())
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), *pair,
        nn.Conv2d(6, 6, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip
    x = dyadic_images(7, 2, 8, 8)
    ann = dyadic(osp.prepare(model.eval(), osp.QCFS(4), example=x, pool="gate"))
    relu = osp.prepare(model, osp.activations.Rectifier(), example=x, pool="gate")
    assert torch.allclose(relu(x), model(x), atol=1e-6), "in the ANN it is plain max-pooling"
    snn = osp.convert(ann, method)
    assert len(ann(x).unique(dim=0)) > 2
    long = snn(x, steps=6)
    assert torch.equal(snn(x, steps=4).mean(0), ann(x))
    assert torch.equal(long[:4], snn(x, steps=4))


def test_an_image_is_pooled_as_it_is():
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    x = dyadic_images(4, 1, 8, 8)
    ann = dyadic(osp.prepare(model.eval(), osp.QCFS(4), example=x, pool="gate"))
    assert ann[0].steady
    assert torch.equal(osp.convert(ann, osp.methods.exact(4))(x, steps=4).mean(0), ann(x))


def test_saved_and_loaded(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    x = dyadic_images(4, 1, 8, 8)
    snn = osp.convert(osp.prepare(model.eval(), osp.QCFS(4), example=x, pool="gate"), osp.methods.exact(4))
    osp.save(snn, tmp_path / "snn.safetensors")
    assert torch.equal(osp.load(tmp_path / "snn.safetensors")(x, 5), snn(x, 5))


def test_indices_are_refused():
    with pytest.raises(ValueError, match="without indices"):
        GatedMaxPool(2, kernel_size=2, return_indices=True)
