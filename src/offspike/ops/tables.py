"""What runs on the device (Triton) for ``initial.Exact``: the tables D, and where v(0) lies in ``[D[k], D[k+1])``."""

import triton
import triton.language as tl

from offspike.ops.device import current_at, divide

__all__ = ["interval", "narrowed", "phase_at", "place", "spread"]


@triton.jit
def place(
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
def interval(
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
            least = _relaxed(least, theta, total, RHO, t + 1, True)
    else:
        for _ in range(RHO):
            i = held[0]
            if not STEADY:
                i = current_at(row, beside, scale, shift, inside, held[0])
                row += neurons
                if beside is not None:
                    beside += neurons
            total += i
            least = _relaxed(least, theta, total, RHO, RHO, False)
    count = tl.minimum(tl.maximum(tl.floor(divide(total, theta) + 0.5), 0.0), RHO)
    low, high = _picked(least, count, RHO)
    return count, low, high


@triton.jit
def _picked(least, k, TOP: tl.constexpr):
    """``D[k], D[k+1]`` for k = 0 … TOP, by halving."""
    if TOP == 0:
        return least[0], least[1]
    else:
        HALF: tl.constexpr = (TOP + 1) // 2
        upper = k >= HALF
        half: tl.tuple = ()
        for i in tl.static_range(TOP - HALF + 2):
            half += (tl.where(upper, least[i + HALF], least[i]),)
        return _picked(half, tl.where(upper, k - HALF, k), TOP - HALF)


@triton.jit
def _relaxed(least, theta, total, RHO: tl.constexpr, TOP: tl.constexpr, NEW: tl.constexpr):
    """``D[k] ← min(D[k], max(D[k−1], kθ − C))`` for k up to TOP: beyond the step's own number D is still infinite.

    With NEW so is D[TOP]; and D[0] is always −∞. Neither is compared with: at T = ρ these steps are what takes time.
    """
    after: tl.tuple = (least[0],)
    for k in tl.static_range(1, RHO + 2):
        if k <= TOP:
            here = k * theta - total
            if k > 1:
                here = tl.maximum(least[k - 1], here)
            if not NEW or k < TOP:
                here = tl.minimum(least[k], here)
            after += (here,)
        else:
            after += (least[k],)
    return after


@triton.jit
def phase_at(first, near, sample, LARGE: tl.constexpr, EIGHTS: tl.constexpr):
    """Where the phases of neurons first + near are among those of one sample (32 bits: 64-bit remainders are slow)."""
    place = (first % sample).to(tl.int32) + near
    place = tl.where(place >= sample, place - sample, place) if LARGE else place % sample
    if EIGHTS:
        place = tl.max_contiguous(tl.multiple_of(place, 8), 8)
    return place


@triton.jit
def spread(
    held, row, beside, scale, shift, inside, theta, neurons, count, low, high, u, RHO: tl.constexpr, EPS: tl.constexpr,
    SHARE: tl.constexpr, HELD: tl.constexpr, STEADY: tl.constexpr,
):  # fmt: skip
    """``initial.Exact``, place "even": v(0) in the interval, for phases u."""
    margin = theta * tl.full(theta.shape, EPS, theta.dtype)
    low, high = low + margin, high - margin
    total, fired = tl.full(low.shape, 0.0, low.dtype), tl.full(low.shape, 0.0, low.dtype)
    if HELD:
        for t in tl.static_range(HELD - 1):
            total += held[t]
            fired, low, high = narrowed(total, theta, count * (t + 1), u, fired, low, high, SHARE)
    else:
        for t in range(RHO - 1):
            i = held[0]
            if not STEADY:
                i = current_at(row, beside, scale, shift, inside, held[0])
                row += neurons
                if beside is not None:
                    beside += neurons
            total += i
            fired, low, high = narrowed(total, theta, count * (t + 1), u, fired, low, high, SHARE)
    margin = tl.minimum(margin, (high - low) * 0.5)
    return tl.minimum(tl.maximum(u * theta, low + margin), high - margin)


@triton.jit
def narrowed(total, theta, goal, u, fired, low, high, SHARE: tl.constexpr):
    """The part of ``[low, high)`` whose count by this step is nearest to ⌊k·t/ρ + u⌋; all of it fired alike before."""
    more = fired + 1.0
    edge = more * theta - total
    wanted = goal * tl.full(low.shape, SHARE, low.dtype) + u >= more
    fires = ~(edge > low) | ((edge < high) & wanted)
    return (
        tl.where(fires, more, fired),
        tl.where(fires, tl.maximum(low, edge), low),
        tl.where(fires, high, tl.minimum(high, edge)),
    )
