"""A spiking network's forward pass made ready to run: the same network, in fewer passes over memory.

Read off the graph once, for one precision:

- convolutions and images lie channels-last; weights are cast once;
- a sum right before a spiking layer (a shortcut), and in the fast precisions the bias of the layers before it, are
  added where the neurons read their currents;
- in the fast precisions a spike is written as 1 and θ goes into the weights that it meets, so that spikes are exact in
  any format; average pooling by 2 after spikes is done as they are written;
- what comes before the first spike is computed once, and like what comes after the last in float32, without TF32.

``"exact32"`` changes no rounding: the same bits as the model run layer by layer. ``"tf32"`` makes products of spikes
and their neurons one kernel on a GPU, with weights as three digits of 8 bits (`digits.py`). What that kernel does not
know gets weights in two TF32 parts (`parts.py`) if its inputs are spikes or short counts of them, and is multiplied in
float32 if not: no number is cut to 11 bits. ``"bf16"`` rounds the weights between spikes. ``"int8"`` is for networks in
fixed point, where nothing is rounded: most products are then made in whole numbers (`whole.py`). Those networks use
TF32 everywhere, also for the image and the logits: it is exact there, and cuDNN's float32 convolutions need not be
(Winograd). The membrane is float32 in all of them.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offspike.arithmetic.grids import Scale
from offspike.clock import active_clock
from offspike.fast import joins
from offspike.fast.digits import Digits, sizes
from offspike.fast.joins import Join, Joins
from offspike.fast.parts import in_fixed_point, rounds, split
from offspike.fast.precision import Precision, in_float32
from offspike.fast.products import product
from offspike.fast.reading import Reading
from offspike.fast.whole import Whole, surveyed
from offspike.fused import Drive, Product
from offspike.graph import FUNCTIONS, Graph, Node, Ref, map_values
from offspike.layers import SpikingLayer
from offspike.ops.onednn import multiplier

__all__ = ["Plan"]

Values = dict[str, Any]


class Plan:
    """``plan(*inputs)`` is ``model(*inputs)``, inside a clock's block. Tensors of the model are copied, not shared."""

    def __init__(
        self,
        graph: Graph,
        model: nn.Module,
        precision: Precision,
        *,
        repeat_input: bool = False,
        input_shape: tuple[int, ...] | None = None,
        layerwise: bool = True,
    ) -> None:
        self.fast = precision != "exact32"
        self.low = None if precision == "exact32" else torch.bfloat16 if precision == "bf16" else torch.float32
        self.reading = Reading(graph, model, fast=self.fast, moving_input=repeat_input)
        self.fixed = self.fast and in_fixed_point(model)
        self.joined: Joins | None = None
        if precision == "int8":
            self.joined = Whole(self.reading, surveyed(graph, model, input_shape))
        elif precision == "tf32" and layerwise and not self.fixed and joins.fuses(next(model.parameters()).device):
            self.joined = Digits(self.reading, sizes(graph, model, input_shape))
        self.model = model
        self.scale: dict[str, Tensor] = {}  # what a value has to be multiplied with, where θ is left to others
        last = {name: node.name for node in graph.nodes for name in self._needs(node)}
        self.inputs = len(graph.inputs)
        self.watch: Callable[[Node, list[Any], Any], None] | None = None  # told of each step as it is launched
        self.program: list[tuple[Node, Callable[[Values], Any], tuple[str, ...]]] = []
        for node in graph.nodes:
            if not self._left_out(node):
                done = tuple(name for name in {node.name, *self._needs(node)} if last.get(name, node.name) == node.name)
                step = self._step(node)
                self.program.append((node, in_float32(step) if self._plain(node) else step, done))

    def __call__(self, *inputs: Tensor) -> Any:
        """The model's output; inputs ``[B, …]``, or ``[T·B, …]`` where they are repeated."""
        if len(inputs) != self.inputs:
            raise TypeError(f"this network takes {self.inputs} inputs, got {len(inputs)}")
        values: Values = {}
        waiting, result = list(inputs), None
        for node, step, done in self.program:
            if node.kind == "input":
                values[node.name] = self._enter(waiting.pop(0))
            else:
                result = values[node.name] = step(values)
            if self.watch is not None:
                self.watch(node, [values[name] for name in self._needs(node)], values[node.name])
            for name in done:
                del values[name]
        return result

    def _enter(self, x: Tensor) -> Tensor:
        if self.low is not None:
            x = x.float()
        # A copy where the model may change its input in place: it is needed again.
        return x.clone() if self.reading.in_place else self._laid(x)

    def _left_out(self, node: Node) -> bool:
        """Whether a node is no step of its own: neurons make its value themselves."""
        source = self.reading.source(node.name)
        return source in self.reading.sums or (self.joined is not None and source in self.joined.inside)

    def _needs(self, node: Node) -> tuple[str, ...]:
        """The values that a node reads, sums and products that neurons make themselves taken apart."""
        if not self.reading.neuron(node):
            return node.refs
        if self.joined is not None and node.name in self.joined.joins:
            return self.joined.joins[node.name].needs
        return tuple(name for name in self.reading.parts(node) if name is not None)

    def _step(self, node: Node) -> Callable[[Values], Any]:
        layer = self.reading.neuron(node)
        if layer is not None:
            join = None if self.joined is None else self.joined.joins.get(node.name)
            return self._neuron(node, layer) if join is None else self._joined(node, layer, join)
        module = self.model.get_submodule(node.target) if node.kind == "module" else None
        if module is not None and self.reading.linear(node):
            return self._linear(node, module)
        if self.reading.passes(node) and node.refs[0] in self.scale:
            self.scale[node.name] = self.scale[node.refs[0]] * self._share(node)
        if module is not None:
            if self._pooled(node):
                return lambda values: values[node.refs[0]]
            copy = self._copy(node, module)
            return lambda values: copy(*_fill(node.args, values), **_fill(node.kwargs, values))
        if node.kind == "attribute":
            return self._attribute(node)
        if node.kind == "function":
            function = FUNCTIONS[node.target]
            return lambda values: function(*_fill(node.args, values), **_fill(node.kwargs, values))
        if node.kind == "method":
            return lambda values: _method(node.target, *_fill(node.args, values), **_fill(node.kwargs, values))
        return lambda values: _fill(node.args[0], values) if node.args else None

    def _attribute(self, node: Node) -> Callable[[Values], Any]:
        tensor = _attribute(self.model, node.target)
        dtypes = {self._dtype(user) for user in self.reading.users[node.name]}
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and None not in dtypes:
            tensor = tensor.detach().to(self.low if self.low in dtypes else torch.float32)
        return lambda values: tensor

    def _neuron(self, node: Node, layer: SpikingLayer) -> Callable[[Values], Any]:
        reading = self.reading
        name, other = reading.parts(node)
        bias = self._bias(layer, [n for n in (name, other) if n is not None])
        gain = None if other is None else self.scale.get(other, torch.ones_like(layer.theta.flatten()[:1]))
        unit, pool = reading.unit(node), reading.pool(node)
        if unit:
            self.scale[node.name] = layer.theta.detach().clone()
        early = any(sink.name in reading.early or sink.name in reading.sums for sink in reading.sinks(node.name))
        dtype = None if self.low is None else self.low if early else torch.float32
        dtype = torch.int8 if self._narrow(node) else dtype

        def step(values: Values) -> Tensor:
            clock = active_clock()
            if bias is None and other is None:
                current = layer.unfold(values[name])  # the layer adds its shift itself
            else:
                current = clock.hold(values[name]) if layer.steady else clock.unfold(values[name])
            beside = None if other is None else clock.unfold(values[other])
            if beside is not None and beside.shape != current.shape:  # a sum that repeats one of its parts
                current, beside = torch.broadcast_tensors(current, beside)  # type: ignore[no-untyped-call]
            whole = pool is not None and clock.heard is None and _windows(current)
            drive = Drive(
                current[:1] if layer.steady else current, clock.steps, beside=beside,
                gain=gain, bias=bias, unit=unit, dtype=dtype, pool=whole,
            )  # fmt: skip
            out = layer.fire(drive)
            return F.avg_pool2d(out, 2) if pool is not None and not whole else out

        return step

    def _joined(self, node: Node, layer: SpikingLayer, join: Join) -> Callable[[Values], Any]:
        """A product in whole numbers and its neurons: one kernel on a GPU, two on a CPU."""
        assert self.joined is not None
        name, image = join.product.refs[0], join.image
        synapses = self.joined.synapses(join, self.scale.get(name))
        bias = self._bias(layer, [part for part in self.reading.parts(node) if part is not None])
        gain = self._gain(join).to(layer.theta)
        if self.reading.unit(node):
            self.scale[node.name] = layer.theta.detach().clone()
        dtype = torch.int8 if self._narrow(node) else torch.float32
        fused, flat = self.joined.fused, None if bias is None else bias.flatten()
        multiply = None if fused else multiplier(synapses.weight, synapses.scale, image=image, stride=synapses.stride)

        def step(values: Values) -> Tensor:
            clock, spikes = active_clock(), values[name].to(torch.int8)
            beside = None if join.beside is None else clock.unfold(values[join.beside])
            whole = fused and join.pool is not None and clock.heard is None
            drive: Drive | Product
            if multiply is None:
                drive = Product(
                    clock.unfold(spikes), synapses, gain=gain, dtype=dtype, pool=whole, beside=beside, bias=flat
                )
            else:
                current = clock.unfold(multiply(spikes))
                drive = Drive(current, clock.steps, beside=beside, gain=gain, bias=bias, unit=True, dtype=dtype)
            out = layer.fire(drive)
            return out if whole or join.pool is None else _counted(out)

        return step

    def _narrow(self, node: Node) -> bool:
        return self.joined is not None and self.joined.narrow(node.name)

    def _share(self, node: Node) -> float:
        """What a spike is worth in the counts that a pool hands on."""
        return self.joined.share if self.joined is not None and node.name in self.joined.pools else 1.0

    def _gain(self, join: Join) -> Tensor:
        """What a spike of the shortcut is worth."""
        worth = None if join.beside is None else self.scale.get(join.beside)
        scale = None if join.scale is None else self.reading.module(join.scale)
        if isinstance(scale, Scale):
            worth = scale.weight.detach() * (1 if worth is None else worth)
        return torch.ones(1) if worth is None else worth.clone()

    def _pooled(self, node: Node) -> bool:
        """Whether a node is a pooling that was done as spikes were written."""
        if self.joined is not None and (node.name in self.joined.pools or node.refs[0] in self.joined.joins):
            return node.name in self.joined.pools
        return self.reading.pooled(node)

    def _linear(self, node: Node, module: Any) -> Callable[[Values], Any]:
        name, dtype = node.refs[0], self._dtype(node)
        weight, scale = module.weight.detach(), self.scale.get(name)
        if scale is not None:
            weight = weight.double() * scale.to(weight.device).double()
        parted = self._parted(node) and rounds(weight.device)
        weights = split(weight) if parted else [weight.to(dtype or weight.dtype)]
        bias = None if module.bias is None or self.reading.bare(node) else module.bias.detach()
        weights, moving = [self._laid(part) for part in weights], node.name in self.reading.moving
        narrow = self.joined is not None and self.joined.narrow(name)
        run = product(module, weights, bias, dtype=dtype, spikes=moving, narrow=narrow)
        return lambda values: run(values[name])

    def _bias(self, layer: SpikingLayer, names: list[str]) -> Tensor | None:
        """What the neurons add to their currents: the biases of the linear layers before them, and their own shift."""
        parts: list[Tensor] = []
        for node in (self.reading.nodes[name] for name in names):
            module: Any = self.reading.module(node)
            if self.reading.bare(node) and module.bias is not None:
                parts.append(module.bias.detach().float().view(-1, *[1] * (module.weight.ndim - 2)))
        if layer.shift is not None and (parts or len(names) > 1):
            parts.append(layer.shift)
        return sum(parts[1:], parts[0]) if parts else None

    def _copy(self, node: Node, module: nn.Module) -> nn.Module:
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)  # takes any input beside its float32 numbers
        dtype = self._dtype(node)
        if dtype is None or norm or not any(True for _ in module.parameters()):
            return module
        return deepcopy(module).to(dtype)

    def _dtype(self, node: Node) -> torch.dtype | None:
        """What a layer computes in: low precision between spikes, float32 before and after; None: as it is."""
        return None if self.low is None else self.low if self._between(node) else torch.float32

    def _between(self, node: Node) -> bool:
        return node.name in self.reading.moving and node.name in self.reading.early

    def _parted(self, node: Node) -> bool:
        """Whether a layer's weights go to tensor cores in TF32 parts: its input is known to be TF32 numbers."""
        if self.low != torch.float32 or not self.reading.linear(node):
            return False
        return self.fixed or (self._between(node) and self.reading.short(node.refs[0]))

    def _plain(self, node: Node) -> bool:
        """Whether a step of a fast precision may multiply in float32 alone: TF32 would round what it takes."""
        if self.fixed or self._parted(node) or self._dtype(node) != torch.float32:
            return False
        module = self.reading.module(node)
        own = module is not None and self.reading.neuron(node) is None and any(True for _ in module.parameters())
        return own or node.kind in ("function", "method")

    def _laid(self, x: Tensor) -> Tensor:
        last = x.ndim == 4 and not self.reading.in_place
        return x.contiguous(memory_format=torch.channels_last) if last else x


def _windows(current: Tensor) -> bool:
    """Whether ``[T, B, C, H, W]`` falls into windows of 2x2, channels innermost."""
    if current.ndim != 5 or current.shape[3] % 2 or current.shape[4] % 2:
        return False
    return current[0].is_contiguous(memory_format=torch.channels_last)


def _counted(spikes: Tensor) -> Tensor:
    """Spikes ``[B, C, H, W]`` counted over windows of 2x2, in their own dtype."""
    rows = spikes[:, :, ::2] + spikes[:, :, 1::2]
    return rows[..., ::2] + rows[..., 1::2]


def _method(name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    # Channels-last memory may have no such view; where one is written to, memory is left as it was.
    name = {"view": "reshape", "view_as": "reshape_as"}.get(name, name)
    return getattr(x, name)(*args, **kwargs)


def _attribute(model: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(model.get_submodule(owner), name)


def _fill(value: Any, values: Values) -> Any:
    return map_values(value, lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf)
