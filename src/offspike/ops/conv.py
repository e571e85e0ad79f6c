"""A convolution in whole numbers and its neurons in one GPU kernel (Triton): currents never reach memory.

The sums of a run of up to 8 steps stay in registers; a longer T is several runs, with potentials in registers between.
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

__all__ = ["Tile", "conv_and_fire", "runs", "tile_for"]

# Steps of a run, a power of two. The sums of 4 leave room for a tile twice as wide as those of 8: less time a step.
RUN = 4


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


def tile_for(steps: int, outputs: int, channels: int, rule: str, *, carried: bool = False) -> Tile:
    """The fastest on an H200 (`benchmarks/fused_conv.py`), no wider than the layer as far as tensor cores allow.

    Of more than 4 steps, two small programs on a multiprocessor are faster than one large one, up to 128 channels.
    ``carried``: potentials are read or written. They come in slices of 8 channels, which lie over the threads as sums
    do; with wider ones Triton moves all sums through shared memory to where it has read the potentials.
    """
    long, few = steps > 4, max(outputs, channels) <= 128
    warps = 8 if long and outputs > 64 and not few else 4
    wide = min(64 if long else 128, max(16, triton.next_power_of_2(outputs)))
    depth = min(64 if long and few else 128, max(32, triton.next_power_of_2(channels)))
    parts = wide // 8 if carried else 8 if rule == "exact-even" else 4  # its tables need more registers
    return Tile(warps, wide, depth, 3, min(parts, wide // 8))


def runs(steps: int, rho: int) -> tuple[int, int, int]:
    """Steps at first, how often RUN steps follow, and steps at last. The first hold the ρ that are heard."""
    first = min(steps, RUN if rho <= RUN else LONGEST)
    return first, *divmod(steps - first, RUN)


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
    v0: Tensor | None = None,
    beside: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    phase: Tensor | None = None,
    dtype: torch.dtype = torch.int8,
    pool: bool = False,
    keep: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Spikes ``[T, B, H', W', O]`` of IF neurons that listen to ρ <= 8 of T steps and start by ``rule`` (`fused.py`).

    ``spikes [T, B, H, W, C]`` and ``weight [digits, O, k, k, C]`` are int8; k is odd, and images are padded by k // 2.
    Digits are those of whole numbers to the base 256, highest first, and the sums of these have to fit 32 bits.
    ``I(t) = scale·Σ + gain·beside(t) + bias``, in float32: ``scale``, powers of two, and ``bias`` are ``[O]``, ``gain``
    and ``theta`` one number, ``beside`` is like the output; ``phase [H'·W'·O]`` is for ``"exact-even"``. Spikes leave
    as 0 and 1 in ``dtype``; ``pool`` counts them over windows of 2x2, 0 to 4. With the rule ``"given"`` neurons start
    at ``v0 [B, H', W', O]``, float32; v(T) comes back alike if it is to be kept.
    """
    steps, batch, height, width, _ = spikes.shape
    _check(spikes, weight, rule, rho, phase, v0)
    rows, columns = ((size - 1) // stride + 1 for size in (height, width))
    if pool and (rows % 2 or columns % 2):
        raise ValueError(f"windows of 2x2 do not fit {rows}x{columns} pixels")
    sizes, outputs = (rows // 2, columns // 2) if pool else (rows, columns), weight.shape[1]
    out = torch.empty((steps, batch, *sizes, outputs), dtype=dtype, device=spikes.device)
    end = (batch, rows, columns, outputs)
    v_end = torch.empty(end, dtype=torch.float32, device=spikes.device) if keep else None
    if out.numel():
        _launch(
            spikes, weight, scale, beside, gain, bias, phase, theta, v0, v_end, out,
            size=(rows, columns), stride=stride, pool=pool, rule=rule, rho=rho, iterations=iterations, eps=eps,
        )  # fmt: skip
    return out, v_end


def _launch(
    spikes: Tensor, weight: Tensor, *others: Tensor | None, size: tuple[int, int], stride: int, pool: bool, rule: str,
    rho: int, iterations: int, eps: float,
) -> None:  # fmt: skip
    """With the operands of the kernel in its order: … v0, v_end, out."""
    steps, batch, height, width, channels = spikes.shape
    digits, outputs, kernel = weight.shape[:3]
    first, often, rest = runs(steps, rho)
    carried = any(v is not None for v in others[-3:-1])
    tile = tile_for(first, outputs, channels, rule, carried=carried)
    while spikes.is_cuda and tile.stages > 1 and tile.bytes(first) > _shared_memory(spikes.device):
        tile = tile._replace(stages=tile.stages - 1)
    name, _, variant = rule.partition("-")
    pixels, out = tile.pixels(first), others[-1]
    assert out is not None
    quads = out.dtype == torch.int8 and outputs % 4 == 0 and out.data_ptr() % 4 == 0 and not pool
    constants: dict[str, Any] = {
        "T": first, "SLOTS": triton.next_power_of_2(first), "RUN": RUN if first < steps else 0, "REST": rest,
        "RHO": rho, "DIGITS": digits, "KERNEL": kernel, "STRIDE": stride,
        "NAME": name, "VARIANT": variant, "ITERATIONS": iterations, "EPS": eps, "SHARE": 1 / max(rho, 1),
        "FULL": outputs % tile.channels == 0 and channels % tile.depth == 0, "POOL": pool,
        "QUADS": quads,
        "M": pixels, "N": tile.channels, "K": tile.depth, "PARTS": tile.parts,
        "num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False,
    }  # fmt: skip
    operands = [None if x is None else x.contiguous() for x in (spikes, weight, *others)]
    grid = (triton.cdiv(batch * size[0] * size[1], pixels) * triton.cdiv(outputs, tile.channels),)
    with torch.cuda.device_of(spikes):  # type: ignore[no-untyped-call]
        synapse.conv_and_fire[grid](*operands, batch, height, width, channels, *size, outputs, often, **constants)


@functools.lru_cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have, which on most GPUs is less than on an H200."""
    found: int = triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]
    return found


def _check(
    spikes: Tensor, weight: Tensor, rule: str, rho: int, phase: Tensor | None, v0: Tensor | None
) -> None:  # fmt: skip
    if rho > LONGEST:
        raise ValueError(f"this kernel keeps what is heard on chip, at most {LONGEST} steps: got rho={rho}")
    check_listening(max(rho, 1), len(spikes))
    if weight.dtype != torch.int8 or spikes.dtype != torch.int8:
        raise TypeError(f"weights and spikes must be int8, got {weight.dtype} and {spikes.dtype}")
    if weight.ndim != 5 or weight.shape[2] != weight.shape[3] or weight.shape[2] % 2 == 0:
        raise ValueError(f"weights must be [digits, O, k, k, C] with k odd, got {tuple(weight.shape)}")
    if weight.shape[4] != spikes.shape[4]:
        raise ValueError(f"weights for {weight.shape[4]} channels do not fit spikes of {spikes.shape[4]}")
    if (rule == "exact-even") != (phase is not None):
        raise ValueError('phases go with the rule "exact-even", and only with it')
    if (rule == "given") != (v0 is not None):
        raise ValueError('potentials to start from go with the rule "given", and only with it')
