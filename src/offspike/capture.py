"""``capture``: what an ordinary PyTorch model does, read with ``torch.fx`` and written down as a graph.

A model that asks for sizes (``if x.shape[2] > 4``, ``range(x.size(1))``) is answered from an example, or from its own
``input_shape``: such branches and loops are those of the example, while sizes in the graph stay what they are called.
A branch on the data itself, or on the size of the batch, cannot be written down.
"""

import dataclasses
import inspect
import operator
import re
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute, TraceError

from offspike.activations import Activation
from offspike.graph import FUNCTIONS, METHODS, Graph, GraphNetwork, Kind, Node, Ref, map_values
from offspike.leaves import LEAVES

__all__ = ["Step", "capture", "captured", "network", "trace"]

_NAMES = {function: name for name, function in FUNCTIONS.items()}
Example = Tensor | tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Step:
    """A node to be, known or not. ``owner`` is the module that makes this call, ``source`` the line that does."""

    name: str
    kind: Kind
    target: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    owner: str = ""
    source: str = ""

    def node(self) -> Node:
        """What a graph keeps of it; a ValueError names the line that cannot be written down."""
        args, kwargs = self.args, dict(self.kwargs)
        if not args and "input" in kwargs:  # PyTorch's name of the first argument: conv(input=x) is conv(x)
            args = (kwargs.pop("input"),)
        try:
            return Node(self.name, self.kind, self.target, args, kwargs)
        except ValueError as error:
            place = f" ({self.source})" if self.source else ""
            raise ValueError(f"{error}{place}: offspike.graph lists what it knows") from error


def trace(model: nn.Module, example: Example = None, *, training: bool = False) -> list[Step]:
    """Every call of ``model``, in order, in eval mode unless ``training``.

    A ValueError names the line that cannot be followed.
    """
    modes = {module: module.training for module in model.modules()}
    tracer = _Tracer(model, example)
    if tracer.is_leaf_module(model, ""):
        raise ValueError(f"{type(model).__name__} is a single layer: wrap it, nn.Sequential(layer)")
    try:
        nodes = list(tracer.trace(model.train(training)).nodes)
    except Exception as error:  # the user's own code runs here and may raise anything
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        place = _place([frame for frame in frames if "site-packages" not in frame[0]]) or _place(frames)
        reason = f"{error}".partition("\n")[0]
        if reason == "module is not installed as a submodule":
            reason = "a layer that the model does not hold, perhaps in a Python list; nn.ModuleList makes it one"
        reason += f" ({place})" if place else ""
        raise ValueError(f"{type(model).__name__} cannot be captured: {reason}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    return [_step(node) for node in _needed(nodes)]


def capture(model: nn.Module, example: Example = None) -> Graph:
    """The graph of ``model`` as it runs in eval mode; a ValueError names the line that cannot be written down."""
    return Graph(tuple(step.node() for step in trace(model, example)))


def captured(model: nn.Module, example: Example = None) -> GraphNetwork:
    """The model as a network that runs its graph, sharing its layers and tensors."""
    return network(capture(model, example), model)


def network(graph: Graph, model: nn.Module) -> GraphNetwork:
    """The network that runs ``graph`` with the layers and tensors of ``model``."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    leaves = {
        node.target: model.get_submodule(node.target) if node.kind == "module" else tensors[node.target]
        for node in graph.nodes
        if node.kind in ("module", "attribute")
    }
    result = GraphNetwork(graph, leaves, input_shape=getattr(model, "input_shape", None))
    result.training = model.training
    return result


def _in_place(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


class _Sized:
    """Answers for sizes where Python needs a number: ``range(x.size(1))``, ``len(x.shape)``."""

    def __index__(self) -> int:
        return int(cast(Any, self).tracer.known(self))

    def __len__(self) -> int:
        return int(cast(Any, self).tracer.known(self, len))

    __int__ = __index__


class _Attribute(_Sized, Attribute):
    pass


class _Proxy(_Sized, fx.Proxy):
    """Keeps ``y += x`` in place as PyTorch does. By itself fx reads ``y + x``: wrong where y has a second name."""

    __iadd__ = _in_place(operator.iadd)
    __isub__ = _in_place(operator.isub)
    __imul__ = _in_place(operator.imul)
    __itruediv__ = _in_place(operator.itruediv)

    def __getattr__(self, k: str) -> Attribute:
        return _Attribute(self, k)


class _Tracer(fx.Tracer):
    record_stack_traces = True

    def __init__(self, model: nn.Module, example: Example) -> None:
        super().__init__()
        self.model = model
        self.examples = _examples(model, example)
        self.copy: nn.Module | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LEAVES or isinstance(m, Activation) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Arguments that have a default keep it, unless the example has a tensor for them too."""
        _, *arguments = inspect.signature(root_fn).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        given = len(self.examples[0][0]) if self.examples else 0
        places = [a for a in arguments if a.kind in kinds]
        names = tuple(a.name for k, a in enumerate(places) if a.default is a.empty or k < given)
        names = self.root.graph.inputs if isinstance(self.root, GraphNetwork) else names
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and all(a is not b for b in self.root.buffers()):
            raise ValueError("a tensor that is neither a parameter nor a buffer; self.register_buffer makes it one")
        if isinstance(a, tuple) and hasattr(a, "_fields"):  # a named tuple is a tuple
            return self.create_arg(tuple(a))
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            raise ValueError(
                f"{type(a).__name__} is a class of its own: return a tensor, a tuple, a list or a dictionary"
            )
        return super().create_arg(a)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.known(obj))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        try:
            return super().iter(obj)  # unpacking: a, b = x.chunk(2, 1)
        except TraceError:
            return iter([operator.getitem(obj, i) for i in range(self.known(obj, len))])

    def known(self, proxy: fx.Proxy, ask: Callable[[Any], Any] = lambda value: value) -> Any:
        """``ask`` of a value that is no tensor, the same for any batch; a TraceError where it depends on more."""
        if self.examples is None:
            raise TraceError("control flow depends on the input; if only on its sizes, give an example=x")
        self.copy = self.copy or deepcopy(self.model)  # the tracer does not know its parameters: no proxies
        values = [_value(proxy.node, self.copy, *example) for example in self.examples]
        if any(isinstance(value, Tensor) for value in values):
            raise TraceError("control flow depends on the data: all samples and steps must take the same way")
        first, *others = (ask(value) for value in values)
        if any(other != first for other in others):
            raise TraceError("control flow depends on the size of the batch: a sample must not feel its batch")
        return first


def _examples(model: nn.Module, example: Example) -> list[tuple[list[Tensor], dict[fx.Node, Any]]] | None:
    """Batches of one, two and three samples (only their sizes matter), each with the values computed from it so far."""
    shape = getattr(model, "input_shape", None)
    if example is None and shape is not None:
        tensor = next(model.parameters(), torch.empty(0))
        example = torch.zeros(1, *shape, dtype=tensor.dtype, device=tensor.device)
    if example is None:
        return None
    inputs = example if isinstance(example, tuple) else (example,)
    return [([torch.cat([x[:1]] * rows) for x in inputs], {}) for rows in (1, 2, 3)]


@torch.no_grad()
def _value(node: fx.Node, model: nn.Module, waiting: list[Tensor], values: dict[fx.Node, Any]) -> Any:
    """The value of a node, computed while the graph is still being traced."""
    for earlier in node.graph.nodes:
        if earlier in values:
            continue
        args, kwargs = fx.node.map_arg((earlier.args, dict(earlier.kwargs)), lambda n: values[n])
        if earlier.op == "placeholder":
            values[earlier] = waiting.pop(0).clone()
        elif earlier.op == "get_attr":
            values[earlier] = operator.attrgetter(str(earlier.target))(model)
        elif earlier.op == "call_method":
            values[earlier] = getattr(args[0], str(earlier.target))(*args[1:], **kwargs)
        elif earlier.op == "call_module":
            values[earlier] = model.get_submodule(str(earlier.target)).forward(*args, **kwargs)
        elif callable(earlier.target):
            values[earlier] = earlier.target(*args, **kwargs)
        if earlier is node:
            break
    return values[node]


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


def _step(node: fx.Node) -> Step:
    kinds: dict[str, Kind] = {"placeholder": "input", "get_attr": "attribute"}
    kind = kinds.get(node.op, cast(Kind, node.op.removeprefix("call_")))
    target, args = node.target, node.args
    if target is getattr and args[1] in ("shape", "ndim"):
        target, args = str(args[1]), args[:1]
    elif target is getattr and args[1] == "T":
        kind, target, args = "method", "t", args[:1]
    elif target is getattr:
        target = f"Tensor.{args[1]}"
    if not isinstance(target, str):
        origin = (getattr(target, "__module__", None) or "torch").replace("torch._C._nn", "torch.nn.functional")
        target = _NAMES.get(target, f"{origin}.{getattr(target, '__name__', target)}")
    stack = [name for name, _ in node.meta.get("nn_module_stack", {}).values()]
    if node.op == "call_module" and stack and stack[-1] == target:
        stack.pop()
    frames = [(file, int(line)) for file, line in re.findall(r'File "(.+?)", line (\d+)', node.stack_trace or "")]
    owner = stack[-1] if stack else ""
    return Step(node.name, kind, target, _plain(args), dict(_plain(node.kwargs)), owner, _place(frames))


def _plain(value: Any) -> Any:
    return map_values(value, lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf)


def _place(frames: list[tuple[str, int]]) -> str:
    """The user's own line: the last one outside PyTorch, this file and the loop that runs a graph."""
    inside = (str(Path(torch.__file__).parent), __file__, inspect.getfile(GraphNetwork))
    own = [(file, line) for file, line in frames if not file.startswith(inside)]
    return f"{own[-1][0]}, line {own[-1][1]}" if own else ""
