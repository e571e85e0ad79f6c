"""GPU kernels (Triton): the specification's bits, one program for a block of neurons, its state in registers.

Products and sums are not fused into multiply-adds (``enable_fp_fusion=False``) and float32 quotients are correctly
rounded, so every rounding is the specification's own.

Import this module on first use only. With ``TRITON_INTERPRET=1`` in the environment at that moment the kernels run on
CPU tensors, slowly.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["LONGEST_TABLE", "calibrate_and_fire", "fire", "probe"]

BLOCK = 512  # neurons a program
LONGEST_TABLE = 32  # the exact rules keep D[0] … D[ρ+1] in registers


def fire(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.fire``, in one kernel."""
    spikes, v_end = _empty(current, current.shape), _empty(theta, current.shape[1:])
    _launch(_fire, current, theta, v0, spikes, v_end, THETA=_stride(theta), V0=_stride(v0))
    return spikes, v_end


def probe(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``reference.probe``, in one kernel."""
    count, v_end, low, high = (_empty(theta, current.shape[1:]) for _ in range(4))
    _launch(_probe, current, theta, v0, count, v_end, low, high, THETA=_stride(theta), V0=_stride(v0))
    return count, v_end, low, high


def calibrate_and_fire(
    current: Tensor, theta: Tensor, rule: str, rho: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Listen to the first ρ <= T steps, choose v(0) by ``rule``, fire, in one kernel (exact: ρ <= LONGEST_TABLE)."""
    spikes, v_end = _empty(current, current.shape), _empty(theta, current.shape[1:])
    name, _, variant = rule.partition("-")
    # Compiled in: as a run-time argument a Python float would be rounded to float32 even for a float64 state.
    constants = {"NAME": name, "VARIANT": variant, "RHO": rho, "ITERATIONS": iterations, "EPS": eps, "SHARE": 1 / rho}
    _launch(_calibrate_and_fire, current, theta, spikes, v_end, THETA=_stride(theta), **constants)
    return spikes, v_end


def _empty(like: Tensor, shape: torch.Size) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _stride(x: Tensor) -> int:
    """0 for one value shared by all neurons."""
    return int(x.numel() > 1)


def _launch(kernel: Any, current: Tensor, *others: Tensor, **constants: Any) -> None:
    steps, neurons = current.shape
    if neurons == 0:
        return
    grid, operands = (triton.cdiv(neurons, BLOCK),), [x.contiguous() for x in (current, *others)]
    with torch.cuda.device_of(current):  # type: ignore[no-untyped-call]
        kernel[grid](*operands, steps, neurons, **constants, BLOCK=BLOCK, enable_fp_fusion=False)


@triton.jit
def _fire(
    current: tl.tensor,
    theta: tl.tensor,
    v0: tl.tensor,
    spikes: tl.tensor,
    v_end: tl.tensor,
    steps: tl.tensor,
    neurons: tl.tensor,
    THETA: tl.constexpr,
    V0: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i, inside = _neurons(neurons, BLOCK)
    each = tl.load(theta + i * THETA, mask=inside, other=1.0)
    v = tl.load(v0 + i * V0, mask=inside, other=0.0)
    v = _spike(current + i, spikes + i, inside, steps, neurons, each, v)
    tl.store(v_end + i, v, mask=inside)


@triton.jit
def _probe(
    current: tl.tensor,
    theta: tl.tensor,
    v0: tl.tensor,
    count: tl.tensor,
    v_end: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    steps: tl.tensor,
    neurons: tl.tensor,
    THETA: tl.constexpr,
    V0: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i, inside = _neurons(neurons, BLOCK)
    each = tl.load(theta + i * THETA, mask=inside, other=1.0)
    v = tl.load(v0 + i * V0, mask=inside, other=0.0)
    n, v, least, most = _listen(current + i, inside, steps, neurons, each, v)
    tl.store(count + i, n, mask=inside)
    tl.store(v_end + i, v, mask=inside)
    tl.store(low + i, least, mask=inside)
    tl.store(high + i, most, mask=inside)


@triton.jit
def _calibrate_and_fire(
    current: tl.tensor,
    theta: tl.tensor,
    spikes: tl.tensor,
    v_end: tl.tensor,
    steps: tl.tensor,
    neurons: tl.tensor,
    THETA: tl.constexpr,
    NAME: tl.constexpr,
    VARIANT: tl.constexpr,
    RHO: tl.constexpr,
    ITERATIONS: tl.constexpr,
    EPS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    i, inside = _neurons(neurons, BLOCK)
    each = tl.load(theta + i * THETA, mask=inside, other=1.0)
    if NAME == "residual":
        _, v, _, _ = _listen(current + i, inside, RHO, neurons, each, each * 0.5)
    elif NAME == "shift":
        v = _shift(current + i, inside, neurons, each, VARIANT == "pin", RHO, ITERATIONS, EPS)
    else:
        v = _exact(current + i, inside, neurons, each, VARIANT, RHO, EPS, SHARE)
    v = _spike(current + i, spikes + i, inside, steps, neurons, each, v)
    tl.store(v_end + i, v, mask=inside)


@triton.jit
def _neurons(neurons: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """This program's neurons (64 bits: tensors may exceed 2³¹ elements) and which of them exist."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return i, i < neurons


@triton.jit
def _step(row: tl.tensor, inside: tl.tensor, theta: tl.tensor, v: tl.tensor) -> tl.tensor:
    """``m = v + I;  s = [m ≥ θ];  v = m − s·θ``."""
    m = v + tl.load(row, mask=inside, other=0.0).to(v.dtype)
    s = m >= theta
    return s, tl.where(s, m - theta, m)


@triton.jit
def _spike(
    row: tl.tensor,
    out: tl.tensor,
    inside: tl.tensor,
    steps: tl.tensor,
    neurons: tl.tensor,
    theta: tl.tensor,
    v: tl.tensor,
) -> tl.tensor:
    """Fire, spikes to ``out``: v(T)."""
    for _ in range(steps):
        s, v = _step(row, inside, theta, v)
        tl.store(out, s.to(v.dtype).to(out.dtype.element_ty), mask=inside)
        row += neurons
        out += neurons
    return v


@triton.jit
def _listen(
    row: tl.tensor, inside: tl.tensor, steps: tl.tensor, neurons: tl.tensor, theta: tl.tensor, v: tl.tensor
) -> tl.tensor:
    """Fire: the count, v(T), ``min{v(t)|s(t)=1}`` and ``max{v(t)|s(t)=0}``."""
    count = tl.full(v.shape, 0.0, v.dtype)
    low, high = tl.full(v.shape, float("inf"), v.dtype), tl.full(v.shape, float("-inf"), v.dtype)
    for _ in range(steps):
        s, v = _step(row, inside, theta, v)
        count += s.to(v.dtype)
        low = tl.where(s & (v < low), v, low)
        high = tl.where(s | (v <= high), high, v)  # a NaN goes through, as in torch.maximum
        row += neurons
    return count, v, low, high


@triton.jit
def _shift(
    row: tl.tensor,
    inside: tl.tensor,
    neurons: tl.tensor,
    theta: tl.tensor,
    PIN: tl.constexpr,
    RHO: tl.constexpr,
    ITERATIONS: tl.constexpr,
    EPS: tl.constexpr,
) -> tl.tensor:
    """``initial.Shift``: v(0)."""
    margin, v0 = theta * tl.full(theta.shape, EPS, theta.dtype), theta * 0.5
    for _ in range(ITERATIONS):
        n, v, low, high = _listen(row, inside, RHO, neurons, theta, v0)
        # ψ = clip(wish, 0, ρ, or ρ + 1 to pin) − n. Its sign is enough, and 0 <= n <= ρ.
        wish = n + tl.floor(_divide(v - v0, theta) + 0.5)
        down = tl.where((wish < n) & (n > 0), tl.maximum(theta, low + margin), 0.0)
        up = tl.where((wish > n) & (n < RHO + PIN), tl.maximum(theta, theta + margin - high), 0.0)
        v0 = v0 - down + up
    return v0


@triton.jit
def _exact(
    row: tl.tensor,
    inside: tl.tensor,
    neurons: tl.tensor,
    theta: tl.tensor,
    PLACE: tl.constexpr,
    RHO: tl.constexpr,
    EPS: tl.constexpr,
    SHARE: tl.constexpr,
) -> tl.tensor:
    """``initial.Exact``: v(0)."""
    count, low, high = _interval(row, inside, neurons, theta, RHO)
    if PLACE == "middle":
        bottom, top = tl.where(count > 0, low, high - theta), tl.where(count < RHO, high, low + theta)
        v0 = (bottom + top) * 0.5
    else:
        margin, v0 = theta * tl.full(theta.shape, EPS, theta.dtype), theta * 0.5
        if PLACE == "first":
            rate = count * theta * tl.full(theta.shape, SHARE, theta.dtype)
            v0 = v0 + rate - tl.load(row, mask=inside, other=0.0).to(theta.dtype)
        v0 = tl.minimum(tl.maximum(v0, low + margin), high - margin)
    return v0


@triton.jit
def _interval(row: tl.tensor, inside: tl.tensor, neurons: tl.tensor, theta: tl.tensor, RHO: tl.constexpr) -> tl.tensor:
    """``equations.interval`` for the ANN's own count: count, low, high."""
    total, inf = tl.full(theta.shape, 0.0, theta.dtype), tl.full(theta.shape, float("inf"), theta.dtype)
    least: tl.tuple = (-inf,)
    for _ in tl.static_range(RHO + 1):
        least += (inf,)
    for _ in range(RHO):
        total += tl.load(row, mask=inside, other=0.0).to(theta.dtype)
        row += neurons
        after: tl.tuple = (-inf,)
        for k in tl.static_range(1, RHO + 1):
            after += (tl.minimum(least[k], tl.maximum(least[k - 1], k * theta - total)),)
        least = after + (inf,)  # noqa: RUF005  (Triton's tuples know + but not *)
    count = tl.minimum(tl.maximum(tl.floor(_divide(total, theta) + 0.5), 0.0), RHO)
    low, high = -inf, inf
    for k in tl.static_range(RHO + 1):
        low, high = tl.where(count == k, least[k], low), tl.where(count == k, least[k + 1], high)
    return count, low, high


@triton.jit
def _divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``a / b``, correctly rounded: Triton's own float32 division is approximate."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)
