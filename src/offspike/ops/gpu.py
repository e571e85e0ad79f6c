"""GPU kernels (Triton): the specification's bits, one program for a block of neurons, its state in registers.

These are the launchers; `scan.py` holds what runs on the device. Import this module on first use only. With
``TRITON_INTERPRET=1`` in the environment at that moment the kernels run on CPU tensors, slowly.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from offspike.ops import check_listening, march, scan

__all__ = ["LONGEST_TABLE", "calibrate_and_fire", "carry", "fire", "probe", "tile"]

LONGEST_TABLE = 32  # the exact rules keep D[0] … D[ρ+1] in registers
HELD = 8  # currents of up to this many listened steps stay in registers; more are read a second time
PLAIN = (4, 1024)  # warps and neurons of a program: 16 bytes of bfloat16 a thread
LONG = (4, 512)  # the same where tables or long listening fill the registers
POOLED = (4, 512)  # warps and windows, whose four neurons come one after the other
LANES = 64  # channels of a program that goes through maps
UNROLL = 8  # steps whose currents are under way from memory at once; pooled spikes of 8 fill a code (HELD too)


def fire(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``reference.fire``, in one kernel."""
    return calibrate_and_fire(current, theta, "given", 0, 1, 0.0, v0)


def probe(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``reference.probe``, in one kernel."""
    steps, neurons = current.shape
    results = tuple(_empty(theta, (neurons,)) for _ in range(4))
    operands = (current.contiguous(), theta.contiguous(), v0.contiguous(), *results)
    _launch(scan.probe, neurons, *operands, steps, neurons, THETA=_stride(theta), V0=_stride(v0), warps=4, block=512)
    return results  # type: ignore[return-value]


def carry(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
    """``reference.carry``: a program goes through ``LANES`` maps of a sample (ρ <= LONGEST_TABLE)."""
    rho, samples, length, lanes = current.shape
    v0 = _empty(theta, (samples, length, lanes))
    operands = [x.contiguous() for x in (current, theta, phase, v0)]
    constants = {"RHO": rho, "EPS": eps, "SHARE": 1 / rho, "THETA": _stride(theta)}
    size = samples * triton.cdiv(lanes, LANES) * LANES
    _launch(march.carry, size, *operands, length, lanes, v0.numel(), warps=2, block=LANES, **constants)
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
    """``fused.specification`` in one kernel (exact rules: ρ <= LONGEST_TABLE; pooled spikes: ``unit``)."""
    if pool and not unit:
        raise ValueError("spikes are pooled as they are written only where each is 1: give unit=True")
    steady, neurons = bool(steps), current.shape[1]
    steps = steps or len(current)
    check_listening(rho, steps)
    outputs = neurons // 4 if pool else neurons
    out = torch.empty((steps, outputs), dtype=dtype or current.dtype, device=current.device)
    v_end = _empty(theta, (neurons if keep else 0,))
    name, _, variant = rule.partition("-")
    held = rho if name != "given" and rho <= HELD and not steady else 0
    later = steps - held
    # Compiled in: as a run-time argument a Python float would be rounded to float32 even for a float64 state.
    constants: dict[str, Any] = {
        "NAME": name, "VARIANT": variant, "RHO": rho, "ITERATIONS": iterations, "EPS": eps, "SHARE": 1 / max(rho, 1),
        "THETA": _stride(theta), "V0": 0 if v0 is None else _stride(v0),
        "HELD": held, "STEADY": steady, "UNROLL": UNROLL if later >= UNROLL else 0, "REST": later % UNROLL,
        "KEEP": keep,
    }  # fmt: skip
    given = (current, beside, gain, bias, phase, theta, v0, out, v_end)
    operands: list[Any] = [None if x is None else x.contiguous() for x in given]
    warps, block = tile(name, rho, pool=bool(pool))
    sample = 2 if phase is None else phase.numel()
    operands += [steps, neurons, outputs, sample]
    if pool:
        constants |= {"POOL": pool, "WIDTH": width, "LARGE": sample >= 4 * block}
        _launch(scan.calibrate_and_pool, outputs, *operands, warps=warps, block=block, **constants)
    else:
        constants |= {"BIAS": _bias(bias, inner), "UNIT": unit, "LARGE": sample >= block}
        operands += [2 if bias is None else bias.numel(), inner]
        _launch(scan.calibrate_and_fire, outputs, *operands, warps=warps, block=block, **constants)
    return out, v_end


def tile(name: str, rho: int, *, pool: bool = False) -> tuple[int, int]:
    """Warps and neurons (or windows) of a program."""
    return POOLED if pool else LONG if rho > (2 if name == "exact" else 4) else PLAIN


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def _bias(bias: Tensor | None, inner: int) -> int:
    """How a neuron finds its bias: 0 it has none, 1 by a mask, eight at a time, which is fast, 2 by division."""
    if bias is None:
        return 0
    return 1 if inner == 1 and bias.numel() >= 8 and bias.numel().bit_count() == 1 else 2


def _stride(x: Tensor) -> int:
    """0 for one value shared by all neurons."""
    return int(x.numel() > 1)


def _launch(kernel: Any, size: int, *operands: Any, warps: int, block: int, **constants: Any) -> None:
    if size == 0:
        return
    with torch.cuda.device_of(operands[0]):  # type: ignore[no-untyped-call]
        grid = (triton.cdiv(size, block),)
        kernel[grid](*operands, **constants, BLOCK=block, num_warps=warps, enable_fp_fusion=False)
