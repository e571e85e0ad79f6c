"""Numba building blocks: a block of neurons, its values side by side, its current at one step.

No fast-math and no contraction into fused multiply-adds: every rounding is the specification's own. A Python literal
would promote a float32 state to float64, so constants are made in the state's type first.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["HELD", "Array", "add", "channels", "compiled", "copy", "fill", "part", "row"]

Array = NDArray[np.floating[Any]]

HELD = 4  # steps that are worked on together, in registers


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
def fill(target: Array, value: Any) -> None:
    """The same value everywhere."""
    for i in range(target.size):
        target[i] = value


@compiled
def channels(values: Array, inner: int, start: int, size: int) -> Array:
    """The value of each neuron of a block; ``inner`` neurons in a row share one."""
    channel = start // inner % max(values.size, 1)
    if inner == 1 and (channel + size <= values.size or not values.size):
        return values[channel : channel + size]
    part, i, stop = np.empty(size, values.dtype), 0, inner - start % inner
    while i < size:  # run by run: a division for each neuron would take longer than all the rest
        if inner == 1:
            stop = min(i + values.size - channel, size)
            copy(values[channel:], part[i:stop])
            channel = 0
        else:
            stop = min(stop, size)
            fill(part[i:stop], values[channel])
            channel = (channel + 1) % values.size
        i, stop = stop, stop + inner
    return part


@compiled
def row(drive: Any, t: int) -> Array:
    """The currents of a block at step t, ``current + gain·beside + bias``; sums last until step t + ``HELD``."""
    current, beside, gain, bias, sums, start = drive
    out = sums[t % HELD]
    step = current[t % len(current), start : start + out.size]
    if beside.size:
        add(step, beside[t % len(beside), start : start + out.size], gain[0], out)
        step = out
    if bias.size:
        add(step, bias, bias.dtype.type(1), out)
        step = out
    return step  # type: ignore[no-any-return]


@compiled
def add(a: Array, b: Array, gain: Any, out: Array) -> None:
    """``a + gain·b``."""
    for i in range(out.size):
        out[i] = a[i] + b[i] * gain
