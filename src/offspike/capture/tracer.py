"""Running a model on stand-ins for its tensors, and answering what its code asks of them."""

import dataclasses
import inspect
import math
import operator
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute, TraceError

from offspike.activations import Activation
from offspike.capture.factories import CaptureError
from offspike.capture.steps import SIZES
from offspike.graph import GraphNetwork, map_values
from offspike.layers import SpikingLayer
from offspike.leaves import LEAVES

__all__ = ["Example", "Tracer", "weight"]

Example = Tensor | tuple[Tensor, ...] | None
_one_at_a_time = threading.RLock()
_DATA = "control flow depends on the data: all samples and steps must take the same way"


def weight(model: nn.Module) -> Tensor:
    """One of the weights, for their dtype and device; thresholds are float32 whatever the network computes in."""
    thresholds = {
        id(tensor)
        for module in model.modules()
        if isinstance(module, Activation | SpikingLayer)
        for tensor in (*module.parameters(), *module.buffers())
    }
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    return next((t for t in tensors if id(t) not in thresholds), next(iter(tensors), torch.empty(0)))


def _in_place(function: Callable[..., Any]) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda proxy, other: proxy.tracer.create_proxy("call_function", function, (proxy, other), {})


class _Sized:
    """Answers for sizes where Python needs a number: ``range(x.size(1))``, ``len(x.shape)``, ``math.ceil(h / 2)``."""

    def __index__(self) -> int:
        return int(cast(Any, self).tracer.known(self))

    def __float__(self) -> float:
        return float(cast(Any, self).tracer.known(self))

    def __round__(self, digits: int | None = None) -> Any:
        return round(cast(Any, self).tracer.known(self), digits)

    def __trunc__(self) -> int:
        return int(self)

    def __len__(self) -> int:
        rows = "len(x) of a tensor is a plain number, the size of the batch: write x.size(0)"
        return int(cast(Any, self).tracer.known(self, len, of_a_tensor=rows))

    def prod(self, *args: Any, **options: Any) -> Any:
        """``np.prod(x.shape[1:])`` asks the shape itself, by these names; ``x.prod(1)`` is a tensor's method."""
        if not args and "out" in options and options.get("axis") is None:
            return math.prod(cast(Any, self))
        return cast(Any, self).tracer.create_proxy("call_method", "prod", (self, *args), options)

    __int__ = __index__


class _Attribute(_Sized, Attribute):
    pass


class _Proxy(_Sized, fx.Proxy):
    """Keeps ``y += x`` in place as PyTorch does. By itself fx reads ``y + x``: wrong where y has a second name."""

    __iadd__ = _in_place(operator.iadd)
    __isub__ = _in_place(operator.isub)
    __imul__ = _in_place(operator.imul)
    __itruediv__ = _in_place(operator.itruediv)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise CaptureError("an assignment into a tensor", "build the tensor with torch.cat or F.pad")

    def __dlpack__(self, **options: Any) -> Any:
        what = "torch.tensor or torch.as_tensor of a value that the network computes"
        raise CaptureError(what, "leave it out: a tensor is one already, and a size may stand as the number it is")

    __dlpack_device__ = __dlpack__

    def __getattr__(self, k: str) -> Any:
        """A method to be called, or an attribute: noted at once, for fx would name the line that uses it."""
        if k == "__cuda_array_interface__":  # torch.tensor asks for this first, then for __dlpack__
            raise AttributeError(k)
        if k in SIZES or callable(getattr(Tensor, k, len)):
            return _Attribute(self, k)
        return self.tracer.create_proxy("call_function", getattr, (self, k), {})


class Tracer(fx.Tracer):
    """Traces ``model``; what its code asks of sizes is answered from ``example``."""

    record_stack_traces = True
    proxy_buffer_attributes = True  # so that what is computed from buffers is written down, too

    def __init__(self, model: nn.Module, example: Example) -> None:
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]  # functions of math get numbers
        self.model = model
        self.examples = _examples(model, example)
        self.copy: nn.Module | None = None
        self.thread = 0

    def trace(self, root: Any, concrete_args: Any = None) -> fx.Graph:
        """The graph of a model. Meanwhile fx has every call of a layer go through here, also those of other threads."""
        with _one_at_a_time:
            self.thread = threading.get_ident()
            return super().trace(root, concrete_args)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """What a layer holds; to others than the traced model it is what it is."""
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers that graphs name as a whole."""
        return type(m) in LEAVES or isinstance(m, Activation) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """The stand-in for a node's value."""
        return _Proxy(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Proxy:
        """A max-pool becomes a layer, and its window is a number: that of the example."""
        if kind == "call_function" and self.examples and "max_pool" in getattr(target, "__name__", ""):
            args = (*args[:1], *map_values(args[1:], self._number))
            kwargs = {k: v if k == "input" else map_values(v, self._number) for k, v in kwargs.items()}
        return super().create_proxy(kind, target, args, kwargs, *rest, **options)

    def _number(self, leaf: Any) -> Any:
        value = self.known(leaf) if isinstance(leaf, fx.Proxy) else leaf
        return tuple(value) if isinstance(value, tuple) else value

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A slice of a Sequential is none of the model's own modules, but its layers are."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        if m in (self.submodule_paths or {}):
            return super().call_module(m, forward, args, kwargs)
        if type(m) is nn.Sequential:
            return forward(*args, **kwargs)
        kind = type(m).__name__
        raise ValueError(
            f"{kind} is a layer that the model does not hold. Make it in __init__, self.layer = {kind}(…), not in "
            "forward; if it is in a Python list, nn.ModuleList makes it one of the model's own"
        )

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
        """An argument as it can be written down."""
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and all(a is not b for b in self.root.buffers()):
            raise ValueError("a tensor that is neither a parameter nor a buffer; self.register_buffer makes it one")
        if isinstance(a, tuple) and hasattr(a, "_fields"):  # a named tuple is a tuple
            return self.create_arg(tuple(a))
        if isinstance(a, dict) and type(a) is not dict:  # so is a class of answers that is a dictionary, too
            return self.create_arg(dict(a))
        if dataclasses.is_dataclass(a) and not isinstance(a, type):
            raise ValueError(
                f"{type(a).__name__} is a class of its own: return a tensor, a tuple, a list or a dictionary"
            )
        return super().create_arg(a)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """The answer to ``if x.shape[2] > 4``."""
        return bool(self.known(obj))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """The parts of ``*x.shape``, ``for part in x.chunk(2, 1)``."""
        try:
            return super().iter(obj)  # unpacking: a, b = x.chunk(2, 1)
        except TraceError:
            return iter([operator.getitem(obj, i) for i in range(self.known(obj, len))])

    def known(
        self, proxy: fx.Proxy, ask: Callable[[Any], Any] = lambda value: value, *, of_a_tensor: str = _DATA
    ) -> Any:
        """``ask`` of a value that is no tensor, the same for any batch; a TraceError where it depends on more.

        What is made of buffers alone may be a tensor, too; of others ``of_a_tensor`` says what is wrong.
        """
        made_of = _made_of(proxy.node)
        constant = all(node.op != "placeholder" for node in made_of)
        if self.examples is None and not constant:
            raise TraceError("control flow depends on the input; if only on its sizes, give an example=x")
        self.copy = self.copy or deepcopy(self.model)  # the tracer does not know its parameters: no proxies
        if constant:
            value = _value(proxy.node, made_of, self.copy, [], {})
            if isinstance(value, Tensor) and any(_is_parameter(node, self.copy) for node in made_of):
                raise TraceError("control flow depends on the value of a parameter, which training changes")
            return ask(value)
        nodes = list(proxy.node.graph.nodes)
        values = [_value(proxy.node, nodes, self.copy, *example) for example in self.examples or []]
        if any(isinstance(value, Tensor) for value in values):
            raise TraceError(of_a_tensor)
        first, *others = (ask(value) for value in values)
        if any(other != first for other in others):
            raise TraceError("control flow depends on the size of the batch: a sample must not feel its batch")
        return first


def _examples(model: nn.Module, example: Example) -> list[tuple[list[Tensor], dict[fx.Node, Any]]] | None:
    """Batches of one, two and three samples (only their sizes matter), each with the values computed from it so far."""
    shape = getattr(model, "input_shape", None)
    sizes = isinstance(shape, tuple | list) and all(isinstance(size, int) for size in shape)  # it may be the user's own
    if example is None and shape is not None and sizes:
        like = weight(model)
        example = torch.zeros(1, *shape, dtype=like.dtype, device=like.device)
    if example is None:
        return None
    inputs = example if isinstance(example, tuple) else (example,)
    return [([torch.cat([x[:1]] * rows) for x in inputs], {}) for rows in (1, 2, 3)]


def _made_of(node: fx.Node) -> list[fx.Node]:
    """A node and all that it is made of, in the order of the graph."""
    wanted = {node}
    for earlier in reversed(list(node.graph.nodes)):
        wanted |= set(earlier.all_input_nodes) if earlier in wanted else set()
    return [earlier for earlier in node.graph.nodes if earlier in wanted]


def _is_parameter(node: fx.Node, model: nn.Module) -> bool:
    return node.op == "get_attr" and isinstance(operator.attrgetter(str(node.target))(model), nn.Parameter)


@torch.no_grad()
def _value(
    node: fx.Node, nodes: list[fx.Node], model: nn.Module, waiting: list[Tensor], values: dict[fx.Node, Any]
) -> Any:
    """The value of a node, one of ``nodes``, computed while the graph is still being traced."""
    for earlier in nodes:
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
            module = model.get_submodule(str(earlier.target))
            spiking = isinstance(module, SpikingLayer)  # it knows no time here, and only sizes are asked for
            values[earlier] = args[0] if spiking else module.forward(*args, **kwargs)
        elif callable(earlier.target):
            values[earlier] = earlier.target(*args, **kwargs)
        if earlier is node:
            break
    return values[node]
