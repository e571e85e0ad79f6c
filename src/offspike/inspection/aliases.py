"""In-place ReLUs that change a tensor which the model also knows under another name: a slice, dropout in eval mode."""

from torch import nn

from offspike.capture import Step
from offspike.graph import Ref, refs_in
from offspike.inspection import sites

__all__ = ["reused"]

_VIEWS = (
    "getitem", "chunk", "split", "unbind", "select", "narrow", "view", "view_as", "reshape", "flatten", "unflatten",
    "transpose", "permute", "swapaxes", "movedim", "t", "squeeze", "unsqueeze", "expand", "expand_as", "detach",
    "contiguous", "float", "tensor_split", "broadcast_to", "diagonal", "reshape_as", "unfold", "dropout", "dropout1d",
    "dropout2d", "dropout3d",
)  # fmt: skip
_VIEW_LAYERS = (
    nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)  # fmt: skip


def reused(steps: list[Step], model: nn.Module) -> list[Step]:
    """In-place ReLUs after which memory that they changed is read under another name."""
    tensor: dict[str, str] = {}  # the step that first had this very tensor, whatever it is called by now
    memory: dict[str, str] = {}  # the step whose memory it lies in
    found = []
    for number, step in enumerate(steps):
        module = model.get_submodule(step.target) if step.kind == "module" else None
        args = step.call[0]
        first = args[0].name if args and isinstance(args[0], Ref) else None
        same = sites.in_place(step, module) or isinstance(module, nn.Identity)
        view = isinstance(module, _VIEW_LAYERS) or (module is None and sites.bare(step) in _VIEWS)
        tensor[step.name] = tensor[first] if first is not None and same else step.name
        memory[step.name] = memory[first] if first is not None and (same or view) else step.name
        relu = sites.relu(step, module)
        if relu is None or not relu.in_place or first is None:
            continue
        others = {name for name in memory if memory[name] == memory[first] and tensor[name] != tensor[first]}
        if any(others.intersection(refs_in((later.args, later.kwargs))) for later in steps[number + 1 :]):
            found.append(step)
    return found
