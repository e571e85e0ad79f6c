"""Linear layers on a CPU, event by event (numba): where few inputs are not 0, only their weights are read.

Import this module on first use only: numba is slow to import.
"""

import functools

import numba
import torch
from torch import Tensor

from offspike.ops import memory
from offspike.ops.blocks import Array, compiled
from offspike.ops.cpu import views

__all__ = ["linear", "worth"]


def worth(x: Tensor) -> bool:
    """Whether so few entries of ``x [rows, inputs]`` are not 0 that events win (benchmarks/events.py).

    One row makes a product read all weights, events only some of them; many rows share what a product reads.
    """
    rate = int(torch.count_nonzero(x)) / x.numel()
    return rate <= (0.2 if len(x) <= 4 else 0.05)


def linear(x: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ columns + bias`` for ``x [rows, inputs]``, ``columns [inputs, features]``: the sum over events in order."""
    out = memory.empty((len(x), columns.shape[1]), x.dtype)
    start = torch.zeros(columns.shape[1], dtype=x.dtype) if bias is None else bias
    _linear(*views(x, columns, start, out))
    return out


@functools.partial(compiled, parallel=True)
def _linear(x: Array, columns: Array, start: Array, out: Array) -> None:
    for r in numba.prange(len(x)):
        for i in range(start.size):
            out[r, i] = start[i]
        for j in range(x.shape[1]):
            if x[r, j] != 0:
                _send(x[r, j], columns[j], out[r])


@compiled
def _send(amount: float, weights: Array, out: Array) -> None:
    for i in range(out.size):
        out[i] += amount * weights[i]
