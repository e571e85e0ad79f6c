"""The calls of a model, as fx saw them: each a node to be, with the module and the user's line that it comes from."""

import inspect
import operator
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx, nn

from offspike.activations import Activation
from offspike.graph import FUNCTIONS, METHODS, GraphNetwork, Kind, Node, Ref, map_values, refs_in
from offspike.layers import SpikingLayer

__all__ = ["PRODUCTS", "SIZES", "Step", "bare", "limits", "place", "read"]

SIZES = ("shape", "ndim", "size", "dim", "numel")  # what makes numbers of a tensor's shape
PRODUCTS = (  # sums of products: one factor holds weights
    "matmul", "bmm", "mm", "einsum", "linear", "inner", "tensordot", "addmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
)  # fmt: skip
_SYNONYMS = {
    "multiply": "mul", "subtract": "sub", "divide": "div", "true_divide": "div", "negative": "neg", "absolute": "abs",
    "concatenate": "cat", "swapdims": "transpose", "moveaxis": "movedim",
}  # fmt: skip
_ATTRIBUTES: dict[str, tuple[Any, ...]] = {  # as methods that do the same
    "T": ("t",), "H": ("t",), "mT": ("transpose", -2, -1), "mH": ("transpose", -2, -1), "data": ("detach",),
}  # fmt: skip
_CLAMPS = {"clamp": "min max", "clip": "min max", "clamp_min": "min", "clamp_max": "max"}
_NAMES = {function: name for name, function in FUNCTIONS.items()}


@dataclass(frozen=True)
class Step:
    """A node to be, known or not. ``owner`` is the module that makes this call, ``source`` the line that does.

    ``constant`` says that it is made of parameters, buffers and sizes alone; ``raw``, that it is made of the network's
    inputs and nothing has weighed them yet: preprocessing, whatever it looks like.
    """

    name: str
    kind: Kind
    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    owner: str = ""
    source: str = ""
    constant: bool = False
    raw: bool = False

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments, the first by its place: PyTorch names it ``input``, and ``conv(input=x)`` is ``conv(x)``."""
        if self.args or "input" not in self.kwargs:
            return self.args, dict(self.kwargs)
        return (self.kwargs["input"],), {key: value for key, value in self.kwargs.items() if key != "input"}

    def node(self) -> Node:
        """What a graph keeps of it; a ValueError names the line that cannot be written down."""
        try:
            return Node(self.name, self.kind, self.target, *self.call)
        except ValueError as error:
            where = f" ({self.source})" if self.source else ""
            raise ValueError(f"{error}{where}: offspike.graph lists what it knows") from error


def read(nodes: list[fx.Node], model: nn.Module) -> list[Step]:
    """The steps that these nodes are."""
    return _raw(_marked(_capped([_step(node) for node in _needed(nodes)], model)), model)


def _needed(nodes: list[fx.Node]) -> list[fx.Node]:
    """Without the questions that the tracer answered, such as a comparison of sizes: unused, and not in the tables."""
    dropped: set[fx.Node] = set()
    for node in reversed(nodes):
        unknown = node.target not in (METHODS if node.op == "call_method" else _NAMES)
        changes = "setitem" in str(node.target) or getattr(node.target, "__name__", str(node.target)).endswith("_")
        if node.op in ("call_function", "call_method") and unknown and not changes and set(node.users) <= dropped:
            shape = node.target is getattr and node.args[1] in ("shape", "ndim")
            dropped |= set() if shape else {node}
    return [node for node in nodes if node not in dropped]


def _marked(steps: list[Step]) -> list[Step]:
    """The steps, told which of them are constants."""
    constants: set[str] = set()
    marked = []
    for step in steps:
        size = step.kind in ("function", "method") and step.target in SIZES
        if step.kind not in ("input", "output") and (size or constants.issuperset(refs_in((step.args, step.kwargs)))):
            constants.add(step.name)
            step = replace(step, constant=True)
        marked.append(step)
    return marked


def _raw(steps: list[Step], model: nn.Module) -> list[Step]:
    """The steps, told which of them are made of the inputs without weights. Buffers may shift and scale an image."""
    weighed: set[str] = set()
    marked = []
    for step in steps:
        weighs = _weighs(step, model) or not weighed.isdisjoint(refs_in((step.args, step.kwargs)))
        weighed |= {step.name} if weighs else set()
        marked.append(replace(step, raw=not weighs and not step.constant and step.kind != "output"))
    return marked


def _weighs(step: Step, model: nn.Module) -> bool:
    if step.kind == "module":
        layer = model.get_submodule(step.target)
        return isinstance(layer, Activation | SpikingLayer) or any(True for _ in layer.parameters())
    if step.kind == "attribute":
        return isinstance(operator.attrgetter(step.target)(model), nn.Parameter)
    return step.kind in ("function", "method") and bare(step) in PRODUCTS


def _capped(steps: list[Step], model: nn.Module) -> list[Step]:
    """``relu(x).clamp(max=c)`` is one call, ``clamp(x, 0, c)``, where nothing else sees x or what lies between."""
    uses = Counter(name for step in steps for name in refs_in((step.args, step.kwargs)))
    known = {step.name: step for step in steps}
    found: dict[str, Step] = {}
    for step in steps:
        (least, most), x = limits(step), step.call[0][:1]
        before = known[x[0].name] if x and isinstance(x[0], Ref) else None
        if least is None and most is not None and before is not None and _rectifies(before, model):
            x = before.call[0][:1]
            if uses[before.name] == 1 and [uses[name] for name in refs_in(x)] == [1]:
                del found[before.name]
                step = replace(step, kind="function", target="torch.clamp", args=(*x, 0, most), kwargs={})
        found[step.name] = step
    return list(found.values())


def _rectifies(step: Step, model: nn.Module) -> bool:
    if step.kind == "module":
        return type(model.get_submodule(step.target)) is nn.ReLU
    return step.kind in ("function", "method") and (bare(step) == "relu" or limits(step) == (0, None))


def bare(step: Step) -> str:
    """The name of what a step calls, without where it comes from and the mark of in-place methods."""
    return step.target.rpartition(".")[2].rstrip("_")


def limits(step: Step) -> tuple[Any, Any]:
    """The least and the largest value that a clamp returns; None where it has none, or is no clamp."""
    names = _CLAMPS.get(bare(step), "").split() if step.kind in ("function", "method") else []
    args, kwargs = step.call
    values = dict(zip(names, args[1:], strict=False)) | {key: kwargs[key] for key in names if key in kwargs}
    return values.get("min"), values.get("max")


def _step(node: fx.Node) -> Step:
    kind, target, args = _called(node)
    stack = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
    if node.op == "call_module" and stack and stack[-1] == target:
        stack.pop()
    frames = [(file, int(line)) for file, line in re.findall(r'File "(.+?)", line (\d+)', node.stack_trace or "")]
    owner = stack[-1] if stack else ""
    step = Step(node.name, kind, target, _plain(args), dict(_plain(node.kwargs)), owner, place(frames))
    return _laid(step) if kind in ("function", "method") else step


def _called(node: fx.Node) -> tuple[Kind, str, tuple[Any, ...]]:
    """What kind of call a node is, of what, and with which arguments: one name for each operation."""
    kinds: dict[str, Kind] = {"placeholder": "input", "get_attr": "attribute"}
    kind = kinds.get(node.op, cast(Kind, node.op.removeprefix("call_")))
    target, args = node.target, node.args
    if target is getattr:
        name = str(args[1])
        if name in ("shape", "ndim"):
            return kind, name, args[:1]
        method, *axes = _ATTRIBUTES.get(name, (f"Tensor.{name}",))
        return ("method", method, (args[0], *axes)) if name in _ATTRIBUTES else (kind, method, args)
    if not isinstance(target, str):
        origin = (getattr(target, "__module__", None) or "torch").replace("torch._C._nn", "torch.nn.functional")
        target = _NAMES.get(target, f"{origin}.{getattr(target, '__name__', target)}")
    if kind == "method" or (kind == "function" and target.startswith("torch.")):
        owner, dot, name = target.rpartition(".")
        target = owner + dot + _SYNONYMS.get(name, name)
    return kind, target, args


def _laid(step: Step) -> Step:
    """Without ``memory_format``: how a tensor lies in memory is no matter of its values."""
    args = tuple(value for value in step.args if not isinstance(value, torch.memory_format))
    kwargs = {key: value for key, value in step.kwargs.items() if not isinstance(value, torch.memory_format)}
    if (args, kwargs) == (step.args, step.kwargs):
        return step
    target = "contiguous" if step.target == "to" and len(args) == 1 and not kwargs else step.target
    return replace(step, target=target, args=args, kwargs=kwargs)


def _plain(value: Any) -> Any:
    return map_values(value, lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf)


def place(frames: list[tuple[str, int]]) -> str:
    """The user's own line: the last one outside PyTorch, this package and what runs a graph.

    A line of another installed library, as NumPy's, only where there is no other.
    """
    running = inspect.getfile(GraphNetwork), inspect.getfile(map_values)
    inside = (str(Path(torch.__file__).parent), str(Path(__file__).parent), *running)
    outside = [(file, line) for file, line in frames if not file.startswith(inside)]
    own = [(file, line) for file, line in outside if "site-packages" not in file] or outside
    return f"{own[-1][0]}, line {own[-1][1]}" if own else ""
