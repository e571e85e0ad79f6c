"""Triton building blocks: where a block's neurons lie, their current at one step, one step of the neuron.

Products and sums are not fused into multiply-adds (``enable_fp_fusion=False``) and float32 quotients are correctly
rounded, so every rounding is the specification's own. A step's current is ``current + gain·beside + bias``, made in
the state's dtype; ``beside`` and ``bias`` may be None, and then cost nothing.
"""

import triton
import triton.language as tl

__all__ = ["channel", "current_at", "divide", "fetch", "half_up", "member", "step", "window"]


@triton.jit
def window(start, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The upper left neurons of the 2x2 windows start, start + 1, …; memory is [rows, WIDTH, CHANNELS].

    They are ``near`` (32 bits) beyond the neuron ``first``, which starts a row; also their channels.
    """
    pair: tl.constexpr = WIDTH // 2 * CHANNELS  # windows of two rows
    here = (start % pair).to(tl.int32) + tl.arange(0, BLOCK)
    lane = here % CHANNELS
    near = here // pair * (2 * pair) + 2 * here - lane
    if CHANNELS % 8 == 0:  # whole eights follow each other
        lane = tl.max_contiguous(tl.multiple_of(lane, 8), 8)
        near = tl.max_contiguous(tl.multiple_of(near, 8), 8)
    return start // pair * (4 * pair), near, lane


@triton.jit
def member(corner, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """How far a window's neuron 0 … 3 lies beyond its first."""
    return (corner // 2 * WIDTH + corner % 2) * CHANNELS


@triton.jit
def channel(start, channels, inner, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """``(i // inner) % channels`` for neurons i = start, start + 1, …: long division once, then 32 bits."""
    here = tl.arange(0, BLOCK)
    if BIAS == 1:  # inner is 1, channels a power of two and at least 8: whole eights follow each other
        here = (start.to(tl.int32) + here) & (channels - 1)
        return tl.max_contiguous(tl.multiple_of(here, 8), 8)
    here = ((start % inner).to(tl.int32) + here) // inner
    return (((start // inner) % channels).to(tl.int32) + here) % channels


@triton.jit
def current_at(row, beside, scale, shift, inside, like):
    """One step's current in the state's dtype."""
    i = tl.load(row, mask=inside, other=0.0).to(like.dtype)
    if beside is not None:
        i = i + tl.load(beside, mask=inside, other=0.0).to(like.dtype) * scale
    if shift is not None:
        i = i + shift
    return i


@triton.jit
def fetch(row, beside, scale, shift, inside, like, neurons, COUNT: tl.constexpr):
    """The currents of COUNT steps."""
    currents: tl.tuple = ()
    for t in tl.static_range(COUNT):
        if beside is None:
            currents += (current_at(row + t * neurons, None, scale, shift, inside, like),)
        else:
            currents += (current_at(row + t * neurons, beside + t * neurons, scale, shift, inside, like),)
    return currents


@triton.jit
def step(i, theta, v):
    """``m = v + I;  s = [m ≥ θ];  v = m − s·θ``."""
    m = v + i
    s = m >= theta
    return s, tl.where(s, m - theta, m)


@triton.jit
def divide(a, b):
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


@triton.jit
def half_up(b):
    """The least a whose ``⌊a / b + ½⌋``, both operations rounded, is 1 or more: b/2, or the number before it.

    Of p bits, the sum is rounded up to 1 from quotients above ½ − 1.5·2⁻ᵖ⁻¹ on; a fused multiply-add gives that sign.
    """
    whole: tl.constexpr = tl.int64 if b.dtype == tl.float64 else tl.int32
    far: tl.constexpr = 2.0**54 if b.dtype == tl.float64 else 2.0**25
    half = b * 0.5
    before = (half.to(whole, bitcast=True) - 1).to(b.dtype, bitcast=True)
    scale = tl.full(b.shape, 1.5, b.dtype)
    return tl.where(tl.fma(b, scale, (before - half) * far) > 0, before, half)
