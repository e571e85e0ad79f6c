"""SNNC's corrections: what each one mends, in one pass, and that it stays mended."""

import pytest
import torch
from torch import nn

import offspike as osp
from offspike.corrections import Bias, HalfStep, Potential, Weights
from offspike.thresholds import LeastError


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    block = [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), osp.ReLU()]
    layers = [nn.Conv2d(3, 8, 3, padding=1), osp.ReLU(), *block, nn.Flatten(), nn.Linear(288, 16), osp.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    model(torch.randn(64, 3, 6, 6))  # batch norms see something
    return model.eval(), torch.randn(96, 3, 6, 6)


@torch.no_grad()
def distance(ann, snn, x, steps):
    return float((snn(x, steps).mean(0) - ann(x)).square().mean())


@torch.no_grad()
def channel_errors(ann, snn, x, steps):
    """|mean of (rate − activation)| for each channel of each layer."""
    kept = {}
    hooks = [m.register_forward_hook(lambda m, a, o, n=n: kept.update({n: o})) for n, m in ann.named_children()]
    ann(x)
    for hook in hooks:
        hook.remove()
    errors = []
    for name, layer in snn.layers.items():

        def look(m, args, out, name=name):
            error = out.unflatten(0, (-1, len(x))).mean(0) - kept[name]
            errors.append(error.transpose(0, 1).flatten(1).mean(1).abs())

        hooks.append(layer.register_forward_hook(look))
    snn(x, steps)
    for hook in hooks:
        hook.remove()
    return torch.cat(errors)


def test_bias_takes_the_channel_means_out(network):
    ann, x = network
    rule = LeastError(4)
    plain = osp.convert(ann, osp.methods.exact(4, threshold=rule), calibration=x)
    better = osp.convert(ann, osp.methods.exact(4, threshold=rule, corrections=(Bias(4, 96, 3),)), calibration=x)
    assert channel_errors(ann, better, x, 4).mean() < channel_errors(ann, plain, x, 4).mean() / 4
    assert all(layer.shift is None for layer in plain.layers.values())


def test_the_ann_is_not_touched_and_no_hook_stays(network):
    ann, x = network
    before = {key: value.clone() for key, value in ann.state_dict().items()}
    told = []
    snn = osp.convert(ann, osp.methods.snnc(8, pipeline="advanced", images=32), calibration=x.split(20),
                      progress=lambda what, done, total: told.append((what, done, total)))  # fmt: skip
    assert all(torch.equal(value, before[key]) for key, value in ann.state_dict().items())
    assert not any(m._forward_hooks for m in [*ann.modules(), *snn.modules()])
    assert [entry for entry in told if entry[1] == 3] == [(what, 3, 3) for what in ("weights", "bias", "potential")]
    assert torch.equal(snn(x, 8)[:3], snn(x, 3))


def test_weights_bring_it_nearer(network):
    ann, x = network
    rule, fit = LeastError(4), Weights(4, 96, iterations=60)
    plain, better = (
        osp.convert(ann, osp.methods.exact(4, threshold=rule, corrections=parts), calibration=x)
        for parts in ((Bias(4, 96),), (Bias(4, 96), fit, Bias(4, 96)))
    )
    assert distance(ann, better, x, 4) < distance(ann, plain, x, 4)


def test_the_pipelines_of_snnc_get_better(network):
    ann, x = network
    floor = osp.Method("floor", osp.initial.Constant(0.0), threshold=LeastError(8, shift=0.0))
    light = osp.methods.snnc(8, images=96)
    snns = [osp.convert(ann, method, calibration=x) for method in (floor, light)]
    assert distance(ann, snns[1], x, 8) < distance(ann, snns[0], x, 8)
    advanced = osp.convert(ann, osp.methods.snnc(8, pipeline="advanced", images=96), calibration=x)
    assert distance(ann, advanced, x, 8) < distance(ann, snns[0], x, 8)
    assert all(layer.start is not None for layer in advanced.layers.values())


def test_half_a_step_a_step_makes_half_a_threshold():
    ann = nn.Sequential(nn.Linear(1, 1), osp.ClippedReLU(1.0), nn.Linear(1, 1)).eval()
    snn = osp.convert(ann, osp.Method("half", osp.initial.Constant(0.0), corrections=(HalfStep(8),)))
    assert next(iter(snn.layers.values())).shift.item() == 1 / 16


@pytest.mark.parametrize("size", [1, 7, 31])
def test_which_images_are_used_does_not_depend_on_batches(network, size):
    ann, x = network
    method = osp.methods.exact(4, threshold=LeastError(4), corrections=(Bias(4, images=30),))
    whole, parts = (osp.convert(ann, method, calibration=data) for data in (x, x.split(size)))
    for a, b in zip(whole.layers.values(), parts.layers.values(), strict=True):
        assert torch.equal(a.theta, b.theta)
        assert torch.equal(a.shift, b.shift)
    fewer = osp.convert(
        ann, osp.methods.exact(4, threshold=LeastError(4), corrections=(Bias(4, images=29),)), calibration=x
    )
    assert not torch.equal(next(iter(fewer.layers.values())).shift, next(iter(whole.layers.values())).shift)


@pytest.mark.parametrize("method", [osp.methods.snnc(4, images=8), osp.methods.snnc(4, pipeline="advanced", images=8)])
def test_a_corrected_network_is_saved_whole(network, tmp_path, method):
    ann, x = network
    snn = osp.convert(ann, method, calibration=x[:16])
    osp.save(snn, tmp_path / "snn.safetensors")
    again = osp.load(tmp_path / "snn.safetensors")
    assert again.method == method
    assert torch.equal(again(x, 4), snn(x, 4))


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"Potential sets v\(0\) for the whole data set"):
        osp.methods.exact(4, corrections=(Potential(4),))
    for make in (lambda: Bias(0), lambda: Potential(4, images=0), lambda: osp.corrections.Weights(4, batch=0)):
        with pytest.raises(ValueError, match="must be >= 1, got 0"):
            make()
    with pytest.raises(ValueError, match="pipeline must be light or advanced"):
        osp.methods.snnc(4, pipeline="heavy")
    qcfs = nn.Sequential(nn.Linear(2, 2), osp.QCFS(4), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="nothing to correct with"):
        osp.convert(qcfs, osp.methods.exact(4, corrections=(Bias(4),)), calibration=[])
