"""A batch on a CPU, a few samples at a time: neurons then find their currents in its cache."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from offspike.fit import cached

__all__ = ["Portions", "several"]


class Portions:
    """How large one network's layers are, by the shapes of its inputs: known before a batch is cut, so that the same
    batch is always cut alike.
    """

    def __init__(self) -> None:
        self._neurons: dict[tuple[torch.Size, ...], int] = {}

    def run(
        self, run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor], steps: int, largest: Callable[[], int]
    ) -> list[Any]:
        """``run`` of each part of a batch, in order; ``largest()`` finds the neurons of the largest layer."""
        shapes = tuple(x.shape[1:] for x in inputs)
        if shapes not in self._neurons:
            self._neurons[shapes] = largest()
        parts = math.ceil(len(inputs[0]) / cached(self._neurons[shapes], steps))
        return [run(part) for part in zip(*(x.tensor_split(parts) for x in inputs), strict=True)]


def several(inputs: Sequence[Tensor]) -> bool:
    """Whether a batch may be cut: it has several samples, all on a CPU, and no compiler looks on."""
    return len(inputs[0]) > 1 and all(x.device.type == "cpu" for x in inputs) and not torch.compiler.is_compiling()
