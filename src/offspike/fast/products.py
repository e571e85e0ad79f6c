"""How a convolution or linear layer is multiplied: as PyTorch does it, over pairs of pixels, or event by event."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offspike.fast import events, pairs

__all__ = ["product"]

Product = Callable[[Tensor], Tensor]


def product(
    module: nn.Module,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    *,
    dtype: torch.dtype | None,
    spikes: bool,
    narrow: bool = False,
) -> Product:
    """``module(x)`` with the sum of ``weights`` for a weight, and this bias; x is taken as ``dtype`` (None: as it is).

    ``spikes`` says that x changes over time, and may be mostly 0; ``narrow`` that it comes in another dtype.
    """
    step = _passes_over(module) if narrow else 1
    if step > 1:
        each: Any = deepcopy(module)
        each.stride, module = (1, 1), each
    first = _one(module, weights[0], bias, paired=dtype is not None, spikes=spikes)
    rest = [_one(module, weight, None, paired=dtype is not None, spikes=spikes) for weight in weights[1:]]

    def run(x: Tensor) -> Tensor:
        if step > 1:  # before the others are converted
            x = x[:, :, ::step, ::step]
        x = x if dtype is None else x.to(dtype)
        out = first(x)
        for part in rest:
            out.add_(part(x))
        return out

    return run


def _passes_over(module: nn.Module) -> int:
    """The stride of a 1x1 convolution, which reads only every so many pixels; 1 for all else."""
    if not isinstance(module, nn.Conv2d) or module.kernel_size != (1, 1) or module.padding not in ((0, 0), "valid"):
        return 1
    return module.stride[0] if module.stride[0] == module.stride[1] else 1


def _one(module: Any, weight: Tensor, bias: Tensor | None, *, paired: bool, spikes: bool) -> Product:
    copy = deepcopy(module)
    copy.weight = nn.Parameter(weight, requires_grad=False)
    copy.bias = None if bias is None else nn.Parameter(bias.to(weight.dtype), requires_grad=False)
    sparse = events.by_event(copy) if spikes else None
    if sparse is not None:
        return sparse
    wide = pairs.widened(copy) if paired and weight.is_cuda and bias is None else None
    return copy if wide is None else lambda x: pairs.run(copy, wide, x)
