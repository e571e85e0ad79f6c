"""What runs on the device (Triton) for ``reference.carry``: maps position by position, channels side by side."""

import triton
import triton.language as tl

from offspike.ops.device import fetch
from offspike.ops.tables import interval, narrowed

__all__ = ["carry"]


@triton.jit
def carry(
    current, theta, phase, v0, length, lanes, neurons, RHO: tl.constexpr, EPS: tl.constexpr, SHARE: tl.constexpr,
    THETA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v(0) of one sample's next BLOCK channels; memory is [ρ, samples, length, lanes]."""
    blocks = (lanes + BLOCK - 1) // BLOCK
    c = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside, neurons = c < lanes, neurons * tl.full((), 1, tl.int64)
    zero = tl.full((BLOCK,), 0.0, theta.dtype.element_ty)
    first = tl.load(phase + c, mask=inside, other=0.0)
    owed: tl.tuple = ()
    for _ in tl.static_range(RHO):  # the last is for ρ = 1: a loop cannot hand on an empty tuple
        owed += (zero,)
    i = (tl.program_id(0) // blocks).to(tl.int64) * length * lanes + c
    for p in range(length):
        each = tl.load(theta + i * THETA, mask=inside, other=1.0)
        u = tl.load(phase + p * lanes + c, mask=inside, other=0.0)
        held = fetch(current + i, None, None, None, inside, zero, neurons, RHO)
        start, owed = _position(held, each, u, first, owed, inside, neurons, RHO, EPS, SHARE)
        tl.store(v0 + i, start, mask=inside)
        i += lanes


@triton.jit
def _position(held, theta, u, first, owed, inside, neurons, RHO: tl.constexpr, EPS: tl.constexpr, SHARE: tl.constexpr):
    """v(0) of the neurons of one position, and what is owed after them."""
    count, low, high = interval(held, None, None, None, None, inside, theta, neurons, RHO, RHO, False)
    margin = theta * tl.full(theta.shape, EPS, theta.dtype)
    low, high = low + margin, high - margin
    total, fired = tl.full(low.shape, 0.0, low.dtype), tl.full(low.shape, 0.0, low.dtype)
    after: tl.tuple = ()
    for t in tl.static_range(RHO - 1):
        total += held[t]
        wish = first + owed[t] * tl.full(low.shape, SHARE, low.dtype)
        fired, low, high = narrowed(total, theta, count * (t + 1), wish, fired, low, high, SHARE)
        after += (owed[t] + (count * (t + 1) - fired * RHO),)
    after += (owed[RHO - 1],)
    margin = tl.minimum(margin, (high - low) * 0.5)
    return tl.minimum(tl.maximum(u * theta, low + margin), high - margin), after
