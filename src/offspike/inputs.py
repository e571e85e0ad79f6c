"""What a spiking network may be given, and what is said of the rest."""

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from offspike.clock import whole

__all__ = ["attempt", "check_call", "classes", "labelled", "not_finite"]

# How PyTorch and oneDNN say that main memory is used up; there is no error of its own for it.
NO_ROOM = ("DefaultCPUAllocator", "could not create a primitive")
# How it says that inputs and weights are of two types.
TYPES = re.compile(r"dtype|scalar type|type \(")


def check_call(
    inputs: Any, steps: int | None, piece: int | None, *, shape: tuple[int, ...] | None
) -> tuple[int, int | None]:
    """Refuse what is no call of a network; ``shape`` is that of a sample where there is one input, if it is known.

    Returns ``steps`` and ``piece`` as plain numbers.
    """
    if steps is None or not inputs:
        raise TypeError("a spiking network takes its input and the number of time-steps: snn(x, steps=8)")
    steps, piece = whole("steps", steps), None if piece is None else whole("piece", piece)
    for x in inputs:
        _check(x, shape if len(inputs) == 1 else None)
    if len({len(x) for x in inputs}) > 1:
        raise ValueError(f"all inputs are batches of one size, got {', '.join(str(len(x)) for x in inputs)}")
    return steps, piece


def labelled(batch: Any, device: torch.device) -> tuple[list[Tensor], Any]:
    """The inputs of a batch ``(x, labels)`` on this device, and its labels as they are; x may be a tuple of inputs."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        got, pair = f"a {type(batch).__name__}", "(x, labels)"
        if isinstance(batch, tuple | list):
            got, pair = f"{got} of {len(batch)}", "(batch[0], batch[1])"
        elif isinstance(batch, dict):
            got, pair = f"{got} with {', '.join(map(repr, batch))}", "(batch['image'], batch['label'])"
        raise TypeError(f"batches are pairs (x, labels), got {got}: give ({pair} for batch in loader)")
    x, labels = batch
    inputs = list(x) if isinstance(x, tuple | list) else [x]
    for value in inputs:
        if not isinstance(value, Tensor):
            raise TypeError(f"the input must be a tensor, got {type(value).__name__}")
    return [value.to(device, non_blocking=True) for value in inputs], labels


def classes(labels: Any, inputs: Sequence[Tensor]) -> Tensor:
    """Labels as class numbers ``[B]`` on the inputs' device; anything else would be compared with the wrong answers."""
    other = "for answers that are not classes, evaluate(…, metric=…)"
    try:
        found = torch.as_tensor(labels, device=inputs[0].device)
    except (TypeError, ValueError, RuntimeError):  # strings, dictionaries, tensors in a tuple
        raise TypeError(f"labels are class numbers [B], got a {type(labels).__name__}; {other}") from None
    if found.shape != inputs[0].shape[:1]:
        fix = "labels.argmax(1) of one-hot rows, labels.flatten() of a column"
        if not found.ndim:
            fix = "is the loader a data set without batches? DataLoader(data, batch_size=…)"
        raise ValueError(
            f"labels are class numbers [B], here [{len(inputs[0])}], got [{_sizes(tuple(found.shape))}]: {fix}; {other}"
        )
    return found


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
        if TYPES.search(str(error)):
            kinds = " and ".join(sorted({str(x.dtype) for x in inputs}))
            raise ValueError(
                f"the model does not take inputs of {kinds}: {error}. "
                "Give them the type of its weights: x.float(), or x.to(next(model.parameters()).dtype)"
            ) from error
        shapes = " and ".join(f"[{_sizes(x.shape)}]" for x in inputs)
        raise ValueError(f"the model does not take inputs of shape {shapes}: {error}") from error


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape)
