"""A batch in slices on a CPU: what a layer makes is still in the cache, and its memory at hand, for the next one.

A tensor of many megabytes comes in fresh pages, which the system clears first; those of a slice are used again.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from offspike.graph import map_values, values_in

__all__ = ["joined", "sliced"]

ROWS = 256  # samples times steps: convolutions and products still have enough to share their weights


def sliced(run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor], steps: int) -> Any:
    """``run(inputs)``, whose tensors are ``[T, B, …]``, for ``steps`` steps at a time."""
    batch = len(inputs[0])
    count = min(batch, -(-batch * steps // ROWS))
    if inputs[0].device.type != "cpu" or count < 2:
        return run(inputs)
    _let_memory_stay()
    return joined([run(part) for part in zip(*(x.tensor_split(count) for x in inputs), strict=True)], 1)


@functools.cache
def _let_memory_stay() -> None:
    """Have the C library keep what a slice frees: glibc keeps twice the largest block freed so far, of up to 32 MB.

    (mallopt(3), M_MMAP_THRESHOLD.) Nothing is written to this one, so it costs nothing, here or elsewhere.
    """
    torch.empty((32 << 20) - (64 << 10), dtype=torch.uint8)


def joined(parts: list[Any], axis: int) -> Any:
    """Values of the same structure as one, their tensors put together along an axis."""
    if len(parts) == 1:
        return parts[0]
    rest: list[Iterator[Any]] = [iter(values_in(part, object)) for part in parts[1:]]

    def join(leaf: Any) -> Any:
        others = [next(leaves) for leaves in rest]
        return torch.cat([leaf, *others], axis) if isinstance(leaf, Tensor) else leaf

    return map_values(parts[0], join)
