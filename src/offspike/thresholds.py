"""Where θ comes from: the trained λ, or the activations of the ANN on calibration data.

A rule is a small frozen value. It turns what was seen of an activation's values ``clip(z, 0, λ)`` (λ = ∞ for a ReLU)
into thresholds: one for the layer, one for each channel or, where no distribution is needed, one for each neuron.

Values are seen in one streaming pass with bounded memory. A row (a layer or a channel) has a histogram of ``BINS`` bins
over ``[0, 2^e)``, where e is the least that holds the largest value so far; when e grows by one, neighbouring bins
merge in pairs. Bins are nested, so the outcome does not depend on the order or the size of batches; the ANN is run on
``PART`` samples at a time whatever they are, so that its own sums are rounded alike. A bin is ``2^e / BINS`` wide: at
most 1/2048 of the row's maximum for a channel, 1/8192 for a layer.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.clock import keep_whole
from offspike.hooks import before

__all__ = ["RULES", "Learned", "LeastError", "Maximum", "Percentile", "Rule", "Seen", "measure", "once"]

Per = Literal["layer", "channel", "neuron"]
BINS = {"layer": 1 << 14, "channel": 1 << 12, "neuron": 0}
PART = 32


class Seen:
    """What was seen of one activation: for each row the largest value, how many values, and their histogram."""

    def __init__(self, per: Per) -> None:
        self.per: Per = per
        self.bins = BINS[per]
        self.shape: tuple[int, ...] | None = None  # of θ
        self.size = 0  # values seen in each row
        self.top = torch.zeros(0)
        self.exponent = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.zeros(0, 0, dtype=torch.int64)  # of the values > 0

    def add(self, values: Tensor) -> None:
        """``values`` of one batch ``[B, C, …]``, none negative."""
        rows = _rows(values, self.per)
        if self.shape is None:
            sample = values.shape[1:]
            ones = (sample[0], *[1] * (len(sample) - 1))
            self.shape = {"layer": (), "channel": ones, "neuron": tuple(sample)}[self.per]
            self.top = rows.new_zeros(len(rows))
            self.exponent = torch.full((len(rows),), -149, device=rows.device)  # below every float32
            self.counts = torch.zeros(len(rows), self.bins, dtype=torch.int64, device=rows.device)
        self.size += rows.shape[1]
        self.top = torch.maximum(self.top, rows.amax(1))
        if not bool(self.top.isfinite().all()):
            raise ValueError("activations are NaN or infinite on the calibration data: thresholds cannot be found")
        if self.bins:
            self._count(rows)

    def _count(self, rows: Tensor) -> None:
        needed = torch.maximum(self.exponent, torch.frexp(self.top).exponent.to(torch.int64))
        needed = torch.where(self.top > 0, needed, self.exponent)
        for growth in sorted({*(needed - self.exponent).tolist()} - {0}):
            chosen = needed - self.exponent == growth
            self.counts[chosen] = _merge(self.counts[chosen], growth)
        self.exponent = needed
        row, column = (rows > 0).nonzero(as_tuple=True)
        # Times powers of two: exact, so that a value's bin at a coarser exponent is the merged bin.
        index = torch.ldexp(rows[row, column].double() * self.bins, -self.exponent[row]).long()
        self.counts += torch.bincount(row * self.bins + index, minlength=self.counts.numel()).view_as(self.counts)

    @property
    def width(self) -> Tensor:
        """The width of each row's bins."""
        return torch.ldexp(torch.ones_like(self.top, dtype=torch.float64), self.exponent) / self.bins


class Rule(Protocol):
    """How thresholds follow from what was seen."""

    @property
    def per(self) -> Per:
        """What gets a threshold of its own."""
        ...

    def __call__(self, seen: Seen) -> Tensor:
        """A threshold for each row."""
        ...


@dataclass(frozen=True)
class Learned:
    """``θ = λ``, as trained (QCFS, ClippedReLU). No data is looked at."""

    per: ClassVar[Per] = "layer"

    def __call__(self, seen: Seen) -> Tensor:
        """Never asked."""
        raise ValueError("a learned threshold does not come from data")


@dataclass(frozen=True)
class Maximum:
    """``θ = scale · max``, the largest value seen (RMP); ``per="neuron"`` is SNM's."""

    scale: float = 1.0
    per: Per = "layer"

    def __post_init__(self) -> None:
        _check(self.per, tuple(BINS))
        if not self.scale > 0:
            raise ValueError(f"scale must be > 0, got {self.scale}")

    def __call__(self, seen: Seen) -> Tensor:
        """The largest value, scaled."""
        return seen.top * self.scale


@dataclass(frozen=True)
class Percentile:
    """θ is the least bin edge that ``q`` per cent of all values (zeros included) do not exceed."""

    q: float = 99.9
    per: Per = "layer"

    def __post_init__(self) -> None:
        _check(self.per, ("layer", "channel"))
        if not 0 < self.q <= 100:
            raise ValueError(f"q is a percentage in (0, 100], got {self.q}")

    def __call__(self, seen: Seen) -> Tensor:
        """From the cumulated histogram."""
        zeros = seen.size - seen.counts.sum(1, keepdim=True)
        below = (zeros + seen.counts.cumsum(1)) < self.q / 100 * seen.size
        edge = ((below.sum(1) + 1) * seen.width).to(seen.top.dtype)
        return torch.minimum(edge, seen.top)


@dataclass(frozen=True)
class LeastError:
    """The θ of ``candidates`` evenly spaced fractions of the maximum that represents the values best (SNNC)::

        argmin  Σ_a (a − θ/L · clip(⌊a·L/θ + shift⌋, 0, L))²,   L = levels

    ``shift=½`` rounds to the nearest level, which is what calibrated neurons do; ``shift=0`` is SNNC's floor. The
    error is computed from the histogram: each value counts as the middle of its bin.
    """

    levels: int
    candidates: int = 95
    shift: float = 0.5
    per: Per = "channel"

    def __post_init__(self) -> None:
        _check(self.per, ("layer", "channel"))
        keep_whole(self, "levels", "candidates")

    def __call__(self, seen: Seen) -> Tensor:
        """Each candidate's error over the bins, the least of them."""
        middle = (torch.arange(seen.bins, device=seen.top.device) + 0.5) * seen.width.unsqueeze(1)
        used = int((seen.counts.sum(0) > 0).nonzero().max()) + 1 if bool(seen.counts.any()) else 1
        middle, counts = middle[:, :used].float(), seen.counts[:, :used].float()
        best, least = seen.top, torch.full_like(seen.top, torch.inf)
        for k in range(1, self.candidates + 1):
            theta = seen.top * (k / self.candidates)
            step = (theta / self.levels).unsqueeze(1)
            near = (middle / step + self.shift).floor_().clamp_(0, self.levels).mul_(step)
            error = (counts * (middle - near).square_()).sum(1)
            best, least = torch.where(error < least, theta, best), torch.minimum(error, least)
        return best


RULES = (Learned, Maximum, Percentile, LeastError)


@torch.no_grad()
def measure(ann: nn.Module, rule: Rule, batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """θ of every activation of ``ann`` by its name: one pass over the batches, in eval mode."""
    ann = deepcopy(ann).eval()
    seen: dict[str, Seen] = {}
    images = 0

    def look(name: str, module: Activation, inputs: tuple[Tensor, ...]) -> None:
        value = inputs[0].detach().float()
        seen.setdefault(name, Seen(rule.per)).add(torch.minimum(value.clamp(min=0), module.lam.to(value.device)))

    with before({name: m for name, m in ann.named_modules() if isinstance(m, Activation)}, look):
        for x in _in_parts(batches):
            ann(x)
            images += len(x)
    if not images:
        raise ValueError("the calibration data is empty: thresholds cannot be found")
    return {name: _theta(rule, each) for name, each in seen.items()}


def _in_parts(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same samples, ``PART`` at a time; the last part is what is left."""
    rest: Tensor | None = None
    for x in batches:
        *parts, rest = torch.split(x if rest is None else torch.cat([rest, x]), PART)
        yield from parts
    if rest is not None and len(rest):
        yield rest


def once(rule: Rule, values: Tensor) -> Tensor:
    """θ from the values of one activation on a single batch ``[B, C, …]``, none negative."""
    seen = Seen(rule.per)
    seen.add(values)
    return _theta(rule, seen)


def _theta(rule: Rule, seen: Seen) -> Tensor:
    return _alive(rule(seen)).reshape(seen.shape or ())


def _rows(values: Tensor, per: Per) -> Tensor:
    if per == "layer":
        return values.reshape(1, -1)
    return values.transpose(0, 1).flatten(1) if per == "channel" else values.flatten(1).T


def _merge(counts: Tensor, growth: int) -> Tensor:
    """The histogram over a range 2^growth times as long."""
    bins = counts.shape[1]
    group = min(1 << min(growth, 62), bins)
    merged = torch.zeros_like(counts)
    merged[:, : bins // group] = counts.view(len(counts), -1, group).sum(2)
    return merged


def _alive(theta: Tensor) -> Tensor:
    """A row that never was above 0 gets its layer's largest threshold: its neurons stay as silent as they were."""
    largest = theta.max() if bool((theta > 0).any()) else torch.ones_like(theta[0])
    return torch.where(theta > 0, theta, largest)


def _check(per: str, choices: tuple[str, ...]) -> None:
    if per not in choices:
        raise ValueError(f"per must be one of {', '.join(choices)}; got {per!r}")
