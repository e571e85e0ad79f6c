"""Numba building blocks: a block of neurons, its values side by side, its current at one step.

No fast-math and no contraction into fused multiply-adds: every rounding is the specification's own. A Python literal
would promote a float32 state to float64, so constants are made in the state's type first.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "add", "channels", "compiled", "copy", "part", "row"]

Array = NDArray[np.floating[Any]]


def compiled(function: Any, *, parallel: bool = False) -> Any:
    """``numba.njit``, cached on disk where there is a place to write (a read-only installation may have none)."""
    try:
        return numba.njit(cache=True, error_model="numpy", parallel=parallel)(function)
    except RuntimeError:
        return numba.njit(error_model="numpy", parallel=parallel)(function)


@compiled
def part(x: Array, start: int, size: int) -> Array:
    """This block's ``size`` values of ``x [N]`` or ``[1]``."""
    if x.size > 1:
        return x[start : start + size]
    part = np.empty(size, x.dtype)
    for i in range(size):
        part[i] = x[0]
    return part


@compiled
def copy(source: Array, target: Array) -> None:
    """Value by value."""
    for i in range(target.size):
        target[i] = source[i]


@compiled
def channels(bias: Array, inner: int, start: int, size: int) -> Array:
    """The bias of each neuron of a block."""
    part = np.empty(size if bias.size else 0, bias.dtype)
    for i in range(part.size):
        part[i] = bias[(start + i) // inner % bias.size]
    return part


@compiled
def row(drive: Any, t: int) -> Array:
    """The currents of a block at step t, ``current + gain·beside + bias``, in memory of their own if they are sums."""
    current, beside, gain, bias, row, start = drive
    step = current[t % len(current), start : start + row.size]
    if beside.size:
        add(step, beside[t % len(beside), start : start + row.size], gain[0], row)
        step = row
    if bias.size:
        add(step, bias, bias.dtype.type(1), row)
        step = row
    return step  # type: ignore[no-any-return]


@compiled
def add(a: Array, b: Array, gain: Any, out: Array) -> None:
    """``a + gain·b``."""
    for i in range(out.size):
        out[i] = a[i] + b[i] * gain
