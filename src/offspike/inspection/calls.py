"""What is wrong with one call, as far as its name and its arguments say."""

from collections.abc import Collection, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from offspike.activations import Activation
from offspike.capture import INSTEAD, PRODUCTS, Step, limits
from offspike.graph import refs_in, values_in
from offspike.inspection import sites
from offspike.inspection.axes import on_the_batch_axis
from offspike.inspection.obstacles import ADVICE, FUNCTIONS, LINEAR, MODULES, Finding
from offspike.leaves import LEAVES

__all__ = ["advise", "function_obstacle", "module_finding"]

_PRODUCTS = (*PRODUCTS, "mul", "imul", "batch_norm")
_RAW = ("relu", "smooth")  # activations of a network; of an image without weights, preprocessing
_STILL = ("clamp", "clip", "clamp_min", "clamp_max", "amax")  # of the input itself; and whatever is "nonlinear"


def advise(where: str, target: str, kind: str, source: str) -> Finding:
    """The finding that something is an obstacle of this kind."""
    what, fix = ADVICE[kind]
    return Finding(where, f"{target} is {what}", fix, True, source)


def module_finding(
    name: str, module: nn.Module, source: str = "", *, steps: list[Step] | None = None, step: Step | None = None
) -> Finding | None:
    """What stands in the way of a layer, or None; ``step`` is the one of ``steps`` that calls it, where it is known."""
    if step is not None and step.constant:
        return None
    kind = MODULES.get(type(module))
    if kind == "smooth" and step is not None and sites.relu(step, module):  # LeakyReLU(0)
        kind = "relu"
    elif kind == "relu" and step is not None and not sites.relu(step, module):  # Hardtanh(-1, 1)
        kind = "smooth"
    elif kind == "pool" and getattr(module, "return_indices", False):
        kind = "indices"
    elif kind == "softmax" and steps is not None and step is not None and _is_attention(step, steps):
        kind = "attention"
    elif isinstance(module, _BatchNorm) and module.running_mean is None:  # it takes those of the batch
        kind = "mixes"
    elif kind is None and steps is not None:
        # Also what is derived from one of these and computes the same, such as a parametrised layer.
        known = any(isinstance(module, base) and type(module).forward is base.forward for base in LEAVES)
        kind = None if known or isinstance(module, Activation) else "unknown"
    if kind in _RAW and step is not None and step.raw and type(module) in LEAVES:
        return None
    return None if kind is None else advise(name or "the model", type(module).__name__, kind, source)


def function_obstacle(
    step: Step, states: Mapping[str, str], steps: list[Step], aside: Collection[str] = ()
) -> str | None:
    """The obstacle that a function or method is, or None; ``states`` is ``surgery.flow``, ``aside`` ``ensembles``."""
    name, kind = sites.bare(step), FUNCTIONS.get(sites.bare(step))
    if sites.relu(step):
        return "relu"
    if name in ("clamp", "clip") and limits(step)[0] is None:
        kind = "cap"
    # What is computed from the input alone is the same at every step, linear or not.
    still = states[step.name] == "steady" and (kind == "nonlinear" or name in _STILL or (step.raw and kind in _RAW))
    if kind is not None and not still and (not step.constant or kind == "cast" or kind in INSTEAD):
        return "attention" if kind == "softmax" and _is_attention(step, steps) else kind
    try:
        step.node()
    except ValueError:
        if values_in((step.args, step.kwargs), torch.dtype):
            return "cast"
        return "unknown" if kind is None or step.constant else "outside"
    if step.constant:
        return None
    return _misuse(step, states) or ("mixes" if on_the_batch_axis(step, steps, aside) else None)


def _misuse(step: Step, states: Mapping[str, str]) -> str | None:
    """What is wrong with how a known function is called."""
    (args, kwargs), name = step.call, sites.bare(step)
    moving = [ref for ref in refs_in((args, kwargs)) if states[ref] == "moving"]
    if name == "getitem" and isinstance(args[1], str):
        return "dictionary"
    if name.startswith("dropout") and _always_on(step):
        return "dropout"
    if name == "batch_norm" and (args[5:6] == (True,) or kwargs.get("training")):
        return "mixes"
    if name in _PRODUCTS and len(moving) > 1:
        return "product"
    beside = [ref for ref in refs_in((args[1:], kwargs)) if states[ref] == "moving"]
    if name not in LINEAR and name not in _PRODUCTS and name not in sites.SHAPED and beside and args:
        return "nonlinear"
    return "nonlinear" if moving and kwargs.get("rounding_mode") is not None else None


def _always_on(step: Step) -> bool:
    """Dropout that does not ask whether the network is being trained: it was traced in eval mode."""
    args, kwargs = step.call
    values = dict(zip(("x", "p", "training"), args, strict=False)) | kwargs
    return bool(values.get("training", True)) and values.get("p", 0.5) != 0


def _is_attention(step: Step, steps: list[Step]) -> bool:
    """Whether what a softmax gives is multiplied with something."""
    names = {step.name}
    for other in steps:
        if names & {*refs_in((other.args, other.kwargs))}:
            if sites.bare(other) in ("matmul", "bmm", "mul", "einsum"):
                return True
            names.add(other.name)
    return False
