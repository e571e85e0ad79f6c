"""Where a training begins: networks by name, and the weights of another network."""

import pytest
import torch
from torch import nn

from offspike.activations import QCFS, ClippedReLU
from offspike.training.recipe import TrainingError
from offspike.training.start import begin_from, network

SHAPE = (1, 8, 8)


def make(levels, seed=0, name="small"):
    return network(name, levels, shape=SHAPE, classes=10, seed=seed)


def test_the_seed_decides_the_weights_and_nothing_else_is_disturbed():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second, other = make("4"), make("4"), make("4", seed=1)
    assert torch.equal(torch.rand(2), expected)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.features[0].weight, other.features[0].weight)
    assert any(isinstance(m, nn.ReLU) for m in make("relu").modules())
    assert any(isinstance(m, ClippedReLU) for m in make("clip").modules())


@pytest.mark.parametrize(("origin", "levels", "known"), [("4", "2", True), ("clip", "1", True), ("relu", "4", False)])
def test_weights_come_along_and_thresholds_where_there_are_some(origin, levels, known):
    old, new = make(origin, seed=1), make(levels)
    for module in old.modules():
        if isinstance(module, QCFS | ClippedReLU):
            module.set_threshold(3.0)
    assert begin_from(new, old) is known
    given = old.state_dict()
    for name, value in new.state_dict().items():
        expected = given.get(name, torch.zeros(()))
        assert torch.equal(value, expected), name
    assert {m.levels for m in new.modules() if isinstance(m, QCFS)} == {int(levels)}


def test_a_relu_network_takes_no_thresholds():
    assert begin_from(make("relu"), make("4", seed=1))


def test_what_does_not_fit_is_named():
    with pytest.raises(TrainingError, match=r"another network: .* does not fit"):
        begin_from(make("4"), make("4", name="resnet20"))
    wide = network("small", "4", shape=SHAPE, classes=7)
    with pytest.raises(TrainingError, match=r"classifier.3.weight does not fit"):
        begin_from(make("4"), wide)
    for wrong in ({"name": "alexnet"}, {"levels": "0"}, {"levels": "many"}, {"shape": (3, 8, 9)}, {"dropout": 0.5}):
        with pytest.raises(ValueError, match=r"network|levels|square|dropout"):
            network(**{"name": "small", "levels": "4", "shape": SHAPE, "classes": 10, **wrong})
