"""What runs on the device (Triton): listening, choosing v(0) and firing, for a block of neurons.

Loads of several steps are issued before the first is used: the compiler may not move them over stores by itself.
`device.py` has the building blocks, `tables.py` the exact rules.
"""

import triton
import triton.language as tl

from offspike.ops.device import channel, current_at, fetch, half_up, member, step, window
from offspike.ops.tables import interval, phase_at, place, spread

__all__ = ["calibrate_and_fire", "calibrate_and_pool", "chosen", "probe"]


@triton.jit
def calibrate_and_fire(
    current, beside, gain, bias, phase, theta, v0, out, v_end, steps, neurons, outputs, sample, channels, inner,
    NAME: tl.constexpr, VARIANT: tl.constexpr, RHO: tl.constexpr, ITERATIONS: tl.constexpr, EPS: tl.constexpr,
    SHARE: tl.constexpr, THETA: tl.constexpr, V0: tl.constexpr, BIAS: tl.constexpr,
    HELD: tl.constexpr, STEADY: tl.constexpr, UNROLL: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr,
    KEEP: tl.constexpr, LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Listen to the first ρ steps, choose v(0) by NAME and VARIANT (or take it), fire, write spikes."""
    # 64 bits: there may be more than 2³¹ elements.
    neurons, outputs = neurons * tl.full((), 1, tl.int64), outputs * tl.full((), 1, tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    i = start + tl.arange(0, BLOCK)
    exists = i < outputs
    zero = tl.full(i.shape, 0.0, theta.dtype.element_ty)
    # One θ for all is one number: what is computed from it alone is computed once.
    each = tl.load(theta + i, mask=exists, other=1.0) if THETA else tl.load(theta)
    shift = None
    if BIAS:
        shift = tl.load(bias + channel(start, channels, inner, BIAS, BLOCK), mask=exists, other=0.0)
    scale = None
    if beside is not None:
        beside += i
        scale = tl.load(gain)
    current += i
    held = (zero,)
    if STEADY:
        held = (current_at(current, beside, scale, shift, exists, zero),)
    elif HELD:
        held = fetch(current, beside, scale, shift, exists, zero, neurons, HELD)
    if NAME == "given":
        v = tl.load(v0 + i * V0, mask=exists, other=0.0)
    else:
        u = None
        if NAME == "exact" and VARIANT == "even":
            own = phase_at(start, tl.arange(0, BLOCK), sample, LARGE, False)
            u = tl.load(phase + own, mask=exists, other=0.0).to(zero.dtype)
        v = chosen(
            held, current, beside, scale, shift, exists, each, neurons, u,
            NAME, VARIANT, RHO, ITERATIONS, EPS, SHARE, HELD, STEADY,
        )  # fmt: skip
    out += i
    if STEADY:
        for _ in range(steps):
            v = _fire(held[0], each, v, out, exists, UNIT)
            out += outputs
    else:
        for t in tl.static_range(HELD):
            v = _fire(held[t], each, v, out, exists, UNIT)
            out += outputs
        current += HELD * neurons
        if beside is not None:
            beside += HELD * neurons
        if UNROLL:  # compiled in only where it runs: what it holds would cost all others their registers
            for _ in range((steps - HELD) // UNROLL):
                ahead = fetch(current, beside, scale, shift, exists, zero, neurons, UNROLL)
                for t in tl.static_range(UNROLL):
                    v = _fire(ahead[t], each, v, out, exists, UNIT)
                    out += outputs
                current += UNROLL * neurons
                if beside is not None:
                    beside += UNROLL * neurons
        if REST:
            ahead = fetch(current, beside, scale, shift, exists, zero, neurons, REST)
            for t in tl.static_range(REST):
                v = _fire(ahead[t], each, v, out, exists, UNIT)
                out += outputs
    if KEEP:
        tl.store(v_end + i, v, mask=exists)


@triton.jit
def calibrate_and_pool(
    current, beside, gain, bias, phase, theta, v0, out, v_end, steps, neurons, outputs, sample,
    NAME: tl.constexpr, VARIANT: tl.constexpr, RHO: tl.constexpr, ITERATIONS: tl.constexpr, EPS: tl.constexpr,
    SHARE: tl.constexpr, THETA: tl.constexpr, V0: tl.constexpr, HELD: tl.constexpr, STEADY: tl.constexpr,
    UNROLL: tl.constexpr, REST: tl.constexpr, KEEP: tl.constexpr, POOL: tl.constexpr, WIDTH: tl.constexpr,
    LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``calibrate_and_fire`` of spikes 1, averaged over windows of 2x2; memory is [rows, WIDTH, POOL].

    The four neurons of a window come one after the other, in loops that stay loops: neighbours in memory are read
    together, as without pooling, and registers hold one neuron's steps. The tuple v turns: its first is next.
    """
    neurons, outputs = neurons * tl.full((), 1, tl.int64), outputs * tl.full((), 1, tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    j = start + tl.arange(0, BLOCK)
    exists = j < outputs
    first, near, lane = window(start, POOL, WIDTH, BLOCK)
    zero = tl.full(j.shape, 0.0, theta.dtype.element_ty)
    one = tl.load(theta)
    theta += first
    shift = None
    if bias is not None:
        shift = tl.load(bias + lane, mask=exists, other=0.0)
    scale = None
    if beside is not None:
        beside += first
        scale = tl.load(gain)
    current += first
    own = near
    if NAME == "exact" and VARIANT == "even":
        own = phase_at(first, near, sample, LARGE, POOL % 8 == 0)
    code = tl.full(j.shape, 0.0, tl.float32)
    v = (zero, zero, zero, zero)
    for corner in range(4):
        beyond = member(corner, POOL, WIDTH)
        at = near + beyond
        each = tl.load(theta + at, mask=exists, other=1.0) if THETA else one
        row = current + at
        shortcut = None if beside is None else beside + at
        held = (zero,)
        if STEADY:
            held = (current_at(row, shortcut, scale, shift, exists, zero),)
        elif HELD:
            held = fetch(row, shortcut, scale, shift, exists, zero, neurons, HELD)
        if NAME == "given":
            v_start = tl.load(v0 + (first + at) * V0, mask=exists, other=0.0)
        else:
            u = None
            if NAME == "exact" and VARIANT == "even":
                u = tl.load(phase + (own + beyond), mask=exists, other=0.0).to(zero.dtype)
            v_start = chosen(
                held, row, shortcut, scale, shift, exists, each, neurons, u,
                NAME, VARIANT, RHO, ITERATIONS, EPS, SHARE, HELD, STEADY,
            )  # fmt: skip
        code, after = _counted(held, each, v_start, code, HELD, STEADY)
        v = (v[1], v[2], v[3], after)
    out += j
    _average(code, out, outputs, exists, HELD)
    out += HELD * outputs
    ahead: tl.constexpr = 0 if STEADY else 1
    current += ahead * HELD * neurons
    if beside is not None:
        beside += ahead * HELD * neurons
    if UNROLL:
        for _ in range((steps - HELD) // UNROLL):
            v = _fire_and_pool(
                current, beside, scale, shift, exists, neurons, near, theta, one, v, out, outputs,
                UNROLL, STEADY, THETA, POOL, WIDTH,
            )  # fmt: skip
            out += UNROLL * outputs
            current += ahead * UNROLL * neurons
            if beside is not None:
                beside += ahead * UNROLL * neurons
    if REST:
        v = _fire_and_pool(
            current, beside, scale, shift, exists, neurons, near, theta, one, v, out, outputs,
            REST, STEADY, THETA, POOL, WIDTH,
        )  # fmt: skip
    if KEEP:
        for corner in tl.static_range(4):
            tl.store(v_end + (first + near + member(corner, POOL, WIDTH)), v[corner], mask=exists)


@triton.jit
def chosen(
    held, row, beside, scale, shift, inside, theta, neurons, u, NAME: tl.constexpr, VARIANT: tl.constexpr,
    RHO: tl.constexpr, ITERATIONS: tl.constexpr, EPS: tl.constexpr, SHARE: tl.constexpr, HELD: tl.constexpr,
    STEADY: tl.constexpr,
):  # fmt: skip
    """v(0) by the rule NAME and VARIANT, for phases u where it wants them; with HELD nothing is read from memory."""
    like = held[0]
    v = tl.full(like.shape, 0.0, like.dtype) + theta * 0.5
    if NAME == "residual":
        _, v, _, _ = _listen(held, row, beside, scale, shift, inside, theta, neurons, v, RHO, HELD, STEADY)
    elif NAME == "shift":
        for _ in range(ITERATIONS):
            n, after, low, high = _listen(held, row, beside, scale, shift, inside, theta, neurons, v, RHO, HELD, STEADY)
            v = _shifted(n, after, low, high, v, theta, VARIANT == "pin", RHO, EPS)
    else:
        n, low, high = interval(held, row, beside, scale, shift, inside, theta, neurons, RHO, HELD, STEADY)
        if VARIANT == "even":
            v = spread(
                held, row, beside, scale, shift, inside, theta, neurons, n, low, high, u,
                RHO, EPS, SHARE, HELD, STEADY,
            )  # fmt: skip
        else:
            first = like
            if not STEADY and not HELD:
                first = current_at(row, beside, scale, shift, inside, like)
            v = place(n, low, high, first, theta, VARIANT, RHO, EPS, SHARE)
    return v


@triton.jit
def probe(
    current, theta, v0, count, v_end, low, high, steps, neurons,
    THETA: tl.constexpr, V0: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fire without writing spikes: count, v(T), ``min{v(t)|s(t)=1}`` and ``max{v(t)|s(t)=0}``."""
    neurons = neurons * tl.full((), 1, tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < neurons
    each = tl.load(theta + i * THETA, mask=inside, other=1.0)
    v = tl.load(v0 + i * V0, mask=inside, other=0.0)
    held = (v,)
    n, v, least, most = _listen(held, current + i, None, None, None, inside, each, neurons, v, steps, 0, False)
    tl.store(count + i, n, mask=inside)
    tl.store(v_end + i, v, mask=inside)
    tl.store(low + i, least, mask=inside)
    tl.store(high + i, most, mask=inside)


@triton.jit
def _fire(i, theta, v, out, exists, UNIT: tl.constexpr):
    """A step, its spikes to ``out``: v."""
    s, v = step(i, theta, v)
    spikes = s.to(v.dtype)
    if not UNIT:
        spikes = tl.where(s, theta, 0.0)
    tl.store(out, spikes.to(out.dtype.element_ty), mask=exists)
    return v


@triton.jit
def _fire_and_pool(
    current, beside, scale, shift, exists, neurons, near, theta, one, v, out, outputs,
    STEPS: tl.constexpr, STEADY: tl.constexpr, THETA: tl.constexpr, POOL: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """STEPS steps of all neurons of windows, the averages of their spikes to ``out``: v."""
    code = tl.full(near.shape, 0.0, tl.float32)
    for corner in range(4):
        at = near + member(corner, POOL, WIDTH)
        each = tl.load(theta + at, mask=exists, other=1.0) if THETA else one
        shortcut = None if beside is None else beside + at
        currents = fetch(current + at, shortcut, scale, shift, exists, v[0], neurons, 1 if STEADY else STEPS)
        code, after = _counted(currents, each, v[0], code, STEPS, STEADY)
        v = (v[1], v[2], v[3], after)
    _average(code, out, outputs, exists, STEPS)
    return v


@triton.jit
def _counted(currents, theta, v, code, STEPS: tl.constexpr, STEADY: tl.constexpr):
    """STEPS steps, at most 8, of one neuron of each window: ``code``, its spikes added, and v.

    Three bits a step hold a count; as a float32, which holds eight such counts, it is added to twice as fast.
    """
    for t in tl.static_range(STEPS):
        s, v = step(currents[0 if STEADY else t], theta, v)
        code = tl.where(s, code + (1 << 3 * t), code)
    return code, v


@triton.jit
def _average(code, out, outputs, exists, STEPS: tl.constexpr):
    """A quarter of each step's count to ``out``."""
    bits = code.to(tl.int32)
    for t in tl.static_range(STEPS):
        mean = (bits >> 3 * t & 7).to(tl.float32) * 0.25
        tl.store(out + t * outputs, mean.to(out.dtype.element_ty), mask=exists)


@triton.jit
def _listen(
    held, row, beside, scale, shift, inside, theta, neurons, v, RHO, HELD: tl.constexpr, STEADY: tl.constexpr
):  # fmt: skip
    """Fire for ρ steps: the count, v(ρ), ``min{v(t)|s(t)=1}`` and ``max{v(t)|s(t)=0}``."""
    count = tl.full(v.shape, 0.0, v.dtype)
    low, high = tl.full(v.shape, float("inf"), v.dtype), tl.full(v.shape, float("-inf"), v.dtype)
    if HELD:
        for t in tl.static_range(HELD):
            count, v, low, high = _tally(held[t], theta, v, count, low, high)
    else:
        for _ in range(RHO):
            i = held[0]
            if not STEADY:
                i = current_at(row, beside, scale, shift, inside, held[0])
                row += neurons
                if beside is not None:
                    beside += neurons
            count, v, low, high = _tally(i, theta, v, count, low, high)
    return count, v, low, high


@triton.jit
def _tally(i, theta, v, count, low, high):
    m = v + i
    s, v = step(i, theta, v)
    # As whole numbers without a sign, floats below 0 are above all others: the least m − θ is that of a spike.
    whole: tl.constexpr = tl.uint64 if m.dtype == tl.float64 else tl.uint32
    spare = (m - theta).to(whole, bitcast=True)
    low = tl.minimum(low.to(whole, bitcast=True), spare).to(m.dtype, bitcast=True)
    # A NaN goes through, as in torch.maximum.
    high = tl.maximum(high, tl.where(s, float("-inf"), m), propagate_nan=tl.PropagateNan.ALL)
    return tl.where(s, count + 1.0, count), v, low, high


@triton.jit
def _shifted(n, v, low, high, v0, theta, PIN: tl.constexpr, RHO: tl.constexpr, EPS: tl.constexpr):
    """``initial.Shift``: the next v(0).

    ψ = clip(n + ⌊(v − v0)/θ + ½⌋, 0, ρ, or ρ + 1 to pin) − n, of which the sign is enough: no quotient is needed.
    """
    margin, gained = theta * tl.full(theta.shape, EPS, theta.dtype), v - v0
    less = (gained < theta * -0.5) & (n > 0)
    more = (gained >= half_up(theta)) & (n < RHO + PIN)
    v0 = tl.where(less, v0 - tl.maximum(theta, low + margin), v0)
    return tl.where(more, v0 + tl.maximum(theta, theta + margin - high), v0)
