"""Numba: ``initial.Exact`` with place "even", the default, for ρ <= 4: all that a neuron needs stays in registers.

`places.py` listens to any number of steps, with a table of D in memory, which takes up to four times as long. Here the
currents of a step beyond ρ add up to −∞, from which nobody fires: D stays as it is, and nothing is cut off.
"""

from typing import Any

import numpy as np

from offspike.ops.blocks import HELD, Array, compiled, fill, row

__all__ = ["cut", "even", "interval"]


@compiled
def even(drive: Any, rho: int, theta: Array, u: Array, v0: Array, eps: Any) -> None:
    """Fill v(0); ``u`` are the neurons' phases."""
    beyond = np.empty(v0.size if rho < HELD else 0, v0.dtype)
    fill(beyond, v0.dtype.type(-np.inf))
    i2 = row(drive, 1) if rho > 1 else beyond
    i3 = row(drive, 2) if rho > 2 else beyond
    i4 = row(drive, 3) if rho > 3 else beyond
    _even(row(drive, 0), i2, i3, i4, rho, theta, u, v0, eps)


@compiled
def _even(i1: Array, i2: Array, i3: Array, i4: Array, rho: int, theta: Array, u: Array, v0: Array, eps: Any) -> None:
    real = theta.dtype.type
    half, one, two, three, inf, share = real(0.5), real(1), real(2), real(3), real(np.inf), real(1 / rho)
    for i in range(v0.size):  # no branch that LLVM could not turn into a choice of values: it vectorises this loop
        c1 = i1[i]
        c2 = c1 + i2[i]
        c3 = c2 + i3[i]
        c4 = c3 + i4[i]
        total = c2 if rho == 2 else c1
        total = c3 if rho == 3 else total
        total = c4 if rho == 4 else total
        n, low, high = interval(total, (c1, c2, c3, c4), theta[i], real(rho))
        margin = theta[i] * eps
        low, high = low + margin, high - margin
        more, low, high = cut(c1 if rho > 1 else -inf, n * share + u[i], theta[i], one, low, high)
        more, low, high = cut(c2 if rho > 2 else -inf, n * two * share + u[i], theta[i], more, low, high)
        more, low, high = cut(c3 if rho > 3 else -inf, n * three * share + u[i], theta[i], more, low, high)
        margin = min(margin, (high - low) * half)
        v0[i] = min(max(u[i] * theta[i], low + margin), high - margin)


@compiled
def interval(total: Any, c: Any, theta: Any, last: Any) -> Any:
    """``equations.interval`` for the ANN's own count: count, low, high."""
    real = type(theta)
    zero, one, two, three, inf = real(0), real(1), real(2), real(3), real(np.inf)
    wish = np.floor(total / theta + real(0.5))
    n = min(wish, last) if wish > zero else zero  # 0 for a NaN too
    before, d1 = _lower((-inf, -inf, -inf, -inf), theta, c)
    before, d2 = _lower(before, two * theta, c)
    before, d3 = _lower(before, three * theta, c)
    before, d4 = _lower(before, real(4) * theta, c)
    low, high = d1 if n > zero else -inf, d2 if n > zero else d1
    low, high = d2 if n > one else low, d3 if n > one else high
    low, high = d3 if n > two else low, d4 if n > two else high
    return n, (d4 if n > three else low), (inf if n > three else high)


@compiled
def _lower(below: Any, need: Any, c: Any) -> Any:
    """``D[k] ← min(D[k], max(D[k−1], kθ − C))`` step by step: D[k] before each of the four, and after the last."""
    inf = type(need)(np.inf)
    d1 = min(inf, max(below[0], need - c[0]))
    d2 = min(d1, max(below[1], need - c[1]))
    d3 = min(d2, max(below[2], need - c[2]))
    return (inf, d1, d2, d3), min(d3, max(below[3], need - c[3]))


@compiled
def cut(total: Any, wish: Any, theta: Any, more: Any, low: Any, high: Any) -> Any:
    """One step of ``equations.spread``: what is left has fired ``more − 1`` times, and one edge divides it."""
    edge = more * theta - total
    fires = (edge <= low) | ((wish >= more) & (edge < high))
    bottom, top, after = max(low, edge), min(high, edge), more + type(more)(1)
    return (after if fires else more), (bottom if fires else low), (high if fires else top)
