"""Steps that name the batch axis outright; what is hidden in sizes shows when it is run (`mixing.py`)."""

from collections.abc import Collection
from typing import Any

from offspike.capture import Step
from offspike.graph import Ref, refs_in
from offspike.inspection import sites

__all__ = ["ensembles", "on_the_batch_axis"]

_SEQUENCES = ("shape", "size", "chunk", "split", "tensor_split", "unbind")  # of which an item is no sample
_KEYWORDS = (
    "dim", "axis", "dims", "start_dim", "dim0", "dim1", "dim2", "axis0", "axis1", "source", "destination", "dimension",
)  # fmt: skip
# Where a call has its axis, counted behind the tensor.
_PLACE = {
    **dict.fromkeys(("cat", "concat", "stack", "unbind", "flatten", "mean", "sum", "std", "var", "amax", "amin"), 0),
    **dict.fromkeys(("select", "narrow", "unsqueeze", "squeeze", "index_select", "unflatten"), 0),
    **dict.fromkeys(("cumsum", "gather", "unfold"), 0),
    **dict.fromkeys(("chunk", "split", "tensor_split", "roll", "rot90", "repeat_interleave"), 1),
    **dict.fromkeys(("take_along_dim", "diagonal", "diff"), 1),
}
_SEVERAL = ("flip", "transpose", "swapaxes", "movedim")  # all that follows the tensor are axes


def on_the_batch_axis(step: Step, steps: list[Step], aside: Collection[str] = ()) -> bool:
    """Whether a step works on axis 0. ``aside`` are the steps where samples lie on axis 1 (`ensembles`)."""
    (args, _), name = step.call, sites.bare(step)
    if step.name in aside or (args and isinstance(args[0], Ref) and args[0].name in aside):
        return False
    if name == "getitem":
        return _takes_samples(step, steps)
    if name == "t":
        return True  # of two axes, one holds the samples
    axes = _axes(step)
    if name == "permute":
        return bool(axes) and axes[0] not in (0, -len(axes))
    return 0 in axes


def ensembles(steps: list[Step]) -> frozenset[str]:
    """Stacks along a new axis 0 that is averaged or summed away at once: ``torch.stack(outputs).mean(0)``."""
    users: dict[str, list[Step]] = {step.name: [] for step in steps}
    for step in steps:
        for name in refs_in((step.args, step.kwargs)):
            users[name].append(step)
    stacks = [step for step in steps if sites.bare(step) == "stack" and _axes(step) == [0]]
    return frozenset(step.name for step in stacks if users[step.name] and all(map(_reduces, users[step.name])))


def _reduces(step: Step) -> bool:
    args, kwargs = step.call
    return sites.bare(step) in ("mean", "sum") and _axes(step) == [0] and len(args) < 3 and not kwargs.get("keepdim")


def _takes_samples(step: Step, steps: list[Step]) -> bool:
    owner = next((other for other in steps if Ref(other.name) == step.args[0]), None)
    if owner is None or sites.bare(owner) in _SEQUENCES:
        return False
    index = step.args[1][0] if isinstance(step.args[1], tuple) and step.args[1] else step.args[1]
    return not (index is ... or index == slice(None) or isinstance(index, Ref))


def _axes(step: Step) -> list[Any]:
    """The axes that a call names, or works on where it names none."""
    (args, kwargs), name = step.call, sites.bare(step)
    given = _flat([kwargs[key] for key in _KEYWORDS if kwargs.get(key) is not None])
    if name in _SEVERAL or name == "permute":
        return given or _flat(args[1:])
    if name not in _PLACE:
        return []
    place = 1 + _PLACE[name]
    default = [] if name in ("squeeze", "unfold", "diff") else [0]  # the first axis, or all of them
    return given or _flat(args[place : place + 1]) or default


def _flat(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in (_flat(value) if isinstance(value, list | tuple) else [value])]
