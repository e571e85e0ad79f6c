"""Answers sample by sample: which classes are taken for which, and on what samples the network and the ANN differ.

``Answers`` watches an evaluation: ``evaluate(snn, loader, …, watch=answers.add)``.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offspike.exits import EarlyExit, lead, margins_for, stop_at

__all__ = ["Answers"]

PICTURES = 24  # samples that are kept to be shown


@dataclass
class Answers:
    """What was answered at each t: ``given [T, N]``, by what ``lead``, and what the ANN (``expected``) and truth say.

    ``number`` is the place of each sample in its data set, counted from ``first`` in steps of ``stride`` (one process
    of several sees every stride-th sample). ``pictures`` keeps the first samples on which network and ANN differ at any
    t up to ``until``.
    """

    until: int
    first: int = 0
    stride: int = 1
    number: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    given: Tensor | None = None
    lead: Tensor | None = None
    expected: Tensor | None = None
    pictures: dict[int, Tensor] = field(default_factory=dict)
    classes: int = 0

    def add(self, inputs: list[Tensor], labels: Any, outputs: Any, reference: Any) -> None:
        """One batch of an evaluation; outputs that are not logits ``[T, B, classes]`` are refused."""
        if not isinstance(outputs, Tensor) or outputs.ndim != 3:
            raise TypeError("answers are classes: the model must return logits [B, classes]")
        start = self.first + self.stride * len(self.labels)
        number = torch.arange(start, start + self.stride * len(labels), self.stride)
        given = outputs.cumsum(0).argmax(-1).cpu()
        expected = None if reference is None else reference.argmax(-1).cpu()
        pictures = {}
        if expected is not None:
            apart = (given[: self.until] != expected).any(0).nonzero().flatten().tolist()
            pictures = {int(number[k]): inputs[0][k].cpu() for k in apart[: PICTURES - len(self.pictures)]}
        batch = Answers(self.until, self.first, self.stride, number, labels.cpu(), given, lead(outputs).float().cpu(),
                        expected, pictures, outputs.shape[-1])  # fmt: skip
        vars(self).update(vars(self + batch))

    def __add__(self, other: "Answers") -> "Answers":
        """Those on both sets of samples, in the order of their numbers."""
        if self.given is None or self.lead is None or other.given is None or other.lead is None:
            return other if self.given is None else self
        number, order = torch.cat([self.number, other.number]).sort()
        expected = None
        if self.expected is not None and other.expected is not None:
            expected = torch.cat([self.expected, other.expected])[order]
        pictures = dict(sorted((self.pictures | other.pictures).items())[:PICTURES])
        return Answers(
            self.until, self.first, self.stride, number,
            torch.cat([self.labels, other.labels])[order],
            torch.cat([self.given, other.given], 1)[:, order],
            torch.cat([self.lead, other.lead], 1)[:, order],
            expected, pictures, self.classes,
        )  # fmt: skip

    def at(self, t: int) -> Tensor:
        """The answers of the readout at t, ``[N]``."""
        if self.given is None:
            raise ValueError("nothing was evaluated yet")
        return self.given[t - 1]

    def confusion(self, t: int) -> Tensor:
        """How often class i (row) was answered as class j (column) by the readout at t."""
        pairs = self.labels * self.classes + self.at(t)
        return torch.bincount(pairs, minlength=self.classes**2).view(self.classes, self.classes)

    def differing(self) -> list[tuple[int, int]]:
        """Samples on which network and ANN differ at any t up to ``until``: (place here, number in the data set)."""
        if self.given is None or self.expected is None:
            return []
        apart = (self.given[: self.until] != self.expected).any(0).nonzero().flatten().tolist()
        return [(k, int(self.number[k])) for k in apart]

    def early_exit(self) -> EarlyExit:
        """Mean T and accuracy for margins that span what there is."""
        if self.given is None or self.lead is None:
            raise ValueError("nothing was evaluated yet")
        return stop_at(self.lead, self.given == self.labels, margins_for(self.lead))
