"""Numba: ``reference.carry``. Each sample's neurons listen for themselves; then, position by position, all channels."""

from typing import Any

import numba
import numpy as np

from offspike.ops import brief, places
from offspike.ops.blocks import HELD, Array, compiled, driven, fill, part

__all__ = ["carry"]


def _parallel(function: Any) -> Any:
    return compiled(function, parallel=True)


@_parallel
def carry(current: Array, theta: Array, phase: Array, v0: Array, lanes: int, eps: Any) -> None:
    """Fill v(0) ``[N]``; ``phase`` is that of one sample, ``lanes`` the number of its channels, innermost."""
    for sample in numba.prange(v0.size // phase.size):
        start = sample * phase.size
        _sample(current, part(theta, start, phase.size), phase, start, v0[start : start + phase.size], lanes, eps)


@compiled
def _sample(current: Array, theta: Array, phase: Array, start: int, v0: Array, lanes: int, eps: Any) -> None:
    rho, owed = len(current), np.zeros((max(len(current), HELD), lanes), v0.dtype)
    if rho <= HELD:
        beyond = np.empty(lanes, v0.dtype)
        fill(beyond, v0.dtype.type(-np.inf))
        for p in range(0, v0.size, lanes):
            here, there = slice(p, p + lanes), slice(start + p, start + p + lanes)
            i2 = current[1, there] if rho > 1 else beyond
            i3 = current[2, there] if rho > 2 else beyond
            i4 = current[3, there] if rho > 3 else beyond
            _brief(
                current[0, there], i2, i3, i4, rho, theta[here], phase[:lanes], phase[here], owed[0], owed[1], owed[2],
                v0[here], eps,
            )  # fmt: skip
        return
    none, bounds = np.empty(0, v0.dtype), np.empty((3, v0.size), v0.dtype)
    count, low, high = bounds[0], bounds[1], bounds[2]
    places.interval(driven(current, none.reshape(0, 0), none, none, start, v0.size), rho, theta, count, low, high)
    state = np.empty((3, lanes), v0.dtype)
    for p in range(0, v0.size, lanes):
        here = slice(p, p + lanes)
        edges = low[here], high[here]
        _position(current, start + p, theta[here], phase[:lanes], count[here], edges, owed, state, eps)
        _settle(theta[here], phase[here], edges, v0[here], eps)


@compiled
def _brief(
    i1: Array, i2: Array, i3: Array, i4: Array, rho: int, theta: Array, first: Array, u: Array, owed1: Array,
    owed2: Array, owed3: Array, v0: Array, eps: Any,
) -> None:  # fmt: skip
    """One position for ρ <= 4, all in registers, as `brief.py` does it for neurons that start each for itself."""
    real = theta.dtype.type
    half, one, two, three, inf, share = real(0.5), real(1), real(2), real(3), real(np.inf), real(1 / rho)
    last = real(rho)
    for i in range(v0.size):  # no branch that LLVM could not turn into a choice of values
        c1 = i1[i]
        c2 = c1 + i2[i]
        c3 = c2 + i3[i]
        c4 = c3 + i4[i]
        total = c2 if rho == 2 else c1
        total = c3 if rho == 3 else total
        total = c4 if rho == 4 else total
        n, low, high = brief.interval(total, (c1, c2, c3, c4), theta[i], last)
        margin = theta[i] * eps
        low, high = low + margin, high - margin
        u1, u2, u3 = first[i] + owed1[i] * share, first[i] + owed2[i] * share, first[i] + owed3[i] * share
        more, low, high = brief.cut(c1 if rho > 1 else -inf, n * share + u1, theta[i], one, low, high)
        owed1[i] += n - (more - one) * last
        more, low, high = brief.cut(c2 if rho > 2 else -inf, n * two * share + u2, theta[i], more, low, high)
        owed2[i] += n * two - (more - one) * last
        more, low, high = brief.cut(c3 if rho > 3 else -inf, n * three * share + u3, theta[i], more, low, high)
        owed3[i] += n * three - (more - one) * last
        margin = min(margin, (high - low) * half)
        v0[i] = min(max(u[i] * theta[i], low + margin), high - margin)


@compiled
def _position(
    current: Array,
    start: int,
    theta: Array,
    first: Array,
    count: Array,
    edges: Any,
    owed: Array,
    state: Array,
    eps: Any,
) -> None:
    """``equations.spread`` with what is owed, for the neurons of one position; what they owe is added."""
    real = theta.dtype.type
    rho, share, (low, high) = len(current), real(1 / len(current)), edges
    total, fired, u = state[0], state[1], state[2]
    fill(total, real(0))
    fill(fired, real(0))
    for i in range(theta.size):
        margin = theta[i] * eps
        low[i], high[i] = low[i] + margin, high[i] - margin
    for t in range(rho - 1):
        late, step = owed[t], real(t + 1)
        for i in range(theta.size):
            u[i] = first[i] + late[i] * share
        places.cut(current[t, start : start + theta.size], step, share, theta, u, count, total, fired, low, high)
        for i in range(theta.size):
            late[i] += count[i] * step - fired[i] * real(rho)


@compiled
def _settle(theta: Array, phase: Array, edges: Any, v0: Array, eps: Any) -> None:
    """``equations.within``, for the neurons' own phases."""
    half, (low, high) = theta.dtype.type(0.5), edges
    for i in range(v0.size):
        margin = min(theta[i] * eps, (high[i] - low[i]) * half)
        v0[i] = min(max(phase[i] * theta[i], low[i] + margin), high[i] - margin)
