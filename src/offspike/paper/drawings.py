"""Figures that only the paper's topics need; the general ones are in ``offspike.figures``."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offspike.energy import Energy
from offspike.figures import offset_share
from offspike.figures.style import (
    COLOURS,
    DASHES,
    GREYS,
    INK,
    MARKERS,
    MUTED,
    WIDTH,
    legend,
    log2_axis,
    one_panel,
    style,
)  # fmt: skip
from offspike.record import LayerRecord
from offspike.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Point", "cost_panels", "cut_off", "mse_by_layer", "offsets_side_by_side"]

HATCHES = ("", "///", "...", "\\\\\\", "---")
SPAN = 16  # percentage points below the best that the cost figure shows: where methods worth their cost differ
SMALLEST = 1e-8  # mean ψ² below this, and 0 itself, are drawn at the foot of the logarithmic axis, which says 0


@style()
def offsets_side_by_side(found: dict[str, dict[str, LayerRecord]], *, log: bool = False) -> "Figure":
    """The share of neurons with |ψ| = 1, 2 and >= 3 in each layer, a bar a method: hatches tell methods apart.

    On a ``log`` axis the largest |ψ| stand lowest: what can be read there is how far up a shade reaches, the share of
    neurons with at least its |ψ|.
    """
    from matplotlib.patches import Patch

    figure, axes = one_panel(3.2)
    figure.set_figwidth(1.6 * WIDTH)
    width = 0.8 / len(found)
    layers = max(map(len, found.values()))
    sizes = list(enumerate(GREYS))[:: -1 if log else 1]
    for index, (seen, hatch) in enumerate(zip(found.values(), HATCHES, strict=False)):
        shares = [offset_share(layer, "unconstrained") for layer in seen.values()]
        places = [layer + (index - (len(found) - 1) / 2) * width for layer in range(1, len(shares) + 1)]
        bottom = [0.0] * len(shares)
        for size, colour in sizes:
            heights = [share[size] for share in shares]
            axes.bar(places, heights, width, bottom, color=colour, edgecolor="white", linewidth=0.4, hatch=hatch)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.grid(False, axis="x")
    axes.set_xticks(range(1, layers + 1))
    axes.set_xlabel("layer")
    axes.set_ylabel(f"neurons with ψ ≠ 0 (%{', log' * log})")
    if log:
        _log_shares(axes, found)
    shades = [Patch(facecolor=c, label=label) for label, c in zip(("ψ = ±1", "ψ = ±2", "|ψ| ≥ 3"), GREYS, strict=True)]
    looks: dict[str, Any] = {"facecolor": "white", "edgecolor": MUTED, "linewidth": 0.8}
    kinds = [Patch(hatch=hatch, label=name, **looks) for name, hatch in zip(found, HATCHES, strict=False)]
    figure.legend(handles=shades + kinds, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _log_shares(axes: "Axes", found: dict[str, dict[str, LayerRecord]]) -> None:
    """A logarithmic axis of per cent that begins at the power of ten below the least height of any shade."""
    shares = [offset_share(layer, "unconstrained") for seen in found.values() for layer in seen.values()]
    heights = [sum(share[size:]) for share in shares for size in range(len(share))]
    least = min((height for height in heights if height > 0), default=1.0)
    foot = 10.0 ** (math.ceil(math.log10(least)) - 1)
    axes.set_ylim(foot, 1.5 * max(10 * foot, *heights))  # first: the scale finds no limits where there is no bar
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda x, _: f"{x:g}")


@style()
def mse_by_layer(errors: dict[str, list[float]]) -> "Figure":
    """The mean of ψ² in each layer on a logarithmic axis, a line a method; 0 lies at its foot."""
    figure, axes = one_panel()
    layers = max(map(len, errors.values()))
    for index, (name, values) in enumerate(errors.items()):
        shown = [max(value, SMALLEST) for value in values]
        looks: dict[str, Any] = {"marker": MARKERS[index], "linestyle": DASHES[index % len(DASHES)]}
        axes.plot(range(1, len(values) + 1), shown, label=name, color=COLOURS[index], markersize=5, **looks)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda x, _: "0" if math.isclose(x, SMALLEST) else f"{x:g}")
    axes.set_ylim(bottom=SMALLEST / 2)
    axes.set_xticks(range(1, layers + 1, 1 if layers < 12 else 2))
    axes.set_xlabel("layer")
    axes.set_ylabel("mean of ψ² (log scale)")
    legend(figure, axes)
    return figure


@dataclass(frozen=True)
class Point:
    """One method at one T of one network: ``report`` and ``energies`` run to T or beyond."""

    line: str
    steps: int
    report: Report
    energies: list[Energy] | None

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(self.report.accuracy[self.steps - 1])

    @property
    def joules(self) -> float | None:
        """For one image."""
        return None if self.energies is None else self.energies[self.steps - 1].joules()


@style()
def cost_panels(points: Sequence[Point]) -> "Figure":
    """Accuracy against synaptic passes, ticks and (if metered) energy: a line a method, T beside its points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.1 * WIDTH, 3.8), layout="constrained")
    labels = ["synaptic passes", "ticks"] + ["energy (µJ an image)"] * any(p.joules is not None for p in points)
    panels = figure.subplots(1, len(labels), sharey=True)
    lines = dict.fromkeys(point.line for point in points)
    for index, name in enumerate(lines):
        colour, marker, dashes = (looks[index % len(looks)] for looks in (COLOURS, MARKERS, DASHES))
        mine = [point for point in points if point.line == name]
        for axes, x in zip(panels, _costs(mine), strict=False):
            pairs = [(value, point) for value, point in zip(x, mine, strict=True) if value is not None]
            y = [100 * point.accuracy for _, point in pairs]
            looks = {"marker": marker, "linestyle": dashes, "markersize": 5, "label": name}
            axes.plot([value for value, _ in pairs], y, color=colour, **looks)
            for value, point in pairs:
                where, beside = (value, 100 * point.accuracy), (3, -8)
                axes.annotate(str(point.steps), where, beside, textcoords="offset points", fontsize=7, color=colour)
    for axes, label in zip(panels, labels, strict=True):
        log2_axis(axes)
        axes.grid(True)
        axes.set_xlabel(f"{label}, log scale")
    _ann_energy(panels[-1], points)
    lost, foot = cut_off(points)
    panels[0].set_ylim(foot, 100 * max(point.accuracy for point in points) + 0.5)
    panels[0].set_ylabel("accuracy (%)")
    if lost:
        panels[0].set_title(f"not shown: {lost} of {len(points)} points, below {foot} %", loc="left", fontsize=9)
    legend(figure, panels[0])
    return figure


def cut_off(points: Sequence[Point]) -> tuple[int, int]:
    """How many points the cost figure leaves out, and the accuracy (%) at its foot, below which they lie."""
    accuracies = [100 * point.accuracy for point in points]
    foot = math.floor(max(min(accuracies), max(accuracies) - SPAN) - 0.5)  # room for a marker
    return sum(accuracy < foot for accuracy in accuracies), foot


def _costs(points: list[Point]) -> tuple[list[float | None], ...]:
    """Synaptic passes, ticks, and µJ of each."""
    costs = [point.report.cost(point.steps) for point in points]
    energy = [None if point.joules is None else 1e6 * point.joules for point in points]
    return [cost.synaptic_passes for cost in costs], [cost.ticks for cost in costs], energy


def _ann_energy(axes: "Axes", points: Sequence[Point]) -> None:
    """A vertical line at what the ANN spends."""
    spent = [point.energies[-1].ann_joules() for point in points if point.energies is not None]
    if spent:
        axes.axvline(1e6 * spent[0], color=INK, linestyle=(0, (4, 3)), linewidth=1)
        where = (1e6 * spent[0], 0.03)
        axes.annotate("ANN", where, xycoords=("data", "axes fraction"), fontsize=7, rotation=90)
