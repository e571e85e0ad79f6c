"""Layers written down and made again: the same layer on "meta", or a ValueError that names it."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from models import MODELS
from offspike.activations import QCFS
from offspike.capture import captured
from offspike.layers import SpikingLayer
from offspike.leaves import LEAVES, build, describe, register_leaf
from offspike.methods import cos


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name: str) -> None:
    for path, module in captured(MODELS[name][0]()).named_modules():
        if type(module) in LEAVES:
            again = build(path, describe(path, module))
            assert repr(again) == repr(module)
            assert {key: t.shape for key, t in again.state_dict().items()} == {
                key: t.shape for key, t in module.state_dict().items()
            }
            assert all(tensor.is_meta for tensor in again.state_dict().values())


@pytest.mark.parametrize(
    "layer",
    [
        nn.UpsamplingBilinear2d(scale_factor=2), nn.UpsamplingNearest2d(size=(4, 6)), nn.ConstantPad2d(1, 0.5),
        nn.ConstantPad1d((1, 2), -1.5), nn.ReplicationPad1d(1), nn.ReplicationPad2d((1, 0, 2, 3)),
        nn.ReplicationPad3d(1), nn.ReflectionPad3d(1), nn.CircularPad1d(1), nn.CircularPad2d(1), nn.CircularPad3d(1),
        nn.Unfold((2, 3), padding=1), nn.Fold((4, 4), 2, stride=2), nn.AlphaDropout(0.25), nn.FeatureAlphaDropout(),
        nn.SyncBatchNorm(4, momentum=None),
    ],
    ids=str,
)  # fmt: skip
def test_rarer_layers_there_and_back(layer: nn.Module) -> None:
    written = json.loads(json.dumps(describe("0", layer), allow_nan=False))
    again = build("0", written)
    assert repr(again) == repr(layer)
    assert describe("0", again) == written


def test_a_spiking_layer_takes_its_method_from_the_network() -> None:
    layer = SpikingLayer(torch.ones(2, 1, 1), cos(rho=4), levels=4, steady=True)
    written = describe("1", layer)
    assert written == {"type": "SpikingLayer", "shape": [2, 1, 1], "levels": 4, "steady": True}
    again = build("1", written, given={SpikingLayer: {"method": cos(rho=4)}})
    assert repr(again) == repr(layer)
    assert again.theta.is_meta
    with pytest.raises(ValueError, match="layer '1' cannot be built"):
        build("1", written)


@pytest.mark.parametrize(
    "written",
    [
        None, 3, [], {}, {"type": "QCFS"}, {"type": ["QCFS"]}, {"type": "Popen"},
        {"type": "QCFS", "shape": []},
        {"type": "QCFS", "shape": [None], "levels": 4},
        {"type": "QCFS", "shape": [2**30] * 3, "levels": 0},
        {"type": "ClippedReLU", "shape": [], "levels": 4},
        {"type": "Linear", "in_features": 2, "out_features": 2},
        {"type": "Linear", "in_features": 2, "out_features": 10**400, "bias": True},
        {"type": "Dropout", "p": 2.0, "inplace": False},
    ],
)  # fmt: skip
def test_what_describes_no_layer(written: Any) -> None:
    with pytest.raises(ValueError, match=r"layer 'a.b' cannot be built from"):
        build("a.b", written)


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.sigmoid(x)  # could not be captured from within


def test_a_layer_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="none of the layers that can be saved"):
        describe("0", Double())
    monkeypatch.setitem(LEAVES, Double, LEAVES[QCFS])  # put back afterwards
    register_leaf(Double, lambda module: {}, lambda fields: Double(**fields))
    network = captured(nn.Sequential(Double()))
    assert type(build("0", describe("0", network.get_submodule("0")))) is Double
