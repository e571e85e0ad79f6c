"""Where a model has ReLUs and max-pools, however they are written: as layers, functions or methods, in place or not."""

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from offspike.capture import Step, bare, limits

__all__ = ["SHAPED", "Pool", "Relu", "arguments", "bare", "in_place", "pool", "relu"]

_PARAMETERS = {
    "relu": "x inplace",
    "relu6": "x inplace",
    "leaky_relu": "x negative_slope inplace",
    "hardtanh": "x min_val max_val inplace",
    "clamp": "x min max",
    "clip": "x min max",
    "clamp_min": "x min",
    **dict.fromkeys(
        ("max_pool1d", "max_pool2d", "max_pool3d"), "x kernel_size stride padding dilation ceil_mode return_indices"
    ),
    **dict.fromkeys(("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"), "x output_size"),
}
SHAPED = ("expand_as", "view_as", "reshape_as")  # of the second tensor only its shape matters
_RELUS = ("relu", "relu6", "leaky_relu", "hardtanh", "clamp", "clip", "clamp_min")
_POOLS: dict[type[nn.Module], int] = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}
_ADAPTIVE: dict[type[nn.Module], int] = {nn.AdaptiveMaxPool1d: 1, nn.AdaptiveMaxPool2d: 2, nn.AdaptiveMaxPool3d: 3}


@dataclass(frozen=True)
class Relu:
    """``clip(x, 0, cap)``. ``in_place`` says that it also changes x."""

    x: Any
    cap: float | None = None
    in_place: bool = False


@dataclass(frozen=True)
class Pool:
    """A max-pool over ``axes`` axes, as the arguments of its layer."""

    x: Any
    axes: int
    options: dict[str, Any]
    adaptive: bool = False


def arguments(step: Step) -> dict[str, Any]:
    """The arguments of a function of this file, by name."""
    args, kwargs = step.call
    return dict(zip(_PARAMETERS[bare(step)].split(), args, strict=False)) | kwargs


def in_place(step: Step, module: nn.Module | None = None) -> bool:
    """Whether a step changes its first argument: ``relu_``, ``iadd``, ``inplace=True``."""
    if module is not None:
        return bool(getattr(module, "inplace", False))
    if step.kind == "function" and step.target in ("operator.iadd", "operator.isub", "operator.imul"):
        return True
    mark = step.kind in ("function", "method") and step.target.endswith("_")
    flag = step.kind == "function" and bare(step) in _RELUS and arguments(step).get("inplace", False)
    return bool(mark or flag or step.target == "operator.itruediv")


def relu(step: Step, module: nn.Module | None = None) -> Relu | None:
    """The ReLU that a step is (``module``: the layer that it calls), or None.

    A ReLU of a constant is a constant, and one of an image that no weights have met is preprocessing.
    """
    if step.constant or step.raw:
        return None
    if module is not None:
        bounds, x = _module_bounds(module), _given(step)
    elif step.kind in ("function", "method") and bare(step) in _RELUS:
        bounds, x = _bounds(step), arguments(step).get("x")
    else:
        return None
    if bounds is None or bounds[0] != 0 or (bounds[1] is not None and not bounds[1] > 0):
        return None
    cap = None if bounds[1] == math.inf else bounds[1]
    return Relu(x, cap, in_place(step, module))


def pool(step: Step, module: nn.Module | None = None) -> Pool | None:
    """The max-pool that a step is, or None."""
    if step.constant:
        return None
    if module is not None:
        kind, adaptive = type(module), type(module) in _ADAPTIVE
        axes = {**_POOLS, **_ADAPTIVE}.get(kind)
        names = _PARAMETERS["adaptive_max_pool1d" if adaptive else "max_pool1d"].split()[1:]
        if axes is None:
            return None
        return Pool(_given(step), axes, {name: getattr(module, name) for name in names}, adaptive)
    if step.kind != "function" or "max_pool" not in bare(step) or bare(step) not in _PARAMETERS:
        return None
    values, adaptive = arguments(step), bare(step).startswith("adaptive")
    if adaptive:
        values = {name: values[name] for name in ("x", "output_size")}
    return Pool(values.pop("x"), int(bare(step)[-2]), values, adaptive)


def _given(step: Step) -> Any:
    """What a layer of one argument is called with, be it ``relu(x)`` or ``relu(input=x)``."""
    return next(iter((*step.args, *step.kwargs.values())), None)


def _module_bounds(module: nn.Module) -> tuple[Any, Any] | None:
    match module:
        case nn.ReLU6():  # a Hardtanh too
            return 0, 6.0
        case nn.ReLU():
            return 0, None
        case nn.Hardtanh():
            return module.min_val, module.max_val
        case nn.LeakyReLU(negative_slope=0.0):
            return 0, None
    return None


def _bounds(step: Step) -> tuple[Any, Any] | None:
    name, values = bare(step), arguments(step)
    if name in ("relu", "relu6"):
        return 0, 6.0 if name == "relu6" else None
    if name == "leaky_relu":
        return (0, None) if values.get("negative_slope", 0.01) == 0 else None
    if name == "hardtanh":
        return values.get("min_val", -1.0), values.get("max_val", 1.0)
    least, most = limits(step)
    numbers = all(bound is None or isinstance(bound, int | float) for bound in (least, most))
    return (least, most) if numbers and least is not None else None
