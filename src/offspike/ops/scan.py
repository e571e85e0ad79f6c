"""What runs on the device (Triton): listening, choosing v(0) and firing, for a block of neurons.

Products and sums are not fused into multiply-adds (``enable_fp_fusion=False``) and float32 quotients are correctly
rounded, so every rounding is the specification's own. A step's current is ``current + gain·beside + bias``, made in
the state's dtype; ``beside`` and ``bias`` may be None, and then cost nothing. Loads of several steps are issued before
the first is used: the compiler may not move them over stores by itself.
"""

import triton
import triton.language as tl

__all__ = ["calibrate_and_fire", "probe"]


@triton.jit
def calibrate_and_fire(
    current, beside, gain, bias, phase, theta, v0, out, v_end, steps, neurons, outputs, sample, channels, inner,
    NAME: tl.constexpr, VARIANT: tl.constexpr, RHO: tl.constexpr, ITERATIONS: tl.constexpr, EPS: tl.constexpr,
    SHARE: tl.constexpr, THETA: tl.constexpr, V0: tl.constexpr, BIAS: tl.constexpr,
    HELD: tl.constexpr, STEADY: tl.constexpr, UNROLL: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr,
    KEEP: tl.constexpr, POOL: tl.constexpr, WIDTH: tl.constexpr, LARGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Listen to the first ρ steps, choose v(0) by NAME and VARIANT (or take it), fire, write spikes."""
    # 64 bits: there may be more than 2³¹ elements.
    neurons, outputs = neurons * tl.full((), 1, tl.int64), outputs * tl.full((), 1, tl.int64)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    j = start + tl.arange(0, BLOCK)
    exists = j < outputs
    i, inside = j, exists
    if POOL:
        i = _window(j, POOL, WIDTH)
        inside = tl.broadcast_to(exists[None, :], i.shape)
    zero = tl.full(i.shape, 0.0, theta.dtype.element_ty)
    # One θ for all is one number: what is computed from it alone is computed once.
    each = tl.load(theta + i, mask=inside, other=1.0) if THETA else tl.load(theta)
    shift = None
    if POOL and BIAS:
        shift = tl.load(bias + i % POOL, mask=inside, other=0.0)
    elif BIAS:
        shift = tl.load(bias + _channel(start, channels, inner, BIAS, BLOCK), mask=inside, other=0.0)
    scale = None
    if beside is not None:
        beside += i
        scale = tl.load(gain)
    current += i
    held = (zero,)
    if STEADY:
        held = (_current(current, beside, scale, shift, inside, zero),)
    elif HELD:
        held = _fetch(current, beside, scale, shift, inside, zero, neurons, HELD)
    if NAME == "given":
        v = tl.load(v0 + i * V0, mask=inside, other=0.0)
    elif NAME == "residual":
        v = zero + each * 0.5
        _, v, _, _ = _listen(held, current, beside, scale, shift, inside, each, neurons, v, RHO, HELD, STEADY)
    elif NAME == "shift":
        v = zero + each * 0.5
        for _ in range(ITERATIONS):
            n, after, low, high = _listen(
                held, current, beside, scale, shift, inside, each, neurons, v, RHO, HELD, STEADY
            )
            v = _shifted(n, after, low, high, v, each, VARIANT == "pin", RHO, EPS)
    else:
        n, low, high = _interval(held, current, beside, scale, shift, inside, each, neurons, RHO, HELD, STEADY)
        first = held[0]
        if not STEADY and not HELD:
            first = _current(current, beside, scale, shift, inside, zero)
        if VARIANT == "even":
            u = _phase(phase, start, sample, inside, zero, POOL, WIDTH, LARGE, BLOCK)
            v = _spread(
                held,
                current,
                beside,
                scale,
                shift,
                inside,
                each,
                neurons,
                n,
                low,
                high,
                u,
                RHO,
                EPS,
                SHARE,
                HELD,
                STEADY,
            )
        else:
            v = _place(n, low, high, first, each, VARIANT, RHO, EPS, SHARE)
    out += j
    if STEADY:
        for _ in range(steps):
            v = _fire(held[0], each, v, out, exists, UNIT, POOL)
            out += outputs
    else:
        for t in tl.static_range(HELD):
            v = _fire(held[t], each, v, out, exists, UNIT, POOL)
            out += outputs
        current += HELD * neurons
        if beside is not None:
            beside += HELD * neurons
        for _ in range((steps - HELD) // UNROLL):
            ahead = _fetch(current, beside, scale, shift, inside, zero, neurons, UNROLL)
            for t in tl.static_range(UNROLL):
                v = _fire(ahead[t], each, v, out, exists, UNIT, POOL)
                out += outputs
            current += UNROLL * neurons
            if beside is not None:
                beside += UNROLL * neurons
        if REST:
            ahead = _fetch(current, beside, scale, shift, inside, zero, neurons, REST)
            for t in tl.static_range(REST):
                v = _fire(ahead[t], each, v, out, exists, UNIT, POOL)
                out += outputs
    if KEEP:
        tl.store(v_end + i, v, mask=inside)


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
def _channel(start, channels, inner, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """``(i // inner) % channels`` for neurons i = start, start + 1, …: long division once, then 32 bits."""
    here = tl.arange(0, BLOCK)
    if BIAS == 1:  # inner is 1, and channels a power of two
        return ((start % channels).to(tl.int32) + here) & (channels - 1)
    here = ((start % inner).to(tl.int32) + here) // inner
    return (((start // inner) % channels).to(tl.int32) + here) % channels


@triton.jit
def _window(j, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """The four neurons of each 2x2 window, ``[4, BLOCK]``, for pooled outputs j; memory is [rows, WIDTH, CHANNELS]."""
    channel, place = j % CHANNELS, j // CHANNELS
    column, row = place % (WIDTH // 2), place // (WIDTH // 2)
    corner = ((2 * row * WIDTH) + 2 * column) * CHANNELS + channel
    member = tl.arange(0, 4)
    return corner[None, :] + ((member // 2) * (WIDTH * CHANNELS) + (member % 2) * CHANNELS)[:, None]


@triton.jit
def _current(row, beside, scale, shift, inside, like):
    """One step's current in the state's dtype."""
    i = tl.load(row, mask=inside, other=0.0).to(like.dtype)
    if beside is not None:
        i = i + tl.load(beside, mask=inside, other=0.0).to(like.dtype) * scale
    if shift is not None:
        i = i + shift
    return i


@triton.jit
def _fetch(row, beside, scale, shift, inside, like, neurons, COUNT: tl.constexpr):
    """The currents of COUNT steps."""
    currents: tl.tuple = ()
    for t in tl.static_range(COUNT):
        if beside is None:
            currents += (_current(row + t * neurons, None, scale, shift, inside, like),)
        else:
            currents += (_current(row + t * neurons, beside + t * neurons, scale, shift, inside, like),)
    return currents


@triton.jit
def _step(i, theta, v):
    """``m = v + I;  s = [m ≥ θ];  v = m − s·θ``."""
    m = v + i
    s = m >= theta
    return s, tl.where(s, m - theta, m)


@triton.jit
def _plus(a, b):
    # Triton's own sum is compiled when Triton is imported, be it interpreted later or not.
    return a + b


@triton.jit
def _fire(i, theta, v, out, exists, UNIT: tl.constexpr, POOL: tl.constexpr):
    """A step, its spikes to ``out``: v."""
    s, v = _step(i, theta, v)
    spikes = s.to(v.dtype)
    if not UNIT:
        spikes = tl.where(s, theta, 0.0)
    if POOL:
        spikes = tl.reduce(spikes, 0, _plus) * 0.25
    tl.store(out, spikes.to(out.dtype.element_ty), mask=exists)
    return v


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
                i = _current(row, beside, scale, shift, inside, held[0])
                row += neurons
                if beside is not None:
                    beside += neurons
            count, v, low, high = _tally(i, theta, v, count, low, high)
    return count, v, low, high


@triton.jit
def _tally(i, theta, v, count, low, high):
    s, v = _step(i, theta, v)
    low = tl.where(s & (v < low), v, low)
    high = tl.where(s | (v <= high), high, v)  # a NaN goes through, as in torch.maximum
    return count + s.to(v.dtype), v, low, high


@triton.jit
def _shifted(n, v, low, high, v0, theta, PIN: tl.constexpr, RHO: tl.constexpr, EPS: tl.constexpr):
    """``initial.Shift``: the next v(0)."""
    margin = theta * tl.full(theta.shape, EPS, theta.dtype)
    # ψ = clip(wish, 0, ρ, or ρ + 1 to pin) − n. Its sign is enough, and 0 <= n <= ρ.
    wish = n + tl.floor(_divide(v - v0, theta) + 0.5)
    down = tl.where((wish < n) & (n > 0), tl.maximum(theta, low + margin), 0.0)
    up = tl.where((wish > n) & (n < RHO + PIN), tl.maximum(theta, theta + margin - high), 0.0)
    return v0 - down + up


@triton.jit
def _place(
    count, low, high, first, theta, PLACE: tl.constexpr, RHO: tl.constexpr, EPS: tl.constexpr, SHARE: tl.constexpr
):  # fmt: skip
    """``initial.Exact``: v(0) in the interval; ``first`` is the current of the first step."""
    if PLACE == "middle":
        bottom, top = tl.where(count > 0, low, high - theta), tl.where(count < RHO, high, low + theta)
        v0 = (bottom + top) * 0.5
    else:
        margin, v0 = theta * tl.full(theta.shape, EPS, theta.dtype), theta * 0.5
        if PLACE == "first":
            v0 = v0 + count * theta * tl.full(theta.shape, SHARE, theta.dtype) - first
        v0 = tl.minimum(tl.maximum(v0, low + margin), high - margin)
    return v0


@triton.jit
def _interval(
    held, row, beside, scale, shift, inside, theta, neurons, RHO: tl.constexpr, HELD: tl.constexpr,
    STEADY: tl.constexpr,
):  # fmt: skip
    """``equations.interval`` for the ANN's own count: count, low, high."""
    like = held[0]
    total, inf = tl.full(like.shape, 0.0, like.dtype), tl.full(like.shape, float("inf"), like.dtype)
    least: tl.tuple = (-inf,)
    for _ in tl.static_range(RHO + 1):
        least += (inf,)
    if HELD:
        for t in tl.static_range(HELD):
            total += held[t]
            least = _relaxed(least, theta, total, RHO, t + 1)
    else:
        for _ in range(RHO):
            i = held[0]
            if not STEADY:
                i = _current(row, beside, scale, shift, inside, held[0])
                row += neurons
                if beside is not None:
                    beside += neurons
            total += i
            least = _relaxed(least, theta, total, RHO, RHO)
    count = tl.minimum(tl.maximum(tl.floor(_divide(total, theta) + 0.5), 0.0), RHO)
    low, high = -inf, inf
    for k in tl.static_range(RHO + 1):
        low, high = tl.where(count == k, least[k], low), tl.where(count == k, least[k + 1], high)
    return count, low, high


@triton.jit
def _relaxed(least, theta, total, RHO: tl.constexpr, TOP: tl.constexpr):
    """``D[k] ← min(D[k], max(D[k−1], kθ − C))`` for k up to TOP: beyond the step's own number D is still infinite."""
    after: tl.tuple = (least[0],)
    for k in tl.static_range(1, RHO + 2):
        if k <= TOP:
            after += (tl.minimum(least[k], tl.maximum(least[k - 1], k * theta - total)),)
        else:
            after += (least[k],)
    return after


@triton.jit
def _phase(
    phase, start, sample, inside, like, POOL: tl.constexpr, WIDTH: tl.constexpr, LARGE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The phase of each neuron, from those of one sample (32 bits: 64-bit remainders are slow)."""
    if POOL:
        size = sample // 4
        j = ((start % size).to(tl.int32) + tl.arange(0, BLOCK)) % size
        j = _window(j, POOL, WIDTH)
    else:
        j = (start % sample).to(tl.int32) + tl.arange(0, BLOCK)
        j = tl.where(j >= sample, j - sample, j) if LARGE else j % sample
    return tl.load(phase + j, mask=inside, other=0.0).to(like.dtype)


@triton.jit
def _spread(
    held, row, beside, scale, shift, inside, theta, neurons, count, low, high, u, RHO: tl.constexpr, EPS: tl.constexpr,
    SHARE: tl.constexpr, HELD: tl.constexpr, STEADY: tl.constexpr,
):  # fmt: skip
    """``initial.Exact``, place "even": v(0) in the interval, for phases u."""
    margin = theta * tl.full(theta.shape, EPS, theta.dtype)
    low, high = low + margin, high - margin
    like = held[0]
    total, inf = tl.full(like.shape, 0.0, like.dtype), tl.full(like.shape, float("inf"), like.dtype)
    least: tl.tuple = (-inf,)
    for _ in tl.static_range(RHO + 1):
        least += (inf,)
    if HELD:
        for t in tl.static_range(HELD - 1):
            total += held[t]
            least = _relaxed(least, theta, total, RHO, t + 1)
            low, high = _narrowed(least, count * (t + 1), u, low, high, SHARE, t + 1)
    else:
        for t in range(RHO - 1):
            i = held[0]
            if not STEADY:
                i = _current(row, beside, scale, shift, inside, held[0])
                row += neurons
                if beside is not None:
                    beside += neurons
            total += i
            least = _relaxed(least, theta, total, RHO, RHO)
            low, high = _narrowed(least, count * (t + 1), u, low, high, SHARE, RHO)
    room = high - tl.minimum(margin, (high - low) * 0.5)
    return tl.minimum(tl.maximum(u * theta, low), room)


@triton.jit
def _narrowed(least, wanted, u, low, high, SHARE: tl.constexpr, TOP: tl.constexpr):
    """The part of ``[low, high)`` whose count by this step is nearest to ⌊k·t/ρ + u⌋."""
    few, many = tl.full(low.shape, 0.0, low.dtype), tl.full(low.shape, 0.0, low.dtype)
    for k in tl.static_range(1, TOP + 1):
        few += (least[k] <= low).to(low.dtype)
        many += (least[k] < high).to(low.dtype)
    goal = tl.floor(wanted * tl.full(low.shape, SHARE, low.dtype) + u)
    goal = tl.minimum(tl.maximum(goal, few), many)
    bottom, top = least[0], least[1]
    for k in tl.static_range(1, TOP + 1):
        bottom, top = tl.where(goal == k, least[k], bottom), tl.where(goal == k, least[k + 1], top)
    return tl.maximum(low, bottom), tl.minimum(high, top)


@triton.jit
def _divide(a, b):
    """``a / b``, correctly rounded, without the branches of a division (Triton's own one is approximate).

    1/b is correctly rounded; a first quotient from it is mended twice by its remainder, which a fused multiply-add
    gives exactly (Markstein). Only b that is one number makes this cheap: its inverse is then computed once.
    """
    if a.dtype == tl.float64:
        return a / b
    else:
        one = tl.full(b.shape, 1.0, b.dtype)
        inverse = tl.div_rn(one, b)
        first = a * inverse
        q = tl.fma(tl.fma(-first, b, a), inverse, first)
        q = tl.fma(tl.fma(-q, b, a), inverse, q)
        return tl.where(tl.abs(first) < 1e30, q, first)
