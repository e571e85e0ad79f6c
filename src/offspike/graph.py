"""A network as data: which layers and operations run, in which order, on what.

``capture`` reads an ordinary PyTorch model with ``torch.fx`` and writes down its nodes; ``GraphNetwork`` runs them by a
plain loop over the list. Between the two lies nothing but names and numbers, which fit into JSON. A name only ever
selects from the explicit tables of this file, so a graph that comes from outside can do no more than these operations.
"""

import inspect
import math
import operator
import re
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from offspike.activations import Activation

__all__ = ["LEAVES", "Graph", "GraphNetwork", "Leaf", "Node", "Ref", "capture", "register_leaf"]

Kind = Literal["input", "module", "function", "method", "attribute", "output"]


def _shape(x: Any) -> Any:
    """The one attribute that a graph may read."""
    return x.shape


def _table(prefix: str, owner: Any, names: str) -> dict[str, Callable[..., Any]]:
    return {prefix + name: getattr(owner, name) for name in names.split()}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "shape": _shape,
    **_table("operator.", operator, "add iadd sub isub mul imul truediv itruediv floordiv neg getitem"),
    **_table("torch.", torch, "add sub mul div neg cat concat stack chunk split narrow flatten reshape permute"),
    **_table("torch.", torch, "transpose squeeze unsqueeze mean relu relu_ clamp clamp_ conv1d conv2d conv3d"),
    **_table("torch.", torch, "avg_pool1d adaptive_avg_pool1d"),
    **_table("F.", F, "avg_pool2d avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d"),
    **_table("F.", F, "pad interpolate linear dropout dropout1d dropout2d dropout3d relu relu6 leaky_relu hardtanh"),
}
METHODS = frozenset(
    _table("", Tensor, "add add_ sub sub_ mul mul_ div div_ neg relu relu_ clamp clamp_ mean clone contiguous size dim")
    | _table("", Tensor, "flatten unflatten reshape view permute transpose squeeze unsqueeze chunk split narrow expand")
)
_NAMES = {function: name for name, function in FUNCTIONS.items()}


class Leaf(NamedTuple):
    """How a layer is written down (``describe(layer)``: JSON values) and made again with its tensors on "meta"."""

    describe: Callable[[Any], dict[str, Any]]
    build: Callable[[dict[str, Any]], nn.Module]


LEAVES: dict[type[nn.Module], Leaf] = {}


def register_leaf(
    kind: type[nn.Module], describe: Callable[[Any], dict[str, Any]], build: Callable[[dict[str, Any]], nn.Module]
) -> None:
    """Make ``kind`` a layer that graphs name as a whole, and say how it is saved and loaded."""
    LEAVES[kind] = Leaf(describe, build)


@dataclass(frozen=True)
class Ref:
    """The value of an earlier node, as an argument."""

    name: str


@dataclass(frozen=True)
class Node:
    """One operation. ``target`` is what it runs: a qualified name in the model, or a name in the tables above."""

    name: str
    kind: Kind
    target: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(isinstance(text, str) for text in (self.name, self.kind, self.target)):
            raise ValueError(f"the name, kind and target of a node are strings, got {self.name!r}")
        known = {"function": FUNCTIONS, "method": METHODS}.get(self.kind)
        if self.kind not in get_args(Kind) or (known is not None and self.target not in known):
            raise ValueError(f"node {self.name!r}: unknown {self.kind} {self.target!r}")
        if self.kind in ("module", "attribute") and not re.fullmatch(r"(?!__)[\w-]+(\.(?!__)[\w-]+)*", self.target):
            raise ValueError(f"node {self.name!r}: {self.target!r} cannot be the name of a layer")
        if len(self.args) < {"method": 1, "output": 1}.get(self.kind, 0):
            raise ValueError(f"node {self.name!r}: {self.kind} {self.target!r} of nothing")
        for value in _values((self.args, self.kwargs)):
            number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63
            if not (number or value is None or value is ... or isinstance(value, Ref | str)):
                raise ValueError(f"node {self.name!r}: {value!r} cannot be written down as an argument")

    @property
    def refs(self) -> tuple[str, ...]:
        """The nodes whose values it takes."""
        return tuple(value.name for value in _values((self.args, self.kwargs)) if isinstance(value, Ref))


@dataclass(frozen=True)
class Graph:
    """The nodes of a network in the order in which they run; checked when made."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise ValueError(f"two nodes are named {node.name!r}")
            for name in node.refs:
                if name not in seen:
                    raise ValueError(f"node {node.name!r} needs {name!r}, which does not come before it")
            seen.add(node.name)
        kinds = [node.kind for node in self.nodes]
        if "input" not in kinds or kinds.count("output") != 1 or kinds[-1] != "output":
            raise ValueError("a graph has at least one input, and its one output comes last")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(node.target for node in self.nodes if node.kind == "input")

    def steady(self, model: nn.Module, *, neuron: Callable[[nn.Module], bool]) -> frozenset[str] | None:
        """The neuron modules of ``model`` whose input follows from the network's input alone: constant over time.

        None where such a value meets one that depends on a neuron (be it only its size), or reaches the output: then
        the network's input has to be repeated in time from the start.
        """
        modules = [node.target for node in self.nodes if node.kind == "module"]
        neurons = Counter(name for name in modules if neuron(model.get_submodule(name)))
        for name, uses in neurons.items():
            if uses > 1:
                raise ValueError(f"{name} is used {uses} times: give each use an activation of its own")
        found, state = set(), dict.fromkeys((node.name for node in self.nodes if node.kind == "input"), "steady")
        for node in self.nodes:
            meets = {state[name] for name in node.refs if name in state}
            if len(meets) > 1 or (node.kind == "output" and "steady" in meets):
                return None
            if node.kind == "module" and node.target in neurons:
                found |= set() if "moving" in meets else {node.target}
                state[node.name] = "moving"
            elif meets:
                state[node.name] = meets.pop()
        return frozenset(found)

    def to_json(self) -> list[dict[str, Any]]:
        """Plain lists, dictionaries, strings and numbers."""
        return [
            {"name": node.name, "kind": node.kind, "target": node.target}
            | ({"args": [_encode(value) for value in node.args]} if node.args else {})
            | ({"kwargs": {key: _encode(value) for key, value in node.kwargs.items()}} if node.kwargs else {})
            for node in self.nodes
        ]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of ``to_json``; anything else is refused with a ValueError."""
        try:
            nodes = []
            for entry in data:
                args = tuple(_decode(value) for value in entry.get("args", []))
                kwargs = {key: _decode(value) for key, value in entry.get("kwargs", {}).items()}
                nodes.append(Node(entry["name"], entry["kind"], entry["target"], args, kwargs))
            return cls(tuple(nodes))
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"this is not the description of a graph ({error!r})") from error


class GraphNetwork(nn.Module):
    """Runs a graph. Its layers lie under their original names, so its ``state_dict`` is that of the captured model.

    ``leaves`` holds, by qualified name, the modules and the parameters or buffers that the nodes name. Where a file
    says how, ``preprocess`` turns uint8 images into the input.
    """

    preprocess: Callable[[Tensor], Tensor]

    def __init__(
        self, graph: Graph, leaves: Mapping[str, nn.Module | Tensor], *, input_shape: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        self.graph = graph
        self.input_shape = input_shape
        for kind in ("module", "attribute"):
            for target in dict.fromkeys(node.target for node in graph.nodes if node.kind == kind):
                self._adopt(target, leaves[target])
        last = {name: node.name for node in graph.nodes for name in node.refs}
        self._program = tuple((node, tuple(n for n in {*node.refs} if last[n] == node.name)) for node in graph.nodes)

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """The captured model, sharing its layers and tensors."""
        graph = capture(model)
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        leaves = {
            node.target: model.get_submodule(node.target) if node.kind == "module" else tensors[node.target]
            for node in graph.nodes
            if node.kind in ("module", "attribute")
        }
        network = cls(graph, leaves, input_shape=getattr(model, "input_shape", None))
        network.training = model.training
        return network

    def forward(self, *inputs: Any) -> Any:
        """Whatever the captured model returns: a tensor, a tuple or a dictionary."""
        if len(inputs) != len(self.graph.inputs):
            raise TypeError(f"this network takes {len(self.graph.inputs)} inputs, got {len(inputs)}")
        waiting = list(inputs)
        values: dict[str, Any] = {}
        args: tuple[Any, ...] = ()
        for node, done in self._program:
            args, kwargs = _fill(node.args, values), _fill(node.kwargs, values)
            if node.kind == "input":
                values[node.name] = waiting.pop(0)
            elif node.kind == "module":
                values[node.name] = self.get_submodule(node.target)(*args, **kwargs)
            elif node.kind == "function":
                values[node.name] = FUNCTIONS[node.target](*args, **kwargs)
            elif node.kind == "method":
                values[node.name] = getattr(args[0], node.target)(*args[1:], **kwargs)
            elif node.kind == "attribute":
                owner, _, name = node.target.rpartition(".")
                values[node.name] = getattr(self.get_submodule(owner), name)
            for name in done:
                del values[name]
        return args[0]

    def _adopt(self, path: str, leaf: nn.Module | Tensor) -> None:
        *parents, name = path.split(".")
        owner: nn.Module = self
        try:
            for parent in parents:
                if parent not in owner._modules:
                    owner.add_module(parent, nn.Module())
                owner = owner.get_submodule(parent)
            if isinstance(leaf, nn.Module):
                owner.add_module(name, leaf)
            elif isinstance(leaf, nn.Parameter) and name not in owner._parameters:
                owner.register_parameter(name, leaf)
            elif not isinstance(leaf, nn.Parameter) and name not in owner._buffers:
                owner.register_buffer(name, leaf)
        except KeyError as error:
            raise ValueError(f"{path!r} cannot be the name of a layer, rename it: {error.args[0]}") from error


def _in_place(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


class _Proxy(fx.Proxy):
    """Keeps ``y += x`` in place as PyTorch does. By itself fx reads ``y + x``: wrong where y has a second name."""

    __iadd__ = _in_place(operator.iadd)
    __isub__ = _in_place(operator.isub)
    __imul__ = _in_place(operator.imul)
    __itruediv__ = _in_place(operator.itruediv)


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LEAVES or isinstance(m, Activation) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Arguments that have a default keep it."""
        _, *arguments = inspect.signature(root_fn).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = tuple(a.name for a in arguments if a.kind in kinds and a.default is a.empty)
        names = self.root.graph.inputs if isinstance(self.root, GraphNetwork) else names
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and all(a is not b for b in self.root.buffers()):
            raise ValueError("a tensor that is neither a parameter nor a buffer; self.register_buffer makes it one")
        return super().create_arg(a)


def capture(model: nn.Module) -> Graph:
    """The graph of ``model`` as it runs in eval mode; a ValueError names the line that cannot be written down."""
    tracer, training = _Tracer(), {module: module.training for module in model.modules()}
    if tracer.is_leaf_module(model, ""):
        raise ValueError(f"{type(model).__name__} is a single layer: wrap it, nn.Sequential(layer)")
    try:
        nodes = list(tracer.trace(model.eval()).nodes)
    except Exception as error:  # the user's own code runs here and may raise anything
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        reason = f"{error}".partition("\n")[0]
        raise ValueError(f"{type(model).__name__} cannot be captured: {reason}{_place(frames)}") from error
    finally:
        for module, mode in training.items():
            module.training = mode
    return Graph(tuple(_node(node) for node in nodes))


def _node(node: fx.Node) -> Node:
    kinds: dict[str, Kind] = {"placeholder": "input", "get_attr": "attribute"}
    kind = kinds.get(node.op, cast(Kind, node.op.removeprefix("call_")))
    target, args = node.target, node.args
    if target is getattr and args[1] == "shape":
        target, args = _shape, args[:1]
    elif target is getattr:
        target = f"Tensor.{args[1]}"
    if not isinstance(target, str):
        origin = getattr(target, "__module__", None) or "torch"
        target = _NAMES.get(target, f"{origin}.{getattr(target, '__name__', target)}")
    try:
        return Node(node.name, kind, target, _plain(args), _plain(node.kwargs))
    except ValueError as error:
        frames = [(file, int(line)) for file, line in re.findall(r'File "(.+?)", line (\d+)', node.stack_trace or "")]
        raise ValueError(f"{error}{_place(frames)}: offspike.graph lists what it knows") from error


def _place(frames: list[tuple[str, int]]) -> str:
    """The user's own line: the last one outside PyTorch and this file."""
    inside = (str(Path(torch.__file__).parent), __file__)
    own = [(file, line) for file, line in frames if not file.startswith(inside)]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def _map(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """``leaf`` of every value in nested arguments."""
    if isinstance(value, tuple):
        return tuple(_map(item, leaf) for item in value)
    if isinstance(value, list):
        return [_map(item, leaf) for item in value]
    if isinstance(value, dict):
        return {key: _map(item, leaf) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(_map(value.start, leaf), _map(value.stop, leaf), _map(value.step, leaf))
    return leaf(value)


def _values(value: Any) -> list[Any]:
    values: list[Any] = []
    _map(value, values.append)
    return values


def _plain(value: Any) -> Any:
    return _map(value, lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf)


def _fill(value: Any, values: dict[str, Any]) -> Any:
    return _map(value, lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf)


def _encode(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"node": value.name}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, slice):
        return {"slice": [_encode(item) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item)] for key, item in value.items()]}
    return {"ellipsis": None} if value is ... else value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match [*value.items()]:
        case [("node", str(name))]:
            return Ref(name)
        case [("tuple", list(items))]:
            return tuple(_decode(item) for item in items)
        case [("slice", [start, stop, step])]:
            return slice(_decode(start), _decode(stop), _decode(step))
        case [("dict", list(items))]:
            return {key: _decode(item) for key, item in items}
        case [("ellipsis", None)]:
            return ...
    raise ValueError(f"{value!r} is not an argument")
