import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
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
    again = osp.prepare(nn.Sequential(ann[:2]), osp.QCFS(4), example=X)
    assert osp.prepare(again, osp.QCFS(4), example=X[..., :6]).input_shape == (1, 8, 6)


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
    ann = osp.prepare(nn.Sequential(nn.Linear(1, 1), site, nn.Linear(1, 1), nn.ReLU()), osp.QCFS(4), example=x)
    ann[0].weight.data.fill_(1.0)
    ann[0].bias.data.zero_()
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


class Named(nn.Module):
    """Each layer has two names, and ``forward`` uses the later one."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.block = nn.Sequential(self.conv, self.relu, self.pool, nn.Flatten())

    def forward(self, x):
        return self.block(x)


class Listed(Named):
    def __init__(self):
        super().__init__()
        self.order = [self.conv, self.relu, self.pool, self.block[3]]

    def forward(self, x):
        for part in self.order:
            x = part(x)
        return x


@pytest.mark.parametrize(("build", "kind"), [(Named, Named), (Listed, GraphNetwork)])
@torch.no_grad()
def test_a_layer_is_exchanged_wherever_the_model_has_it(build, kind):
    ann = osp.prepare(build(), osp.QCFS(4), example=X)
    assert type(ann) is kind
    assert sum(isinstance(m, osp.QCFS) for m in ann.modules()) == 1
    assert not any(isinstance(m, nn.ReLU | nn.MaxPool2d) for m in ann.modules())
    snn = osp.convert(ann, osp.methods.exact(4))
    assert list(snn.layers) == ["relu"]
    assert torch.allclose(snn(X, steps=4).mean(0), ann.eval()(X), atol=1e-6)


class Overwritten(nn.Module):
    """What an in-place ReLU changes is used again."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.first, self.second = nn.ReLU(inplace=True), nn.ReLU()

    def forward(self, x):
        y = self.a(x)
        z = self.b(self.first(y))
        return self.second(z + y)


@torch.no_grad()
def test_an_example_of_zeros_hides_nothing():
    torch.manual_seed(0)
    model, x = Overwritten().eval(), torch.randn(8, 4)
    for example in (torch.zeros(2, 4), x):
        same = osp.prepare(model, osp.ReLU(), example=example)
        assert torch.allclose(same(x), model(x), atol=1e-6)


class Keeps(nn.Module):
    """Keeps what it has seen, and how often."""

    def __init__(self):
        super().__init__()
        self.fc, self.relu, self.calls, self.all = nn.Linear(4, 4), nn.ReLU(), 0, []

    def forward(self, x):
        self.calls += 1
        self.seen = self.relu(self.fc(x))
        self.all.append(self.seen)
        return self.seen


def test_the_model_is_not_run_nor_traced_itself():
    model = Keeps()
    ann = osp.prepare(model, osp.QCFS(4), example=torch.rand(2, 4))
    for untouched in (model, ann):
        assert untouched.calls == len(untouched.all) == 0
        assert not hasattr(untouched, "seen")
        pickle.dumps(untouched)


def test_a_model_that_keeps_its_last_output_can_be_copied():
    model, x = Keeps(), torch.rand(2, 4)
    seen = model(x)
    ann = osp.prepare(model, osp.QCFS(4), example=x)
    assert model.seen is seen
    assert torch.equal(ann.seen, seen)
    assert not ann.seen.requires_grad


class OwnNumber(nn.Module):
    def __init__(self, input_shape):
        super().__init__()
        self.input_shape = input_shape
        self.fc, self.relu = nn.Linear(12, 4), nn.ReLU()

    def forward(self, x):
        size = self.input_shape
        return self.relu(self.fc(x.view(-1, *(size if isinstance(size, tuple) else (size,)))))


class OwnProperty(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.relu = nn.Linear(12, 4), nn.ReLU()

    @property
    def input_shape(self):
        return (12,)

    def forward(self, x):
        return self.relu(self.fc(x.flatten(1)))


@pytest.mark.parametrize("build", [lambda: OwnNumber(12), lambda: OwnNumber((12,)), OwnProperty])
@torch.no_grad()
def test_an_input_shape_of_the_users_own_stays(build, tmp_path):
    model, x = build().eval(), torch.rand(3, 3, 2, 2)
    ann = osp.prepare(model, osp.QCFS(4), example=x)
    assert ann.input_shape == model.input_shape
    snn = osp.convert(ann, osp.methods.exact(4))
    assert snn.input_shape == (3, 2, 2)
    assert torch.allclose(snn(x, steps=4).mean(0), ann(x), atol=1e-6)
    for network in (ann, snn):
        osp.save(network, tmp_path / "network")
        assert osp.load(tmp_path / "network").input_shape == (3, 2, 2)


@torch.no_grad()
def test_an_input_shape_of_the_users_own_and_a_graph():
    model = nn.Sequential(OwnNumber((12,)), Twice(), nn.Linear(4, 2))
    model.input_shape = "any"
    x = torch.rand(3, 3, 2, 2)
    assert osp.prepare(model, osp.QCFS(4), example=x).input_shape == (3, 2, 2)


@torch.no_grad()
def test_thresholds_are_as_wide_as_the_weights():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x, wide = torch.rand(4, 4).to(dtype), torch.promote_types(dtype, torch.float32)
        ann = osp.prepare(nn.Sequential(Twice(), nn.Linear(4, 2)).to(dtype), osp.QCFS(4), example=x)
        for _ in range(2):
            assert {m.log2_lam.dtype for m in ann.modules() if isinstance(m, osp.QCFS)} == {wide}
            osp.init_thresholds(ann, x)


class Functional(nn.Module):
    """A graph of it has its thresholds before its weights."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return F.linear(F.relu(F.linear(x, self.fc.weight)), self.fc.weight)


@torch.no_grad()
def test_a_network_in_float64_whose_first_parameter_is_a_threshold():
    x = torch.randn(3, 4, dtype=torch.float64)
    ann = osp.init_thresholds(osp.prepare(Functional().double(), osp.QCFS(4), example=x), x)
    assert isinstance(ann, GraphNetwork)
    snn = osp.convert(ann, osp.methods.exact(4))
    assert torch.allclose(snn(x, steps=4).mean(0), ann(x), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
def test_a_computed_weight_is_still_trained():
    for norm in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm):
        model = nn.Sequential(norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2))
        ann = osp.prepare(model, osp.QCFS(4), example=torch.rand(2, 4))
        assert ann.state_dict().keys() > model.state_dict().keys()
        ann(torch.rand(8, 4)).square().sum().backward()
        assert all(p.grad is not None for p in ann[0].parameters())


class OfTheImage(nn.Module):
    """Something done to the image before the network; one ReLU that is used there and as an activation."""

    def __init__(self, how):
        super().__init__()
        self.how, self.fc, self.relu, self.head = how, nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.inside = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.head(self.relu(self.fc(self.how(self, x))))


PREPROCESSING = {
    "clamp": (lambda m, x: x.clamp(0, 1), lambda x: x.clamp(0, 1)),
    "torch.clamp": (lambda m, x: torch.clamp(x, min=0), lambda x: x * (x > 0)),
    "normalised": (lambda m, x: F.relu((x - m.mean) / m.mean), lambda x: (2 * x - 1) * (x > 0.5)),
    "hardtanh": (lambda m, x: F.hardtanh(x, -0.5, 0.5), lambda x: x.clamp(-0.5, 0.5)),
    "hardtanh(0, 1)": (lambda m, x: F.hardtanh(x, 0.0, 1.0), lambda x: x.clamp(0, 1)),
    "leaky": (lambda m, x: F.leaky_relu(x, 0.5), lambda x: torch.where(x > 0, x, x / 2)),
    "shared": (lambda m, x: m.relu(x) - x, lambda x: -x * (x < 0)),
    "in place": (lambda m, x: m.inside(x), lambda x: x * (x > 0)),
    "F.relu in place": (lambda m, x: F.relu(x, True), lambda x: x * (x > 0)),
    "relu_": (lambda m, x: x.relu_(), lambda x: x * (x > 0)),
}


@pytest.mark.parametrize("name", PREPROCESSING)
@torch.no_grad()
def test_what_is_done_to_the_image_itself_stays(name):
    """The network of the image and that of the image preprocessed by hand are the same, bit for bit."""
    how, by_hand = PREPROCESSING[name]
    x = dyadic_images(9, 4)
    model = OfTheImage(how).eval()
    found = osp.audit(model, x)
    assert found.verdict == "prepare"
    assert [o.fate for o in found.operations].count("becomes a spiking layer by osp.prepare") == 1
    assert any(o.fate == "stays, computed once: the image before any weights" for o in found.operations)
    ann = dyadic(osp.prepare(model, osp.QCFS(4), example=x.clone()))
    fc, act, head = ann.fc, next(m for m in ann.modules() if isinstance(m, osp.QCFS)), ann.head
    expected = head(act(fc(by_hand(x))))
    assert torch.equal(ann(x.clone()), expected)
    snn, given = osp.convert(ann, osp.methods.exact(4)), x.clone()
    assert len(snn.layers) == 1
    assert torch.equal(snn(given, steps=4).mean(0), expected)
    assert torch.equal(given, x), "a spiking network leaves its images alone"


@pytest.mark.parametrize(
    "how",
    [
        lambda m, x: F.relu(x * m.scale),
        lambda m, x: F.relu(x @ m.mean.expand(4, 4)),
        lambda m, x: F.relu(m.fc(x)[:, :4]),
    ],
)
def test_behind_weights_a_relu_is_an_activation(how):
    ann = osp.prepare(OfTheImage(how), osp.QCFS(4), example=torch.rand(2, 4))
    assert sum(isinstance(m, osp.QCFS) for m in ann.modules()) == 2


def test_a_model_whose_only_relu_is_of_the_image():
    with pytest.raises(ValueError, match="no ReLU behind a layer with weights"):
        osp.prepare(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), osp.QCFS(4), example=torch.rand(2, 4))


@torch.no_grad()
def test_spikes_at_the_input_are_asked_for():
    model, x = nn.Sequential(osp.QCFS(4), nn.Linear(4, 4), nn.ReLU()), dyadic_images(9, 4)
    ann = dyadic(osp.prepare(model, osp.QCFS(4), example=x))
    snn = osp.convert(ann, osp.methods.exact(4))
    assert list(snn.layers) == ["0", "2"]
    assert torch.equal(snn(x, 4).mean(0), ann(x))
