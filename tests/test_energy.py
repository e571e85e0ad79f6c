"""Counts that must come out exactly: fan-out, silence, sums over batches."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from offspike.energy import CostModel, Energy, energies, energy, fan_out


def cnn():
    layers = [nn.Conv2d(2, 4, 3, padding=1), osp.QCFS(4), nn.Conv2d(4, 6, 3, 2, 1, groups=2), osp.QCFS(4)]
    return dyadic(nn.Sequential(*layers, nn.Flatten(), nn.Linear(54, 3))), dyadic_images(8, 2, 6, 6)


def pooled():
    layers = [nn.Conv2d(2, 4, 3, padding=1), osp.QCFS(4), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3, padding=1), osp.QCFS(4)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)]
    return dyadic(nn.Sequential(*layers)), dyadic_images(8, 2, 6, 6)


def listen(snn, *names):
    """How often each neuron (or what else is named) fires, all samples and steps together; filled as ``snn`` runs."""
    sent = {}
    for name in names or snn.layers:
        snn.model.get_submodule(name).register_forward_hook(
            lambda m, args, out, name=name: sent.update({name: (out != 0).sum(0)})
        )
    return sent


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 2, 3]))
    kernel, stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    padding = draw(st.integers(0, 2))
    mode = draw(st.sampled_from(["zeros", "circular"]))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, padding_mode=mode)


@settings(max_examples=50)
@given(convolutions(), st.integers(5, 8), st.integers(5, 8))
def test_fan_outs_sum_to_the_macs(conv, height, width):
    fan = fan_out(conv, (conv.in_channels, height, width))
    taps = torch.ones_like(conv.weight)
    with torch.no_grad():
        conv.weight.copy_(taps)
        conv.bias.zero_()
        macs = conv(torch.ones(1, conv.in_channels, height, width)).sum()  # each output counts the inputs it reads
        one = torch.zeros(1, conv.in_channels, height, width)
        one[0, -1, 1, 2] = 1.0
        assert int(fan.sum()) == int(macs)
        assert int(fan[-1, 1, 2]) == int(conv(one).sum())
    if conv.padding == (0, 0):
        side = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in
                zip((height, width), conv.dilation, conv.kernel_size, conv.stride, strict=True)]  # fmt: skip
        assert int(macs) == conv.out_channels * side[0] * side[1] * taps[0].numel()


def test_a_linear_layer_reaches_every_output():
    assert fan_out(nn.Linear(5, 7), (5,)).tolist() == [7] * 5


def test_every_token_has_its_connections():
    assert fan_out(nn.Linear(3, 5), (4, 3)).tolist() == [[5] * 3] * 4


@pytest.mark.parametrize("conv", [
    nn.ConvTranspose2d(2, 3, 3, 2, 1), nn.ConvTranspose2d(4, 6, (2, 3), (3, 1), (0, 2), groups=2, dilation=2),
])  # fmt: skip
def test_a_transposed_convolution_reaches_what_it_does_not_cut_off(conv):
    """Output o of input i along an axis: o = i·stride − padding + tap·dilation, if that lies inside."""
    sizes = 5, 4
    reached = []
    for axis, n in enumerate(sizes):
        s, p, d, k = (each[axis] for each in (conv.stride, conv.padding, conv.dilation, conv.kernel_size))
        most = (n - 1) * s - 2 * p + d * (k - 1) + 1
        reached.append(torch.tensor([sum(0 <= i * s - p + tap * d < most for tap in range(k)) for i in range(n)]))
    expected = conv.out_channels // conv.groups * torch.outer(*reached)
    assert torch.equal(fan_out(conv, (conv.in_channels, *sizes)), expected.expand(conv.in_channels, -1, -1))
    layers = [nn.Conv2d(1, conv.in_channels, 1), osp.QCFS(4), conv, osp.QCFS(4)]
    snn = osp.convert(nn.Sequential(*layers).eval(), osp.methods.qcfs())
    assert energy(snn, [torch.rand(3, 1, *sizes)], 4).layers["2"].ann_macs == 3 * int(expected.sum()) * conv.in_channels


def test_a_shortcut_in_fixed_point_pays_one_operation_a_spike():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act = nn.Conv2d(1, 2, 3, padding=1), osp.QCFS(4, lam=1.3)
            self.b, self.act2 = nn.Conv2d(2, 2, 3, padding=1), osp.QCFS(4, lam=0.7)

        def forward(self, x):
            h = self.act(self.a(x))
            return self.act2(self.b(h) + h)

    torch.manual_seed(0)
    x = torch.rand(6, 1, 4, 4)
    snn = osp.convert(osp.snap(Residual().eval(), example=x), osp.methods.exact(4))
    sent = []
    snn.layers["act"].register_forward_hook(lambda m, args, out: sent.append(int((out != 0).sum())))
    shortcut = energy(snn, [x], 4).layers["act_scale"]
    assert shortcut.synaptic_operations == sent[0] > 0
    assert shortcut.ann_macs == 6 * 2 * 4 * 4  # one for each neuron
    assert shortcut.macs == 0


def test_a_merged_value_costs_as_many_operations_as_it_has_spikes():
    """By hand: windows of 2x2 with so many spikes at each step, and a 3x3 convolution of 2 channels behind them."""
    spikes = torch.tensor([[3, 1, 0], [0, 4, 2], [1, 0, 0]])
    image = torch.zeros(3, 3, 4)
    for row, column in spikes.nonzero().tolist():
        image[row, column, : spikes[row, column]] = 1.0
    x = image.reshape(3, 3, 2, 2).permute(0, 2, 1, 3).reshape(1, 1, 6, 6)
    first, last = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 2, 3, padding=1)
    nn.init.ones_(first.weight)
    nn.init.zeros_(first.bias)
    snn = osp.convert(nn.Sequential(first, osp.QCFS(4, lam=1.0), nn.AvgPool2d(2), last).eval(), osp.methods.qcfs())
    corner, edge, centre = 2 * 4, 2 * 6, 2 * 9
    for t, spent in enumerate(energies(snn, [x], 3), start=1):
        assert spent.synaptic_operations == t * (3 * corner + 1 * edge + 4 * centre + 2 * edge + 1 * corner)
        assert spent.layers["3"].ann_macs == 4 * corner + 4 * edge + centre
        assert spent.macs == spent.layers["0"].macs == 36
        assert spent.membrane_updates == 36 * t
    assert energy(snn, [torch.zeros(5, 1, 6, 6)], 3).synaptic_operations == 0


class Between(nn.Module):
    """Spikes, something that adds them up, weights."""

    def __init__(self, size, merge, last):
        super().__init__()
        self.first = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1](1, 2, 3, padding=1)
        self.act, self.merge, self.last = osp.QCFS(4, lam=0.4), merge, last

    def forward(self, x):
        return self.last(self.merge(self.act(self.first(x))))


@pytest.mark.parametrize(
    ("size", "merge"),
    [
        ((7, 5), nn.AvgPool2d(2)),
        ((7, 5), nn.AvgPool2d(3, 2, padding=1)),
        ((7, 5), nn.AvgPool2d((3, 2), 1, padding=1, count_include_pad=False)),
        ((7, 5), nn.AvgPool2d(2, ceil_mode=True)),
        ((7, 5), nn.AvgPool2d((1, 3), divisor_override=5)),
        ((7, 5), nn.AdaptiveAvgPool2d(3)),
        ((7, 5), lambda x: F.avg_pool2d(x, x.size(3) // 2)),
        ((7, 5), lambda x: F.adaptive_avg_pool2d(x, 2) / 3 + 0.5),
        ((7, 5), lambda x: F.interpolate(x.detach(), scale_factor=2)),
        ((9,), nn.AvgPool1d(3, 2, padding=1)),
        ((4, 3, 5), nn.AvgPool3d(2, 1)),
    ],
)
def test_each_spike_pays_for_the_connections_behind_every_window_that_it_falls_into(size, merge):
    torch.manual_seed(2)
    last = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1](2, 3, 3, padding=1)
    snn = osp.convert(Between(size, merge, last).eval(), osp.methods.exact(4))
    sent, x = listen(snn), torch.rand(6, 1, *size) * 2 - 0.5
    with torch.no_grad():
        spent = energy(snn, [x], 4)
    ones = torch.eye(sent["act"].numel()).reshape(-1, *sent["act"].shape)
    seen = (merge(ones) - merge(0 * ones) != 0).long()
    reached = (seen * fan_out(last, seen.shape[1:])).flatten(1).sum(1)
    assert spent.synaptic_operations == int((sent["act"].flatten() * reached).sum()) > 0
    assert spent.macs == spent.layers["first"].macs


@pytest.mark.parametrize("merge", [
    lambda x: x.mean((2, 3)), lambda x: x.sum([2, 3]), lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    lambda x: torch.flatten(F.avg_pool2d(x, 4), 1), lambda x: x.mean(3).mean(2) * 0.5,
])  # fmt: skip
def test_a_global_mean_hides_no_spike_from_the_classifier(merge):
    torch.manual_seed(3)
    snn = osp.convert(Between((4, 4), merge, nn.Linear(2, 7)).eval(), osp.methods.qcfs())
    sent = listen(snn)
    assert energy(snn, [torch.rand(5, 1, 4, 4)], 3).synaptic_operations == 7 * int(sent["act"].sum()) > 0


def test_negative_spikes_are_spikes_even_where_a_window_adds_them_up_to_nothing():
    torch.manual_seed(4)
    layers = [nn.Conv2d(1, 4, 3, padding=1), osp.ReLU(), nn.Conv2d(4, 4, 3, padding=1), osp.ReLU()]
    ann, x = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Conv2d(4, 5, 1)).eval(), torch.randn(8, 1, 6, 6)
    snn = osp.convert(ann, osp.methods.snm(), calibration=x)
    sent, found = listen(snn, "3"), []
    snn.model.get_submodule("3").register_forward_hook(lambda m, args, out: found.append(int((out < 0).sum())))
    assert energy(snn, [x], 12).layers["5"].synaptic_operations == 5 * int(sent["3"].sum())
    assert found[0] > 0


class Streams(nn.Module):
    """Two layers of spikes that meet before weights, and weights behind weights."""

    def __init__(self, meet):
        super().__init__()
        self.a, self.act = nn.Conv2d(1, 2, 3, padding=1), osp.QCFS(4, lam=0.7)
        self.b, self.act2 = nn.Conv2d(2, 2, 3, padding=1), osp.QCFS(4, lam=0.3)
        self.meet, self.c, self.d = meet, nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 1)

    def forward(self, x):
        h = self.act(self.a(x))
        return self.d(self.c(self.meet(h, self.act2(self.b(h)))))


def test_spikes_that_a_sum_brings_together_are_paid_for_one_by_one_and_what_is_no_spike_is_multiplied():
    torch.manual_seed(5)
    x = torch.rand(6, 1, 4, 4)
    border = 3 * torch.outer(torch.tensor([2, 3, 3, 2]), torch.tensor([2, 3, 3, 2]))
    for meet in (lambda h, g: h + g, lambda h, g: torch.add(h, g, alpha=-0.5), lambda h, g: h - 2 * g):
        snn = osp.convert(Streams(meet).eval(), osp.methods.exact(4))
        sent, inputs = listen(snn), listen(snn, "c")
        spent = energy(snn, [x], 4)
        assert spent.layers["c"].synaptic_operations == int(((sent["act"] + sent["act2"]) * border).sum()) > 0
        assert spent.layers["d"].macs == 4 * int(inputs["c"].sum()) > 0
        assert spent.layers["c"].macs == spent.layers["d"].synaptic_operations == 0


def test_spikes_as_high_as_the_image_are_multiplied():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.act, self.last = nn.Conv2d(2, 2, 1), osp.QCFS(4), nn.Conv2d(2, 3, 1)

        def forward(self, x):
            return self.last(self.act(self.a(x)) * x)

    torch.manual_seed(5)
    x = torch.rand(6, 2, 4, 4) + 0.1
    snn = osp.convert(Masked().eval(), osp.methods.qcfs())
    sent = listen(snn)
    spent = energy(snn, [x], 4).layers["last"]
    assert spent.synaptic_operations == 0
    assert spent.macs == 3 * int(sent["act"].sum()) > 0


def test_a_layer_that_is_used_on_the_image_and_on_spikes_pays_for_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.act, self.act2, self.last = nn.Conv2d(2, 2, 1), osp.QCFS(4), osp.QCFS(4), nn.Conv2d(2, 2, 1)

        def forward(self, x):
            return self.last(self.act2(self.conv(self.act(self.conv(x)))))

    snn = osp.convert(Twice().eval(), osp.methods.qcfs())
    sent = listen(snn)
    spent = energy(snn, [torch.rand(3, 2, 4, 4)], 5)
    assert spent.layers["conv"].macs == 3 * 16 * 4
    assert spent.layers["conv"].ann_macs == 2 * 3 * 16 * 4
    assert spent.layers["conv"].synaptic_operations == 2 * int(sent["act"].sum()) > 0


@pytest.mark.parametrize("method", [osp.methods.exact(4), osp.methods.snm()], ids=lambda method: method.name)
def test_a_gated_pool_sends_spikes_where_all_in_a_window_are_of_one_height(method):
    torch.manual_seed(6)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 3, 3, padding=1)]
    x = torch.rand(6, 1, 8, 8)
    ann = osp.prepare(nn.Sequential(*layers).eval(), osp.QCFS(4), example=x, pool="gate").eval()
    snn = osp.convert(ann, method, calibration=x)
    sent = listen(snn, "2")
    spent = energy(snn, [x], 4).layers["3"]
    expected = int((sent["2"] * fan_out(layers[3], (2, 4, 4))).sum())
    assert expected > 0
    assert (spent.synaptic_operations, spent.macs) == ((expected, 0) if method.name == "exact" else (0, expected))


def test_in_fixed_point_a_pool_and_a_sum_hide_no_spike():
    torch.manual_seed(7)
    x = torch.rand(6, 1, 4, 4)
    ann = Streams(lambda h, g: F.avg_pool2d(h, 2) + F.avg_pool2d(g, 2)).eval()
    snn = osp.convert(osp.snap(ann, bits=4, example=x), osp.methods.exact(4))
    sent = listen(snn)
    spent = energy(snn, [x], 4).layers
    assert spent["avg_pool2d_scale"].synaptic_operations == int(sent["act"].sum()) > 0
    assert spent["avg_pool2d_1_scale"].synaptic_operations == int(sent["act2"].sum()) > 0
    assert spent["c"].synaptic_operations == 3 * 4 * int(sent["act"].sum() + sent["act2"].sum())


class Meeting(nn.Module):
    """Image and spikes meet: after weights of their own, and before weights that they share."""

    def __init__(self):
        super().__init__()
        self.a, self.act, self.b = nn.Conv2d(1, 2, 3, padding=1), osp.QCFS(4), nn.Conv2d(2, 1, 3, padding=1)
        self.side, self.act2, self.both, self.act3 = nn.Conv2d(1, 1, 1), osp.QCFS(4), nn.Conv2d(2, 1, 1), osp.QCFS(4)

    def forward(self, x):
        h = self.act2(self.b(self.act(self.a(x)).view(x.shape[0], 2, 4, 4)) + self.side(x))
        return self.act3(self.both(torch.cat([h, x], 1)))


def test_the_image_is_multiplied_once_and_where_spikes_meet_it_at_every_step():
    torch.manual_seed(1)
    x = torch.rand(3, 1, 4, 4) + 0.1
    snn = osp.convert(Meeting().eval(), osp.methods.qcfs())
    sent = []
    snn.layers["act2"].register_forward_hook(lambda m, args, out: sent.append((out != 0).flatten(1).sum(1)))
    spent = energies(snn, [x], 5)
    for t, one in enumerate(spent, start=1):
        assert one.layers["a"].macs == 3 * 2 * (4 * 3 - 2) ** 2  # borders: 10 taps of 12 along an axis
        assert one.layers["side"].macs == 3 * 16
        assert one.layers["b"].macs == one.layers["both"].synaptic_operations == 0
        assert one.layers["both"].macs == 3 * 16 * t + int(sent[0][: 3 * t].sum())
    assert spent[0] == energy(snn, [x], 1)


@pytest.mark.parametrize(
    ("product", "name"),
    [
        (torch.matmul, r"torch\.matmul"),
        (lambda y, w: torch.einsum("bi,io->bo", y, w), r"torch\.einsum"),
        (lambda y, w: y.mm(w), "mm"),
        (lambda y, w: torch.inner(y, w.T), r"torch\.inner"),
    ],
)
def test_products_that_are_no_layers_are_said_not_to_be_counted(product, name):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.act, self.w = nn.Linear(3, 4), osp.QCFS(4), nn.Parameter(torch.rand(4, 2))

        def forward(self, x):
            return product(self.act(self.fc(x)), self.w)

    x = torch.rand(5, 3)
    with pytest.warns(UserWarning, match=f"energy counts layers, not {name}:"):
        energy(osp.convert(One().eval(), osp.methods.exact(4), example=x), [x], 4)


def test_several_inputs_and_what_is_not_counted():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.act = nn.Linear(3, 4), nn.Linear(2, 4), osp.QCFS(4)
            self.w = nn.Parameter(torch.rand(4, 2))

        def forward(self, x, y):
            return self.act(self.a(x) + self.b(y)) @ self.w

    x = torch.rand(5, 3), torch.rand(5, 2)
    snn = osp.convert(Two().eval(), osp.methods.exact(4), example=x)
    with pytest.warns(UserWarning, match="not operator.matmul"):
        assert energy(snn, [(x, None)], 4).macs == 5 * (3 * 4 + 2 * 4)


def test_no_spikes_no_synaptic_operations():
    ann, x = cnn()
    for module in (ann[0], ann[2]):
        module.bias.data.fill_(-100.0)
    spent = energy(osp.convert(ann, osp.methods.cos(4)), [x], 6)
    assert spent.synaptic_operations == 0
    assert spent.macs == 8 * int(fan_out(ann[0], (2, 6, 6)).sum())
    assert spent.membrane_updates == 8 * (4 * 36 + 6 * 9) * (4 + 6)


@pytest.mark.parametrize("method", [osp.methods.qcfs(), osp.methods.exact(4), osp.methods.srp(3)], ids=lambda m: m.name)
def test_batches_add_up(method):
    ann, x = cnn()
    snn = osp.convert(ann, method)
    whole, parts = energy(snn, [x], 5), energy(snn, [(part, None) for part in x.split(3)], 5)
    assert whole == parts == energy(snn, [x[:2]], 5) + energy(snn, [x[2:]], 5)
    assert whole.ann_macs == 8 * sum(int(fan_out(ann[k], shape).sum()) for k, shape in
                                     [(0, (2, 6, 6)), (2, (4, 6, 6)), (5, (54,))])  # fmt: skip
    assert not ann[0]._forward_hooks


def test_every_spike_pays_for_its_connections():
    ann, x = cnn()
    snn = osp.convert(ann, osp.methods.qcfs())
    sent = {}
    for name, layer in snn.layers.items():
        layer.register_forward_hook(lambda m, args, out, name=name: sent.update({name: (out != 0).sum(0)}))
    spent = energy(snn, [x], 4)
    expected = (sent["1"] * fan_out(ann[2], (4, 6, 6))).sum() + 3 * sent["3"].sum()
    assert spent.synaptic_operations == int(expected) > 0


def test_phase_one_of_the_causal_schedule_is_paid_for_and_phase_two_too():
    """Four neurons under steady currents from θ/2, by hand; each reaches 5 outputs.

    I = ¾ fires at steps 1, 2 and 4, ½ at 1 and 3, −¼ never, ⅛ at step 4; SRP keeps the last two silent in phase 2.
    """
    first, last = nn.Linear(1, 4), nn.Linear(4, 5)
    first.weight.data = torch.tensor([[0.75], [0.5], [-0.25], [0.125]])
    nn.init.zeros_(first.bias)
    ann = nn.Sequential(first, osp.QCFS(4, lam=1.0), last).eval()
    snns = (osp.convert(ann, method) for method in (osp.methods.qcfs(), osp.methods.srp(4)))
    plain, srp = (energies(snn, [torch.ones(1, 1)], 4) for snn in snns)
    assert [one.synaptic_operations for one in plain] == [5 * 2, 5 * 3, 5 * 4, 5 * 6]
    assert [one.synaptic_operations for one in srp] == [5 * (6 + n) for n in (2, 3, 4, 5)]
    assert [one.membrane_updates for one in srp] == [4 * (4 + t) for t in (1, 2, 3, 4)]
    assert [one.macs for one in srp] == [one.macs for one in plain] == [4] * 4


def test_joules_follow_the_cost_model():
    spent = Energy(samples=2, synaptic_operations=10, macs=4, membrane_updates=6, ann_macs=100)
    assert spent.joules(CostModel(2.0, 1.0, 0.5)) == (10 + 3 + 8) / 2
    assert spent.ann_joules(CostModel(2.0, 1.0)) == 100
    assert spent.joules() == pytest.approx((16 * 0.9e-12 + 4 * 4.6e-12) / 2)
    with pytest.raises(ValueError, match="no batches"):
        energy(osp.convert(cnn()[0], osp.methods.qcfs()), [], 4)


@pytest.mark.parametrize("method", [osp.methods.qcfs(), osp.methods.cos(4), osp.methods.srp(3)], ids=lambda m: m.name)
@pytest.mark.parametrize("build", [cnn, pooled])
def test_one_pass_knows_the_cost_of_every_prefix(build, method):
    ann, x = build()
    snn = osp.convert(ann, method)
    assert energies(snn, x.split(3), 6) == tuple(energy(snn, x.split(3), t) for t in range(1, 7))


@pytest.mark.parametrize("method", [osp.methods.qcfs(), osp.methods.exact(4), osp.methods.srp(3)], ids=lambda m: m.name)
def test_batches_of_pooled_spikes_add_up_and_silence_is_free(method):
    ann, x = pooled()
    snn = osp.convert(ann, method)
    whole = energy(snn, [x], 5)
    assert whole == energy(snn, x.split(3), 5) == energy(snn, [x[:1]], 5) + energy(snn, [x[1:]], 5)
    assert whole.synaptic_operations > 0
    for module in (ann[0], ann[3]):
        module.bias.data.fill_(-100.0)
    assert energy(osp.convert(ann, method), [x], 5).synaptic_operations == 0


@pytest.mark.parametrize("pool", ["average", "gate"])
@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.filterwarnings("ignore:energy counts layers")
def test_every_network_of_the_gallery_is_metered_sample_by_sample(name, pool):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    inputs = tuple(dyadic_images(3, *shape, seed=k) for k, shape in enumerate(shapes))
    ann = osp.prepare(make().eval(), osp.QCFS(4), example=inputs if len(inputs) > 1 else inputs[0], pool=pool)
    snn = osp.convert(dyadic(ann), osp.methods.exact(4))
    whole, *parts = (energy(snn, [(tuple(x[rows] for x in inputs), None)], 4)
                     for rows in (slice(3), slice(1), slice(1, 3)))  # fmt: skip
    assert whole == parts[0] + parts[1]
    assert whole.synaptic_operations + whole.macs > 0


def test_images_of_two_sizes_are_metered_together():
    ann, x = pooled()
    snn, small = osp.convert(ann, osp.methods.exact(4)), dyadic_images(4, 2, 4, 4)
    assert energy(snn, [x, small], 4) == energy(snn, [x], 4) + energy(snn, [small], 4)
