"""Figures as a paper would print them, readable in grey and by the colour-blind.

Every function returns a ``matplotlib.figure.Figure`` of its own; nothing here touches pyplot's state, and matplotlib is
imported when a figure is drawn. ``to_svg`` gives the same text for the same figure, ``save`` writes SVG or PNG.
"""

import io
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from offspike import equations, ops
from offspike.drawing import (
    COLOURS,
    GREYS,
    INK,
    MUTED,
    WIDTH,
    close_up,
    layer_panel,
    legend,
    line,
    log2,
    one_panel,
    short,
    steps_axis,
    style,
)
from offspike.record import LayerRecord
from offspike.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "accuracy_against_steps", "accuracy_against_ticks", "agreement_against_steps", "firing_rates", "membrane_trace",
    "offset_share", "offset_spikes", "save", "to_svg",
]  # fmt: skip


@style()
def accuracy_against_steps(reports: dict[str, Report], *, within: float | None = None) -> "Figure":
    """Accuracy at each T, a line a method, the ANN dashed; ``within`` shows that many points below the best only."""
    figure, axes = one_panel()
    for index, (name, report) in enumerate(reports.items()):
        line(axes, index, name, list(range(1, report.steps + 1)), (100 * report.accuracy).tolist())
    steps_axis(axes, max(report.steps for report in reports.values()))
    _ann(axes, reports)
    axes.set_ylabel("accuracy (%)")
    close_up(axes, within)
    legend(figure, axes)
    return figure


@style()
def agreement_against_steps(reports: dict[str, Report], *, within: float | None = None) -> "Figure":
    """The share of samples on which the spiking network answers as the ANN does, at each T."""
    figure, axes = one_panel()
    shown = [(i, name, r.agreement) for i, (name, r) in enumerate(reports.items()) if r.agreement is not None]
    if not shown:
        raise ValueError("no report has a reference: evaluate(snn, loader, steps=…, reference=ann) counts agreement")
    for index, name, agreement in shown:
        line(axes, index, name, list(range(1, len(agreement) + 1)), (100 * agreement).tolist())
    steps_axis(axes, max(len(agreement) for _, _, agreement in shown))
    axes.set_ylabel("same answer as the ANN (%)")
    close_up(axes, within)
    legend(figure, axes)
    return figure


@style()
def accuracy_against_ticks(reports: dict[str, Report], *, within: float | None = None) -> "Figure":
    """Accuracy against true latency: the ticks until the output at each T, calibration included."""
    figure, axes = one_panel()
    for index, (name, report) in enumerate(reports.items()):
        ticks = [report.cost(t).ticks for t in range(1, report.steps + 1)]
        line(axes, index, name, ticks, (100 * report.accuracy).tolist())
    log2(axes)
    axes.set_xlabel("ticks until the output at T (log scale)")
    _ann(axes, reports)
    axes.set_ylabel("accuracy (%)")
    close_up(axes, within)
    legend(figure, axes)
    return figure


@style()
def offset_spikes(
    records: dict[str, LayerRecord],
    judgement: Literal["unconstrained", "constrained"] = "unconstrained",
    *,
    limit: float | None = None,
) -> "Figure":
    """The share of neurons with |ψ| = 1, 2 and >= 3, layer by layer; figures to be compared share their ``limit``."""
    shares = {name: offset_share(record, judgement) for name, record in records.items()}
    figure, axes = layer_panel(list(records))
    left = [0.0] * len(shares)
    for size, (label, colour) in enumerate(zip(("ψ = ±1", "ψ = ±2", "|ψ| ≥ 3"), GREYS, strict=True)):
        widths = [share[size] for share in shares.values()]
        bars = axes.barh(range(len(shares)), widths, 0.72, left, color=colour, edgecolor="white", label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.bar_label(bars, [f"{end:.1f}" for end in left], padding=3, fontsize=8)
    axes.set_xlim(0, 1.12 * max(limit or max(left), 0.1))
    axes.set_xlabel(f"share of neurons (%), {judgement}")
    legend(figure, axes)
    return figure


def offset_share(record: LayerRecord, judgement: Literal["unconstrained", "constrained"]) -> tuple[float, float, float]:
    """The share of neurons, in percent, with |ψ| = 1, 2 and >= 3."""
    seen = {"unconstrained": record.unconstrained, "constrained": record.constrained}[judgement]
    if not seen.total:
        raise ValueError(f"nothing was recorded {judgement}: record(snn, reference=ann) and run the network inside it")
    counts = [0, 0, 0]
    for psi, count in seen.histogram.items():
        if psi:
            counts[min(abs(psi), 3) - 1] += count
    one, two, more = (100 * count / seen.total for count in counts)
    return one, two, more


@style()
def firing_rates(report: Report, *, limit: float | None = None) -> "Figure":
    """The share of neurons that fire at a step, by layer; figures to be compared share their ``limit`` (percent)."""
    figure, axes = layer_panel(list(report.layers))
    means = [100 * float(rates.mean()) for rates in report.rates.values()]
    firsts = [100 * float(rates[0]) for rates in report.rates.values()]
    steps = max((len(rates) for rates in report.rates.values()), default=report.steps)
    axes.barh(range(len(means)), means, 0.72, color=GREYS[0], label=f"mean of {steps} steps")
    axes.plot(firsts, range(len(firsts)), "D", color=COLOURS[1], markeredgecolor="white", label="first step")
    axes.set_xlim(0, 1.05 * max(limit or max(means + firsts), 0.1))
    axes.set_xlabel("neurons that fire at a step (%)")
    legend(figure, axes)
    return figure


@style()
def membrane_trace(current: Tensor, theta: float, v0_before: float, v0_after: float) -> "Figure":
    """One neuron's potential over ``current [T]`` before and after its v(0) is shifted, with its spikes.

    The line rises to v(t−1) + I(t) and falls by θ at a spike; dots are v(t). A v(T) inside the band, half a threshold
    around v(0), means ψ = 0 (Theorems 1 and 3).
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if current.ndim != 1 or not all(map(math.isfinite, (v0_before, v0_after))):
        raise ValueError(f"one neuron's current [T] and finite v(0) are needed; got {tuple(current.shape)}")
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    for panel, title, v0 in zip(
        figure.subplots(2, sharey=True), ("before", "after"), (v0_before, v0_after), strict=True
    ):
        _trace(panel, title, current.double(), theta, v0)
        panel.set_ylabel("potential v(t)")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.set_xlabel("time-step t")
    legend(figure, panel)
    return figure


def _trace(axes: "Axes", title: str, current: Tensor, theta: float, v0: float) -> None:
    v = torch.tensor([v0], dtype=current.dtype)
    start, potentials, path, fired = v, [v0], [(0, v0)], []
    for t, step in enumerate(current, 1):
        peak = float(v + step)
        spikes, v = ops.fire(step.reshape(1, 1), theta, v)
        potentials.append(float(v))
        path += [(t, peak), (t, float(v))]
        if spikes.item():
            fired.append((t, peak))
    count = torch.full_like(v, len(fired))
    psi = int(equations.offset_spikes(count, v, start, torch.full_like(v, theta), len(current)))
    axes.axhspan(v0 - theta / 2, v0 + theta / 2, color=GREYS[0], alpha=0.3, linewidth=0, label="v(T) here: ψ = 0")
    axes.axhline(theta, color=MUTED, linestyle="--", linewidth=1, label="threshold θ")
    axes.plot(*zip(*path, strict=True), color=COLOURS[0], linewidth=1.2, alpha=0.7)
    axes.plot(potentials, "o", color=COLOURS[0], label="v(t)")
    axes.plot([t for t, _ in fired], [m for _, m in fired], "^", color=COLOURS[1], markersize=8, label="spike")
    said = f"{title}: v(0) = {v0 / theta:.4g} θ, spikes {len(fired)}, ψ = {f'{psi:+d}' if psi else '0'}"
    axes.set_title(said, loc="left", fontsize=10)
    axes.margins(y=0.15)


def to_svg(figure: "Figure") -> str:
    """The figure as one ``<svg>`` element: self-contained, and the same text whenever it is drawn."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # text stays text: whoever shows it may well have the letter
        figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def save(figure: "Figure", path: str | Path) -> None:
    """Write the figure; the suffix decides, ``.svg`` or ``.png`` (200 dots an inch)."""
    path = Path(path)
    if path.suffix == ".svg":
        path.write_text('<?xml version="1.0" encoding="utf-8"?>\n' + to_svg(figure), encoding="utf-8")
    elif path.suffix == ".png":
        with style():
            figure.savefig(path, format="png", dpi=200, metadata={"Software": None})
    else:
        raise ValueError(f"figures are written as .svg or .png, got {path.name!r}")


def _ann(axes: "Axes", reports: dict[str, Report]) -> None:
    """A dashed line for the ANN; one for each, in its method's colour, where the reports have different ones."""
    references = [(i, name, r.reference_accuracy) for i, (name, r) in enumerate(reports.items())]
    known = [(i, name, accuracy) for i, name, accuracy in references if accuracy is not None]
    shared = len({accuracy for _, _, accuracy in known}) == 1
    for index, name, accuracy in known[:1] if shared else known:
        label, colour = ("ANN", INK) if shared else (f"ANN of {short(name)}", COLOURS[index % len(COLOURS)])
        axes.axhline(100 * accuracy, color=colour, linestyle=(0, (4, 3)), linewidth=1, label=label, zorder=1.5)
