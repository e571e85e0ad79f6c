"""Numba: ``initial.Exact`` for a block of neurons. Where v(0) lies in the interval ``[D[k], D[k+1])``."""

from typing import Any

import numpy as np

from offspike.ops.blocks import Array, compiled, row

__all__ = ["EXACT", "cut", "exact", "interval"]

EXACT = ("exact-first", "exact-middle", "exact-near", "exact-even")
FIRST, MIDDLE, NEAR, EVEN = range(len(EXACT))


@compiled
def exact(drive: Any, rho: int, theta: Array, u: Array, v0: Array, place: int, eps: Any) -> None:
    """Fill v(0); ``u`` are the neurons' phases."""
    real = theta.dtype.type
    half, zero, last, share = real(0.5), real(0), real(rho), real(1 / rho)
    scratch = np.empty((3, v0.size), v0.dtype)
    count, low, high = scratch[0], scratch[1], scratch[2]
    interval(drive, rho, theta, count, low, high)
    if place == EVEN:
        _spread(drive, rho, theta, u, count, low, high, eps)
        for i in range(v0.size):
            margin = min(theta[i] * eps, (high[i] - low[i]) * half)
            v0[i] = min(max(u[i] * theta[i], low[i] + margin), high[i] - margin)
        return
    first = row(drive, 0)
    for i in range(v0.size):
        if place == MIDDLE:
            bottom = low[i] if count[i] > zero else high[i] - theta[i]
            top = high[i] if count[i] < last else low[i] + theta[i]
            v0[i] = (bottom + top) * half
        else:
            wish = theta[i] * half
            if place == FIRST:
                wish = wish + count[i] * theta[i] * share - first[i]
            margin = theta[i] * eps
            v0[i] = min(max(wish, low[i] + margin), high[i] - margin)


@compiled
def interval(drive: Any, rho: int, theta: Array, count: Array, low: Array, high: Array) -> None:
    """``equations.interval`` for the ANN's own count, which is filled in too."""
    real = theta.dtype.type
    half, zero, last = real(0.5), real(0), real(rho)
    total, least = _start(rho, theta)
    for t in range(rho):
        _table(row(drive, t), t, theta, total, least)
    for i in range(theta.size):
        wish = np.floor(total[i] / theta[i] + half)
        count[i] = min(wish, last) if wish > zero else zero  # 0 for a NaN too
        low[i], high[i] = -np.inf, np.inf
    _narrow(least, rho, count, low, high)


@compiled
def _spread(drive: Any, rho: int, theta: Array, u: Array, count: Array, low: Array, high: Array, eps: Any) -> None:
    """Cut ``[low, high)`` down to the potentials whose count by each step t is nearest to ⌊t·k/ρ + u⌋."""
    real = theta.dtype.type
    share = real(1 / rho)
    total, fired = np.zeros(theta.size, theta.dtype), np.zeros(theta.size, theta.dtype)
    for i in range(theta.size):
        margin = theta[i] * eps
        low[i], high[i] = low[i] + margin, high[i] - margin
    for t in range(rho - 1):
        cut(row(drive, t), real(t + 1), share, theta, u, count, total, fired, low, high)


@compiled
def cut(
    step: Array, t: Any, share: Any, theta: Array, u: Array, count: Array, total: Array, fired: Array, low: Array,
    high: Array,
) -> None:  # fmt: skip
    """One step of ``equations.spread``, in place: what is left has fired alike, and one edge divides it."""
    one = theta.dtype.type(1)
    for i in range(theta.size):
        total[i] += step[i]
        more, bottom, top = fired[i] + one, low[i], high[i]
        edge = more * theta[i] - total[i]
        wanted, divided = count[i] * t * share + u[i] >= more, (edge > bottom) & (edge < top)
        fired[i] = more if (edge <= bottom) | (divided & wanted) else fired[i]
        low[i] = edge if divided & wanted else bottom
        high[i] = edge if divided & (not wanted) else top


@compiled
def _narrow(least: Array, last: int, index: Array, low: Array, high: Array) -> None:
    """``low ← max(low, D[index])``, ``high ← min(high, D[index + 1])``, for indices up to ``last``."""
    for k in range(last + 1):  # row by row: looking an entry up would be one neuron at a time
        _narrow_at(least[k], least[k + 1], low.dtype.type(k), index, low, high)


@compiled
def _narrow_at(bottom: Array, top: Array, k: Any, index: Array, low: Array, high: Array) -> None:
    for i in range(low.size):
        here = index[i] == k
        low[i] = max(low[i], bottom[i]) if here else low[i]
        high[i] = min(high[i], top[i]) if here else high[i]


@compiled
def _start(rho: int, theta: Array) -> Any:
    """The sum of currents and the table D before the first step."""
    total, least = np.zeros(theta.size, theta.dtype), np.empty((rho + 2, theta.size), theta.dtype)
    least[0], least[1:] = -np.inf, np.inf
    return total, least


@compiled
def _table(step: Array, t: int, theta: Array, total: Array, least: Array) -> None:
    """The table D one step on: ``D[k] ← min(D[k], max(D[k−1], kθ − C))``, in place."""
    for i in range(theta.size):
        total[i] += step[i]
    for k in range(t + 1, 0, -1):  # k spikes take k steps: beyond, D[k] is still infinite
        _relax(least[k], least[k - 1], theta, total, theta.dtype.type(k))


@compiled
def _relax(here: Array, below: Array, theta: Array, total: Array, k: Any) -> None:
    # A function of its own: LLVM then sees that the rows do not overlap.
    for i in range(theta.size):
        here[i] = min(here[i], max(below[i], k * theta[i] - total[i]))
