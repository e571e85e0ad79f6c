"""The names that the outside world relies on (docs/design.md, section 3)."""

import inspect

import pytest
import torch
from torch import nn

import offspike as osp
from offspike.graph import GraphNetwork

NAMES = "prepare QCFS init_thresholds convert methods evaluate Report audit save load initial equations ops record zoo"
NAMES += " freeze to_nir from_nir to_onnx to_spikingjelly snap certify Certificate verify"


def test_the_contract():
    for name in NAMES.split():
        assert hasattr(osp, name), name
    for name in ("qcfs", "cos", "cos_light", "exact", "by_name"):
        assert callable(getattr(osp.methods, name))
    for name in ("qcfs", "offset_spikes", "shift_for_one_spike", "interval"):
        assert callable(getattr(osp.equations, name))
    for name in ("Constant", "Uniform", "Residual", "Shift", "Exact"):
        assert isinstance(getattr(osp.initial, name), type)
    assert list(inspect.signature(osp.ops.fire).parameters) == ["current", "theta", "v0"]
    assert list(inspect.signature(osp.ops.probe).parameters) == ["current", "theta", "v0"]


def test_everything_public_is_documented():
    for name in osp.__all__:
        assert inspect.getdoc(getattr(osp, name)), name


def takers(*kinds):
    """The public functions with an argument of one of these types, and the argument's name."""
    functions = inspect.getmembers(osp, inspect.isfunction)
    parameters = [(name, p) for name, function in functions for p in inspect.signature(function).parameters.values()]
    return [(name, p.name) for name, p in parameters if p.annotation in kinds]


@pytest.fixture(scope="module")
def given():
    """Something sensible for every argument."""
    torch.manual_seed(0)
    x, labels = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])
    ann = nn.Sequential(nn.Linear(3, 4), osp.QCFS(4), nn.Linear(4, 2)).eval()
    snn, loader = osp.convert(ann, osp.methods.exact(rho=4), example=x), [(x, labels)]
    networks = {
        "ann": ann,
        "model": ann,
        "reference": ann,
        "teacher": ann,
        "snn": snn,
        "snapped": osp.snap(ann, example=x),
    }
    data = dict.fromkeys(("loader", "batches"), loader) | dict.fromkeys(("x", "example", "batch", "images"), x)
    rest = {"steps": 4, "margins": [0.0], "path": "never written", "method": osp.methods.qcfs()}
    return {**networks, **data, **rest, "activation": osp.QCFS(4), "certificate": osp.certify(ann, snn, loader)}


def call(name, arguments):
    parameters = inspect.signature(getattr(osp, name)).parameters.values()
    positional = [arguments[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in arguments]
    named = {p.name: arguments[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in arguments}
    with getattr(osp, name)(*positional, **named):  # osp.record looks at its arguments when it is entered
        pass


@pytest.mark.parametrize("wrong", [nn.Linear(3, 2), torch.rand(2, 3), "snn.safetensors", None, osp.SpikingNetwork])
@pytest.mark.parametrize(("name", "argument"), takers(osp.SpikingNetwork))
def test_who_takes_a_spiking_network_says_so(name, argument, wrong, given):
    with pytest.raises(TypeError, match=rf"{name} takes a spiking network; osp.convert\(.* Got "):
        call(name, given | {argument: wrong})


@pytest.mark.parametrize("wrong", [torch.rand(2, 3), "ann.safetensors", nn.Linear])
@pytest.mark.parametrize(("name", "argument"), takers(nn.Module, nn.Module | None, GraphNetwork))
def test_who_takes_a_model_says_so(name, argument, wrong, given):
    with pytest.raises(
        TypeError, match=r"a torch.nn.Module[,;] got (Tensor|str|the class Linear|'ann.safetensors': osp)"
    ):
        call(name, given | {argument: wrong})


@pytest.mark.parametrize(("name", "argument"), takers(nn.Module, nn.Module | None, GraphNetwork))
def test_a_spiking_network_is_not_converted_again(name, argument, given):
    if name != "save":  # which takes both
        with pytest.raises(TypeError, match=r"the ANN that (it )?was converted"):
            call(name, given | {argument: given["snn"]})


def test_what_is_no_certificate_is_not_verified(given):
    with pytest.raises(TypeError, match=r"osp.Certificate.from_json\(path\); got Sequential"):
        osp.verify(given["ann"], given["ann"], given["snn"])
    with pytest.raises(TypeError, match="covers takes a spiking network"):
        given["certificate"].covers(given["ann"])
