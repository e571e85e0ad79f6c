"""Numba: ``initial.Exact`` with place "even", the default, for up to four steps: all of a neuron stays in registers."""

from typing import Any

import numpy as np

from offspike.ops.blocks import HELD, Array, compiled, fill, row

__all__ = ["even"]


@compiled
def even(drive: Any, rho: int, theta: Array, u: Array, v0: Array, eps: Any) -> None:
    """Fill v(0); ``u`` are the neurons' phases. From a sum of −∞, beyond ρ, nobody fires, and nothing is cut off."""
    none = np.empty(v0.size if rho < HELD else 0, v0.dtype)
    fill(none, v0.dtype.type(-np.inf))
    i2 = row(drive, 1) if rho > 1 else none
    i3 = row(drive, 2) if rho > 2 else none
    i4 = row(drive, 3) if rho > 3 else none
    _even((row(drive, 0), i2, i3, i4), rho, theta, u, v0, eps)


@compiled
def _even(steps: Any, rho: int, theta: Array, u: Array, v0: Array, eps: Any) -> None:
    real = theta.dtype.type
    half, inf, share = real(0.5), real(np.inf), real(1 / rho)
    i1, i2, i3, i4 = steps
    for i in range(v0.size):
        c1 = i1[i]
        c2 = c1 + i2[i]
        c3 = c2 + i3[i]
        c4 = c3 + i4[i]
        total = c4
        total = c3 if rho == 3 else total
        total = c2 if rho == 2 else total
        total = c1 if rho == 1 else total
        n, low, high = _interval(total, (c1, c2, c3, c4), theta[i], real(rho))
        margin = theta[i] * eps
        low, high = low + margin, high - margin
        more, low, high = _cut(c1 if rho > 1 else -inf, n * share + u[i], theta[i], real(1), low, high)
        more, low, high = _cut(c2 if rho > 2 else -inf, n * real(2) * share + u[i], theta[i], more, low, high)
        more, low, high = _cut(c3 if rho > 3 else -inf, n * real(3) * share + u[i], theta[i], more, low, high)
        room = high - min(margin, (high - low) * half)
        v0[i] = min(max(u[i] * theta[i], low), room)


@compiled
def _interval(total: Any, c: Any, theta: Any, last: Any) -> Any:
    """``equations.interval`` for the ANN's own count: count, low, high."""
    real = type(theta)
    inf, zero = real(np.inf), real(0)
    wish = np.floor(total / theta + real(0.5))
    n = min(wish, last) if wish > zero else zero  # 0 for a NaN too
    before, d1 = _lower((-inf, -inf, -inf, -inf), theta, c)
    before, d2 = _lower(before, real(2) * theta, c)
    before, d3 = _lower(before, real(3) * theta, c)
    before, d4 = _lower(before, real(4) * theta, c)
    low, high = -inf, d1
    low, high = d1 if n > zero else low, d2 if n > zero else high
    low, high = d2 if n > real(1) else low, d3 if n > real(1) else high
    low, high = d3 if n > real(2) else low, d4 if n > real(2) else high
    low, high = d4 if n > real(3) else low, inf if n > real(3) else high
    return n, low, high


@compiled
def _lower(below: Any, need: Any, c: Any) -> Any:
    """``D[k] ← min(D[k], max(D[k−1], kθ − C))`` step by step: D[k] before each step, and after the last."""
    inf = type(need)(np.inf)
    d1 = min(inf, max(below[0], need - c[0]))
    d2 = min(d1, max(below[1], need - c[1]))
    d3 = min(d2, max(below[2], need - c[2]))
    return (inf, d1, d2, d3), min(d3, max(below[3], need - c[3]))


@compiled
def _cut(total: Any, wish: Any, theta: Any, more: Any, low: Any, high: Any) -> Any:
    """One step of ``initial.Exact._spread``: what is left has fired alike, and one edge divides it."""
    edge = more * theta - total
    fires = (edge <= low) | ((wish >= more) & (edge < high))
    bottom, top = max(low, edge), min(high, edge)
    return (more + type(more)(1) if fires else more), (bottom if fires else low), (high if fires else top)
