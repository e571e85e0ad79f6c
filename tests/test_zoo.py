"""The networks of the paper's tables, by the figures that identify them."""

import pytest
import torch

from offspike import QCFS, zoo


def shape_of(build, **options):
    with torch.device("meta"):
        return build(**options)


def macs(model, x):
    """Multiply-accumulates of convolutions and linear layers, from the shapes that go through them."""
    total = 0

    def count(module, args, out):
        nonlocal total
        total += out.numel() * module.weight[0].numel()

    for module in model.modules():
        if hasattr(module, "weight") and module.weight is not None and module.weight.ndim > 1:
            module.register_forward_hook(count)
    model(x)
    return total


@pytest.mark.parametrize(
    ("build", "options", "neurons", "millions", "gmacs"),
    [
        (zoo.vgg16, {"classes": 100}, 15, 34.0, 0.332),
        (zoo.resnet18, {}, 17, 11.2, None),
        (zoo.resnet20, {"classes": 100}, 19, 0.28, None),
        (zoo.resnet34, {}, 33, 21.8, 56.8),
        (zoo.resnet34, {"stem": "imagenet"}, 33, 21.8, 56.8 / 15.5),
    ],
)
def test_size_of_the_paper(build, options, neurons, millions, gmacs):
    model = shape_of(build, **options)
    activations = [m for m in model.modules() if isinstance(m, QCFS)]
    assert len(activations) == len({id(m) for m in activations}) == neurons
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)
    if gmacs:
        x = torch.zeros(1, *model.input_shape, device="meta")
        assert macs(model, x) / 1e9 == pytest.approx(gmacs, rel=0.04)


@pytest.mark.parametrize("build", zoo.NETWORKS.values(), ids=zoo.NETWORKS)
def test_logits_for_its_own_input_shape(build):
    model = shape_of(build, classes=7).eval()
    assert model(torch.zeros(2, *model.input_shape, device="meta")).shape == (2, 7)


def test_each_activation_is_a_copy_of_the_prototype():
    prototype = QCFS(8, lam=3.0)
    model = zoo.small(activation=prototype)
    assert all(m is not prototype and m.levels == 8 for m in model.modules() if isinstance(m, QCFS))


def test_images_too_small_and_unknown_stems_are_refused():
    with pytest.raises(ValueError, match="16x16 are too small"):
        zoo.vgg16(size=16)
    with pytest.raises(ValueError, match="stem must be"):
        zoo.resnet18(stem="mouse")
