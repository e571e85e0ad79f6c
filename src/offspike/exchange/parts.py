"""The parts of a wiring diagram, and how layers are drawn as parts."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from offspike.exchange.reshaping import Flat, Mean, Mixed, Nothing, recognise
from offspike.layers import SpikingLayer

__all__ = ["Kind", "Part", "Pencil", "Signal", "diagonal"]

Kind = Literal["input", "conv", "affine", "pool", "flatten", "scale", "neurons", "output"]


@dataclass(frozen=True)
class Part:
    """What it gets is the sum of its ``sources``; what it sends on has ``shape`` (without the batch).

    ``values`` by kind: conv (weight, bias, stride, padding, dilation, groups), affine (weight, bias), pool (kernel,
    stride, padding), flatten (axes), scale (scale), neurons (theta, v0 where it is static, layer, label,
    levels). Neurons send on 1 for a spike.
    """

    name: str
    kind: Kind
    sources: tuple[str, ...]
    shape: tuple[int, ...]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Signal:
    """A tensor on its way: the parts it is the sum of, and reshaping that has not been drawn yet."""

    terms: tuple[str, ...]
    shape: tuple[int, ...]
    sample: Tensor  # after the reshaping; only its sizes matter
    reshaping: tuple[Callable[[Tensor], Any], ...] = ()

    def become(self, other: "Signal") -> "Signal":
        """In-place operations change every name of a tensor."""
        self.__dict__.update(other.__dict__)
        return self


def diagonal(scale: Tensor, axes: int) -> Tensor:
    """The weights of a 1×1 convolution over ``axes`` axes (0: of a matrix) that multiplies channels by ``scale``."""
    return torch.diag(scale.flatten()).reshape(scale.numel(), scale.numel(), *[1] * axes)


class Pencil:
    """Draws signals going into layers; ``where`` names the layer in complaints."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.where = self.name = ""

    def neurons(self, layer: SpikingLayer, x: Signal) -> Signal:
        """Spiking neurons, and the θ that they send on."""
        self.settle(x)
        if layer.shift is not None:
            x = self.shifted(x, layer.shift)
        theta = layer.theta.detach().float().cpu().expand(x.shape).clone()
        values: dict[str, Any] = {"theta": theta, "layer": layer, "label": self.where, "levels": layer.levels}
        if not layer.policy.rho:
            v0 = layer.begin(torch.zeros(1, 1, *x.shape, device=layer.theta.device))[0]
            values["v0"] = v0.detach().float().cpu().expand(x.shape).clone()
        return self.scaled(self.put("neurons", x.terms, x.shape, x.sample, **values), theta)

    def linear(self, layer: nn.Linear, x: Signal) -> Signal:
        """A matrix."""
        self.settle(x)
        if len(x.shape) != 1:
            self.refuse(f"a linear layer on {len(x.shape)} axes")
        bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach().cpu()
        return self.put(
            "affine", x.terms, (layer.out_features,), layer(x.sample), weight=layer.weight.detach().cpu(), bias=bias
        )

    def conv(self, layer: nn.Conv1d | nn.Conv2d, x: Signal) -> Signal:
        """A convolution over one or two axes."""
        self.settle(x)
        out = layer(x.sample)
        padding = layer.padding
        if isinstance(padding, str):
            reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            if padding == "same" and any(r % 2 for r in reach):
                self.refuse(f"{layer}: padding that is not the same on both sides")
            padding = tuple(r // 2 if padding == "same" else 0 for r in reach)
        bias = torch.zeros(layer.out_channels) if layer.bias is None else layer.bias.detach().cpu()
        return self.put(
            "conv", x.terms, tuple(out.shape[1:]), out, weight=layer.weight.detach().cpu(), bias=bias,
            stride=tuple(layer.stride), padding=tuple(padding), dilation=tuple(layer.dilation), groups=layer.groups,
        )  # fmt: skip

    def norm(self, norm: Any, x: Signal) -> Signal:
        """A BatchNorm that could not be folded: after a concatenation, or after spikes."""
        self.settle(x)
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight.double()
        bias = -norm.running_mean.double() * scale
        bias = bias if norm.bias is None else bias + norm.bias.double()
        return self.channels(x, scale.float().cpu(), bias.float().cpu())

    def pool(self, x: Signal, pool: Any) -> Signal:
        """Average pooling; over one axis, or with a divisor of its own, it is a convolution."""
        self.settle(x)
        out, axes = pool(x.sample), len(x.shape) - 1
        if hasattr(pool, "output_size"):
            if any(size % o for size, o in zip(x.shape[1:], out.shape[2:], strict=True)):
                self.refuse(f"{pool} of {list(x.shape)}: windows of several sizes")
            kernel = stride = tuple(s // o for s, o in zip(x.shape[1:], out.shape[2:], strict=True))
            padding = (0,) * axes
        else:
            given = (pool.kernel_size, pool.stride, pool.padding)
            kernel, stride, padding = (_tuple(value, axes) for value in given)
            plain = all(
                (size + 2 * p - k) // s + 1 == o
                for size, p, k, s, o in zip(x.shape[1:], padding, kernel, stride, out.shape[2:], strict=True)
            )
            odd = any(padding) and not pool.count_include_pad
            if not plain or odd:
                self.refuse(f"{pool}: windows of several sizes")
        divisor = getattr(pool, "divisor_override", None)
        if axes == 2 and divisor is None:
            return self.put(
                "pool", x.terms, tuple(out.shape[1:]), out, kernel=kernel, stride=stride, padding=padding
            )  # fmt: skip
        each = torch.full((x.shape[0],), 1 / (divisor or math.prod(kernel)))
        weight = diagonal(each, axes).repeat(1, 1, *kernel)
        return self.put(
            "conv", x.terms, tuple(out.shape[1:]), out, weight=weight, bias=torch.zeros(x.shape[0]), stride=stride,
            padding=padding, dilation=(1,) * axes, groups=1,
        )  # fmt: skip

    def scaled(self, x: Signal, scale: Tensor) -> Signal:
        """``scale · x``."""
        self.settle(x)
        return self.put("scale", x.terms, x.shape, x.sample, scale=self.fitting(scale, x).contiguous())

    def shifted(self, x: Signal, bias: Tensor) -> Signal:
        """``x + bias``, for which there are only biases of convolutions and matrices."""
        self.settle(x)
        full = self.fitting(bias.detach().float(), x).reshape(x.shape[0], -1)
        if not bool((full == full[:, :1]).all()):
            self.refuse("a constant that differs between places of a channel")
        return self.channels(x, torch.ones(x.shape[0]), full[:, 0])

    def fitting(self, constant: Tensor, x: Signal) -> Tensor:
        """A constant of the model, as large as a sample."""
        constant = constant.detach().cpu()
        if constant.ndim > len(x.shape):
            constant = constant.squeeze(0)
        return constant.expand(x.shape)

    def channels(self, x: Signal, scale: Tensor, bias: Tensor) -> Signal:
        """``scale·x + bias`` for each channel."""
        axes = len(x.shape) - 1
        if axes == 0:
            return self.put("affine", x.terms, x.shape, x.sample, weight=diagonal(scale, 0), bias=bias)
        if axes > 2:
            self.refuse(f"{axes} axes")
        return self.put("conv", x.terms, x.shape, x.sample, weight=diagonal(scale, axes), bias=bias, **_point(axes))

    def mixed(self, x: Signal, matrix: Tensor, bias: Tensor, stride: tuple[int, ...] = ()) -> Signal:
        """``matrix`` times the channels plus ``bias``, at every place (or at every ``stride``-th)."""
        axes = len(x.shape) - 1
        if axes == 0:
            return self.put("affine", x.terms, (len(matrix),), x.sample, weight=matrix, bias=bias)
        if axes > 2:
            self.refuse(f"{axes} axes")
        options = _point(axes) | ({"stride": stride} if stride else {})
        weight = matrix.reshape(*matrix.shape, *[1] * axes)
        sizes = [-(-size // step) for size, step in zip(x.shape[1:], options["stride"], strict=True)]
        return self.put("conv", x.terms, (len(matrix), *sizes), x.sample, weight=weight, bias=bias, **options)

    def joined(self, signals: list[Signal], axis: int) -> Signal:
        """A concatenation: the sum of pieces that have been put into their channels."""
        for x in signals:
            self.settle(x)
        if axis not in (1, -len(signals[0].shape)):
            self.refuse(f"a concatenation along axis {axis}")
        terms: tuple[str, ...] = ()
        sizes = [x.shape[0] for x in signals]
        eye = torch.eye(sum(sizes))
        for x, columns in zip(signals, torch.split(eye, sizes, 1), strict=True):
            terms += self.mixed(x, columns, torch.zeros(len(columns))).terms
        sample = torch.cat([x.sample for x in signals], 1)
        return Signal(terms, tuple(sample.shape[1:]), sample)

    def settle(self, x: Signal) -> None:
        """Draw the reshaping that a signal has gone through."""
        if not x.reshaping:
            return
        chain, sample = x.reshaping, x.sample

        def run(z: Tensor) -> Tensor:
            for operation in chain:
                z = operation(z)
            return z

        found, shape = recognise(run, x.shape)
        before = Signal(x.terms, x.shape, torch.zeros(1, *x.shape))
        match found:
            case Nothing():
                drawn = before
            case Flat():
                drawn = self.put("flatten", x.terms, shape, sample, axes=len(x.shape))
            case Mean():
                pooled = self.pool(before, nn.AdaptiveAvgPool2d(1))
                drawn = self.put("flatten", pooled.terms, shape, sample, axes=len(x.shape))
            case Mixed(matrix, bias, stride):
                drawn = self.mixed(before, matrix, bias, stride)
            case _:
                self.refuse(
                    f"what turns {list(x.shape)} into {list(shape)} before it is no layer, sum, slice or pool. If it "
                    "is done to the image alone, do it before the network"
                )
        x.become(Signal(drawn.terms, drawn.shape, sample))

    def put(
        self, kind: Kind, sources: tuple[str, ...], shape: tuple[int, ...], sample: Tensor, **values: Any
    ) -> Signal:
        """A new part."""
        base = kind if kind in ("input", "output") else self.name
        name = base if kind not in ("scale", "flatten", "pool") else f"{base}_{kind}"
        count = 1
        while name in self.parts:
            count += 1
            name = f"{base}_{kind}_{count}"
        self.parts[name] = Part(name, kind, sources, shape, values)
        return Signal((name,), shape, sample)

    def refuse(self, what: str) -> NoReturn:
        """Say what cannot be drawn."""
        raise ValueError(f"{self.name} ({self.where}) cannot be written down for other simulators: {what}")


def _point(axes: int) -> dict[str, Any]:
    return {"stride": (1,) * axes, "padding": (0,) * axes, "dilation": (1,) * axes, "groups": 1}


def _tuple(value: Any, axes: int) -> tuple[int, ...]:
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    return given * axes if len(given) == 1 else given
