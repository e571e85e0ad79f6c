"""A convolution in whole numbers and its neurons in one GPU kernel (Triton), for T <= 8: currents never reach memory.

This is the launcher; `synapse.py` holds what runs on the device. It returns the bits of ``reference.convolve`` followed
by policy and neuron. Import this module on first use only; with ``TRITON_INTERPRET=1`` in the environment at that
moment the kernel runs on CPU tensors, slowly.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from offspike.ops import LONGEST, check_listening, synapse

__all__ = ["Tile", "conv_and_fire", "tile_for"]


class Tile(NamedTuple):
    """What a program works on: channels of the output, channels of the input at a time, and how."""

    warps: int
    channels: int
    depth: int
    stages: int
    parts: int  # slices of the output's channels that fire one after the other

    def pixels(self, steps: int) -> int:
        """Of the output: a warp's 16 rows are two steps of 8 pixels."""
        return self.warps * (16 if steps == 1 else 8)

    def bytes(self, steps: int) -> int:
        """Of shared memory: spikes and weights of all stages."""
        rows = triton.next_power_of_2(steps) * self.pixels(steps)
        return int(self.stages * self.depth * (rows + self.channels))


def tile_for(steps: int, outputs: int, channels: int, rule: str) -> Tile:
    """The fastest on an H200 (`benchmarks/fused_conv.py`), no wider than the layer as far as tensor cores allow."""
    warps, most = (4, 128) if steps <= 4 else (8 if outputs > 64 else 4, 64)
    wide = min(most, max(16, triton.next_power_of_2(outputs)))
    depth = min(128, max(32, triton.next_power_of_2(channels)))
    parts = 8 if rule == "exact-even" else 4  # its tables need more registers
    return Tile(warps, wide, depth, 3, min(parts, wide // 8))


def conv_and_fire(
    spikes: Tensor,
    weight: Tensor,
    scale: Tensor,
    theta: Tensor,
    rule: str,
    rho: int,
    *,
    iterations: int = 1,
    eps: float = 2.0**-10,
    stride: int = 1,
    beside: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    phase: Tensor | None = None,
    dtype: torch.dtype = torch.int8,
    pool: bool = False,
) -> Tensor:
    """Spikes ``[T, B, H', W', O]`` of IF neurons that listen to ρ <= T <= 8 steps and start by ``rule`` (`fused.py`).

    ``spikes [T, B, H, W, C]`` and ``weight [O, k, k, C]`` are whole numbers, int8; k is odd, and images are padded by
    k // 2. ``I(t) = scale·Σ + gain·beside(t) + bias``, in float32: ``scale`` and ``bias`` are ``[O]``, ``gain`` and
    ``theta`` one number, ``beside`` is like the output; ``phase [H'·W'·O]`` is for ``"exact-even"``. Spikes leave as 0
    and 1 in ``dtype``; ``pool`` counts them over windows of 2x2, 0 to 4.
    """
    steps, batch, height, width, channels = spikes.shape
    outputs, kernel = weight.shape[:2]
    _check(spikes, weight, rule, phase)
    check_listening(rho, steps)
    rows, columns = ((size - 1) // stride + 1 for size in (height, width))
    if pool and (rows % 2 or columns % 2):
        raise ValueError(f"windows of 2x2 do not fit {rows}x{columns} pixels")
    sizes = (rows // 2, columns // 2) if pool else (rows, columns)
    out = torch.empty((steps, batch, *sizes, outputs), dtype=dtype, device=spikes.device)
    if out.numel() == 0:
        return out
    tile = tile_for(steps, outputs, channels, rule)
    while spikes.is_cuda and tile.stages > 1 and tile.bytes(steps) > _shared_memory(spikes.device):
        tile = tile._replace(stages=tile.stages - 1)
    name, _, variant = rule.partition("-")
    pixels = tile.pixels(steps)
    constants: dict[str, Any] = {
        "T": steps, "RHO": rho, "SLOTS": triton.next_power_of_2(steps), "KERNEL": kernel, "STRIDE": stride,
        "NAME": name, "VARIANT": variant, "ITERATIONS": iterations, "EPS": eps, "SHARE": 1 / rho,
        "FULL": outputs % tile.channels == 0 and channels % tile.depth == 0,
        "POOL": pool, "M": pixels, "N": tile.channels, "K": tile.depth, "PARTS": tile.parts,
        "num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False,
    }  # fmt: skip
    given = (spikes, weight, scale, beside, gain, bias, phase, theta, out)
    operands = [None if x is None else x.contiguous() for x in given]
    grid = (triton.cdiv(batch * rows * columns, pixels) * triton.cdiv(outputs, tile.channels),)
    with torch.cuda.device_of(spikes):  # type: ignore[no-untyped-call]
        synapse.conv_and_fire[grid](*operands, batch, height, width, channels, rows, columns, outputs, **constants)
    return out


@functools.lru_cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have, which on most GPUs is less than on an H200."""
    found: int = triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]
    return found


def _check(spikes: Tensor, weight: Tensor, rule: str, phase: Tensor | None) -> None:
    if not 1 <= len(spikes) <= LONGEST:
        raise ValueError(f"this kernel keeps 1 to {LONGEST} steps on chip, got {len(spikes)}")
    if weight.dtype != torch.int8 or spikes.dtype != torch.int8:
        raise TypeError(f"weights and spikes must be int8, got {weight.dtype} and {spikes.dtype}")
    if weight.shape[1] != weight.shape[2] or weight.shape[1] % 2 == 0 or weight.shape[3] != spikes.shape[4]:
        raise ValueError(f"weights must be [O, k, k, {spikes.shape[4]}] with k odd, got {tuple(weight.shape)}")
    if (rule == "exact-even") != (phase is not None):
        raise ValueError('phases go with the rule "exact-even", and only with it')
