"""Linear layers and convolutions on a CPU, event by event (numba): only the weights of inputs that are not 0 are read.

Import this module on first use only: numba is slow to import.
"""

import functools
import math

import numba
import numpy as np
import torch
from torch import Tensor

from offspike.ops import memory
from offspike.ops.blocks import Array, compiled
from offspike.ops.cpu import views

__all__ = ["conv2d", "linear", "worth"]

TOGETHER = 4  # events that are added to an output at once: it is read and written once for them
NARROW = (
    2000  # a convolution of n outputs is worth it up to a share of n / NARROW inputs: short rows of weights cost more
)

_parallel = functools.partial(compiled, parallel=True)


def worth(x: Tensor, outputs: int | None = None) -> bool:
    """Whether so few entries of ``x`` are not 0 that events win (benchmarks/events.py).

    ``x`` is ``[rows, inputs]`` of a linear layer: one row makes a product read all weights, events only some of them;
    many rows share what a product reads. Or, with ``outputs``, ``[N, H, W, C]`` of a convolution with as many filters.
    """
    counts = torch.empty(len(x), dtype=torch.int64)
    _count(*views(x.reshape(len(x), -1), counts))
    rate = int(counts.sum()) / max(1, x.numel())
    if outputs is not None:
        return rate <= outputs / NARROW
    return rate <= (0.2 if len(x) <= 4 else 0.05)


def linear(x: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ columns + bias`` for ``x [rows, inputs]``, ``columns [inputs, features]``: the sum over events in order."""
    out = memory.empty((len(x), columns.shape[1]), x.dtype)
    _linear(*views(x, columns, _start(columns, bias), out))
    return out


def conv2d(
    x: Tensor, rows: Tensor, bias: Tensor | None, *, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:  # fmt: skip
    """``x [N, H, W, C]`` convolved with ``rows [kH, kW, C, O]``: ``[N, H', W', O]``, the sum over events in order."""
    sizes = [
        (length + 2 * pad - kernel) // step + 1
        for length, pad, kernel, step in zip(x.shape[1:3], padding, rows.shape[:2], stride, strict=True)
    ]
    if min(sizes) < 1:
        raise ValueError(f"a kernel of {tuple(rows.shape[:2])} is larger than its padded input {tuple(x.shape[1:3])}")
    out = memory.empty((len(x), *sizes, rows.shape[3]), x.dtype)
    pixels = math.prod(x.shape[1:3])
    _conv2d(*views(x, rows, _start(rows, bias), out), *stride, *padding, pixels)
    return out


def _start(weights: Tensor, bias: Tensor | None) -> Tensor:
    return torch.zeros(weights.shape[-1], dtype=weights.dtype) if bias is None else bias


@_parallel
def _count(x: Array, counts: Array) -> None:
    for r in numba.prange(len(x)):
        count = 0
        for j in range(x.shape[1]):
            count += x[r, j] != 0
        counts[r] = count


@_parallel
def _linear(x: Array, columns: Array, start: Array, out: Array) -> None:
    for r in numba.prange(len(x)):
        for i in range(start.size):
            out[r, i] = start[i]
        for j in range(x.shape[1]):
            if x[r, j] != 0:
                _send(x[r, j], columns[j], out[r])


@_parallel
def _conv2d(
    x: Array, rows: Array, start: Array, out: Array, down: int, right: int, top: int, left: int, pixels: int
) -> None:  # fmt: skip
    """Pixel by pixel of an image's output, so that its sums stay at hand; ``down`` and ``right`` are the strides."""
    for n in numba.prange(len(x)):
        channels = np.empty((pixels, x.shape[3]), np.int32)  # of a pixel's events, in order
        counts = np.empty(pixels, np.int32)
        _list(x[n], channels, counts)
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                for o in range(start.size):
                    out[n, i, j, o] = start[o]
                for a in range(rows.shape[0]):
                    y = i * down - top + a
                    for b in range(rows.shape[1]):
                        z = j * right - left + b
                        if 0 <= y < x.shape[1] and 0 <= z < x.shape[2]:
                            pixel = y * x.shape[2] + z
                            _gather(x[n, y, z], channels[pixel], counts[pixel], rows[a, b], out[n, i, j])


@compiled
def _list(image: Array, channels: Array, counts: Array) -> None:
    """The channels of each pixel's events. Without a branch: what is no event is overwritten by the next."""
    for y in range(image.shape[0]):
        for z in range(image.shape[1]):
            pixel, count = y * image.shape[1] + z, 0
            for c in range(image.shape[2]):
                channels[pixel, count] = c
                count += image[y, z, c] != 0
            counts[pixel] = count


@compiled
def _gather(pixel: Array, channels: Array, count: int, rows: Array, out: Array) -> None:
    """One pixel's events, through one tap of the kernel."""
    whole = count // TOGETHER * TOGETHER
    for e in range(0, whole, TOGETHER):
        c0, c1, c2, c3 = channels[e], channels[e + 1], channels[e + 2], channels[e + 3]
        w0, w1, w2, w3 = rows[c0], rows[c1], rows[c2], rows[c3]
        s0, s1, s2, s3 = pixel[c0], pixel[c1], pixel[c2], pixel[c3]
        for o in range(out.size):
            out[o] = out[o] + s0 * w0[o] + s1 * w1[o] + s2 * w2[o] + s3 * w3[o]
    for e in range(whole, count):
        _send(pixel[channels[e]], rows[channels[e]], out)


@compiled
def _send(amount: float, weights: Array, out: Array) -> None:
    for i in range(out.size):
        out[i] += amount * weights[i]
