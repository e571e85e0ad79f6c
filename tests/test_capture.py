"""Models written down: run again bit for bit, or refused with the line that stands in the way."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import MODELS, PadShortcut, same
from offspike import zoo
from offspike.capture import capture, captured, trace


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    build, inputs = MODELS[request.param]
    return build().eval(), inputs()


@torch.no_grad()
def test_runs_as_the_model_does(case: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
    model, inputs = case
    network = captured(model)
    expected = model(*copy.deepcopy(inputs))
    assert same(network(*copy.deepcopy(inputs)), expected)
    assert same(copy.deepcopy(network)(*copy.deepcopy(inputs)), expected)
    assert network.state_dict().keys() == model.state_dict().keys()
    assert not network.training


def test_captured_again_it_is_equal(case: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
    network = captured(case[0])
    assert capture(network) == network.graph
    nested = capture(nn.Sequential(network)) if len(network.graph.inputs) == 1 else None
    assert nested is None or len(nested.nodes) == len(network.graph.nodes)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's, about autograd
@pytest.mark.parametrize("name", ["pad shortcut", "concat", "small"])
@torch.no_grad()
def test_compiles_in_one_piece(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name][0]().eval(), MODELS[name][1]()
    compiled = torch.compile(captured(model), backend="eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), model(*inputs))


def test_the_large_networks_of_the_zoo() -> None:
    with torch.device("meta"):
        for build in (zoo.vgg16, zoo.resnet18, zoo.resnet34):
            model = build(activation=nn.ReLU())
            network = captured(model)
            assert network.state_dict().keys() == model.state_dict().keys()
            assert network.input_shape == model.input_shape


def test_capture_leaves_the_model_alone() -> None:
    model = PadShortcut()
    model.norm.eval()
    before = (model.state_dict().keys(), [module.training for module in model.modules()], set(vars(model)))
    graph = capture(model)
    assert before == (model.state_dict().keys(), [module.training for module in model.modules()], set(vars(model)))
    assert [node.kwargs["training"] for node in graph.nodes if node.target == "F.dropout"] == [False]


class Refused(nn.Module):
    """One way of being refused for each ``how``."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.plain = torch.ones(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "function":
            return torch.erf(x)  # line A
        if self.how == "method":
            return x.logit()  # line B
        if self.how == "branch" and x.sum() > 0:  # line C
            return x
        if self.how == "plain tensor":
            return x + self.plain  # line D
        if self.how == "attribute":
            part = x.imag  # line E
            return part + 1
        if self.how == "item":
            x[0] = 1  # line F
        if self.how == "infinite":
            return x.clamp(0, float("inf"))  # line G
        return x.to(torch.float64)  # line H


@pytest.mark.parametrize(
    ("how", "said", "mark"),
    [
        ("function", "unknown function 'torch.erf'", "A"),
        ("method", "unknown method 'logit'", "B"),
        ("branch", "Refused cannot be captured: .*control flow", "C"),
        ("plain tensor", "register_buffer", "D"),
        ("attribute", "unknown function 'Tensor.imag'", "E"),
        ("item", "an assignment into a tensor .*torch.cat or F.pad", "F"),
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


class Flagged(nn.Module):
    """Asks its own tensors, not the data."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("factor", torch.tensor(2.0))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.ask_parameter = False

    def forward(self, x: Tensor) -> Tensor:
        if self.ask_parameter and self.scale > 1:
            return x
        return x * float(self.factor) if self.flag else x.sin()


def test_what_is_made_of_buffers_alone_is_known_without_an_example() -> None:
    (step,) = [step for step in trace(Flagged()) if step.kind == "function"]
    assert (step.target, step.args[1]) == ("operator.mul", 2.0)


def test_parameters_decide_nothing() -> None:
    model = Flagged()
    model.ask_parameter = True
    with pytest.raises(ValueError, match="depends on the value of a parameter, which training changes"):
        trace(model)


def test_constants_are_marked() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight.relu().view(1, -1).expand(x.size(0), -1)

    assert [step.target for step in trace(Weighted()) if not step.constant] == ["x", "operator.mul", "output"]


@pytest.mark.parametrize("apart", [False, True])
def test_two_clamps_are_one_where_nothing_lies_between(apart: bool) -> None:
    class Clamps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(x + 1)
            return y.clamp_max(2) - y if apart else y.clamp_max(2)

    targets = [step.target for step in trace(Clamps())]
    assert targets == [
        "x",
        "operator.add",
        *(["torch.relu", "clamp_max", "operator.sub"] if apart else ["torch.clamp"]),
        "output",
    ]
    assert (
        captured(Clamps())(torch.tensor([-2.0, 0.5, 3.0])).tolist() == Clamps()(torch.tensor([-2.0, 0.5, 3.0])).tolist()
    )
