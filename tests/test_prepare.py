import pytest
import torch
from torch import nn

import offspike as osp


def plain():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1), nn.ReLU6(), nn.Flatten(),
        nn.Linear(36, 8), nn.Hardtanh(0.0, 3.0), nn.Linear(8, 5), nn.LeakyReLU(0.0), nn.Linear(5, 3),
    )  # fmt: skip


X = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


def test_relus_become_activations_of_their_own_on_a_copy():
    model = plain()
    ann = osp.prepare(model, osp.QCFS(levels=4), example=X)
    acts = [m for m in ann.modules() if isinstance(m, osp.QCFS)]
    assert len(acts) == len({id(a) for a in acts}) == 4
    assert isinstance(ann[2], nn.AvgPool2d)
    assert isinstance(model[1], nn.ReLU)
    assert isinstance(model[2], nn.MaxPool2d)
    assert ann.input_shape == (1, 8, 8)


def test_from_relu_to_spikes_in_four_lines():
    ann = osp.prepare(plain().eval(), osp.QCFS(levels=4), example=X)
    osp.init_thresholds(ann, X)
    snn = osp.convert(ann, osp.methods.exact(rho=4))
    assert torch.allclose(snn(X, steps=4).mean(0), ann(X), atol=1e-5)


def test_a_layer_that_only_looks_like_a_relu_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.LeakyReLU(0.1), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="3: LeakyReLU"):
        osp.prepare(model, osp.QCFS(4), example=torch.zeros(1, 4))


def test_one_relu_used_twice_is_named():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

        def forward(self, x):
            return self.relu(self.b(self.relu(self.a(x))))

    with pytest.raises(ValueError, match=r"relu.*used 2 times"):
        osp.prepare(Twice(), osp.QCFS(4), example=torch.zeros(1, 4))


def test_only_our_activations_can_be_put_in():
    with pytest.raises(TypeError, match=r"osp.QCFS\(levels=…\)"):
        osp.prepare(plain(), nn.ReLU(), example=X)


def test_thresholds_are_quantiles_of_what_reaches_them_layer_by_layer():
    ann = nn.Sequential(osp.QCFS(4), nn.Linear(1, 1, bias=False), osp.QCFS(4))
    ann[1].weight.data.fill_(3.0)
    osp.init_thresholds(ann, torch.linspace(0, 10, 1001)[:, None], quantile=0.5)
    assert ann[0].lam.item() == pytest.approx(5.0, abs=0.02)
    # Half the first layer's outputs are at its λ = 5, so the median after it is 5, times 3.
    assert ann[2].lam.item() == pytest.approx(15.0, abs=0.1)
