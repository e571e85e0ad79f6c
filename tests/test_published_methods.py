"""Whole networks under the published methods, against a plain simulation written from the papers, step by step."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import offspike as osp
from exact import ann_count
from exact import simulate as one_neuron
from offspike.corrections import Bias, HalfStep, Potential

T, TAU = 8, 4


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
    x = torch.rand(40, 6, dtype=torch.float64)
    first = model[0](x).relu()
    return model.requires_grad_(False), x, [a.detach() for a in (first, model[2](first).relu())]


def simulate(model, x, theta, *, v0, steps=T, added=(0, 0), signed=False, mask=(1, 1)):
    """All layers step together; logits of each step, potentials at the end, spikes sent."""
    v = [torch.zeros(len(x), n, dtype=x.dtype) + start for n, start in zip((9, 8), v0, strict=True)]
    sent = [torch.zeros_like(each) for each in v]
    logits = []
    for _ in range(steps):
        value = x
        for k, linear in enumerate((model[0], model[2])):
            v[k] = v[k] + linear(value) + added[k]
            spikes = (v[k] >= theta[k]).double()
            if signed:
                spikes -= ((v[k] <= -theta[k]) & (sent[k] > 0)).double()
            v[k], sent[k] = v[k] - spikes * theta[k], sent[k] + spikes
            value = spikes * theta[k] * mask[k]
        logits.append(model[4](value))
    return torch.stack(logits), v, sent


def converted(network, method):
    model, x, _ = network
    snn = osp.convert(osp.prepare(model, osp.ReLU(), example=x), method, calibration=x)
    return snn, [layer.theta.double() for layer in snn.layers.values()]


def trained(network):
    model, x, _ = network
    ann = osp.prepare(model, osp.QCFS(4), example=x)
    osp.init_thresholds(ann, x)
    return ann, [module.lam.detach().double() for module in ann.modules() if isinstance(module, osp.QCFS)]


@pytest.mark.parametrize(("method", "start", "signed"), [
    (osp.methods.rmp(), 0.0, False), (osp.methods.opi(q=90.0), 0.5, False), (osp.methods.snm(), 0.0, True),
    (osp.methods.snm(fraction=0.5), 0.5, True),
], ids=["rmp", "opi", "snm", "snm, θ/2"])  # fmt: skip
def test_rmp_opi_and_snm(network, method, start, signed):
    model, x, answers = network
    snn, theta = converted(network, method)
    expected, _, sent = simulate(model, x, theta, v0=[start * t for t in theta], signed=signed)
    assert torch.equal(snn(x, T), expected)
    assert all(bool((each >= 0).all()) for each in sent)
    for found, a in zip(theta, answers, strict=True):
        wanted = {"rmp": a.max(), "opi": a.flatten().sort().values[int(0.9 * a.numel()) - 1]}.get(method.name)
        if wanted is None:  # SNM: each neuron its own maximum; the layer's where it never was above 0
            wanted = torch.where(a.amax(0) > 0, a.amax(0), a.max())
        torch.testing.assert_close(found, wanted.expand(found.shape), rtol=2**-13, atol=0)


def test_qcfs_and_srp(network):
    model, x, _ = network
    ann, theta = trained(network)
    half = [t / 2 for t in theta]
    assert torch.equal(osp.convert(ann, osp.methods.qcfs())(x, T), simulate(model, x, theta, v0=half)[0])
    _, residual, _ = simulate(model, x, theta, v0=half, steps=TAU)
    mask = [(v > 1e-3 * t).double() for v, t in zip(residual, theta, strict=True)]
    assert any(bool((m == 0).any()) for m in mask)
    assert torch.equal(osp.convert(ann, osp.methods.srp(TAU))(x, T), simulate(model, x, theta, v0=half, mask=mask)[0])


def test_the_corrections_of_snnc(network):
    """Half a step a step, channel means out of the bias, neuron means into v(0): layer by layer, on the images."""
    model, x, answers = network
    plain = osp.methods.snnc(T, images=len(x))
    snn, theta = converted(network, plain)
    shift = [t / (2 * T) for t in theta]
    starts = [0, 0]

    def rate(k):
        return simulate(model, x, theta, v0=starts, added=shift)[2][k] * theta[k] / T

    for k in range(2):
        shift[k] = shift[k] - (rate(k) - answers[k]).mean(0)
    assert torch.equal(snn(x, T), simulate(model, x, theta, v0=starts, added=shift)[0])
    for k in range(2):
        starts[k] = T * (answers[k] - rate(k)).mean(0)
    parts = (HalfStep(T), Bias(T, len(x)), Potential(T, len(x)))
    snn, _ = converted(network, replace(plain, corrections=parts))
    torch.testing.assert_close(snn(x, T), simulate(model, x, theta, v0=starts, added=shift)[0], rtol=1e-12, atol=1e-12)
    assert osp.methods.snnc(T, pipeline="advanced").corrections[-1] == Potential(T)


def calibrated(current, theta, method):
    """v(0) of one neuron, from the paper's pseudo-code (appendix A.6) and its lightweight scheme (A.5)."""
    v0 = theta / 2
    if method.name == "cos_light":
        return one_neuron(current, theta, v0).potentials[-1]
    for _ in range(method.initial.iterations):
        run = one_neuron(current, theta, v0)
        steps, wanted = list(zip(run.spikes, run.potentials, strict=True)), ann_count(current, theta)
        if run.count > wanted:
            v0 -= max(theta, 1e-3 * theta + min(v for s, v in steps if s == 1))
        elif run.count < wanted:
            v0 += max(theta, theta + 1e-3 * theta - max(v for s, v in steps if s == 0))
    return v0


def layer(current, theta, starts):
    """The currents ``[T, B, N]`` of a layer to what it sends, neuron by neuron."""
    sent = torch.zeros_like(current)
    for b, n in ((b, n) for b in range(current.shape[1]) for n in range(current.shape[2])):
        spikes = one_neuron(current[:, b, n].tolist(), theta, starts[b][n]).spikes
        sent[:, b, n] = torch.tensor(spikes, dtype=current.dtype) * theta
    return sent


@pytest.mark.parametrize("schedule", ["layerwise", "causal"])
@pytest.mark.parametrize(("rho", "steps"), [(1, 3), (4, 1), (4, 6), (8, 8)])
@pytest.mark.parametrize("iterations", [0, 1, 3], ids=["light", "once", "thrice"])
def test_the_paper_itself(network, iterations, rho, steps, schedule):
    """Layer by layer: each listens to what the calibrated layer before it sends. Causal: all listen to θ/2 at once."""
    model, x, _ = network
    ann, theta = trained(network)
    options = {"rho": rho, "schedule": schedule}
    method = osp.methods.cos(**options, iterations=iterations) if iterations else osp.methods.cos_light(**options)
    theta = [t.item() for t in theta]
    heard = value = model[0](x).expand(max(rho, steps), -1, -1)
    for k, linear in enumerate((model[2], model[4])):
        listened = heard[:rho].permute(1, 2, 0).tolist()
        starts = [[calibrated(neuron, theta[k], method) for neuron in sample] for sample in listened]
        if schedule == "causal":
            half = [[theta[k] / 2] * heard.shape[2]] * len(x)
            value, heard = linear(layer(value, theta[k], starts)), linear(layer(heard, theta[k], half))
        else:
            value = heard = linear(layer(value, theta[k], starts))
    found = osp.convert(ann, method)(x, steps)
    assert torch.equal(found, value[:steps])
    plain = osp.convert(ann, osp.methods.qcfs())(x, steps)
    assert torch.equal(found, plain) == (iterations > 0 and rho == 1)  # one step from θ/2 is right already
