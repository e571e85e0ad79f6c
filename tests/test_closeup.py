"""A close look must show what the network really does."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.look.closeup import close_up


def network():
    layers = [nn.Conv2d(1, 3, 3), osp.QCFS(4), nn.Flatten(), nn.Linear(48, 30), osp.QCFS(4), nn.Linear(30, 5)]
    return dyadic(nn.Sequential(*layers)), dyadic_images(1, 1, 6, 6)


METHODS = [
    osp.methods.cos(4),
    osp.methods.exact(4),
    osp.methods.exact(4, schedule="causal"),
    osp.methods.qcfs(),
    osp.methods.srp(3),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}-{m.schedule}")
def test_spikes_and_potentials_are_those_of_the_network(method):
    ann, x = network()
    snn, sent = osp.convert(ann, method), {}
    for name, layer in snn.layers.items():
        layer.register_forward_hook(lambda m, args, out, name=name: sent.update({name: out.sign().flatten(1)}))
    look = close_up(snn, x[0], label=3, steps=6, reference=ann, traced=2, rows=9)
    assert (look.label, look.steps, look.expected) == (3, 6, int(ann(x).argmax()))
    assert look.given == tuple(snn(x, 6).cumsum(0).argmax(-1).flatten().tolist())
    assert [view.name for view in look.layers] == list(snn.layers)
    for view in look.layers:
        assert len(view.neurons) <= 9
        assert torch.equal(view.after.spikes, sent[view.name][:6, list(view.neurons)])
        for run in (view.before, view.after):
            v = run.v0
            for t, current in enumerate(view.current):
                m = v + current
                fired = (m >= view.theta).double()
                assert torch.equal(run.spikes[t].double(), fired)
                v = m - fired * view.theta
                finite = v.isfinite()
                assert torch.equal(run.potential[t][finite], v[finite])
        assert torch.equal(view.before.v0, view.theta.double() / 2)


def test_the_neurons_that_owe_most_come_first():
    ann, x = network()
    for view in close_up(osp.convert(ann, osp.methods.exact(4)), x[0], label=0, steps=4, traced=5).layers:
        owed = view.before.psi[-1].abs()
        assert view.traced == 5
        assert owed[:5].min() >= owed[5:].max()
        assert view.after.psi[-1].abs().max() == 0, "exact calibration owes nothing after ρ steps"
