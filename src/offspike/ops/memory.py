"""Room for spikes on the CPU.

The system clears every page it hands out, and for spikes of many megabytes that takes longer than the kernel that
fills them. So they are asked for in huge pages (numpy does that), and the last of such memory is kept when its tensors
die, for the next tensors of like size: a network runs its layers one after another and needs it again at once. The
convolutions between them take their memory from the C library, which is told to do likewise.
"""

import ctypes
import functools
import math
import sys
import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["empty", "let_memory_stay"]

LARGE = 4 << 20  # bytes; the C library recycles smaller pieces itself

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h

KEPT = 3  # as many as a layer with a shortcut works on

_spare: list[NDArray[Any]] = []  # at most so many, the latest last


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """``torch.empty(shape, dtype=dtype)``."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return torch.empty(shape, dtype=dtype)
    let_memory_stay()
    memory = _take(size)
    lent = memory[:size]
    # Every view of the tensor keeps ``lent`` alive: when it dies, nobody can see this memory any more.
    weakref.finalize(lent, _keep, memory).atexit = False
    return torch.from_numpy(lent).view(dtype).view(shape)


@functools.cache
def let_memory_stay() -> None:
    """Have glibc keep what is freed, blocks of up to 32 MB and 1 GB in all, for what is asked for next: mallopt(3)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 1 << 30)


def _take(size: int) -> NDArray[Any]:
    for _ in range(KEPT):  # one at a time, each step whole: tensors may die in other threads meanwhile
        try:
            memory = _spare.pop(0)
        except IndexError:
            break
        # Not a much larger one: a small tensor that lives long would hold it all.
        if size <= memory.size <= 2 * size:
            return memory
        _keep(memory)
    return np.empty(size, np.uint8)


def _keep(memory: NDArray[Any]) -> None:
    _spare.append(memory)
    del _spare[:-KEPT]
