"""The whole: equal to the ANN bit for bit, without state, prefix by prefix, sample by sample."""

import pytest
import torch
from torch import nn

import offspike as osp
from exact import dyadic, dyadic_images
from offspike.zoo.resnet import ResNet
from offspike.zoo.vgg import VGG

METHODS = {
    "qcfs": osp.methods.qcfs(),
    "uniform": osp.Method("uniform", osp.initial.Uniform(seed=1)),
    "light": osp.methods.cos_light(4),
    "cos": osp.methods.cos(4),
    "exact": osp.methods.exact(4),
    "causal light": osp.methods.cos_light(4, schedule="causal"),
    "causal cos": osp.methods.cos(4, schedule="causal"),
    "causal exact": osp.methods.exact(4, schedule="causal"),
    "srp": osp.methods.srp(4),
    "signed": osp.Method("signed", osp.initial.Constant(0.5), osp.neurons.SignedIF()),
}


def residual_cnn(levels):
    model = ResNet((6, 12), (1, 2), classes=5, activation=osp.QCFS(levels), size=8)
    return dyadic(model), dyadic_images(9, 3, 8, 8)


def vgg_like(levels):
    plan = (6, 8, "A", 10, "A")
    model = VGG(plan, (24, 24), classes=5, activation=osp.QCFS(levels), channels=3, size=8)
    return dyadic(model), dyadic_images(9, 3, 8, 8)


def mlp(levels):
    layers = [nn.Linear(6, 20), osp.QCFS(levels), nn.Linear(20, 20), osp.QCFS(levels), nn.Linear(20, 4)]
    return dyadic(nn.Sequential(*layers)), dyadic_images(9, 6)


@pytest.fixture(params=[residual_cnn, vgg_like, mlp], ids=lambda build: build.__name__)
def network(request):
    return request.param


@pytest.mark.parametrize("levels", [1, 2, 4, 8])
def test_the_snn_equals_its_ann_bit_for_bit(network, levels):
    ann, x = network(levels)
    expected = ann(x)
    assert len(expected.unique(dim=0)) > len(x) // 2, "a network that says the same of all images would prove nothing"
    for place in ("even", "carry", "first", "middle", "near"):
        logits = osp.convert(ann, osp.methods.exact(levels, place=place))(x, steps=levels)
        assert torch.equal(logits.mean(0), expected)
    iterated = osp.convert(ann, osp.methods.cos(levels, iterations=levels, eps=2.0**-10))
    assert torch.equal(iterated(x, steps=levels).mean(0), expected)


def test_half_a_threshold_is_not_enough(network):
    ann, x = network(4)
    assert not torch.equal(osp.convert(ann, osp.methods.qcfs())(x, steps=4).mean(0), ann(x))


@pytest.mark.parametrize("name", METHODS)
def test_a_shorter_run_is_a_prefix_of_a_longer_one(network, name):
    ann, x = network(4)
    snn = osp.convert(ann, METHODS[name])
    long = snn(x, steps=9)
    for steps in (1, 2, 3, 4, 5, 8):  # below, at and above ρ = 4
        assert torch.equal(snn(x, steps=steps), long[:steps])


@pytest.mark.parametrize("name", METHODS)
def test_a_sample_does_not_feel_its_batch(network, name):
    ann, x = network(4)
    snn = osp.convert(ann, METHODS[name])
    together = snn(x, steps=5)
    assert torch.equal(together[:, 3:4], snn(x[3:4], steps=5))
    assert torch.equal(together.flip(1), snn(x.flip(0), steps=5))


@pytest.mark.parametrize("name", METHODS)
def test_nothing_is_kept_between_calls(network, name):
    ann, x = network(4)
    snn = osp.convert(ann, METHODS[name])
    before = {key: value.clone() for key, value in snn.state_dict().items()}
    first = snn(x, steps=6)
    snn(x.flip(0), steps=3)
    assert torch.equal(snn(x, steps=6), first)
    assert all(torch.equal(value, before[key]) for key, value in snn.state_dict().items())


def test_what_lies_before_the_first_spike_is_computed_once(network):
    ann, x = network(4)
    snn = osp.convert(ann, osp.methods.exact(4))
    rows = []
    first = next(m for m in snn.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    first.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    once = snn(x, steps=6)
    assert rows == [len(x)]
    repeated = osp.convert(ann, osp.methods.exact(4))
    repeated.repeat_input = True
    for layer in repeated.layers.values():
        layer.steady = False
    assert torch.equal(repeated(x, steps=6), once)


class SeesTheImageTwice(nn.Module):
    """The image is added to spikes, so that it must be there at every step."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 6), osp.QCFS(4), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)) + x)


def test_an_image_that_meets_spikes_is_repeated():
    ann, x = dyadic(SeesTheImageTwice()), dyadic_images(5, 6)
    snn = osp.convert(ann, osp.methods.exact(4))
    assert snn.repeat_input
    assert torch.equal(snn(x, steps=4).mean(0), ann(x))


def test_the_ann_is_not_touched(network):
    ann, x = network(4)
    before = ann(x)
    osp.convert(ann, osp.methods.cos(4))(x, steps=4)
    assert torch.equal(ann(x), before)
    assert not any(isinstance(m, osp.layers.SpikingLayer) for m in ann.modules())


def test_causal_calibration_of_one_layer_is_the_layerwise_one():
    ann = dyadic(nn.Sequential(nn.Linear(6, 30), osp.QCFS(4), nn.Linear(30, 3)))
    x = dyadic_images(7, 6)
    for name, options in (("cos", {}), ("cos_light", {}), ("exact", {"place": "even"}), ("exact", {"place": "near"})):
        layerwise, causal = (
            osp.convert(ann, osp.methods.by_name(name, rho=4, schedule=schedule, **options))(x, steps=7)
            for schedule in ("layerwise", "causal")
        )
        assert torch.equal(causal, layerwise)


@pytest.mark.parametrize(
    ("x", "steps", "error", "message"),
    [
        (torch.zeros(2, 6), 0, ValueError, "steps must be >= 1"),
        (torch.zeros(2, 6), 4.0, TypeError, "steps must be a whole number, got 4.0"),
        (torch.zeros(2, 6), "4", TypeError, "steps must be a whole number, got '4'"),
        (torch.zeros(2, 6, dtype=torch.float64), 4, ValueError, r"inputs of torch.float64: .*x.float\(\)"),
        (torch.zeros(2, 5), 4, ValueError, r"takes inputs \[B, 6\], got \[2, 5\]"),
        (torch.zeros(6), 4, ValueError, "must be a batch"),
        (torch.zeros(0, 6), 4, ValueError, "B >= 1"),
        (torch.zeros(2, 6, dtype=torch.uint8), 4, TypeError, "must be floating point"),
        (torch.full((2, 6), torch.nan), 4, ValueError, "NaN or infinite"),
        (torch.full((2, 6), torch.inf), 4, ValueError, "NaN or infinite"),
    ],
)
def test_bad_input_is_refused(x, steps, error, message):
    ann, example = mlp(4)
    snn = osp.convert(ann, osp.methods.exact(4), example=example)
    with pytest.raises(error, match=message):
        snn(x, steps=steps)


def test_a_shape_that_only_the_model_knows_to_be_wrong_is_refused_too():
    ann, _ = mlp(4)
    with pytest.raises(ValueError, match=r"does not take inputs of shape \[2, 5\]"):
        osp.convert(ann, osp.methods.exact(4))(torch.zeros(2, 5), steps=4)


def test_a_layer_outside_its_network_is_refused():
    ann, x = mlp(4)
    layer = next(iter(osp.convert(ann, osp.methods.qcfs()).layers.values()))
    with pytest.raises(RuntimeError, match="outside its network"):
        layer(x)


def test_a_spiking_network_is_not_trained():
    ann, _ = mlp(4)
    with pytest.raises(ValueError, match="train the ANN"):
        osp.convert(ann, osp.methods.qcfs()).train()


class Then(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


def unknown(how):
    """A network of which nobody has said what inputs it takes."""
    return nn.Sequential(nn.Linear(6, 6), osp.QCFS(4), Then(how), nn.Linear(6, 4)).eval()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda x: x - x.mean(-2, keepdim=True), "mean is an operation on the batch axis"),
        (lambda x: x + torch.flip(x, (-2,)), "torch.flip is an operation on the batch axis"),
        (lambda x: x + x.roll(1, -2), "roll is an operation on the batch axis"),
        (lambda x: x.transpose(-2, -1).reshape(x.shape), "transpose is an operation on the batch axis"),
        (lambda x: x / x.shape[0], "truediv is an operation on the batch axis"),
        (lambda x: x.view(3, -1).view(x.shape), "view is an operation on the batch axis"),
        (lambda x: 2 * x if isinstance(x, torch.Tensor) else x, "as it was traced, it answers otherwise"),
    ],
)
def test_without_an_example_what_mixes_samples_is_refused_at_the_first_run(how, said):
    snn, x = osp.convert(unknown(how), osp.methods.exact(4)), dyadic_images(3, 6)
    with pytest.raises(ValueError, match=said):
        snn(x, steps=4)
    with pytest.raises(ValueError, match=said):
        snn(x, steps=4)


def test_the_refusal_at_the_first_run_names_the_line():
    snn = osp.convert(unknown(lambda x: x - x.mean(-2, keepdim=True)), osp.methods.exact(4))  # here
    with open(__file__) as file:
        line = next(number for number, text in enumerate(file, 1) if text.rstrip().endswith("# here"))
    with pytest.raises(ValueError, match=rf"line {line}\)"):
        snn(dyadic_images(3, 6), steps=4)


def test_each_shape_is_looked_at():
    ann = dyadic(unknown(lambda x: x - x.mean(-3, keepdim=True)))
    snn, x = osp.convert(ann, osp.methods.exact(4)), dyadic_images(3, 4, 2, 6)
    assert torch.equal(snn(x, steps=4).mean(0), ann(x))
    with pytest.raises(ValueError, match="batch axis"):
        snn(x[:, 0], steps=4)


def test_a_network_from_a_file_is_looked_at_too(tmp_path):
    osp.save(osp.convert(unknown(lambda x: x + x.flip(-2)), osp.methods.exact(4)), tmp_path / "snn.safetensors")
    with pytest.raises(ValueError, match="flip is an operation on the batch axis"):
        osp.load(tmp_path / "snn.safetensors")(dyadic_images(3, 6), steps=4)


def test_who_listens_hears_nothing_of_the_first_look():
    ann, x = dyadic(unknown(lambda x: 2 * x)), dyadic_images(3, 6)
    snn, heard = osp.convert(ann, osp.methods.exact(4)), []
    for module in snn.model:
        module.register_forward_hook(lambda module, args, out: heard.append(len(out)))
    assert torch.equal(snn(x, steps=4).mean(0), ann(x))
    assert heard == [3, 12, 12, 12]
