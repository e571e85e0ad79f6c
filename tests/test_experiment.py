"""Every published method on one network, by its name."""

import pytest
import torch
from torch import nn

import offspike as osp
from offspike import experiment
from offspike.methods import LEARNED
from offspike.thresholds import LeastError


@pytest.mark.parametrize("activation", [osp.QCFS(4, lam=2.0), osp.ReLU()], ids=["qcfs", "relu"])
def test_the_same_network_under_every_method(activation):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)]
    x = torch.rand(40, 6)
    ann = osp.prepare(nn.Sequential(*layers), activation, example=x).eval()
    batches = list(experiment.batched(x, ann(x).argmax(1), 16))
    rule = LEARNED if experiment.has_thresholds(ann) else LeastError(4)
    line = {name: experiment.named(name, rho=4, steps=32, threshold=rule) for name in experiment.NAMES}
    reports = experiment.compare(ann, lambda: batches, line, steps=32, calibration=[x[:20], x[20:]])
    assert list(reports) == list(line)
    for name, report in reports.items():
        assert report.method == line[name]
        assert report.accuracy[-1] > 0.6, f"{name} does not follow the ANN"
    assert experiment.named("srp", rho=3, steps=8).rho == 3
    assert experiment.named("exact", rho=3, steps=8, schedule="causal") == osp.methods.exact(3, schedule="causal")


def test_a_network_of_plain_relus_is_left_as_it_computes():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    ).eval()
    x = torch.rand(5, 1, 8, 8)
    made = experiment.rectified(model, (1, 8, 8))
    assert torch.equal(made(x), model(x))
    assert not experiment.has_thresholds(made)
    assert experiment.rectified(made, (1, 8, 8)) is made
