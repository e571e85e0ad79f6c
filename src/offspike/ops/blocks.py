"""Numba building blocks: a block of neurons, its values side by side, its current at one step.

No fast-math and no contraction into fused multiply-adds: every rounding is the specification's own. A Python literal
would promote a float32 state to float64, so constants are made in the state's type first.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["HELD", "Array", "add", "channels", "compiled", "copy", "driven", "fill", "part", "row"]

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
def driven(current: Array, beside: Array, gain: Array, bias: Array, start: int, size: int) -> Any:
    """What drives a block of neurons, with room for ``HELD`` sums, and which steps these are of."""
    # Rows a power of two apart would share a few lines of the cache.
    return current, beside, gain, bias, start, size, np.empty((HELD, size + 272), current.dtype), np.full(HELD, -1)


@compiled
def row(drive: Any, t: int) -> Array:
    """The currents of a block at step t, ``current + gain·beside + bias``; a sum lasts until step t + ``HELD``."""
    current, beside, gain, bias, start, size, sums, steps = drive
    step, out = current[t % len(current), start : start + size], sums[t % HELD, :size]
    if not beside.size and not bias.size:
        return step  # type: ignore[no-any-return]
    if steps[t % HELD] != t:
        steps[t % HELD] = t
        if beside.size:
            add(step, beside[t % len(beside), start : start + size], gain[0], out)
            step = out
        if bias.size:
            add(step, bias, bias.dtype.type(1), out)
    return out  # type: ignore[no-any-return]


@compiled
def add(a: Array, b: Array, gain: Any, out: Array) -> None:
    """``a + gain·b``; b may be whole numbers."""
    for i in range(out.size):
        out[i] = a[i] + type(gain)(b[i]) * gain
