import pytest
import torch
import torch.nn.functional as F
from torch import nn

import offspike as osp
from offspike.graph import GraphNetwork


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


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return F.relu(self.relu(self.b(self.relu(self.a(x)))) + x).relu()


def test_each_use_has_an_activation_of_its_own_named_after_its_place():
    ann = osp.prepare(nn.Sequential(Twice(), nn.Linear(4, 2)), osp.QCFS(4), example=torch.zeros(1, 4))
    acts = {name: m for name, m in ann.named_modules() if isinstance(m, osp.QCFS)}
    assert list(acts) == ["0.relu", "0.relu_1", "0.relu_2", "0.relu_3"]
    assert len({id(m) for m in acts.values()}) == 4
    assert isinstance(ann, GraphNetwork)
    assert ann.training


def test_no_graph_where_none_is_needed():
    model = plain()
    assert type(osp.prepare(model, osp.QCFS(4), example=X)) is nn.Sequential
    assert type(osp.prepare(model, osp.QCFS(4), example=X, pool="gate")) is nn.Sequential


def test_a_bound_becomes_the_threshold():
    ann = osp.prepare(plain(), osp.QCFS(4, lam=2.0), example=X)
    assert [m.lam.item() for m in ann.modules() if isinstance(m, osp.QCFS)] == pytest.approx([2.0, 6.0, 3.0, 2.0])


def test_prepared_networks_train():
    model = nn.Sequential(Twice(), nn.Linear(4, 2))
    ann = osp.prepare(model, osp.QCFS(4), example=torch.zeros(1, 4)).train()
    ann(torch.rand(8, 4)).square().sum().backward()
    assert all(p.grad is not None for p in ann.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_max_pools_may_stay_but_are_not_converted():
    ann = osp.prepare(plain(), osp.QCFS(4), example=X, pool="keep")
    assert isinstance(ann[2], nn.MaxPool2d)
    with pytest.raises(ValueError, match="2: MaxPool2d is max-pooling"):
        osp.convert(ann, osp.methods.cos(4))
    with pytest.raises(ValueError, match="pool must be one of"):
        osp.prepare(plain(), osp.QCFS(4), example=X, pool="max")


def test_a_pool_without_an_average_is_named():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, dilation=2))
    with pytest.raises(ValueError, match="2: a max-pool with dilation"):
        osp.prepare(model, osp.QCFS(4), example=X)


def test_an_in_place_relu_seen_through_a_view_is_refused():
    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            F.relu(y.view(-1, 2, 2), inplace=True)
            return y

    with pytest.raises(ValueError, match="take inplace=True out"):
        osp.prepare(Viewed(), osp.QCFS(4), example=torch.randn(3, 4))


def test_nothing_to_prepare():
    with pytest.raises(ValueError, match="there is nothing to convert"):
        osp.prepare(nn.Sequential(nn.Linear(2, 2)), osp.QCFS(4), example=torch.zeros(1, 2))


def test_thresholds_of_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

        def forward(self, x, y):
            return F.relu(self.a(x) + self.b(y))

    torch.manual_seed(0)
    example = (torch.rand(5, 3), torch.rand(5, 2))
    ann = osp.init_thresholds(osp.prepare(Two().eval(), osp.QCFS(4), example=example), example, quantile=1.0)
    assert ann.relu.lam.item() == pytest.approx(max(0.1, (ann.a(example[0]) + ann.b(example[1])).max().item()))


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


@pytest.mark.parametrize("site", [nn.ReLU6(), nn.Hardtanh(0.0, 6.0)])
def test_thresholds_stay_below_the_cap_of_the_activation_they_stand_for(site):
    x = torch.linspace(0, 100, 1001)[:, None]
    ann = osp.prepare(nn.Sequential(nn.Identity(), site, nn.Linear(1, 1), nn.ReLU()), osp.QCFS(4), example=x)
    ann[2].weight.data.fill_(5.0)
    ann[2].bias.data.zero_()
    assert ann[1].lam.item() == pytest.approx(6.0)
    osp.init_thresholds(ann, x)
    assert ann[1].lam.item() == pytest.approx(6.0), "the data goes up to 100, but a ReLU6 does not"
    assert ann[3].lam.item() == pytest.approx(30.0), "a ReLU has no such bound"
    osp.init_thresholds(ann, x / 50)
    assert ann[1].lam.item() == pytest.approx(2.0, rel=0.01), "less where the data is less"
    osp.init_thresholds(ann, x, rule=osp.thresholds.Maximum())
    assert ann[1].lam.item() == pytest.approx(6.0)


def test_thresholds_of_least_error_channel_by_channel():
    """Values that lie on 4 levels of λ are represented without error by that λ."""
    lam = torch.tensor([1.0, 4.0])
    x = torch.arange(5)[:, None] / 4 * lam
    ann = nn.Sequential(osp.QCFS(4), nn.Linear(2, 1))
    osp.init_thresholds(ann, x, rule=osp.thresholds.LeastError(4))
    assert ann[0].lam.tolist() == pytest.approx(lam.tolist(), rel=1e-3)
    assert torch.allclose(ann[0](x), x, rtol=1e-3)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.relu, self.head = nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)

    def forward(self, x=None, y=None):
        z = self.relu(self.fc(x))
        return self.head(z if y is None else z + y)


@torch.no_grad()
def test_the_example_says_which_optional_inputs_there_are():
    x, y = torch.rand(4, 6), torch.rand(4, 6)
    one, two = (osp.prepare(Plain(), osp.QCFS(4), example=example).eval() for example in (x, (x, y)))
    for ann, inputs in ((one, (x,)), (two, (x, y))):
        snn = osp.convert(ann, osp.methods.exact(4))
        assert torch.allclose(snn(*inputs, steps=4).mean(0), ann(*inputs), atol=1e-6)
    with pytest.raises(TypeError, match="takes 2 inputs, got 1"):
        osp.convert(two, osp.methods.exact(4))(x, steps=4)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ({"x": torch.rand(2, 6)}, "a tuple of tensors for several; got dict"),
        ([torch.rand(2, 6)], "got list"),
        ((1, 6), "got int"),
        (torch.rand(0, 6), r"got a tensor of shape \(0, 6\)"),
    ],
)
def test_what_is_no_example_is_refused(example, said):
    for act in (lambda: osp.prepare(Plain(), osp.QCFS(4), example=example), lambda: osp.audit(Plain(), example)):
        with pytest.raises(TypeError, match=said):
            act()


@pytest.mark.parametrize("example", [torch.rand(2, 5), torch.rand(2, 6).double(), torch.ones(2, 6, dtype=torch.int64)])
def test_an_example_that_the_model_does_not_take(example):
    with pytest.raises(ValueError, match="the model does not take this example: mat1"):
        osp.prepare(Plain(), osp.QCFS(4), example=example)


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (nn.DataParallel, "give model.module"),
        (torch.compile, "give model._orig_mod"),
        (lambda model: torch.jit.trace(model, torch.rand(2, 6)), "before torch.jit"),
        (lambda model: model.forward, "must be a torch.nn.Module"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_model_itself_is_asked_for(wrap, said):
    with pytest.raises(TypeError, match=said):
        osp.prepare(wrap(Plain()), osp.QCFS(4), example=torch.rand(2, 6))
