"""What each node of a graph does to numbers: enough to follow scales, grids and bounds through a network."""

from typing import Any, Literal

from torch import nn

from offspike.activations import Activation
from offspike.arithmetic.grids import InputGrid, Scale
from offspike.graph import GraphNetwork, Node
from offspike.layers import SpikingLayer
from offspike.pooling import GatedMaxPool

__all__ = ["SYNAPSES", "Role", "bare", "role"]

Role = Literal[
    "input", "output", "constant", "grid", "synapse", "neuron", "average", "maximum", "mean", "total", "sum", "product",
    "sign", "shape", "norm", "unknown",
]  # fmt: skip

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SYNAPSES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED, nn.Linear, Scale)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_MAXIMA = (GatedMaxPool, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SHAPE_LAYERS = (
    nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad1d,
    nn.ZeroPad2d, nn.ZeroPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d, nn.Dropout, nn.Dropout1d, nn.Dropout2d,
    nn.Dropout3d,
)  # fmt: skip
_SHAPES = (
    "shape", "ndim", "size", "dim", "numel", "getitem", "cat", "concat", "stack", "chunk", "split", "narrow",
    "flatten", "unflatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "flip", "roll",
    "select", "unbind", "movedim", "swapaxes", "repeat", "expand", "expand_as", "view_as", "clone", "contiguous",
    "detach", "pad", "dropout", "dropout1d", "dropout2d", "dropout3d", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "floordiv", "mod", "tile", "rot90", "repeat_interleave", "tensor_split", "broadcast_to",
    "diagonal", "reshape_as",
)  # fmt: skip
_FUNCTIONS: dict[str, Role] = {
    **dict.fromkeys(_SHAPES, "shape"),
    **dict.fromkeys(("add", "sub"), "sum"),
    **dict.fromkeys(("mul", "div", "truediv"), "product"),
    **dict.fromkeys((f"{adaptive}avg_pool{n}d" for n in (1, 2, 3) for adaptive in ("", "adaptive_")), "average"),
    **dict.fromkeys((f"{adaptive}max_pool{n}d" for n in (1, 2, 3) for adaptive in ("", "adaptive_")), "maximum"),
    "mean": "mean",
    "sum": "total",
    "neg": "sign",
}


def bare(node: Node) -> str:
    """The name of an operation, without where it comes from and the marks of in-place variants."""
    name = node.target.rpartition(".")[2].rstrip("_")
    in_place = node.target in ("operator.iadd", "operator.isub", "operator.imul", "operator.itruediv")
    return name[1:] if in_place else name


def role(node: Node, network: GraphNetwork) -> Role:
    """What a node does; "unknown" is what cannot be followed."""
    if node.kind in ("input", "output"):
        return "input" if node.kind == "input" else "output"
    if node.kind == "attribute":
        return "constant"
    if node.kind == "module":
        return _of_layer(network.get_submodule(node.target))
    if bare(node) == "interpolate":
        return "shape" if node.kwargs.get("mode", "nearest") == "nearest" and len(node.args) < 4 else "unknown"
    if bare(node) == "pad" and (len(node.args) > 3 or node.kwargs.get("value") not in (None, 0)):
        return "unknown" if node.args[3:] != (0,) else "shape"
    return _FUNCTIONS.get(bare(node), "unknown")


def _of_layer(layer: nn.Module) -> Role:
    if isinstance(layer, nn.Upsample):
        return "shape" if layer.mode == "nearest" else "unknown"
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.padding_mode not in ("zeros", "circular"):
        return "synapse"
    table: list[tuple[Any, Role]] = [
        (SYNAPSES, "synapse"), ((Activation, SpikingLayer), "neuron"), (_AVERAGES, "average"), (_MAXIMA, "maximum"),
        (_NORMS, "norm"), (_SHAPE_LAYERS, "shape"), (InputGrid, "grid"),
    ]  # fmt: skip
    return next((role for kinds, role in table if isinstance(layer, kinds)), "unknown")
