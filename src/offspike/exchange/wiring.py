"""A spiking network as a wiring diagram: a few kinds of parts, and edges that add where they meet.

This is what exchange formats can say. Most layers are one part. Additions are edges; a concatenation is the sum of
convolutions that put each piece into its channels; a BatchNorm is folded, or is a 1×1 convolution. What a chain of
reshaping operations does (views, slices, padded shortcuts, chunks) is found by trying it on numbers, and drawn where it
is a flattening, a 1×1 convolution or a matrix. What fits nothing is refused with its name.
"""

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from offspike.capture import captured
from offspike.exchange.parts import Part, Pencil, Signal
from offspike.folding import fold
from offspike.graph import Node, fill, map_values, values_in
from offspike.layers import SpikingLayer
from offspike.surgery import replace

__all__ = ["Wiring", "wire"]

ARITHMETIC = {"add": 1, "iadd": 1, "sub": -1, "isub": -1}
PRODUCTS = {"mul": 1, "imul": 1, "div": -1, "truediv": -1, "itruediv": -1}
NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(frozen=True)
class Wiring:
    """The parts of a network in an order in which they can run.

    ``front`` is a layer that only the input goes through and that no part can do, such as the input grid of a snapped
    network: what is fed to the parts is ``front(x)``.
    """

    parts: tuple[Part, ...]
    front: nn.Module


@torch.no_grad()
def wire(model: nn.Module, example: Tensor) -> Wiring:
    """The wiring of a model whose activations are spiking layers."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, SpikingLayer)}
    example = example[:1].cpu()
    still = replace(model, SpikingLayer, lambda name, layer: nn.ReLU()).cpu()  # spiking layers run only under a clock
    network = captured(fold(still, example=example), example)
    if len(network.graph.inputs) != 1:
        raise ValueError(f"this network has {len(network.graph.inputs)} inputs; exchange formats are for one")
    drawing = _Drawing(network, layers)
    values: dict[str, Any] = {}
    for node in network.graph.nodes:
        args, kwargs = fill(node.args, values), fill(node.kwargs, values)
        values[node.name] = drawing.draw(node, args, kwargs, example)
    return Wiring(tuple(drawing.parts.values()), drawing.front)


class _Drawing(Pencil):
    def __init__(self, network: Any, layers: dict[str, SpikingLayer]) -> None:
        super().__init__()
        self.network = network
        self.layers = layers
        self.front: nn.Module = nn.Identity()

    def draw(self, node: Node, args: Any, kwargs: Any, example: Tensor) -> Any:
        """The value of a node: a signal, or whatever is known without one, such as a size."""
        self.name, self.where = node.name, node.target
        if node.kind == "input":
            return self.put("input", (), tuple(example.shape[1:]), example)
        if node.kind == "output":
            return self._output(args[0])
        signals = values_in((args, kwargs), Signal)
        operation = _base(node)
        if operation == "getitem" and isinstance(args[0], list):
            return args[0][args[1]]
        if not signals:
            return self.network.call(node, args, kwargs)
        if operation in ("shape", "size", "ndim", "dim", "numel"):
            return self.network.call(node, (args[0].sample, *args[1:]), kwargs)
        if node.target in self.layers:
            return self.neurons(self.layers[node.target], args[0])
        if node.kind == "module":
            return self._module(node, args[0])
        result = self._operation(node, args, kwargs, signals)
        in_place = node.target.endswith("_") or operation in ("iadd", "isub", "imul", "itruediv")
        return args[0].become(result) if in_place and isinstance(args[0], Signal) else result

    def _operation(self, node: Node, args: Any, kwargs: Any, signals: list[Signal]) -> Any:
        first, name = args[0], _base(node)
        if name in ARITHMETIC and kwargs.get("alpha", 1) == 1 and len(args) == 2:
            return self._sum(first, args[1], ARITHMETIC[name])
        if name in PRODUCTS and len(signals) == 1 and len(args) == 2:
            return self._product(first, args[1], PRODUCTS[name])
        if name == "neg":
            return self.scaled(signals[0], torch.tensor(-1.0))
        if name in ("cat", "concat"):
            axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
            return self.joined(signals, axis)
        if name == "avg_pool2d":
            names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
            return self.pool(signals[0], nn.AvgPool2d(**dict(zip(names, args[1:], strict=False)) | kwargs))
        if name == "adaptive_avg_pool2d":
            return self.pool(signals[0], nn.AdaptiveAvgPool2d(*args[1:], **kwargs))
        if name.startswith("dropout"):
            return signals[0]
        if len(signals) == 1:
            return self._reshaped(node, args, kwargs)
        return self.refuse(f"{name} of several tensors")

    def _module(self, node: Node, x: Signal) -> Signal:
        module = self.network.get_submodule(node.target)
        if isinstance(module, NOTHING):
            return x
        if isinstance(module, nn.Flatten):
            return self._reshaped(node, (x,), {})  # type: ignore[no-any-return]
        if isinstance(module, nn.Linear):
            return self.linear(module, x)
        if isinstance(module, nn.Conv1d | nn.Conv2d) and module.padding_mode == "zeros":
            return self.conv(module, x)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_mean is not None:
            return self.norm(module, x)
        if isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d):
            return self.pool(x, module)
        return self._other(node, module, x)

    def _other(self, node: Node, module: nn.Module, x: Signal) -> Signal:
        """A layer of some other type, drawn if trying shows that it is a 1×1 convolution."""
        self.settle(x)
        drawn = self._reshaped(node, (x,), {})
        try:
            self.settle(drawn)
        except ValueError:
            if x.terms != ("input",) or drawn.sample.shape != x.sample.shape:
                self.refuse(str(module))
            self.front = module
            return x
        return drawn  # type: ignore[no-any-return]

    def _sum(self, a: Any, b: Any, sign: int) -> Signal:
        if not isinstance(a, Signal):
            return self.shifted(self.scaled(b, torch.tensor(float(sign))) if sign < 0 else b, torch.as_tensor(a))
        if not isinstance(b, Signal):
            return self.shifted(a, sign * torch.as_tensor(b))
        self.settle(a)
        self.settle(b)
        if a.shape != b.shape:
            self.refuse(f"a sum of {list(a.shape)} and {list(b.shape)}")
        if sign < 0 or set(a.terms) & set(b.terms):  # an edge can be there only once
            b = self.scaled(b, torch.tensor(float(sign)))
        return Signal(a.terms + b.terms, a.shape, a.sample)

    def _product(self, a: Any, b: Any, power: int) -> Signal:
        signal, factor = (a, b) if isinstance(a, Signal) else (b, a)
        if power < 0 and signal is b:
            self.refuse("a division by spikes")
        factor = torch.as_tensor(factor, dtype=torch.float32)
        return self.scaled(signal, factor if power > 0 else 1 / factor)

    def _reshaped(self, node: Node, args: Any, kwargs: Any) -> Any:
        """A signal with one more operation to be drawn; a list of them for ``chunk`` and its like."""
        signal = values_in((args, kwargs), Signal)[0]
        if signal.sample.ndim == 1 + len(signal.shape):
            self.settle(signal)

        def run(z: Tensor) -> Any:
            given = map_values((args, kwargs), lambda leaf: z if isinstance(leaf, Signal) else leaf)
            return self.network.call(node, *given)

        result = run(signal.sample.clone())
        if isinstance(result, Tensor):
            return Signal(signal.terms, signal.shape, result, (*signal.reshaping, run))
        return [
            Signal(signal.terms, signal.shape, piece, (*signal.reshaping, run, itemgetter(i)))
            for i, piece in enumerate(result)
        ]

    def _output(self, x: Any) -> None:
        if not isinstance(x, Signal):
            self.refuse("an output of several tensors")
        self.settle(x)
        if len(x.terms) > 1:
            x = self.scaled(x, torch.tensor(1.0))
        self.put("output", x.terms, x.shape, x.sample)


def _base(node: Node) -> str:
    """``add`` of operator.add, torch.add and add_."""
    return node.target.rpartition(".")[2].rstrip("_")
