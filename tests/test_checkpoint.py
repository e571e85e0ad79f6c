"""``save`` and ``load``: bit for bit, and nothing but a ValueError from a file that is not right."""

import copy
import json
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

from models import MODELS, same, trained
from offspike import zoo
from offspike.activations import QCFS
from offspike.checkpoint import load, save
from offspike.convert import convert
from offspike.graph import GraphNetwork
from offspike.methods import cos, exact
from offspike.network import SpikingNetwork
from offspike.preprocess import Preprocess


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_ann_round_trip(name: str, tmp_path: Path) -> None:
    model, inputs = trained(MODELS[name][0]()), MODELS[name][1]()
    save(model, tmp_path / "ann.safetensors")
    loaded = load(tmp_path / "ann.safetensors")
    assert isinstance(loaded, GraphNetwork)
    assert not any(module.training for module in loaded.modules())
    assert same(loaded(*copy.deepcopy(inputs)), model(*copy.deepcopy(inputs)))
    assert same(dict(loaded.state_dict()), dict(model.state_dict()))
    assert {n: p.requires_grad for n, p in loaded.named_parameters()} == {n: True for n, _ in model.named_parameters()}
    assert loaded.input_shape == getattr(model, "input_shape", None)
    save(loaded, tmp_path / "again.safetensors")
    again = load(tmp_path / "again.safetensors")
    assert same(again(*copy.deepcopy(inputs)), model(*copy.deepcopy(inputs)))


@torch.no_grad()
def test_vgg16(tmp_path: Path) -> None:
    model = zoo.vgg16().eval()
    save(model, tmp_path / "vgg", dtype="int8")
    assert (tmp_path / "vgg").stat().st_size < 35e6
    x = torch.rand(1, 3, 32, 32)
    assert load(tmp_path / "vgg")(x).shape == model(x).shape


@pytest.mark.parametrize("method", [cos(rho=4), exact(rho=2, schedule="causal")])
@pytest.mark.parametrize("build", [zoo.small, lambda: zoo.resnet20(channels=1, size=8)])
def test_snn_round_trip(build: Callable[[], nn.Module], method: Any, tmp_path: Path) -> None:
    model = trained(build())
    snn = convert(model, method)
    save(snn, tmp_path / "snn.safetensors", provenance={"accuracy": 0.9})
    loaded = load(tmp_path / "snn.safetensors")
    assert isinstance(loaded, SpikingNetwork)
    assert (loaded.method, loaded.repeat_input, loaded.input_shape) == (method, snn.repeat_input, snn.input_shape)
    assert loaded.layers.keys() == snn.layers.keys()
    assert {n: layer.extra_repr() for n, layer in loaded.layers.items()} == {
        n: layer.extra_repr() for n, layer in snn.layers.items()
    }
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(loaded(x, steps=6), snn(x, steps=6))
    assert loaded.provenance["accuracy"] == 0.9


class ImageMeetsSpikes(nn.Module):
    """The image is concatenated to spikes, so it has to be repeated in time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)
        self.act = QCFS(4, lam=torch.tensor([0.5, 2.0]).view(2, 1, 1))
        self.fc = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cat([self.act(self.conv(x)), x], 1).flatten(1))


def test_snn_with_repeated_input_and_thresholds_per_channel(tmp_path: Path) -> None:
    model = ImageMeetsSpikes().eval()
    snn = convert(model, cos(rho=2))
    assert snn.repeat_input
    save(snn, tmp_path / "snn")
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(load(tmp_path / "snn")(x, steps=3), snn(x, steps=3))


def test_a_spiking_model_without_its_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save the SpikingNetwork"):
        save(convert(zoo.small(), cos()).model, tmp_path / "x")


def test_preprocess_and_provenance(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    mean, std = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
    save(zoo.resnet20(size=8), tmp_path / "a", preprocess={"mean": mean, "std": std}, provenance={"recipe": "none"})
    loaded = load(tmp_path / "a")
    expected = (images / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert torch.equal(loaded.preprocess(images), expected)
    assert loaded.provenance.keys() == {"offspike", "torch", "date", "recipe"}
    save(loaded, tmp_path / "b")
    assert load(tmp_path / "b").preprocess == loaded.preprocess == Preprocess((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    save(convert(loaded, cos()), tmp_path / "c")
    assert load(tmp_path / "c").preprocess == loaded.preprocess
    with pytest.raises(ValueError, match=r"takes uint8 images \[B, 3, H, W\], got torch.float32"):
        loaded.preprocess(images.float())
    for wrong in ({"mean": mean, "std": [1, 0, 1]}, {"mean": mean, "std": [1]}, {"mean": mean}):
        with pytest.raises(ValueError, match="preprocess"):
            save(zoo.small(), tmp_path / "d", preprocess=wrong)
    assert not (tmp_path / "d").exists()


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: None)
    return model


def with_nan() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    nn.init.constant_(model[0].bias, float("nan"))
    return model


def large() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2))
    nn.init.constant_(model[0].weight, 1e6)
    return model


def named(name: str) -> nn.Module:
    return nn.Sequential(OrderedDict({name: nn.Linear(2, 2)}))


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.GELU()), {}, r"1 \(GELU\) is none of the layers"),
        (hooked, {}, r"0 \(Linear\) has hooks"),
        (with_nan, {}, "0.bias holds NaN"),
        (large, {"dtype": "float16"}, "0.weight holds NaN or infinite values in float16"),
        (lambda: nn.Sequential(nn.Linear(2, 2)).double(), {}, r"model.float\(\)"),
        (zoo.small, {"dtype": "int2"}, "dtype must be one of"),
        (zoo.small, {"provenance": {"x": object()}}, "not plain JSON"),
        (lambda: named("provenance"), {}, "'provenance' cannot be the name of a layer, rename it"),
        (lambda: named("preprocess"), {"preprocess": {"mean": [0], "std": [1]}}, "'preprocess' cannot be the name"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Sequential(nn.Linear(2, 2))[0]), {}, "single layer"),
    ],
)
def test_what_cannot_be_saved(build: Any, options: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        save(build(), tmp_path / "x", **options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def little() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), QCFS(4), nn.Flatten(), nn.Linear(8, 2))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("checkpoint") / "x"
    save(convert(trained(little()), cos(rho=4)), path, dtype="int8", preprocess={"mean": [0.5], "std": [0.5]})
    return path.read_bytes()


def attempt(path: Path, content: bytes) -> None:
    """It loads, or one line says why not."""
    path.write_bytes(content)
    reason = ""
    try:
        load(path)
    except ValueError as error:
        reason = str(error)
    assert "\n" not in reason
    assert not reason or str(path) in reason


@settings(max_examples=300)
@given(st.data())
def test_mutated_bytes(written: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(written)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    attempt(tmp_path_factory.getbasetemp() / "mutated", bytes(content))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def rewrite(content: bytes, path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> None:
    path.write_bytes(content)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["offspike"])
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    change(header, tensors)
    path.write_bytes(safetensors.torch.save(tensors, metadata={"offspike": json.dumps(header)}))


ODD = [None, True, -1, 0, 2**31, 2**70, 10**400, 1e300, float("nan"), "", "x", "__class__", "forward", [], {}, [[]]]
ODD += [{"node": "x"}]


@settings(max_examples=300)
@given(st.data())
def test_mutated_headers(written: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated"

    def change(header: dict[str, Any], _: dict[str, Tensor]) -> None:
        *parents, key = data.draw(st.sampled_from(places(header)[1:]))
        owner: Any = header
        for parent in parents:
            owner = owner[parent]
        if data.draw(st.booleans()):
            owner[key] = data.draw(st.sampled_from(ODD))
        else:
            del owner[key]

    rewrite(written, path, change)
    attempt(path, path.read_bytes())


def set_in(*path: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    *parents, key, value = path

    def change(header: dict[str, Any], _: dict[str, Tensor]) -> None:
        owner: Any = header
        for parent in parents:
            owner = owner[parent]
        owner[key] = value

    return change


def rename(old: str, new: str) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    def change(header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        header["layers"][new] = header["layers"].pop(old)
        for node in header["graph"]:
            node["target"] = new if node["target"] == old else node["target"]
        for key in [key for key in tensors if key.startswith(f"{old}.")]:
            tensors[new + key[len(old) :]] = tensors.pop(key)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_in("format", 2), "reads format 1, the file has 2"),
        (set_in("kind", "exe"), "kind must be"),
        (set_in("graph", 1, "target", "5"), "do not agree on"),
        (set_in("graph", 1, "kind", "exec"), "unknown exec"),
        (set_in("graph", 1, "kind", "function"), "unknown function"),
        (set_in("graph", 1, "args", [{"node": "output"}]), "does not come before"),
        (set_in("layers", "0", "type", "Popen"), "cannot be built"),
        (set_in("layers", "0", "type", "__import__('os').system('x')"), "cannot be built"),
        (set_in("layers", "0", "out_channels", -3), "out_channels = -3 makes no sense"),
        (set_in("layers", "0", "out_channels", 2**40), "makes no sense"),
        (set_in("layers", "0", "out_channels", 2**30), "should be"),
        (set_in("layers", "0", "kernel_size", [2**30, 2**30]), r"cannot be built|should be"),
        (set_in("layers", "0", "kernel_size", [5, 5]), "should be"),
        (set_in("layers", "0", "groups", 7), "divisible by groups"),
        (set_in("layers", "0", "device", "cpu"), "cannot be built"),
        (set_in("layers", "2", "levels", 0), "makes no sense"),
        (set_in("layers", "2", "shape", [2, 1, 1]), "'2.theta' is"),
        (set_in("input_shape", [-1]), "input shape"),
        (set_in("method", {"name": "x"}), "description of a method"),
        (set_in("preprocess", {"mean": [0.5], "std": [0.0]}), "preprocess needs"),
        (set_in("preprocess", {"mean": [10**400], "std": [1]}), "not a mean and a std"),
        (set_in("preprocess", 3), "not a mean and a std"),
        (lambda header, tensors: tensors.pop("4.bias"), "'4.bias' is missing"),
        (lambda header, tensors: tensors.update(extra=torch.ones(1)), "'extra' belongs to no layer"),
        (lambda header, tensors: tensors.pop("4.weight.scale"), "is torch.int8 and should be"),
        (lambda header, tensors: tensors.update({"4.bias": torch.ones(3)}), r"is \[3\] and should be \[2\]"),
        (lambda header, tensors: tensors.update({"4.bias": torch.tensor([1, torch.nan])}), "'4.bias' holds NaN"),
        (lambda header, tensors: tensors.update({"4.bias": torch.ones(2).double()}), "unknown type F64"),
        (lambda header, tensors: tensors.update({"4.bias": torch.ones(2, dtype=torch.int64)}), "should be"),
        (lambda header, tensors: tensors.update({"2.theta": torch.tensor(-1.0)}), "2 has a threshold"),
        (lambda header, tensors: tensors.update({"4.weight.scale": torch.tensor([1, torch.inf])}), "holds NaN or inf"),
        *((rename("0", name), r"cannot be the name|rename it") for name in ("forward", "__class__", "../../x")),
        (rename("0", "__import__('os').system('x')"), "cannot be the name"),
        (rename("0", "state_dict"), "rename it"),
    ],
)
def test_hostile_headers(change: Any, said: str, written: bytes, tmp_path: Path) -> None:
    rewrite(written, tmp_path / "x", change)
    with pytest.raises(ValueError, match=said) as caught:
        load(tmp_path / "x")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "x") in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"format": 1, "kind": NaN}', "1" * 10_000])
def test_headers_that_are_not_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(safetensors.torch.save({}, metadata={"offspike": text}))
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(tmp_path / "x")


def test_headers_with_deep_arguments(written: bytes, tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    rewrite(written, tmp_path / "x", set_in("graph", 1, "kwargs", {"x": deep}))
    attempt(tmp_path / "x", (tmp_path / "x").read_bytes())
