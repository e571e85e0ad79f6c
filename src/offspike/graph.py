"""A network as data: which layers and operations run, in which order, on what.

``offspike.capture`` reads an ordinary PyTorch model and writes down its nodes; ``GraphNetwork`` runs them by a plain
loop over the list. Between the two lies nothing but names and numbers, which fit into JSON. A name only ever selects
from the explicit tables of this file, so a graph that comes from outside can do no more than these operations.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offspike.arguments import Ref, decode, encode, fill, map_values, refs_in, values_in

__all__ = [
    "FUNCTIONS", "METHODS", "Graph", "GraphNetwork", "Kind", "Node", "Ref", "fill", "map_values", "refs_in",
    "values_in",
]  # fmt: skip

Kind = Literal["input", "module", "function", "method", "attribute", "output"]


def _shape(x: Any) -> Any:
    """An attribute that a graph may read (Dynamo does not see through ``operator.attrgetter``)."""
    return x.shape


def _ndim(x: Any) -> Any:
    """The other one."""
    return x.ndim


def _table(prefix: str, owner: Any, names: str) -> dict[str, Callable[..., Any]]:
    return {prefix + name: getattr(owner, name) for name in names.split()}


# For constants, and for what is computed from the input before any neuron; `audit` refuses them elsewhere.
_NONLINEAR = "sqrt rsqrt exp log abs pow square reciprocal std var amax amin maximum minimum sigmoid tanh softmax"
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "shape": _shape,
    "ndim": _ndim,
    **_table("operator.", operator, "add iadd sub isub mul imul truediv itruediv floordiv mod neg getitem matmul pow"),
    **_table("torch.", torch, "add sub mul div neg cat concat stack chunk split narrow flatten reshape permute matmul"),
    **_table("torch.", torch, "bmm mm transpose squeeze unsqueeze mean sum flip roll select unbind unflatten movedim"),
    **_table("torch.", torch, "swapaxes relu relu_ clamp clamp_ clamp_min clamp_max clip conv1d conv2d conv3d"),
    **_table("torch.", torch, "conv_transpose2d avg_pool1d adaptive_avg_pool1d max_pool1d max_pool2d max_pool3d"),
    **_table("torch.", torch, "pixel_shuffle pixel_unshuffle channel_shuffle einsum hstack index_select t zeros_like"),
    **_table("torch.", torch, "tile rot90 repeat_interleave tensor_split broadcast_to diagonal take_along_dim gather"),
    **_table("torch.", torch, "cumsum diff tril triu conv_transpose1d conv_transpose3d inner addmm tensordot clone"),
    **_table("torch.", torch, "detach ones_like full_like " + _NONLINEAR),
    **_table("F.", F, "avg_pool2d avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d"),
    **_table("F.", F, "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d batch_norm unfold fold softplus"),
    **_table("F.", F, "pad interpolate linear dropout dropout1d dropout2d dropout3d relu relu6 leaky_relu hardtanh"),
    "F.softmax": F.softmax,
}
METHODS = frozenset(
    _table("", Tensor, "add add_ sub sub_ mul mul_ div div_ neg relu relu_ clamp clamp_ mean clone contiguous size dim")
    | _table("", Tensor, "flatten unflatten reshape view permute transpose squeeze unsqueeze chunk split narrow expand")
    | _table("", Tensor, "sum flip roll select unbind movedim swapaxes repeat expand_as view_as matmul detach numel")
    | _table("", Tensor, "clamp_min clamp_min_ clamp_max clip clip_ float t index_select bmm mm new_zeros new_ones")
    | _table("", Tensor, "tile rot90 repeat_interleave tensor_split broadcast_to diagonal take_along_dim gather")
    | _table("", Tensor, "cumsum diff tril triu unfold reshape_as new_full " + _NONLINEAR)
)


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
        for value in values_in((self.args, self.kwargs), object):
            number = isinstance(value, int | float) and abs(value) < 2**63  # not so for NaN and infinities
            if not (number or value is None or value is ... or isinstance(value, Ref | str)):
                raise ValueError(f"node {self.name!r}: {value!r} cannot be written down as an argument")

    @property
    def refs(self) -> tuple[str, ...]:
        """The nodes whose values it takes."""
        return refs_in((self.args, self.kwargs))


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
            | ({"args": [encode(value) for value in node.args]} if node.args else {})
            | ({"kwargs": {key: encode(value) for key, value in node.kwargs.items()}} if node.kwargs else {})
            for node in self.nodes
        ]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of ``to_json``; anything else is refused with a ValueError."""
        try:
            nodes = []
            for entry in data:
                args = tuple(decode(value) for value in entry.get("args", []))
                kwargs = {key: decode(value) for key, value in entry.get("kwargs", {}).items()}
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

    def forward(self, *inputs: Any) -> Any:
        """Whatever the captured model returns: a tensor, a tuple or a dictionary."""
        if len(inputs) != len(self.graph.inputs):
            raise TypeError(f"this network takes {len(self.graph.inputs)} inputs, got {len(inputs)}")
        waiting = list(inputs)
        values: dict[str, Any] = {}
        args: tuple[Any, ...] = ()
        for node, done in self._program:
            args, kwargs = fill(node.args, values), fill(node.kwargs, values)
            values[node.name] = waiting.pop(0) if node.kind == "input" else self.call(node, args, kwargs)
            for name in done:
                del values[name]
        return args[0]

    def call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of one node."""
        if node.kind == "module":
            return self.get_submodule(node.target)(*args, **kwargs)
        if node.kind == "function":
            return FUNCTIONS[node.target](*args, **kwargs)
        if node.kind == "method":
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        if node.kind == "attribute":
            owner, _, name = node.target.rpartition(".")
            return getattr(self.get_submodule(owner), name)
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
