"""Counts that must come out exactly: fan-out, silence, sums over batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.energy import CostModel, Energy, energies, energy, fan_out


def cnn():
    layers = [nn.Conv2d(2, 4, 3, padding=1), osp.QCFS(4), nn.Conv2d(4, 6, 3, 2, 1, groups=2), osp.QCFS(4)]
    return dyadic(nn.Sequential(*layers, nn.Flatten(), nn.Linear(54, 3))), dyadic_images(8, 2, 6, 6)


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


def test_phase_one_of_the_causal_schedule_is_paid_for():
    ann, x = cnn()
    plain, srp = (energy(osp.convert(ann, m), [x], 4) for m in (osp.methods.qcfs(), osp.methods.srp(4)))
    assert srp.membrane_updates == 2 * plain.membrane_updates
    assert srp.macs == plain.macs
    assert srp.synaptic_operations >= plain.synaptic_operations  # phase 1 alone is what θ/2 sends


def test_joules_follow_the_cost_model():
    spent = Energy(samples=2, synaptic_operations=10, macs=4, membrane_updates=6, ann_macs=100)
    assert spent.joules(CostModel(2.0, 1.0, 0.5)) == (10 + 3 + 8) / 2
    assert spent.ann_joules(CostModel(2.0, 1.0)) == 100
    assert spent.joules() == pytest.approx((16 * 0.9e-12 + 4 * 4.6e-12) / 2)
    with pytest.raises(ValueError, match="no batches"):
        energy(osp.convert(cnn()[0], osp.methods.qcfs()), [], 4)


@pytest.mark.parametrize("method", [osp.methods.qcfs(), osp.methods.cos(4), osp.methods.srp(3)], ids=lambda m: m.name)
def test_one_pass_knows_the_cost_of_every_prefix(method):
    ann, x = cnn()
    snn = osp.convert(ann, method)
    assert energies(snn, x.split(3), 6) == tuple(energy(snn, x.split(3), t) for t in range(1, 7))
