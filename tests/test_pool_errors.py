"""What each way to pool costs: the mathematics says which error is zero, which is positive and which is negative."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from offspike.clock import Clock
from offspike.pool_errors import _errors
from offspike.pooling import GatedMaxPool
from offspike.schedules import Layerwise


def errors_of(spikes, pool):
    """Of spikes ``[T, B, …]`` through a gated pool, by choice."""
    clock = Clock(len(spikes), spikes.shape[1], Layerwise())
    with clock.ticking():
        sent = clock.unfold(pool(clock.fold(spikes)))
    return {error.choice: error for error in _errors("pool", pool, spikes, sent)}


def test_two_neurons_that_fire_in_turn():
    """Rates ½ and ½: the maximum and the average are ½, but at every step one of them fires."""
    spikes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]).reshape(4, 1, 1, 2)
    found = errors_of(spikes, GatedMaxPool(1, kernel_size=2))
    assert (found["gate"].rms, found["average"].rms) == (0, 0)
    assert (found["naive"].rms, found["naive"].mean) == (1, 1), "1 instead of ½: twice too much"


def test_one_of_four_fires():
    spikes = torch.zeros(2, 1, 1, 2, 2)
    spikes[:, 0, 0, 0, 0] = 1
    found = errors_of(spikes, GatedMaxPool(2, kernel_size=2))
    assert found["gate"].rms == found["naive"].rms == 0
    assert found["average"].mean == -0.75


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([1, 2]), st.sampled_from([0, 1]))
def test_too_much_too_little_and_exact(seed, steps, stride, padding):
    """``Σ_t max_i x_i(t) ≥ max_i Σ_t x_i(t) ≥ mean_i Σ_t x_i(t)``, and gated sums telescope."""
    spikes = torch.bernoulli(torch.full((steps, 2, 3, 6), 0.4), generator=torch.Generator().manual_seed(seed))
    found = errors_of(spikes, GatedMaxPool(1, kernel_size=3, stride=stride, padding=padding))
    assert found["gate"].rms == 0
    assert found["naive"].mean >= 0 >= found["average"].mean


def test_a_dilated_window_has_no_average():
    assert set(errors_of(torch.ones(2, 1, 1, 8), GatedMaxPool(1, kernel_size=2, dilation=2))) == {"gate", "naive"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Linear(16, 3)

    def forward(self, x):
        x = F.relu(self.conv(self.pool(x)))
        return self.fc(F.adaptive_max_pool2d(self.pool(x), 2).flatten(1))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


def test_each_pool_of_a_model_by_name_and_choice(model):
    found = osp.pool_errors(model, torch.rand(4, 1, 16, 16), steps=4)
    assert [error.where for error in found] == [*["pool"] * 3, *["pool_1"] * 3, *["adaptive_max_pool2d"] * 3]
    table = {(error.where, error.choice): error for error in found}
    for where in ("pool", "pool_1", "adaptive_max_pool2d"):
        assert table[where, "gate"].rms < 1e-7, "only the rounding of float32"
        assert table[where, "average"].mean < 0
    assert table["pool", "naive"].rms < 1e-7, "an image is the same at every step"
    assert table["pool_1", "naive"].mean > 0.01
    assert set(found[0].to_dict()) == {"where", "choice", "rms", "mean"}


def test_trained_thresholds_are_kept(model):
    x = torch.rand(4, 1, 16, 16)
    ann = osp.prepare(model, osp.QCFS(4, lam=0.5), example=x, pool="gate")
    small = osp.pool_errors(ann, x, steps=4)
    assert ann.relu.lam.item() == 0.5
    assert {error.choice for error in small} == {"gate", "naive", "average"}


def test_no_pool_no_error():
    assert osp.pool_errors(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.rand(3, 4)) == []
