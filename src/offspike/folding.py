"""``fold``: BatchNorm into the layer before it, where nothing else sees what lies between.

Before that, the copies of a model that are safe to work on: one to trace, one whose layers are plain; a layer exchanged
under every name that it has; and what a model is known to take.
"""

import warnings
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from offspike.capture import Step, trace, weight
from offspike.graph import GraphNetwork, Ref, refs_in, values_in
from offspike.inspection.mixing import random_inputs
from offspike.inspection.obstacles import check

__all__ = [
    "blanks", "copy_of", "fold", "known_inputs", "known_shape", "known_shapes", "plain", "put", "remember_shapes",
    "stand_in",
]  # fmt: skip

Pair = tuple[str, str]
Shapes = tuple[tuple[int, ...], ...]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_SHAPES = "_offspike_input_shapes"  # on models of other people, whose ``input_shape`` may be something else


@torch.no_grad()
def fold(model: nn.Module, *, example: Tensor | tuple[Tensor, ...] | None = None) -> nn.Module:
    """A copy of ``model``, in eval mode, in which a BatchNorm right after a convolution or linear layer is part of it.

    ``W' = W·s``, ``b' = (b − μ)·s + β`` with ``s = γ/√(σ² + ε)``, computed in float64. The BatchNorm becomes an
    ``nn.Identity``; one that cannot be folded (after a concatenation, or where its input is used elsewhere too) stays.
    A BatchNorm1d after a linear layer normalises the right axis only if there are no others: that is folded if
    ``example``, or the model's ``input_shape``, shows it.

    The folded model must make the same calls and, where its inputs are known, give the same answers in float64. A
    BatchNorm that keeps it from that stays, with a warning.
    """
    check(model, example)
    model = plain(model)
    inputs = known_inputs(model, example)
    steps = trace(stand_in(model), inputs)
    pairs = list(_pairs(steps, model))
    if not pairs:
        return model
    wide = deepcopy(model).double()  # no activation's level changes because of rounding
    given = None if inputs is None else tuple(x.double() for x in inputs)
    linear = {name for name, _ in pairs if isinstance(model.get_submodule(name), nn.Linear)}
    linear -= _flat(wide, linear, given)
    return _merged(model, _sound(wide, [pair for pair in pairs if pair[0] not in linear], given))


def _pairs(steps: list[Step], model: nn.Module) -> Iterator[Pair]:
    """The names of layers and of the BatchNorms that alone use their output, each called once."""
    users: Counter[str] = Counter()
    for step in steps:
        users.update(refs_in((step.args, step.kwargs)))
    calls = Counter(id(model.get_submodule(step.target)) for step in steps if step.kind == "module")
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    used = {id(tensors[step.target]) for step in steps if step.kind == "attribute"}
    by_name = {step.name: step for step in steps}
    for step in steps:
        before = by_name[step.args[0].name] if step.args and isinstance(step.args[0], Ref) else None
        if step.kind != "module" or before is None or before.kind != "module" or users[before.name] > 1:
            continue
        layer, norm = model.get_submodule(before.target), model.get_submodule(step.target)
        alone = calls[id(layer)] == calls[id(norm)] == 1
        shared = used.intersection(id(x) for x in (*layer.parameters(), *norm.parameters(), *norm.buffers()))
        # Of a class derived from these nobody knows what it does with its weights.
        fits = type(layer) in _LINEAR and type(norm) in _NORMS and not _hooked(layer) and not _hooked(norm)
        if alone and fits and not shared and norm.running_mean is not None:
            yield before.target, step.target


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _flat(wide: nn.Module, names: set[str], inputs: tuple[Tensor, ...] | None) -> set[str]:
    """Those of the layers whose output is ``[B, features]``."""
    if not names or inputs is None:
        return set()
    wide, flat = deepcopy(wide), set[str]()
    for name in names:
        wide.get_submodule(name).register_forward_hook(
            lambda m, args, out, name=name: flat.update([name] if out.ndim == 2 else [])
        )
    _answers(wide, inputs)
    return flat


def _sound(wide: nn.Module, pairs: list[Pair], inputs: tuple[Tensor, ...] | None) -> list[Pair]:
    """The pairs that can be merged and leave the model what it is; a warning names the others."""
    expected = _behaviour(wide, inputs)
    if _alike(_behaviour(_merged(deepcopy(wide), pairs), inputs), expected):
        return pairs
    sound = []
    for pair in pairs:
        if _alike(_behaviour(_merged(deepcopy(wide), [pair]), inputs), expected):
            sound.append(pair)
        else:
            name, norm = pair
            warnings.warn(f"{norm} stays: with it folded into {name} the model does something else", stacklevel=4)
    return sound


def _behaviour(wide: nn.Module, inputs: tuple[Tensor, ...] | None) -> tuple[list[Any], list[Tensor]] | None:
    """What a model calls and answers; None where it calls a layer that has no name any more, kept in a Python list."""
    try:
        steps = trace(wide, inputs)
    except ValueError:
        return None
    calls = [(step.kind, step.target, step.args, step.kwargs) for step in steps]
    return calls, [] if inputs is None else _answers(wide, inputs)


def _answers(wide: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """What a float64 model says of random inputs like these; it may keep some of it."""
    if any(x.is_meta for x in wide.parameters()):
        return []
    given = random_inputs([tuple(x.shape[1:]) for x in inputs], like=weight(wide))
    try:
        return values_in(wide(*given), Tensor)
    except Exception as error:  # the user's own code runs here and may raise anything
        reason = f"{error}".partition("\n")[0]
        raise ValueError(f"folding is checked in float64, in which the model does not run: {reason}") from error


def _alike(found: tuple[list[Any], list[Tensor]] | None, expected: tuple[list[Any], list[Tensor]] | None) -> bool:
    if found is None or expected is None or found[0] != expected[0] or len(found[1]) != len(expected[1]):
        return False
    for value, wanted in zip(found[1], expected[1], strict=True):
        scale = float(wanted.abs().max()) if wanted.numel() else 0.0
        if value.shape != wanted.shape or not torch.allclose(value, wanted, rtol=1e-9, atol=1e-9 * scale):
            return False
    return True


def _merged(model: nn.Module, pairs: list[Pair]) -> nn.Module:
    """``model`` itself, with these pairs folded."""
    for name, norm_name in pairs:
        norm = model.get_submodule(norm_name)
        _merge(model.get_submodule(name), norm)
        put(model, norm, nn.Identity())
    return model


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


def put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` in the place of ``old``, under every name that ``model`` has for it."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, new)


def copy_of(model: nn.Module) -> nn.Module:
    """A copy of ``model``; of tensors that it keeps from its last pass only their values."""
    kept = {id(x): x.detach().clone() for x in _tensors(model) if not x.is_leaf}
    try:
        return deepcopy(model, kept)
    except Exception as error:  # whatever a user's attributes raise
        raise ValueError(f"the model cannot be copied: {str(error).partition(chr(10))[0]}") from error


def stand_in(model: nn.Module) -> nn.Module:
    """A copy that shares the tensors of ``model``, to be traced in its place: code that runs may change ``self``."""
    return deepcopy(model, {id(x): x for x in _tensors(model)})


def plain(model: nn.Module) -> nn.Module:
    """A copy in eval mode in which weights made of others (weight_norm, spectral_norm, pruning) are plain weights."""
    model = copy_of(model).eval()
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            kind = type(module)  # the original has it too, and would lose the property that computes its weight
            module.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
        for hook in list(module._forward_pre_hooks.values()):
            match hook:
                case WeightNorm():
                    remove_weight_norm(module, hook.name)
                case SpectralNorm():
                    remove_spectral_norm(module, hook.name)
                case prune.BasePruningMethod():
                    prune.remove(module, hook._tensor_name)  # type: ignore[no-untyped-call]
    return model


def remember_shapes(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Note on ``model`` what inputs it takes; ``input_shape`` is that too where the name is free."""
    shapes, noted = tuple(tuple(x.shape[1:]) for x in inputs), getattr(model, _SHAPES, None)
    setattr(model, _SHAPES, shapes)
    ours = noted is not None and noted == (getattr(model, "input_shape", None),)
    free = not hasattr(type(model), "input_shape") and (ours or not hasattr(model, "input_shape"))
    if isinstance(model, GraphNetwork) or (free and len(shapes) == 1):
        model.input_shape = shapes[0] if len(shapes) == 1 else None  # type: ignore[assignment]


def known_shapes(model: nn.Module) -> Shapes | None:
    """The shapes of the model's inputs, without the batch axis, if it is known."""
    shape, noted = getattr(model, "input_shape", None), getattr(model, _SHAPES, None)
    if noted is not None and not (isinstance(model, GraphNetwork) and len(noted) == 1):
        return noted  # type: ignore[no-any-return]
    sizes = isinstance(shape, tuple | list) and all(isinstance(size, int) for size in shape)
    return (tuple(shape),) if sizes else None  # type: ignore[arg-type]


def known_shape(model: nn.Module) -> tuple[int, ...] | None:
    """The shape of the model's one input, if it is known."""
    shapes = known_shapes(model) or ()
    return shapes[0] if len(shapes) == 1 else None


def known_inputs(model: nn.Module, example: Tensor | tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...] | None:
    """``example`` as a tuple; without one, zeros of the shapes that the model is known to take."""
    if example is not None:
        return example if isinstance(example, tuple) else (example,)
    shapes = known_shapes(model)
    return None if shapes is None else blanks(model, shapes)


def blanks(model: nn.Module, shapes: Shapes) -> tuple[Tensor, ...]:
    """One sample of zeros for each input."""
    return tuple(weight(model).new_zeros(1, *shape) for shape in shapes)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [x for module in model.modules() for x in values_in(vars(module), Tensor)]
