"""A network as data: captured, run again bit for bit, refused with the line that stands in the way."""

import copy
import json
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offspike import zoo
from offspike.activations import QCFS, Activation, ClippedReLU
from offspike.graph import Graph, GraphNetwork, Node, Ref, capture


class PadShortcut(nn.Module):
    """A third-party residual block: strided slice and padded channels, functional ReLU, ``view`` by size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, 2, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2), "constant", 0)
        y = F.avg_pool2d(F.relu(y), y.size()[3])
        return self.fc(F.dropout(y.view(y.size(0), -1), 0.5, self.training)) / 2


class Concat(nn.Module):
    """Branches, a shared convolution, shapes, negative indices, ellipsis, a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.ModuleDict({"1x1": nn.Conv2d(3, 4, 1), "3x3": nn.Conv2d(3, 4, 3, padding=1)})
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, _w = x.shape
        y = torch.cat([self.branch["1x1"](x), self.branch["3x3"](x)], 1)
        y = self.act(self.shared(self.act(self.shared(y))))
        left, right = y.chunk(2, 1)
        y = torch.add(left, right, alpha=2)[..., : h // 2, 1:]
        return F.adaptive_avg_pool2d(y, (2, 2)).permute(0, 2, 3, 1).reshape(b, -1) - 0.5


class Attributes(nn.Module):
    """Parameters and buffers used directly, one of them a layer's own; arguments with defaults; a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3, 1, 1) + 0.5)
        self.register_buffer("mean", torch.rand(3, 1, 1))
        self.inner = nn.Module()
        self.inner.shift = nn.Parameter(torch.rand(1))
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, double: bool = False, *, extra: Tensor | None = None) -> dict[str, Any]:
        x = (x - self.mean) * self.scale + self.inner.shift
        if double:
            x = 2 * x
        if extra is not None:
            x = x + extra
        pooled = x.mean((2, 3))
        return {"logits": F.linear(self.fc(pooled), self.fc.weight), "both": (pooled, [pooled.neg()])}


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), QCFS(4))

    def forward(self, left: Tensor, input: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(left), torch.stack([left.flatten(1), input.flatten(1)], 1)


class Aliased(nn.Module):
    """``y += x`` changes what a second name sees; fx alone would lose that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        kept = y
        y += 1
        y *= 3
        return kept + x


def one_dimension() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 4, 3, padding="same"), nn.BatchNorm1d(4), nn.ReLU6(), nn.AvgPool1d(2), nn.MaxPool1d(2),
        nn.Dropout(0.2), nn.Flatten(), nn.Linear(16, 5), ClippedReLU(0.5),
    )  # fmt: skip


def three_dimensions() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 2, 3, padding=1, padding_mode="circular"), nn.BatchNorm3d(2), nn.Hardtanh(0, 6), nn.MaxPool3d(2),
        nn.AvgPool3d(2, divisor_override=4), nn.LeakyReLU(0), nn.AdaptiveAvgPool3d((None, 1, 1)), nn.Flatten(-4),
    )  # fmt: skip


def image() -> Tensor:
    return torch.rand(2, 3, 8, 8)


MODELS: dict[str, tuple[Any, Any]] = {
    "pad shortcut": (PadShortcut, lambda: (image(),)),
    "concat": (Concat, lambda: (image(),)),
    "attributes": (Attributes, lambda: (image(),)),
    "siamese": (Siamese, lambda: (torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4))),
    "aliased": (Aliased, lambda: (image(),)),
    "1-d": (one_dimension, lambda: (torch.rand(2, 3, 16),)),
    "3-d": (three_dimensions, lambda: (torch.rand(2, 1, 4, 4, 4),)),
    "small": (zoo.small, lambda: (torch.rand(2, 1, 8, 8),)),
    "resnet20": (lambda: zoo.resnet20(size=8), lambda: (image(),)),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    build, inputs = MODELS[request.param]
    return build().eval(), inputs()


@torch.no_grad()
def test_runs_as_the_model_does(case: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
    model, inputs = case
    network = GraphNetwork.of(model)
    expected = model(*copy.deepcopy(inputs))
    assert same(network(*copy.deepcopy(inputs)), expected)
    assert same(copy.deepcopy(network)(*copy.deepcopy(inputs)), expected)
    assert network.state_dict().keys() == model.state_dict().keys()
    assert not network.training


def test_captured_again_it_is_equal(case: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
    network = GraphNetwork.of(case[0])
    assert capture(network) == network.graph
    nested = capture(nn.Sequential(network)) if len(network.graph.inputs) == 1 else None
    assert nested is None or len(nested.nodes) == len(network.graph.nodes)


def test_json_and_back(case: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
    graph = capture(case[0])
    assert Graph.from_json(json.loads(json.dumps(graph.to_json(), allow_nan=False))) == graph


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's, about autograd
@pytest.mark.parametrize("name", ["pad shortcut", "small"])
@torch.no_grad()
def test_compiles_in_one_piece(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name][0]().eval(), MODELS[name][1]()
    compiled = torch.compile(GraphNetwork.of(model), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), model(*inputs))


def test_the_large_networks_of_the_zoo() -> None:
    with torch.device("meta"):
        for build in (zoo.vgg16, zoo.resnet18, zoo.resnet34):
            model = build(activation=nn.ReLU())
            network = GraphNetwork.of(model)
            assert network.state_dict().keys() == model.state_dict().keys()
            assert network.input_shape == model.input_shape


def test_capture_leaves_the_model_alone() -> None:
    model = PadShortcut()
    model.norm.eval()
    before = (model.state_dict().keys(), [module.training for module in model.modules()], set(vars(model)))
    graph = capture(model)
    assert before == (model.state_dict().keys(), [module.training for module in model.modules()], set(vars(model)))
    assert [node.kwargs["training"] for node in graph.nodes if node.target == "F.dropout"] == [False]


def test_values_are_freed_after_their_last_use() -> None:
    seen: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def watch(_module: nn.Module, _args: Any, out: Tensor) -> None:
        seen.append(weakref.ref(out))
        alive.append(sum(ref() is not None for ref in seen))

    network = GraphNetwork.of(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))))
    for layer in network.children():
        layer.register_forward_hook(watch)
    with torch.no_grad():
        network(torch.zeros(1, 2))
    assert alive == [1, 2, 2, 2, 2]


def test_gradients_flow() -> None:
    model = zoo.small()
    network = GraphNetwork.of(model)
    network(torch.rand(2, 1, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_wrong_number_of_inputs() -> None:
    with pytest.raises(TypeError, match="takes 2 inputs, got 1"):
        GraphNetwork.of(Siamese())(image())


class Refused(nn.Module):
    """One way of being refused for each ``how``."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.plain = torch.ones(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "function":
            return torch.sigmoid(x)  # line A
        if self.how == "method":
            return x.softmax(1)  # line B
        if self.how == "branch" and x.sum() > 0:  # line C
            return x
        if self.how == "plain tensor":
            return x + self.plain  # line D
        if self.how == "attribute":
            return x.T + 1  # line E
        if self.how == "item":
            x[0] = 1  # line F
        if self.how == "infinite":
            return x.clamp(0, float("inf"))  # line G
        return x.to(torch.float64)  # line H


@pytest.mark.parametrize(
    ("how", "said", "mark"),
    [
        ("function", "unknown function 'torch.sigmoid'", "A"),
        ("method", "unknown method 'softmax'", "B"),
        ("branch", "Refused cannot be captured: .*control flow", "C"),
        ("plain tensor", "register_buffer", "D"),
        ("attribute", "unknown function 'Tensor.T'", "E"),
        ("item", "does not support item assignment", "F"),
        ("infinite", "inf cannot be written down", "G"),
        ("dtype", "unknown method 'to'", "H"),
    ],
)
def test_refusals_name_the_line(how: str, said: str, mark: str) -> None:
    with open(__file__) as file:
        line = next(number for number, text in enumerate(file, 1) if text.rstrip().endswith(f"# line {mark}"))
    with pytest.raises(ValueError, match=said) as caught:
        capture(Refused(how))
    assert f"{__file__}, line {line})" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_single_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="wrap it"):
        capture(nn.Linear(2, 2))


def test_forward_without_named_arguments_is_refused() -> None:
    class Stars(nn.Module):
        def forward(self, *xs: Tensor) -> Any:
            return xs

    with pytest.raises(ValueError, match="at least one input"):
        capture(Stars())


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
