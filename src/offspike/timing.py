"""Time, measured: medians after a warm-up, and what the machine itself can do."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Mark", "Roofs", "between", "mark", "roofs", "seconds"]

Mark = Any  # a moment: an event of a GPU's queue, or a reading of the clock


class Roofs(NamedTuple):
    """What the machine can do: operations a second in a large matrix product, bytes a second in a copy."""

    operations: float
    bytes: float

    def bound(self, operations: float, moved: float) -> float:
        """The seconds that so many operations and bytes take at least."""
        return max(operations / self.operations, moved / self.bytes)


def mark(device: torch.device) -> Mark:
    """Now, in the device's own time."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between(begin: Mark, end: Mark) -> float:
    """Seconds from one mark to another; the device's queue must have run past both."""
    return float(end - begin) if isinstance(begin, float) else float(begin.elapsed_time(end)) / 1e3


def seconds(run: Callable[[], object], device: torch.device, *, budget: float = 1.0, warm_up: int = 3) -> float:
    """The median time of a run, repeated for about ``budget`` seconds, three times or more."""
    for _ in range(warm_up):
        run()
    first = _once(run, device)
    repeats = max(3, min(50, int(budget / max(first, 1e-6))))
    return statistics.median(_once(run, device) for _ in range(repeats))


def roofs(device: torch.device, *, dtype: torch.dtype) -> Roofs:
    """Measured on the spot, on random numbers: a product of zeros can be faster."""
    size, count = (8192, 1 << 30) if device.type == "cuda" else (1024, 1 << 25)
    a, b = (torch.randn(size, size, device=device).mul(40 if dtype == torch.int8 else 1).to(dtype) for _ in range(2))
    if dtype == torch.int8:  # summed in 32 bits; cuBLAS is fast only where the second operand's columns lie in a row
        product = seconds(lambda: torch._int_mm(a, b.t()), device, budget=0.3)
    else:
        product = seconds(lambda: torch.mm(a, b), device, budget=0.3)
    x = torch.randint(256, (count,), dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    copy = seconds(lambda: y.copy_(x), device, budget=0.3)
    return Roofs(2 * size**3 / product, 2 * count / copy)


def _once(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = mark(device)
    result = run()
    end = mark(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    del result
    return between(begin, end)


def peak(device: torch.device) -> int | None:
    """The most bytes of GPU memory held since ``forget_peak`` (None: not a GPU)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def forget_peak(device: torch.device) -> None:
    """Begin anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def size(x: Tensor) -> int:
    """Bytes."""
    return x.numel() * x.element_size()
