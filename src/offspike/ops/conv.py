"""A convolution and its neurons in one GPU kernel (Triton), for T = ρ <= 8: currents never reach memory.

This is the launcher; `synapse.py` holds what runs on the device. It returns the bits of ``reference.convolve`` followed
by policy and neuron, wherever sums are exact: always for 8-bit weights, whose sums are whole numbers.
Import this module on first use only.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from offspike.ops import synapse

__all__ = ["LONGEST", "TILES", "Tile", "conv_and_fire"]

WEIGHTS = (torch.int8, torch.bfloat16, torch.float16)
LONGEST = 8  # steps: more sums than that do not fit the registers


class Tile(NamedTuple):
    """What a program works on: channels of the output, channels of the input at a time, and how."""

    warps: int
    channels: int
    depth: int
    stages: int
    parts: int  # slices of the output's channels that fire one after the other
    near: bool = False  # spikes through the L1 cache

    def pixels(self, steps: int) -> int:
        """Of the output: a warp's 16 rows are two steps of 8 pixels."""
        return self.warps * (16 if steps == 1 else 8)


TILES = {4: Tile(4, 128, 64, 3, 8), LONGEST: Tile(4, 64, 64, 3, 8)}  # for so many steps or fewer


def conv_and_fire(
    spikes: Tensor,
    weight: Tensor,
    theta: Tensor,
    rule: str,
    *,
    iterations: int = 1,
    eps: float = 2.0**-10,
    stride: int = 1,
    scale: Tensor | None = None,
    beside: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    phase: Tensor | None = None,
    dtype: torch.dtype | None = None,
    pool: bool = False,
    tile: Tile | None = None,
) -> Tensor:
    """Spikes ``[T, B, H', W', O]`` of IF neurons that listen to all T steps and start by ``rule``, see `fused.py`.

    ``spikes [T, B, H, W, C]`` are 0 or 1, int8 or in the dtype of ``weight [O, k, k, C]``, which is one of WEIGHTS; k
    is odd, and images are padded by k // 2. ``I(t) = scale·Σ + gain·beside(t) + bias``, in float32: ``scale`` and
    ``bias`` are ``[O]``, ``gain`` and ``theta`` one number, ``beside`` is like the output; ``phase [H'·W'·O]`` is for
    ``"exact-even"``. Spikes leave as 0 and 1 in ``dtype`` (None: as they came). ``pool`` averages them over windows of
    2x2; int8 gets the sums, 0 to 4, which int8 weights take as well.
    """
    steps, batch, height, width, channels = spikes.shape
    outputs, kernel = weight.shape[:2]
    _check(spikes, weight, rule, phase)
    rows, columns = ((size - 1) // stride + 1 for size in (height, width))
    if pool and (rows % 2 or columns % 2):
        raise ValueError(f"windows of 2x2 do not fit {rows}x{columns} pixels")
    sizes = (rows // 2, columns // 2) if pool else (rows, columns)
    out = torch.empty((steps, batch, *sizes, outputs), dtype=dtype or spikes.dtype, device=spikes.device)
    if out.numel() == 0:
        return out
    tile = _fitted(tile or next(tile for most, tile in TILES.items() if steps <= most), outputs, channels)
    name, _, variant = rule.partition("-")
    pixels = tile.pixels(steps)
    constants: dict[str, Any] = {
        "T": steps, "SLOTS": triton.next_power_of_2(steps), "KERNEL": kernel, "STRIDE": stride,
        "NAME": name, "VARIANT": variant, "ITERATIONS": iterations, "EPS": eps, "SHARE": 1 / steps,
        "FULL": outputs % tile.channels == 0 and channels % tile.depth == 0,
        "POOL": pool, "NEAR": tile.near, "M": pixels, "N": tile.channels, "K": tile.depth, "PARTS": tile.parts,
        "num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False,
    }  # fmt: skip
    given = (spikes, weight, scale, beside, gain, bias, phase, theta, out)
    operands = [None if x is None else x.contiguous() for x in given]
    grid = (triton.cdiv(batch * rows * columns, pixels) * triton.cdiv(outputs, tile.channels),)
    with torch.cuda.device_of(spikes):  # type: ignore[no-untyped-call]
        synapse.conv_and_fire[grid](*operands, batch, height, width, channels, rows, columns, outputs, **constants)
    return out


def _check(spikes: Tensor, weight: Tensor, rule: str, phase: Tensor | None) -> None:
    if not 1 <= len(spikes) <= LONGEST:
        raise ValueError(f"this kernel keeps 1 to {LONGEST} steps on chip, got {len(spikes)}")
    if weight.dtype not in WEIGHTS or spikes.dtype not in (torch.int8, weight.dtype):
        raise TypeError(
            f"weights must be int8, bfloat16 or float16 (got {weight.dtype}) and spikes int8 or like the weights "
            f"(got {spikes.dtype})"
        )
    if weight.shape[1] != weight.shape[2] or weight.shape[1] % 2 == 0 or weight.shape[3] != spikes.shape[4]:
        raise ValueError(f"weights must be [O, k, k, {spikes.shape[4]}] with k odd, got {tuple(weight.shape)}")
    if (rule == "exact-even") != (phase is not None):
        raise ValueError('phases go with the rule "exact-even", and only with it')


def _fitted(tile: Tile, outputs: int, channels: int) -> Tile:
    """No wider than the layer, as far as tensor cores allow."""
    wide = min(tile.channels, max(16, triton.next_power_of_2(outputs)))
    depth = min(tile.depth, max(32, triton.next_power_of_2(channels)))
    return tile._replace(channels=wide, depth=depth, parts=min(tile.parts, wide // 8))
