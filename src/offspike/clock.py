"""The one owner of T: folds time into the batch axis, so that ordinary layers run every step at once.

Inside a network a tensor is ``[T·B, …]``, time-major; a spiking layer asks the clock for ``[T, B, …]`` and back. What
does not change over time (the image, and all that is computed from it before the first spike) stays ``[B, …]``.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

__all__ = ["Clock", "Phase", "active_clock", "keep_whole", "whole"]


def whole(name: str, value: Any, *, why: str = "") -> int:
    """``value`` as a number of steps, from 1 on: NumPy's whole numbers are taken, 4.0 and "4" are not."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be >= 1{why}, got {number}")
    return number


def keep_whole(value: Any, *names: str) -> None:
    """Make these fields of a frozen dataclass plain numbers, from 1 on: they are written into files."""
    for name in names:
        object.__setattr__(value, name, whole(name, getattr(value, name)))


class Phase(Protocol):
    """What spiking layers do in this pass (see schedules.py). Only a ``final`` pass reaches the caller."""

    final: ClassVar[bool]

    def fire(self, layer: Any, drive: Any) -> Tensor:
        """What a layer sends, ``[T, B, …]``, for what drives it (`fused.Drive`)."""
        ...


@dataclass(frozen=True)
class Clock:
    """``steps`` time-steps of ``batch`` samples, and what is done in them.

    A long run is cut into pieces of time; ``carry`` then holds what modules take from one piece to the next (None: this
    is the whole run). ``heard(layer, spikes)`` is told what each spiking layer sends, ``[T, B, …]``.
    """

    steps: int
    batch: int
    phase: Phase
    carry: dict[Any, Tensor] | None = None
    heard: Callable[[Any, Tensor], None] | None = None

    def fold(self, x: Tensor) -> Tensor:
        """``[T, B, …]`` to ``[T·B, …]``."""
        return x.flatten(0, 1)

    def unfold(self, x: Tensor) -> Tensor:
        """``[T·B, …]`` to ``[T, B, …]``."""
        rows = x.shape[0] if x.ndim else 0
        if rows != self.steps * self.batch:
            raise ValueError(
                f"a tensor of {rows} rows came where {self.steps} steps of {self.batch} samples make "
                f"{self.steps * self.batch}. The model mixes or drops samples (an operation on axis 0): take it out"
            )
        return x.reshape(self.steps, self.batch, *x.shape[1:])

    def hold(self, x: Tensor) -> Tensor:
        """``[B, …]`` that does not change over time, to ``[T, B, …]``: a view, nothing is copied."""
        if x.shape[0] != self.batch:
            raise ValueError(
                f"a tensor of {x.shape[0]} rows was computed from a batch of {self.batch}. "
                "The model mixes or drops samples (an operation on axis 0): take it out"
            )
        return self.repeat(x)

    def repeat(self, x: Tensor) -> Tensor:
        """What has nothing to do with samples (a parameter), to ``[T, …]``: a view, nothing is copied."""
        return x.unsqueeze(0).expand(self.steps, *x.shape)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Make this the clock that spiking layers read, for the length of a ``with`` block."""
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)


_active: ContextVar[Clock | None] = ContextVar("offspike_clock", default=None)


def active_clock() -> Clock:
    """The clock of the running forward pass."""
    clock = _active.get()
    if clock is None:
        raise RuntimeError(
            "a spiking layer was called outside its network, where time has no meaning: "
            "call the SpikingNetwork itself, snn(x, steps=8)"
        )
    return clock
