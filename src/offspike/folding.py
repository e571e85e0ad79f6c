"""``fold``: BatchNorm into the layer before it, where nothing else sees what lies between."""

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offspike.capture import Step, trace
from offspike.graph import Ref, refs_in

__all__ = ["fold"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@torch.no_grad()
def fold(model: nn.Module, *, example: Tensor | tuple[Tensor, ...] | None = None) -> nn.Module:
    """A copy of ``model``, in eval mode, in which a BatchNorm right after a convolution or linear layer is part of it.

    ``W' = W·s``, ``b' = (b − μ)·s + β`` with ``s = γ/√(σ² + ε)``, computed in float64. The BatchNorm becomes an
    ``nn.Identity``; one that cannot be folded (after a concatenation, or where its input is used elsewhere too) stays.
    A BatchNorm1d after a linear layer normalises the right axis only if there are no others: that is folded if
    ``example``, or the model's ``input_shape``, shows it.
    """
    model = deepcopy(model).eval()
    pairs = list(_pairs(trace(model, example), model))
    flat = _flat(model, [name for name, _ in pairs], example)
    for name, norm_name in pairs:
        layer, norm = model.get_submodule(name), model.get_submodule(norm_name)
        if isinstance(layer, nn.Linear) and name not in flat:
            continue
        _merge(layer, norm)
        parent, _, attribute = norm_name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, nn.Identity())
    return model


def _pairs(steps: list[Step], model: nn.Module) -> Iterator[tuple[str, str]]:
    """The names of layers and of the BatchNorms that alone use their output, each called once."""
    users: Counter[str] = Counter()
    for step in steps:
        users.update(refs_in((step.args, step.kwargs)))
    calls = Counter(id(model.get_submodule(step.target)) for step in steps if step.kind == "module")
    attributes = [step.target for step in steps if step.kind == "attribute"]
    by_name = {step.name: step for step in steps}
    for step in steps:
        before = by_name[step.args[0].name] if step.args and isinstance(step.args[0], Ref) else None
        if step.kind != "module" or before is None or before.kind != "module" or users[before.name] > 1:
            continue
        layer, norm = model.get_submodule(before.target), model.get_submodule(step.target)
        alone = calls[id(layer)] == calls[id(norm)] == 1
        shared = any(name.startswith((f"{before.target}.", f"{step.target}.")) for name in attributes)
        fits = isinstance(layer, (*_CONVOLUTIONS, *_TRANSPOSED, nn.Linear)) and isinstance(norm, _NORMS)
        if alone and fits and not shared and norm.running_mean is not None:
            yield before.target, step.target


def _flat(model: nn.Module, names: list[str], example: Any) -> set[str]:
    """Those of the layers whose output is ``[B, features]``."""
    shape = getattr(model, "input_shape", None)
    tensor = next(model.parameters(), torch.empty(0))
    if example is None and shape is not None:
        example = tensor.new_zeros(2, *shape)
    if example is None:
        return set()
    flat: set[str] = set()

    def look(name: str, output: Tensor) -> None:
        flat.update([name] if output.ndim == 2 else [])

    hooks = [
        model.get_submodule(name).register_forward_hook(lambda m, args, out, name=name: look(name, out))
        for name in names
    ]
    try:
        model(*(x.clone() for x in (example if isinstance(example, tuple) else (example,))))
    finally:
        for hook in hooks:
            hook.remove()
    return flat


def _merge(layer: Any, norm: Any) -> None:
    """Put an affine map of the output channels into a layer, in place."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    bias = -norm.running_mean.double() if layer.bias is None else layer.bias.double() - norm.running_mean.double()
    bias = bias * scale + (0 if norm.bias is None else norm.bias.double())
    weight = layer.weight.double()
    if isinstance(layer, _TRANSPOSED):  # [in, out / groups, …]
        parts = weight.unflatten(0, (layer.groups, -1)) * scale.view(layer.groups, 1, -1, *[1] * (weight.ndim - 2))
        weight = parts.flatten(0, 1)
    else:
        weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    layer.weight = nn.Parameter(weight.to(layer.weight.dtype))
    layer.bias = nn.Parameter(bias.to(layer.weight.dtype))
