"""CPU kernels (numba): the specification's bits, a block of neurons at a time.

A block's state stays in the cache; time is the outer loop and neurons the inner one, which LLVM vectorises. No
fast-math and no contraction into fused multiply-adds: every rounding is the specification's own. A Python literal
would promote a float32 state to float64, so constants are made in the state's type first.

Import this module on first use only: numba is slow to import.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offspike.ops import memory

__all__ = ["calibrate_and_fire", "fire", "probe"]

Array = NDArray[np.floating[Any]]

BLOCK = 4096
RULES = ("residual", "shift-keep", "shift-pin", "exact-first", "exact-middle", "exact-near")
RESIDUAL, SHIFT_KEEP, SHIFT_PIN, EXACT_FIRST, EXACT_MIDDLE, EXACT_NEAR = range(len(RULES))

_serial: Any = numba.njit(cache=True, error_model="numpy")
_parallel: Any = numba.njit(cache=True, error_model="numpy", parallel=True, nogil=True)


def fire(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.fire``, in one pass over memory."""
    wide = _widen(current)
    spikes, v_end = memory.empty(wide.shape, wide.dtype), torch.empty(wide.shape[1], dtype=wide.dtype)
    _fire(*_views(wide, theta, v0, spikes, v_end))
    return spikes.to(current.dtype), v_end


def probe(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``reference.probe``, in one pass over memory."""
    wide = _widen(current)
    count, v_end, low, high = (torch.empty(wide.shape[1], dtype=wide.dtype) for _ in range(4))
    _probe(*_views(wide, theta, v0, count, v_end, low, high))
    return count, v_end, low, high


def calibrate_and_fire(
    current: Tensor, theta: Tensor, rule: str, rho: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Listen to the first ρ <= T steps, choose v(0) by ``rule``, fire; the currents leave the cache only once."""
    wide = _widen(current)
    spikes, v_end = memory.empty(wide.shape, wide.dtype), torch.empty(wide.shape[1], dtype=wide.dtype)
    views = _views(wide, theta, spikes, v_end)
    _calibrate_and_fire(*views, RULES.index(rule), rho, iterations, views[0].dtype.type(eps))
    return spikes.to(current.dtype), v_end


def _widen(current: Tensor) -> Tensor:
    """The current in the state's dtype: exact."""
    return current if current.dtype == torch.float64 else current.float()


def _views(*tensors: Tensor) -> list[Array]:
    """The tensors as numba takes them, once it knows how many threads torch may use."""
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    return [x.detach().contiguous().numpy() for x in tensors]


@_parallel
def _fire(current: Array, theta: Array, v0: Array, spikes: Array, v_end: Array) -> None:
    for block in numba.prange((v_end.size + BLOCK - 1) // BLOCK):
        start, v = block * BLOCK, v_end[block * BLOCK : (block + 1) * BLOCK]
        _copy(_part(v0, start, v.size), v)
        _fire_block(current, start, _part(theta, start, v.size), v, spikes)


@_parallel
def _probe(current: Array, theta: Array, v0: Array, count: Array, v_end: Array, low: Array, high: Array) -> None:
    for block in numba.prange((v_end.size + BLOCK - 1) // BLOCK):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, v_end.size)
        v, each = v_end[start:stop], _part(theta, start, stop - start)
        _copy(_part(v0, start, stop - start), v)
        _probe_block(current, len(current), start, each, v, count[start:stop], low[start:stop], high[start:stop])


@_parallel
def _calibrate_and_fire(
    current: Array, theta: Array, spikes: Array, v_end: Array, rule: int, rho: int, iterations: int, eps: Any
) -> None:
    for block in numba.prange((v_end.size + BLOCK - 1) // BLOCK):
        start, v = block * BLOCK, v_end[block * BLOCK : (block + 1) * BLOCK]
        each = _part(theta, start, v.size)
        if rule >= EXACT_FIRST:
            _exact(current, rho, start, each, v, rule, eps)
        else:
            _shift(current, rho, start, each, v, rule, iterations, eps)
        _fire_block(current, start, each, v, spikes)


@_serial
def _part(x: Array, start: int, size: int) -> Array:
    """This block's ``size`` values of ``x [N]`` or ``[1]``."""
    if x.size > 1:
        return x[start : start + size]
    part = np.empty(size, x.dtype)
    for i in range(size):
        part[i] = x[0]
    return part


@_serial
def _copy(source: Array, target: Array) -> None:
    for i in range(target.size):
        target[i] = source[i]


@_serial
def _fire_block(current: Array, start: int, theta: Array, v: Array, spikes: Array) -> None:
    """``m = v + I;  s = [m ≥ θ];  v = m − s·θ``, v in place."""
    for t in range(len(current)):
        step, out = current[t, start : start + v.size], spikes[t, start : start + v.size]
        for i in range(v.size):
            m = v[i] + step[i]
            s = m >= theta[i]
            v[i] = m - theta[i] if s else m
            out[i] = s


@_serial
def _probe_block(
    current: Array, steps: int, start: int, theta: Array, v: Array, count: Array, low: Array, high: Array
) -> None:
    """Fire in place on v, and fill the count, ``min{v(t)|s(t)=1}`` and ``max{v(t)|s(t)=0}``."""
    one, zero = theta.dtype.type(1), theta.dtype.type(0)
    for i in range(v.size):
        count[i], low[i], high[i] = zero, np.inf, -np.inf
    for t in range(steps):
        step = current[t, start : start + v.size]
        for i in range(v.size):
            m = v[i] + step[i]
            s = m >= theta[i]
            v[i] = m - theta[i] if s else m
            count[i] += one if s else zero
            low[i] = v[i] if s & (v[i] < low[i]) else low[i]
            high[i] = high[i] if s | (v[i] <= high[i]) else v[i]  # a NaN goes through, as in torch.maximum


@_serial
def _shift(current: Array, rho: int, start: int, theta: Array, v0: Array, rule: int, iterations: int, eps: Any) -> None:
    """``initial.Residual`` and ``initial.Shift``: fill v(0)."""
    real = theta.dtype.type
    half, zero, most = real(0.5), real(0), real(rho + 1 if rule == SHIFT_PIN else rho)
    scratch = np.empty((4, v0.size), v0.dtype)
    v, count, low, high = scratch[0], scratch[1], scratch[2], scratch[3]
    for i in range(v0.size):
        v0[i] = theta[i] * half
    for _ in range(iterations):
        _copy(v0, v)
        _probe_block(current, rho, start, theta, v, count, low, high)
        if rule == RESIDUAL:
            _copy(v, v0)
            return
        for i in range(v0.size):
            # ψ = clip(wish, 0, most) − n. Its sign is enough, and 0 <= n <= ρ.
            n, margin = count[i], theta[i] * eps
            wish = n + np.floor((v[i] - v0[i]) / theta[i] + half)
            down, up = max(theta[i], low[i] + margin), max(theta[i], theta[i] + margin - high[i])
            v0[i] += -down if (wish < n) & (n > zero) else (up if (wish > n) & (n < most) else zero)


@_serial
def _exact(current: Array, rho: int, start: int, theta: Array, v0: Array, rule: int, eps: Any) -> None:
    """``initial.Exact``: fill v(0)."""
    real = theta.dtype.type
    half, zero, last, share = real(0.5), real(0), real(rho), real(1 / rho)
    first, scratch = current[0, start : start + v0.size], np.empty((3, v0.size), v0.dtype)
    count, low, high = scratch[0], scratch[1], scratch[2]
    _interval(current, rho, start, theta, count, low, high)
    for i in range(v0.size):
        if rule == EXACT_MIDDLE:
            bottom = low[i] if count[i] > zero else high[i] - theta[i]
            top = high[i] if count[i] < last else low[i] + theta[i]
            v0[i] = (bottom + top) * half
        else:
            wish = theta[i] * half
            if rule == EXACT_FIRST:
                wish = wish + count[i] * theta[i] * share - first[i]
            margin = theta[i] * eps
            v0[i] = min(max(wish, low[i] + margin), high[i] - margin)


@_serial
def _interval(current: Array, rho: int, start: int, theta: Array, count: Array, low: Array, high: Array) -> None:
    """``equations.interval`` for the ANN's own count, which is filled in too."""
    real, size = theta.dtype.type, theta.size
    half, zero, last = real(0.5), real(0), real(rho)
    total, least = np.empty(size, theta.dtype), np.empty((rho + 2, size), theta.dtype)
    for i in range(size):
        total[i], least[0, i], low[i], high[i] = zero, -np.inf, -np.inf, np.inf
    for k in range(1, rho + 2):
        for i in range(size):
            least[k, i] = np.inf
    for t in range(rho):
        step = current[t, start : start + size]
        for i in range(size):
            total[i] += step[i]
        for k in range(t + 1, 0, -1):  # k spikes take k steps: beyond, D[k] is still infinite
            for i in range(size):
                least[k, i] = min(least[k, i], max(least[k - 1, i], real(k) * theta[i] - total[i]))
    for i in range(size):
        count[i] = min(max(np.floor(total[i] / theta[i] + half), zero), last)
    for k in range(rho + 1):  # a gather that vectorises
        for i in range(size):
            here = count[i] == real(k)
            low[i], high[i] = least[k, i] if here else low[i], least[k + 1, i] if here else high[i]
