"""CPU kernels (numba): the specification's bits, a block of neurons at a time.

A block's state stays in the cache; time, four steps at once, is the outer loop and neurons the inner one, which LLVM
vectorises. No fast-math and no contraction into fused multiply-adds: every rounding is the specification's own. A
Python literal would promote a float32 state to float64, so constants are made in the state's type first.

Import this module on first use only: numba is slow to import.
"""

import functools
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from offspike.ops import check_listening, maps, memory
from offspike.ops.blocks import HELD, Array, channels, compiled, copy, driven, part, row
from offspike.ops.brief import even
from offspike.ops.places import EVEN, EXACT, exact

__all__ = ["calibrate_and_fire", "carry", "fire", "fire_signed", "probe", "views"]

BLOCK = 8192  # neurons: enough for memory to stream, few enough for their state to stay in a core's L2


RULES = ("given", "residual", "shift-keep", "shift-pin", *EXACT)
GIVEN, RESIDUAL, SHIFT_KEEP, SHIFT_PIN, EXACT_RULES = range(len(RULES) - len(EXACT) + 1)

_parallel = functools.partial(compiled, parallel=True)


def fire(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.fire``, in one pass over memory."""
    return calibrate_and_fire(current, theta, "given", 0, 1, 0.0, v0)


def fire_signed(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.fire_signed``, in one pass over memory."""
    wide = _widen(current)
    spikes, v_end = memory.empty(wide.shape, wide.dtype), torch.empty(wide.shape[1], dtype=wide.dtype)
    _fire_signed(*views(wide, theta, v0, spikes, v_end))
    return spikes.to(current.dtype), v_end


def probe(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``reference.probe``, in one pass over memory."""
    wide = _widen(current)
    count, v_end, low, high = (torch.empty(wide.shape[1], dtype=wide.dtype) for _ in range(4))
    _probe(*views(wide, theta, v0, count, v_end, low, high))
    return count, v_end, low, high


def carry(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
    """``reference.carry``, a sample at a time."""
    wide = _widen(current)
    v0 = torch.empty(wide.shape[1:], dtype=wide.dtype)
    if v0.numel():
        currents, thetas, u, start = views(wide.flatten(1), theta, phase.flatten(), v0.view(-1))
        maps.carry(currents, thetas, u, start, phase.shape[1], start.dtype.type(eps))
    return v0


def calibrate_and_fire(
    current: Tensor,
    theta: Tensor,
    rule: str,
    rho: int,
    iterations: int,
    eps: float,
    v0: Tensor | None = None,
    beside: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    inner: int = 1,
    steps: int = 0,
    unit: bool = True,
    dtype: torch.dtype | None = None,
    keep: bool = True,
    pool: int = 0,
    width: int = 0,
    phase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``fused.specification``; currents come from memory only once."""
    steps = steps or len(current)
    check_listening(rho, steps)
    wide = _widen(current)
    small = dtype == torch.int8 and unit and not pool  # spikes as bytes: written as such
    spikes = memory.empty((steps, wide.shape[1]), torch.int8 if small else wide.dtype)
    v_end = torch.empty(wide.shape[1], dtype=wide.dtype)
    currents, thetas, out, v = views(wide, theta, spikes, v_end)
    none = np.empty(0, v.dtype)

    def given(x: Tensor | None, otherwise: Array) -> Array:
        return otherwise if x is None else _array(x if x.dtype == torch.int8 else x.to(theta.dtype))

    _calibrate_and_fire(
        currents, given(beside, none.reshape(0, 0)), given(gain, none), given(bias, none), given(phase, none), thetas,
        given(v0, thetas), np.ones(1, out.dtype) if unit else thetas, out, v, inner, RULES.index(rule), rho, iterations,
        v.dtype.type(eps),
    )  # fmt: skip
    if pool:
        spikes = spikes.view(steps, -1, 2, width // 2, 2, pool).sum((2, 4)).flatten(1) * 0.25
    return spikes.to(dtype or current.dtype), v_end if keep else v_end.new_empty(0)


def _widen(current: Tensor) -> Tensor:
    """The current in the state's dtype: exact."""
    return current if current.dtype == torch.float64 else current.float()


def views(*tensors: Tensor) -> list[Array]:
    """The tensors as numba takes them, once it knows how many threads torch may use."""
    threads = torch.get_num_threads()
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    if torch.get_num_threads() != threads:  # both use OpenMP: the first call starts numba's threads, and resets torch's
        torch.set_num_threads(threads)
    return [_array(x) for x in tensors]


def _array(x: Tensor) -> Array:
    return x.detach().contiguous().numpy()


@_parallel
def _fire_signed(current: Array, theta: Array, v0: Array, spikes: Array, v_end: Array) -> None:
    for block in numba.prange((v_end.size + BLOCK - 1) // BLOCK):
        start, v = block * BLOCK, v_end[block * BLOCK : (block + 1) * BLOCK]
        stop, each, sent = start + v.size, part(theta, start, v.size), np.zeros(v.size, v.dtype)
        copy(part(v0, start, v.size), v)
        for t in range(len(current)):
            _fire_signed_step(current[t, start:stop], each, v, sent, spikes[t, start:stop])


@_parallel
def _probe(current: Array, theta: Array, v0: Array, count: Array, v_end: Array, low: Array, high: Array) -> None:
    for block in numba.prange((v_end.size + BLOCK - 1) // BLOCK):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, v_end.size)
        v, each = v_end[start:stop], part(theta, start, stop - start)
        copy(part(v0, start, stop - start), v)
        none = np.empty(0, v.dtype)
        drive = driven(current, none.reshape(0, 0), none, none, start, v.size)
        _probe_block(drive, len(current), each, v, count[start:stop], low[start:stop], high[start:stop])


@_parallel
def _calibrate_and_fire(
    current: Array, beside: Array, gain: Array, bias: Array, phase: Array, theta: Array, v0: Array, sent: Array,
    spikes: Array, v_end: Array, inner: int, rule: int, rho: int, iterations: int, eps: Any,
) -> None:  # fmt: skip
    for block in numba.prange((v_end.size + BLOCK - 1) // BLOCK):
        start, v = block * BLOCK, v_end[block * BLOCK : (block + 1) * BLOCK]
        each = part(theta, start, v.size)
        drive = driven(current, beside, gain, channels(bias, inner, start, v.size), start, v.size)
        if rule == GIVEN:
            copy(part(v0, start, v.size), v)
        elif rule == EXACT_RULES + EVEN and rho <= HELD:
            even(drive, rho, each, channels(phase, 1, start, v.size), v, eps)
        elif rule >= EXACT_RULES:
            exact(drive, rho, each, channels(phase, 1, start, v.size), v, rule - EXACT_RULES, eps)
        else:
            _shift(drive, rho, each, v, rule, iterations, eps)
        _fire_block(drive, each, part(sent, start, v.size), v, spikes)


@compiled
def _fire_block(drive: Any, theta: Array, sent: Array, v: Array, spikes: Array) -> None:
    start, whole = drive[4], len(spikes) // HELD * HELD
    stop = start + v.size
    for t in range(0, whole, HELD):
        steps = row(drive, t), row(drive, t + 1), row(drive, t + 2), row(drive, t + 3)
        o1, o2 = spikes[t, start:stop], spikes[t + 1, start:stop]
        o3, o4 = spikes[t + 2, start:stop], spikes[t + 3, start:stop]
        _fire_steps(steps, theta, sent, v, (o1, o2, o3, o4))
    for t in range(whole, len(spikes)):
        _fire_step(row(drive, t), theta, sent, v, spikes[t, start:stop])


@compiled
def _fire_steps(steps: Any, theta: Array, sent: Array, v: Array, out: Any) -> None:
    """Four times ``_fire_step``: v is read and written once."""
    i1, i2, i3, i4 = steps
    o1, o2, o3, o4 = out
    for i in range(v.size):
        v1, o1[i] = _fired(v[i] + i1[i], theta[i], sent[i])
        v2, o2[i] = _fired(v1 + i2[i], theta[i], sent[i])
        v3, o3[i] = _fired(v2 + i3[i], theta[i], sent[i])
        v[i], o4[i] = _fired(v3 + i4[i], theta[i], sent[i])


@compiled
def _fire_step(step: Array, theta: Array, sent: Array, v: Array, out: Array) -> None:
    """``m = v + I;  s = [m ≥ θ];  v = m − s·θ``, v in place; ``sent`` is what a spike is written as."""
    for i in range(v.size):
        v[i], out[i] = _fired(v[i] + step[i], theta[i], sent[i])


@compiled
def _fired(m: Any, theta: Any, sent: Any) -> Any:
    s, after = m >= theta, m - theta
    return (after if s else m), (sent if s else type(sent)(0))


@compiled
def _fire_signed_step(step: Array, theta: Array, v: Array, sent: Array, out: Array) -> None:
    """``s = [m ≥ θ] − [m ≤ −θ and Σs > 0];  v = m − s·θ``, v and Σs in place."""
    one, zero = theta.dtype.type(1), theta.dtype.type(0)
    for i in range(v.size):
        m = v[i] + step[i]
        up, down = m >= theta[i], (m <= -theta[i]) & (sent[i] > zero)
        v[i] = m - theta[i] if up else (m + theta[i] if down else m)
        s = one if up else (-one if down else zero)
        sent[i] += s
        out[i] = s


@compiled
def _probe_block(drive: Any, steps: int, theta: Array, v: Array, count: Array, low: Array, high: Array) -> None:
    whole = steps // HELD * HELD
    for i in range(v.size):
        count[i], low[i], high[i] = 0, np.inf, -np.inf
    for t in range(0, whole, HELD):
        four = row(drive, t), row(drive, t + 1), row(drive, t + 2), row(drive, t + 3)
        _probe_steps(four, theta, v, count, low, high)
    for t in range(whole, steps):
        _probe_step(row(drive, t), theta, v, count, low, high)


@compiled
def _probe_steps(steps: Any, theta: Array, v: Array, count: Array, low: Array, high: Array) -> None:
    """Four times ``_probe_step``: what is kept is read and written once."""
    i1, i2, i3, i4 = steps
    for i in range(v.size):
        seen = v[i], count[i], low[i], high[i]
        seen = _probed(i1[i], theta[i], seen)
        seen = _probed(i2[i], theta[i], seen)
        seen = _probed(i3[i], theta[i], seen)
        v[i], count[i], low[i], high[i] = _probed(i4[i], theta[i], seen)


@compiled
def _probe_step(step: Array, theta: Array, v: Array, count: Array, low: Array, high: Array) -> None:
    for i in range(v.size):
        v[i], count[i], low[i], high[i] = _probed(step[i], theta[i], (v[i], count[i], low[i], high[i]))


@compiled
def _probed(step: Any, theta: Any, seen: Any) -> Any:
    """A step of the neuron, with the count, ``min{v(t)|s(t)=1}`` and ``max{v(t)|s(t)=0}``."""
    v, count, least, most = seen
    one, zero = type(theta)(1), type(theta)(0)
    m = v + step
    s, fallen = m >= theta, m - theta
    after = fallen if s else m
    count += one if s else zero
    # A NaN goes through, as in torch.maximum.
    return after, count, (after if s & (after < least) else least), (most if s | (after <= most) else after)


@compiled
def _shift(drive: Any, rho: int, theta: Array, v0: Array, rule: int, iterations: int, eps: Any) -> None:
    """``initial.Residual`` and ``initial.Shift``: fill v(0)."""
    real = theta.dtype.type
    half, zero, most = real(0.5), real(0), real(rho + 1 if rule == SHIFT_PIN else rho)
    scratch = np.empty((4, v0.size), v0.dtype)
    v, count, low, high = scratch[0], scratch[1], scratch[2], scratch[3]
    for i in range(v0.size):
        v0[i] = theta[i] * half
    for _ in range(iterations):
        copy(v0, v)
        _probe_block(drive, rho, theta, v, count, low, high)
        if rule == RESIDUAL:
            copy(v, v0)
            return
        for i in range(v0.size):
            # ψ = clip(wish, 0, most) − n. Its sign is enough, and 0 <= n <= ρ.
            n, margin = count[i], theta[i] * eps
            wish = n + np.floor((v[i] - v0[i]) / theta[i] + half)
            down, up = max(theta[i], low[i] + margin), max(theta[i], theta[i] + margin - high[i])
            v0[i] += -down if (wish < n) & (n > zero) else (up if (wish > n) & (n < most) else zero)
