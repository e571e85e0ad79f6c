"""``offspike audit file.py:name``: a model in somebody's own file."""

import json
import re
import sys

import pytest
import torch

from test_cli import run

SOURCE = """
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from beside import WIDTH


class Fine(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(3, width, 3), nn.MaxPool2d(2), nn.Linear(width * 9, 2)

    def forward(self, x):
        return self.fc(self.pool(F.relu(self.conv(x))).flatten(1))


@dataclass
class Config:
    width: int = WIDTH


class Configured(Fine):
    def __init__(self, config: Config | None = None):
        super().__init__((config or Config()).width)


class Global(Fine):
    def forward(self, x):
        x = F.relu(self.conv(x))
        return F.max_pool2d(x, x.shape[2:]).flatten(1)


class Aliased(Fine):
    def forward(self, x):
        y = self.conv(x)
        F.relu_(y[:, :2])  # alias
        return self.fc(self.pool(y).flatten(1))


class Smooth(Fine):
    def forward(self, x):
        x = torch.sigmoid(self.conv(x))  # here
        return x.mean((2, 3))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, x, y):
        return F.relu(self.a(x) + self.b(y))


class Sized(Fine):
    def __init__(self, width, *, depth):
        super().__init__(width)


instance = Fine()


def make():
    return Fine(8)


def broken():
    return 1 / 0


def number():
    return 3
"""


@pytest.fixture
def offspike(capsys, monkeypatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path / "net.py"


@pytest.mark.parametrize("name", ["Fine", "make", "instance"])
def test_operations_in_order_and_a_way_to_convert(offspike, file, tmp_path, name):
    code, out, _ = offspike("audit", f"{file}:{name}", "--input", "2,3,8,8", "--json", tmp_path / "audit.json")
    assert code == 0
    assert "osp.prepare makes it ready" in out
    assert all(word in out for word in ("gate", "naive", "average", "random inputs"))
    said = json.loads((tmp_path / "audit.json").read_text())
    assert said["verdict"] == "prepare"
    calls = [(each["where"], each["what"]) for each in said["operations"]]
    layers = [("conv", "Conv2d"), ("the model", "F.relu"), ("pool", "MaxPool2d"), ("the model", "flatten")]
    assert calls == [("the model", "input"), *layers, ("fc", "Linear"), ("the model", "output")]
    assert {each["choice"] for each in said["pool_errors"]} == {"gate", "naive", "average"}


def test_an_obstacle_is_named_with_its_line(offspike, file, tmp_path):
    code, out, _ = offspike("audit", f"{file}:Smooth", "--input", "1,3,8,8", "--json", tmp_path / "audit.json")
    line = SOURCE.splitlines().index("        x = torch.sigmoid(self.conv(x))  # here") + 1
    assert code == 1
    assert "cannot be converted" in out
    (smooth,) = [f for f in json.loads((tmp_path / "audit.json").read_text())["findings"] if "sigmoid" in f["what"]]
    assert smooth["source"] == f"{file}, line {line}"
    assert smooth["fatal"]
    assert "train the network with osp.QCFS" in smooth["fix"]
    assert f"line {line}" in out


@pytest.mark.parametrize("name", ["Configured", "Global"])
def test_dataclasses_and_windows_of_a_size(offspike, file, name):
    before = dict(sys.modules)
    code, out, err = offspike("audit", f"{file}:{name}", "--input", "2,3,8,8")
    assert (code, err) == (0, "")
    assert "osp.prepare makes it ready" in out
    assert "net" not in sys.modules.keys() - before.keys()


def test_a_file_named_as_a_package_gives_the_name_back(offspike, file):
    (file.parent / "torch.py").write_text("raise RuntimeError\n")
    assert offspike("audit", f"{file.parent / 'torch.py'}:Net")[0] == 2
    assert sys.modules["torch"] is torch


def test_an_activation_in_place_under_another_name_is_named_with_its_line(offspike, file):
    torch.manual_seed(0)  # some weights pool positive values only: then the alias changes no answer, and none is named
    code, out, err = offspike("audit", f"{file}:Aliased", "--input", "2,3,8,8")
    line = SOURCE.splitlines().index("        F.relu_(y[:, :2])  # alias") + 1
    assert (code, err) == (1, "")
    assert f"net.py, line {line}): torch.relu_ is an activation that changes a tensor in place" in out


def test_several_inputs(offspike, file):
    code, out, _ = offspike("audit", f"{file}:Pair", "--input", "2,3", "--input", "2,2")
    assert code == 0
    assert out.count("input") >= 2


def test_without_a_shape_it_says_what_was_not_tried(offspike, file):
    code, out, _ = offspike("audit", f"{file}:Fine")
    assert code == 0
    assert "--input" in out


def test_a_packaged_checkpoint_is_ready(offspike):
    code, out, _ = offspike("audit", "resnet20-cifar10-l4")
    assert code == 0
    assert "can be converted as it is" in out


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        ("{file}:Sized", (), r"Sized needs arguments \(width, depth\)"),
        (
            "{file}:Nothing",
            (),
            "has no 'Nothing'; it has Fine, Config, Configured, Global, Aliased, Smooth, Pair, Sized",
        ),
        ("{file}:broken", (), "net.py, line .*ZeroDivisionError: division by zero"),
        ("{file}:number", (), "gives int, not a torch.nn.Module"),
        ("{file}", (), "which class or function"),
        ("none.py:Net", (), "there is no file none.py"),
        ("{file}:Fine", ("--input", "3"), "such as 1,3,32,32"),
        ("{file}:Fine", ("--input", "1,a"), "such as 1,3,32,32"),
        ("{file}:Fine", ("--input", "1,3,9,9,9"), "--input 1,3,9,9,9 does not run"),
        ("{file}:Fine", ("--json", "/no/such/folder/file"), "its folder does not exist"),
    ],
)
def test_bad_input_is_one_line(offspike, file, what, options, said):
    code, _, err = offspike("audit", what.format(file=file), *options)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(said, err), err


def test_a_file_that_does_not_run(offspike, tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_package\n")
    code, _, err = offspike("audit", f"{tmp_path / 'bad.py'}:Net")
    assert code == 2
    assert "bad.py, line 1: ModuleNotFoundError" in err
