"""What a chain of reshaping operations does, found by trying it on numbers.

Views, slices, chunks, padded channels, shuffles: models write the same thing in many ways. A flattening, the mean over
all places, or a 1×1 convolution (a matrix over the channels, perhaps at every s-th place only) is recognised.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Flat", "Mean", "Mixed", "Nothing", "recognise"]

MOST_CHANNELS = 4096  # the chain is tried on each


@dataclass(frozen=True)
class Nothing:
    """It changes nothing."""


@dataclass(frozen=True)
class Flat:
    """It flattens."""


@dataclass(frozen=True)
class Mean:
    """The mean over all places of a channel."""


@dataclass(frozen=True, eq=False)
class Mixed:
    """``matrix`` times the channels plus ``bias``, at every ``stride``-th place."""

    matrix: Tensor
    bias: Tensor
    stride: tuple[int, ...]


def recognise(
    run: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> tuple[Nothing | Flat | Mean | Mixed | None, tuple[int, ...]]:
    """What ``run`` does to one sample ``[1, *shape]``, None if it is none of these; and the shape that it makes."""
    probe = torch.randint(-8, 9, (1, *shape), generator=torch.Generator().manual_seed(0)).float()
    out = run(probe.clone())
    found: Nothing | Flat | Mean | Mixed | None = None
    if torch.equal(out, probe):
        found = Nothing()
    elif torch.equal(out, probe.flatten(1)):
        found = Flat()
    elif len(shape) == 3 and out.ndim == 2 and out.shape[1] == shape[0] and torch.allclose(out, probe.mean((2, 3))):
        found = Mean()
    elif out.ndim == probe.ndim and len(shape) <= 3 and shape[0] <= MOST_CHANNELS and out.numel():
        found = _mixed(run, probe, out)
    return found, tuple(out.shape[1:])


def _mixed(run: Callable[[Tensor], Tensor], probe: Tensor, out: Tensor) -> Mixed | None:
    corner: tuple[Any, ...] = (slice(None), *[0] * (probe.ndim - 2))
    bias = run(torch.zeros_like(probe))[0][corner]
    columns = []
    for channel in range(probe.shape[1]):
        one = torch.zeros_like(probe)
        one[0, channel] = 1
        columns.append(run(one)[0][corner] - bias)
    matrix = torch.stack(columns, 1)
    stride = tuple(-(-size // o) for size, o in zip(probe.shape[2:], out.shape[2:], strict=True))
    places = probe[(slice(None), slice(None), *(slice(None, None, step) for step in stride))]
    mixed = torch.einsum("oc,bc...->bo...", matrix, places) + bias.view(-1, *[1] * (probe.ndim - 2))
    return Mixed(matrix, bias, stride) if torch.equal(mixed, out) else None
