"""Early exit: an image whose answer is clear stops early; what that does to mean T and accuracy.

The readout at t is the mean of the first t logits. An image stops at the first t where its largest logit leads the
second by more than the margin, and at T otherwise. One evaluation serves any number of margins.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offspike.inputs import classes, labelled
from offspike.network import SpikingNetwork, check_spiking

__all__ = ["EarlyExit", "early_exit"]


@dataclass(frozen=True)
class EarlyExit:
    """For each margin: how many answers were right, and the steps of all samples together."""

    margins: tuple[float, ...]
    samples: int
    correct: NDArray[np.int64]
    steps: NDArray[np.int64]

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """The share of right answers at each margin."""
        return self.correct / self.samples

    @property
    def mean_steps(self) -> NDArray[np.float64]:
        """Mean T at each margin."""
        return self.steps / self.samples

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: the sums, and the figures derived from them."""
        sums = {"margins": list(self.margins), "samples": self.samples}
        sums |= {"correct": self.correct.tolist(), "steps": self.steps.tolist()}
        return {**sums, "accuracy": self.accuracy.tolist(), "mean_steps": self.mean_steps.tolist()}

    def cheapest(self, loss: float) -> int:
        """The place of the smallest margin that costs at most ``loss`` of the accuracy at the last step."""
        return int(np.argmax(self.correct >= self.correct[-1] - loss * self.samples))

    def __add__(self, other: "EarlyExit") -> "EarlyExit":
        if self.margins != other.margins:
            raise ValueError("only results for the same margins can be added")
        return EarlyExit(
            self.margins, self.samples + other.samples, self.correct + other.correct, self.steps + other.steps
        )


def early_exit(
    snn: SpikingNetwork,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    steps: int,
    margins: Sequence[float],
    progress: Callable[[int], None] | None = None,
) -> EarlyExit:
    """Mean T and accuracy over batches ``(x, labels)`` for a grid of margins, at most ``steps`` steps an image.

    A model of several inputs gets them as a tuple x.
    """
    check_spiking(snn, "early_exit")
    device = next(iter(snn.state_dict().values())).device
    none = np.zeros(len(margins), np.int64)
    total = EarlyExit(tuple(float(margin) for margin in margins), 0, none, none)
    for batch in batches:
        inputs, labels = labelled(batch, device)
        labels = classes(labels, inputs)
        total += stop(snn(*inputs, steps=steps), labels, total.margins)
        if progress is not None:
            progress(len(labels))
    if not total.samples:
        raise ValueError("the data loader is empty: there is nothing to evaluate")
    return total


def stop(logits: Tensor, labels: Tensor, margins: Sequence[float]) -> EarlyExit:
    """The same for logits ``[T, B, classes]`` of each step."""
    right = logits.cumsum(0).argmax(-1) == labels
    return stop_at(lead(logits), right, margins)


def lead(logits: Tensor) -> Tensor:
    """By how much the largest logit of the readout at t leads the second, ``[T, B]``."""
    if logits.ndim != 3 or logits.shape[-1] < 2:
        raise ValueError(f"a margin needs logits [T, B, classes] of two classes or more, got {tuple(logits.shape)}")
    t = torch.arange(1, len(logits) + 1, device=logits.device).view(-1, 1, 1)
    first, second = (logits.cumsum(0) / t).topk(2, dim=-1).values.unbind(-1)
    return first - second


def stop_at(lead: Tensor, right: Tensor, margins: Sequence[float]) -> EarlyExit:
    """The same for leads, and whether the answer at each t is right, both ``[T, B]``."""
    correct, taken = [], []
    for margin in margins:
        clear = (lead > margin).to(torch.int8)
        clear[-1] = 1
        at = clear.argmax(0)  # the first of them
        correct.append(int(right.to(torch.int64).gather(0, at.unsqueeze(0)).sum()))
        taken.append(int((at + 1).sum()))
    return EarlyExit(tuple(margins), lead.shape[1], np.array(correct, np.int64), np.array(taken, np.int64))


def margins_for(lead: Tensor, *, count: int = 24) -> tuple[float, ...]:
    """Margins from "stop at once" to "never stop early": quantiles of the leads ``[T, B]`` before the last step."""
    before = lead[:-1] if len(lead) > 1 else lead
    found = np.quantile(before.double().cpu().numpy(), np.linspace(0, 1, count - 1))
    return tuple(sorted({0.0, *found.tolist()}))
