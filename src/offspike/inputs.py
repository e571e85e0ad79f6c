"""What a spiking network may be given, and what is said of the rest."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["attempt", "check_call", "not_finite"]

# How PyTorch and oneDNN say that main memory is used up; there is no error of its own for it.
NO_ROOM = ("DefaultCPUAllocator", "could not create a primitive")


def check_call(inputs: Any, steps: int | None, piece: int | None, *, shape: tuple[int, ...] | None) -> None:
    """Refuse what is no call of a network; ``shape`` is that of a sample where there is one input, if it is known."""
    if steps is None or not inputs:
        raise TypeError("a spiking network takes its input and the number of time-steps: snn(x, steps=8)")
    for name, value in (("steps", steps), ("piece", piece)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    for x in inputs:
        _check(x, shape if len(inputs) == 1 else None)
    if len({len(x) for x in inputs}) > 1:
        raise ValueError(f"all inputs are batches of one size, got {', '.join(str(len(x)) for x in inputs)}")


def _check(x: Tensor, shape: tuple[int, ...] | None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"the input must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"the input must be floating point, got {x.dtype}: scale images first, x.float() / 255")
    if x.ndim < 2 or len(x) < 1:
        raise ValueError(f"the input must be a batch [B, …] with B >= 1, got shape {tuple(x.shape)}")
    if shape is not None and tuple(x.shape[1:]) != tuple(shape):
        raise ValueError(f"this network takes inputs [B, {_sizes(shape)}], got [{_sizes(x.shape)}]")
    if x.device.type == "cpu" and not bool(x.isfinite().all()):  # elsewhere looking would stall a queue
        raise ValueError("the input holds NaN or infinite values")


def not_finite(inputs: Sequence[Tensor]) -> Tensor | None:
    """For each sample 0, or NaN where its input is not finite; None on a CPU, which refuses such inputs."""
    if inputs[0].device.type == "cpu":
        return None
    return cast(Tensor, sum((x * 0).flatten(1).sum(1) for x in inputs))


def attempt(run: Callable[..., Any], inputs: Sequence[Tensor]) -> Any:
    """``run(*inputs)``; where it cannot, whether that is for want of memory or because of the inputs' shapes."""
    try:
        return run(*inputs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if any(words in str(error) for words in NO_ROOM):
            raise torch.OutOfMemoryError(str(error)) from error
        shapes = " and ".join(f"[{_sizes(x.shape)}]" for x in inputs)
        raise ValueError(f"the model does not take inputs of shape {shapes}: {error}") from error


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape)
