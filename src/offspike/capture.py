"""``capture``: what an ordinary PyTorch model does, read with ``torch.fx`` and written down as a graph."""

import inspect
import operator
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from offspike.activations import Activation
from offspike.graph import FUNCTIONS, Graph, GraphNetwork, Kind, Node, Ref, map_values
from offspike.leaves import LEAVES

__all__ = ["capture", "captured"]

_NAMES = {function: name for name, function in FUNCTIONS.items()}


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


def captured(model: nn.Module) -> GraphNetwork:
    """The model as a network that runs its graph, sharing its layers and tensors."""
    graph = capture(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    leaves = {
        node.target: model.get_submodule(node.target) if node.kind == "module" else tensors[node.target]
        for node in graph.nodes
        if node.kind in ("module", "attribute")
    }
    network = GraphNetwork(graph, leaves, input_shape=getattr(model, "input_shape", None))
    network.training = model.training
    return network


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


def _node(node: fx.Node) -> Node:
    kinds: dict[str, Kind] = {"placeholder": "input", "get_attr": "attribute"}
    kind = kinds.get(node.op, cast(Kind, node.op.removeprefix("call_")))
    target, args = node.target, node.args
    if target is getattr and args[1] == "shape":
        target, args = "shape", args[:1]
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


def _plain(value: Any) -> Any:
    return map_values(value, lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf)


def _place(frames: list[tuple[str, int]]) -> str:
    """The user's own line: the last one outside PyTorch, this file and the loop that runs a graph."""
    inside = (str(Path(torch.__file__).parent), __file__, inspect.getfile(GraphNetwork))
    own = [(file, line) for file, line in frames if not file.startswith(inside)]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""
