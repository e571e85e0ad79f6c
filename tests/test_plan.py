"""A plan changes how a network runs, never what it answers: compared with the model run layer by layer, bit for bit."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from gallery import ACCEPTED
from offspike import rivals
from offspike.zoo.resnet import ResNet
from offspike.zoo.vgg import VGG

METHODS = {
    "qcfs": osp.methods.qcfs(),
    "light": osp.methods.cos_light(4),
    "cos": osp.methods.cos(4, iterations=2),
    "exact": osp.methods.exact(4),
    "causal": osp.methods.exact(3, schedule="causal"),
    "srp": osp.methods.srp(4),
    "signed": osp.Method("signed", osp.initial.Constant(0.5), osp.neurons.SignedIF()),
}


def residual():
    return dyadic(ResNet((6, 12), (1, 2), classes=5, activation=osp.QCFS(4), size=8)), dyadic_images(5, 3, 8, 8)


def pooled():
    model = VGG((6, 8, "A", 10, "A"), (24, 24), classes=5, activation=osp.QCFS(4), channels=3, size=8)
    return dyadic(model), dyadic_images(5, 3, 8, 8)


def layer_by_layer(snn, x, steps):
    with rivals.reference(snn):
        return snn(x, steps=steps)


@pytest.mark.parametrize("precision", ["exact32", "tf32", "bf16"])
@pytest.mark.parametrize("build", [residual, pooled], ids=lambda build: build.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_a_plan_answers_as_the_model_does(name, build, precision):
    ann, x = build()
    snn = osp.convert(ann, METHODS[name])
    expected = layer_by_layer(snn, x, 6)
    snn.precision = precision
    assert snn.prepared()[0] is not None
    got = snn(x, steps=6)
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ACCEPTED)
@torch.no_grad()
def test_whatever_can_be_converted_can_be_planned(name):
    torch.manual_seed(0)
    make, shapes = ACCEPTED[name]
    inputs = tuple(dyadic_images(3, *shape, seed=seed) for seed, shape in enumerate(shapes))
    ann = dyadic(osp.prepare(make().eval(), osp.QCFS(4), example=inputs if len(inputs) > 1 else inputs[0]))
    snn = osp.convert(ann, osp.methods.exact(4))
    hooks = [layer.register_forward_hook(lambda *_: None) for layer in snn.layers.values()]
    expected = snn(*inputs, steps=5)
    for hook in hooks:
        hook.remove()
    for precision in ("exact32", "tf32"):
        snn.precision = precision
        assert snn.prepared()[0] is not None
        torch.testing.assert_close(snn(*inputs, steps=5), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("build", [residual, pooled], ids=lambda build: build.__name__)
def test_time_may_be_cut_into_pieces(build, name):
    ann, x = build()
    snn = osp.convert(ann, METHODS[name])
    whole = snn(x, steps=9)
    for piece in (1, 3, 20):
        assert torch.equal(snn(x, steps=9, piece=piece), whole)


def test_max_pooling_by_counts_goes_on_from_piece_to_piece():
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    x = dyadic_images(4, 2, 4, 4)
    ann = dyadic(osp.prepare(model.eval(), osp.QCFS(4), example=x, pool="gate"))
    snn = osp.convert(ann, osp.methods.exact(3))
    assert torch.equal(snn(x, steps=10, piece=2), snn(x, steps=10))


def test_each_piece_holds_that_many_steps():
    ann, x = residual()
    heard = []
    osp.convert(ann, osp.methods.exact(4))(x, steps=9, piece=2, heard=lambda layer, spikes: heard.append(len(spikes)))
    layers = 7
    assert heard == [4] * layers + [2] * layers * 2 + [1] * layers


def test_what_is_heard_are_the_spikes():
    ann, x = pooled()
    snn = osp.convert(ann, osp.methods.exact(4), precision="tf32")
    seen, wanted = {}, {}
    snn(x, steps=5, heard=lambda layer, spikes: seen.update({layer: spikes != 0}))
    for layer in snn.layers.values():
        layer.register_forward_hook(lambda m, args, out: wanted.update({m: out.unflatten(0, (5, -1)) != 0}))
    snn(x, steps=5)
    assert seen.keys() == wanted.keys()
    assert all(torch.equal(seen[layer], wanted[layer]) for layer in wanted)


def test_sums_and_biases_are_left_to_the_neurons():
    ann, _ = residual()
    plan = osp.convert(ann, osp.methods.exact(4), precision="tf32").prepared()[0]
    assert not any(node.target == "operator.add" for node, _, _ in plan.program)
    assert len(plan.reading.sums) == 3
    convolutions = [node for node, _, _ in plan.program if isinstance(plan.reading.module(node), nn.Conv2d)]
    assert [plan.reading.bare(node) for node in convolutions] == [True] * 8
    exact = osp.convert(ann, osp.methods.exact(4)).prepared()[0]
    assert not any(exact.reading.bare(node) for node in convolutions)


def test_a_plan_follows_its_network():
    ann, x = residual()
    snn = osp.convert(ann, osp.methods.exact(4))
    before = snn(x, steps=4)
    with torch.no_grad():
        snn.model.classifier.weight.mul_(2)
        snn.model.classifier.bias.mul_(2)
    assert torch.equal(snn(x, steps=4), 2 * before)
    next(iter(snn.layers.values())).theta.mul_(0.5)
    assert torch.equal(snn(x, steps=4), layer_by_layer(snn, x, 4))
    snn.double()
    assert snn(x.double(), steps=4).dtype == torch.float64


def test_a_copy_makes_its_own_plan():
    ann, x = residual()
    snn = osp.convert(ann, osp.methods.exact(4))
    expected = snn(x, steps=4)
    copy = deepcopy(snn)
    copy.model.classifier.weight.data.zero_()
    assert torch.equal(snn(x, steps=4), expected)
    assert not torch.equal(copy(x, steps=4), expected)


@pytest.mark.parametrize("precision", ["float16", "", "BF16", None])
def test_a_precision_is_one_of_four_words(precision):
    ann, x = residual()
    with pytest.raises(ValueError, match="precision must be one of exact32, tf32, bf16, int8;"):
        osp.convert(ann, osp.methods.exact(4), precision=precision)
    if precision is not None:
        with pytest.raises(ValueError, match="precision must be one of"):
            osp.evaluate(osp.convert(ann, osp.methods.exact(4)), [(x, x)], steps=4, precision=precision)
