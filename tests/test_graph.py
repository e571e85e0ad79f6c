"""A network as data: checked when made, JSON and back, run by a loop."""

import json
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import MODELS, Siamese, image
from offspike import zoo
from offspike.activations import QCFS, Activation
from offspike.capture import capture, captured
from offspike.graph import Graph, GraphNetwork, Node, Ref


@pytest.mark.parametrize("name", MODELS)
def test_json_and_back(name: str) -> None:
    graph = capture(MODELS[name][0]())
    assert Graph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False))) == graph


def test_values_are_freed_after_their_last_use() -> None:
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watch(_module: nn.Module, _args: Any, out: Tensor) -> None:
        seen.append(weakref.ref(out))
        alive.append(sum(ref() is not None for ref in seen))

    network = captured(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))))
    for layer in network.children():
        layer.register_forward_hook(watch)
    with torch.no_grad():
        network(torch.zeros(1, 2))
    assert alive == [1, 2, 2, 2, 2]


def test_gradients_flow() -> None:
    model = zoo.small()
    network = captured(model)
    network(torch.rand(2, 1, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_wrong_number_of_inputs() -> None:
    with pytest.raises(TypeError, match="takes 2 inputs, got 1"):
        captured(Siamese())(image())


X, OUT = Node("x", "input", "x"), Node("output", "output", "output", (Ref("x"),))


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "at least one input"),
        ([X], "output"),
        ([X, OUT, Node("y", "input", "y")], "output comes last"),
        ([OUT], "which does not come before"),
        ([X, X, OUT], "two nodes are named"),
        ([X, Node("a", "function", "torch.neg", (Ref("a"),)), OUT], "which does not come before"),
    ],
)
def test_graphs_are_checked(nodes: list[Node], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Graph(tuple(nodes))


HOSTILE = ["__import__('os').system('x')", "../../x", "__class__", "a.__class__", "", "a..b", "a b", "x\ny"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["module", "attribute", "function", "method", "exec"])
def test_hostile_targets(name: str, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown|cannot be the name"):
        Node("a", kind, name, (Ref("x"),))


@pytest.mark.parametrize("name", ["forward", "graph", "training", "a.forward", "_modules", "state_dict"])
def test_names_that_are_taken(name: str) -> None:
    graph = Graph((X, Node("a", "module", name, (Ref("x"),)), OUT))
    with pytest.raises(ValueError, match="rename it"):
        GraphNetwork(graph, {name: nn.Identity()})


@pytest.mark.parametrize(
    "data",
    [
        None, 3, "x", [3], [{}], {"name": "x"},
        [{"name": "x", "kind": "input", "target": 3}],
        [{"name": ["x"], "kind": "input", "target": "x"}],
        [{"name": "x", "kind": ["input"], "target": "x"}],
        [{"name": "x", "kind": "method", "target": "view"}],
        [{"name": "x", "kind": "input", "target": "x", "args": 3}],
        [{"name": "x", "kind": "input", "target": "x", "args": [{"eval": "1"}]}],
        [{"name": "x", "kind": "input", "target": "x", "args": [{"node": 3}]}],
        [{"name": "x", "kind": "input", "target": "x", "args": [{"slice": [1]}]}],
        [{"name": "x", "kind": "input", "target": "x", "args": [{"dict": [[[], 1]]}]}],
        [{"name": "x", "kind": "input", "target": "x", "kwargs": []}],
        [{"name": "x", "kind": "input", "target": "x", "args": [2**63]}],
        [{"name": "x", "kind": "input", "target": "x", "args": [10**400]}],
    ],
)  # fmt: skip
def test_damaged_json(data: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        Graph.from_json(data)


def is_neuron(module: nn.Module) -> bool:
    return isinstance(module, Activation)


class Meeting(nn.Module):
    """Where the image and the spikes meet, or do not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv1, self.act1, self.conv2 = nn.Conv2d(3, 3, 1), QCFS(4), nn.Conv2d(3, 3, 1)
        self.conv3, self.act2, self.act3 = nn.Conv2d(3, 3, 1), QCFS(4), QCFS(4)
        self.bias = nn.Parameter(torch.zeros(3, 1, 1))

    def forward(self, x: Tensor) -> Any:
        current = self.conv1(x) + self.bias
        spikes = self.act1(current)
        if self.how == "two steady":
            return self.act3(self.conv2(spikes) + self.act2(self.conv3(x) + x) + self.bias)
        if self.how == "concat":
            return self.act2(torch.cat([spikes, x], 1))
        if self.how == "size":
            return spikes.view(x.size(0), -1)
        if self.how == "own size":
            return spikes.view(spikes.size(0), -1)
        if self.how == "output":
            return spikes, x
        return self.act1(self.conv2(spikes))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("two steady", {"act1", "act2"}),
        ("own size", {"act1"}),
        ("concat", None),
        ("size", None),
        ("output", None),
    ],
)
def test_steady(how: str, expected: set[str] | None) -> None:
    model = Meeting(how)
    assert capture(model).steady(model, neuron=is_neuron) == expected


def test_steady_refuses_a_shared_neuron() -> None:
    model = Meeting("shared")
    with pytest.raises(ValueError, match="act1 is used 2 times"):
        capture(model).steady(model, neuron=is_neuron)


def test_steady_without_neurons() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert capture(model).steady(model, neuron=is_neuron) is None
