"""Rounding a network layer by layer: each layer is rounded on what the rounded layers before it really give it.

The network and its rounded copy run side by side, node by node. Where there is data, a layer first takes up the error
that its predecessors left (least squares), then its weights are rounded with compensation, and its bias takes out what
is left of the mean (bias correction).
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offspike.arithmetic.grids import Scale
from offspike.arithmetic.roles import TRANSPOSED, role
from offspike.fixed.rows import DAMPING, Per, compensated, exponents, nearest
from offspike.graph import GraphNetwork, Node, fill

__all__ = ["Widths", "round_network"]

BIAS_GRID = 10  # biases lie on 2^-10 of a threshold or finer
ROOM = 6  # no weight grid is finer than 2^-(bits + 6) of a threshold: less is nothing
SCALE_BITS = 8  # of shortcuts, at least: one number for many neurons
CHUNK = 64


@dataclass(frozen=True)
class Widths:
    """Bits by the name of a layer; one grid by channel or by layer."""

    bits: Mapping[str, int]
    per: Per


@torch.no_grad()
def round_network(
    network: GraphNetwork,
    widths: Widths,
    *,
    calibration: tuple[Tensor, ...] | None,
    progress: Callable[[str, int, int], None] | None = None,
) -> GraphNetwork:
    """A copy of ``network`` (thresholds 1, weights in float64) with every weight and bias on a power-of-two grid."""
    rounded = deepcopy(network)
    synapses = [node for node in network.graph.nodes if role(node, network) == "synapse"]
    if calibration is None:
        for node in synapses:
            layer = rounded.get_submodule(node.target)
            _round(layer, bits=_bits(layer, widths, node.target), per=widths.per, moments=None)
        return rounded.float()
    reference = deepcopy(network).float()
    rounded = rounded.float()
    runs = (_Run(reference, calibration), _Run(rounded, calibration))
    done = 0
    for node in network.graph.nodes:
        if role(node, network) == "synapse":
            layer = rounded.get_submodule(node.target)
            exact = network.get_submodule(node.target)
            wanted, given = (run.argument(node) for run in runs)
            _round_layer(layer, exact, wanted, given, bits=_bits(layer, widths, node.target), per=widths.per)
            done += 1
            if progress is not None:
                progress(node.target, done, len(synapses))
        for run in runs:
            run.step(node)
    return rounded


class _Run:
    """A network, run node by node; values are dropped after their last use."""

    def __init__(self, network: GraphNetwork, inputs: tuple[Tensor, ...]) -> None:
        self.network = network
        self.waiting = list(inputs)
        self.values: dict[str, Any] = {}
        self.last = {name: node.name for node in network.graph.nodes for name in node.refs}

    def argument(self, node: Node) -> Tensor:
        """What a layer is about to be given."""
        x: Tensor = self.values[node.args[0].name]
        return x

    def step(self, node: Node) -> None:
        if node.kind == "input":
            self.values[node.name] = self.waiting.pop(0)
            return
        args, kwargs = fill(node.args, self.values), fill(node.kwargs, self.values)
        many = role(node, self.network) in ("synapse", "neuron", "grid")
        if many:  # in pieces: a convolution of a thousand images needs much memory
            pieces = [self.network.call(node, (x,), kwargs) for x in args[0].split(CHUNK)]
            self.values[node.name] = torch.cat(pieces)
        else:
            self.values[node.name] = self.network.call(node, args, kwargs)
        for name in {*node.refs}:
            if self.last[name] == node.name:
                del self.values[name]


@dataclass
class _Moments:
    """What rounding has to know of a layer's inputs, for each group of channels: H, and the error it is given."""

    hessian: list[Tensor]
    error: list[Tensor]
    count: int


def _round_layer(layer: Any, exact: Any, wanted: Tensor, given: Tensor, *, bits: int, per: Per) -> None:
    """Round ``layer``, which is given ``given`` where the exact one is given ``wanted``."""
    reference = deepcopy(exact).float()
    moments = None if isinstance(layer, (Scale, *TRANSPOSED)) else _moments(reference, wanted, given)
    layer.weight = nn.Parameter(exact.weight.double())
    layer.bias = None if exact.bias is None else nn.Parameter(exact.bias.double())
    k = _round_weight(layer, bits=bits, per=per, moments=moments)
    if layer.bias is None and isinstance(layer, Scale):
        layer.float()
        return
    channel = -1 if isinstance(layer, nn.Linear) else 1
    bias = torch.zeros(_channels(layer), dtype=torch.float64, device=given.device)
    bias = bias if layer.bias is None else layer.bias.double()
    layer.bias = nn.Parameter(bias)
    layer.float()
    off = torch.zeros(_channels(layer), dtype=torch.float64, device=given.device)
    for a, b in _pieces(wanted, given):
        difference = (reference(a) - layer(b)).double().movedim(channel, 0).flatten(1)
        off += difference.mean(1) * len(a) / len(wanted)
    corrected = bias + (off.view(bias.shape) if off.numel() == bias.numel() else off.mean())
    _round_bias(layer, corrected, k)
    layer.float()


def _round(layer: Any, *, bits: int, per: Per, moments: _Moments | None) -> None:
    k = _round_weight(layer, bits=bits, per=per, moments=moments)
    if layer.bias is not None:
        _round_bias(layer, layer.bias.double(), k)


def _round_weight(layer: Any, *, bits: int, per: Per, moments: _Moments | None) -> Tensor:
    """Put the weight on its grid, in place; returns k of each output channel."""
    rows = _rows(layer)
    parts = rows.reshape(getattr(layer, "groups", 1) if moments else 1, -1, rows.shape[1])
    new, ks = [], []
    for group, part in enumerate(parts):
        if moments is None:
            k = exponents(part, bits, per=per, finest=bits + ROOM)
            new.append(nearest(part, k, bits))
        else:
            hessian = moments.hessian[group].double()
            if moments.count > 4 * len(hessian):
                damping = DAMPING * hessian.diagonal().mean().clamp(min=1e-12)
                ridge = hessian + damping * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
                part = part + torch.linalg.solve(ridge, moments.error[group].double().T).T
            k = exponents(part, bits, per=per, finest=bits + ROOM, weights=hessian.diagonal())
            new.append(compensated(part, k, bits, hessian))
        ks.append(k)
    _set_rows(layer, torch.cat(new))
    return torch.cat(ks)


def _round_bias(layer: Any, bias: Tensor, k: Tensor) -> None:
    """Biases on the grid of their channel's weights, or on ``2^-BIAS_GRID`` where that is finer."""
    k = k if k.numel() == bias.numel() else k.max()
    unit = torch.exp2(-torch.clamp(k, min=BIAS_GRID)).view(bias.shape if k.numel() > 1 else ())
    layer.bias = nn.Parameter((bias / unit).round() * unit)


def _moments(reference: Any, wanted: Tensor, given: Tensor) -> _Moments:
    groups = getattr(reference, "groups", 1)
    channel = -1 if isinstance(reference, nn.Linear) else 1
    hessian: list[Any] = [0.0] * groups
    error: list[Any] = [0.0] * groups
    count = 0
    means = [_patches(reference, x[:CHUNK]).mean(1, keepdim=True) for x in (wanted, given)]
    for a, b in _pieces(wanted, given):
        x = _patches(reference, b)
        missing = (reference(a) - reference(b)).movedim(channel, 0).flatten(1)
        x = x - means[1]  # the mean is the bias's business
        missing = missing - missing.mean(1, keepdim=True)
        for g, (part, lack) in enumerate(zip(x.chunk(groups), missing.chunk(groups), strict=True)):
            hessian[g] = hessian[g] + (part @ part.T).double()
            error[g] = error[g] + (lack @ part.T).double()
        count += x.shape[1]
    return _Moments(hessian, error, count)


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for start in range(0, len(tensors[0]), CHUNK):
        yield tuple(x[start : start + CHUNK] for x in tensors)


def _patches(layer: Any, x: Tensor) -> Tensor:
    """The inputs that a row of the layer is multiplied with, ``[K, samples]``."""
    if isinstance(layer, nn.Linear):
        return x.flatten(0, -2).T
    axes = layer.weight.ndim - 2
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        width = layer._reversed_padding_repeated_twice
        x = F.pad(x, width, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
    else:
        x = F.pad(x, [side for pad in reversed(layer.padding) for side in (pad, pad)])
    for axis in range(axes):
        size, step = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1, layer.stride[axis]
        x = x.unfold(2 + axis, size, step)[..., :: layer.dilation[axis]]
    order = (1, *range(2 + axes, 2 + 2 * axes), 0, *range(2, 2 + axes))  # [C, kernel, B, places]
    return x.permute(order).flatten(1 + axes).flatten(0, axes)


def _bits(layer: nn.Module, widths: Widths, name: str) -> int:
    one = isinstance(layer, Scale) and layer.weight.numel() == 1
    return max(widths.bits[name], SCALE_BITS) if one else widths.bits[name]


def _channels(layer: Any) -> int:
    return int(layer.weight.shape[1] * layer.groups if isinstance(layer, TRANSPOSED) else layer.weight.shape[0])


def _rows(layer: Any) -> Tensor:
    """A row for each output channel, in float64."""
    weight: Tensor = layer.weight.double()
    if isinstance(layer, Scale):
        return weight.reshape(-1, 1)
    if isinstance(layer, TRANSPOSED):
        return weight.reshape(layer.groups, -1, *weight.shape[1:]).movedim(2, 1).flatten(0, 1).flatten(1)
    return weight.flatten(1)


def _set_rows(layer: Any, rows: Tensor) -> None:
    weight = layer.weight
    if isinstance(layer, TRANSPOSED):
        split = rows.reshape(layer.groups, weight.shape[1], -1, *weight.shape[2:])
        layer.weight = nn.Parameter(split.movedim(1, 2).flatten(0, 1))
    else:
        layer.weight = nn.Parameter(rows.view(weight.shape))
