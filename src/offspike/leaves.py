"""Which layers can be written down: as their constructor's arguments, from which they are made again.

Descriptions come from files, so ``build`` trusts nothing: the type must be in ``LEAVES``, each value must make sense
for its name, and the layer that results must describe itself in the same words.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from offspike.activations import QCFS, Bounded, ClippedReLU, Rectifier

__all__ = ["LEAVES", "Leaf", "build", "describe", "register_leaf"]

FIELDS: dict[type[nn.Module], list[str]] = {
    kind: names.split()
    for names, *kinds in (
        (
            "in_channels out_channels kernel_size stride padding dilation groups bias padding_mode",
            nn.Conv1d, nn.Conv2d, nn.Conv3d,
        ),
        (
            "in_channels out_channels kernel_size stride padding output_padding groups bias dilation padding_mode",
            nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
        ),
        ("num_features eps momentum affine track_running_stats", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        ("num_features eps momentum affine track_running_stats", nn.SyncBatchNorm),  # in eval mode one of those
        ("in_features out_features bias", nn.Linear),
        ("kernel_size stride padding ceil_mode count_include_pad", nn.AvgPool1d),
        ("kernel_size stride padding ceil_mode count_include_pad divisor_override", nn.AvgPool2d, nn.AvgPool3d),
        ("kernel_size stride padding dilation return_indices ceil_mode", nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
        ("output_size", nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        ("start_dim end_dim", nn.Flatten),
        ("dim unflattened_size", nn.Unflatten),
        ("size scale_factor mode align_corners recompute_scale_factor", nn.Upsample),
        ("size scale_factor", nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
        ("padding", nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
        ("padding", nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
        ("padding", nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
        ("padding", nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
        ("padding value", nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
        ("kernel_size dilation padding stride", nn.Unfold),
        ("output_size kernel_size dilation padding stride", nn.Fold),
        ("upscale_factor", nn.PixelShuffle),
        ("downscale_factor", nn.PixelUnshuffle),
        ("groups", nn.ChannelShuffle),
        ("", nn.Identity),
        ("p inplace", nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
        ("inplace", nn.ReLU, nn.ReLU6),
        ("min_val max_val inplace", nn.Hardtanh),
        ("negative_slope inplace", nn.LeakyReLU),
    )
    for kind in kinds
}  # fmt: skip
REALS = ("p", "eps", "scale_factor", "momentum", "min_val", "max_val", "negative_slope", "value")
WORDS = ("padding", "padding_mode", "mode")
LEAST = {
    "padding": 0,
    "output_padding": 0,
    "dim": 0,
    "unflattened_size": -1,
    "start_dim": -64,
    "end_dim": -64,
}  # of the whole numbers; 1 for all others


class Leaf(NamedTuple):
    """``describe(layer)`` gives JSON values by name, ``build(values)`` a layer of which only the shapes matter."""

    describe: Callable[[Any], dict[str, Any]]
    build: Callable[[dict[str, Any]], nn.Module]


def register_leaf(
    kind: type[nn.Module], describe: Callable[[Any], dict[str, Any]], build: Callable[[dict[str, Any]], nn.Module]
) -> None:
    """Make ``kind`` a layer that graphs name as a whole, and say how it is saved and loaded."""
    LEAVES[kind] = Leaf(describe, build)


def describe(name: str, module: nn.Module) -> dict[str, Any]:
    """The type of a layer and its constructor's arguments, as JSON values."""
    kind = type(module)
    if kind not in LEAVES or module._forward_hooks or module._forward_pre_hooks:
        what = "has hooks" if kind in LEAVES else "is none of the layers that can be saved"
        raise ValueError(f"{name} ({kind.__name__}) {what}: take it out of the network to save it")
    return {"type": kind.__name__, **LEAVES[kind].describe(module)}


def build(
    name: str, description: Any, *, given: Mapping[type[nn.Module], Mapping[str, Any]] | None = None
) -> nn.Module:
    """The layer that ``describe`` described, its tensors on "meta"; anything else is refused with a ValueError.

    ``given`` holds, by type, the arguments that a layer shares with its network and that its description leaves out.
    """
    kinds = {kind.__name__: kind for kind in LEAVES}
    try:
        fields = dict(description)
        kind = kinds[fields.pop("type")]
        for key, value in fields.items():
            _check(key, value)
        with torch.device("meta"):
            module = LEAVES[kind].build({**fields, **(given or {}).get(kind, {})})
        if type(module) is not kind or LEAVES[kind].describe(module) != fields:
            raise ValueError(f"it would become {module}")
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"layer {name!r} cannot be built from {description!r:.200} ({reason})") from error
    return module


def _check(name: str, value: Any) -> None:
    for number in value if isinstance(value, list) else [value]:
        if number is None or isinstance(number, bool) or (isinstance(number, str) and name in WORDS):
            continue
        real = name in REALS and isinstance(number, int | float) and math.isfinite(number)
        if not real and not (isinstance(number, int) and LEAST.get(name, 1) <= number < 2**31):
            raise ValueError(f"{name} = {number!r} makes no sense")


def _from_torch(kind: type[nn.Module], names: list[str]) -> Leaf:
    def describe(module: nn.Module) -> dict[str, Any]:
        values = {name: getattr(module, name) for name in names}
        if "bias" in values:
            values["bias"] = values["bias"] is not None
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def build(fields: dict[str, Any]) -> nn.Module:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})

    return Leaf(describe, build)


def _describe_activation(module: Bounded) -> dict[str, Any]:
    levels = {"levels": module.levels} if isinstance(module, QCFS) else {}
    return {"shape": list(module.log2_lam.shape), **levels}


LEAVES: dict[type[nn.Module], Leaf] = {
    **{kind: _from_torch(kind, names) for kind, names in FIELDS.items()},
    QCFS: Leaf(_describe_activation, lambda fields: QCFS(fields["levels"], lam=torch.ones(fields["shape"]))),
    Rectifier: Leaf(lambda module: {}, lambda fields: Rectifier(**fields)),
    ClippedReLU: Leaf(_describe_activation, lambda fields: ClippedReLU(torch.ones(fields["shape"]))),
}
