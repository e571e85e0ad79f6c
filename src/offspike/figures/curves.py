"""Lines: accuracy and agreement against T, against ticks, under early exit, and over a training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from offspike.exits import EarlyExit
from offspike.figures.style import COLOURS, INK, WIDTH, close_up, legend, line, log2_axis, one_panel, short, style
from offspike.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "accuracy_against_steps", "accuracy_against_ticks", "agreement_against_steps", "early_exit", "training",
]  # fmt: skip


@style()
def accuracy_against_steps(reports: dict[str, Report], *, within: float | None = None) -> "Figure":
    """Accuracy at each T, a line a method, the ANN dashed; ``within`` shows that many points below the best only."""
    figure, axes = one_panel()
    for index, (name, report) in enumerate(reports.items()):
        line(axes, index, name, list(range(1, report.steps + 1)), (100 * report.accuracy).tolist())
    _steps_axis(axes, max(report.steps for report in reports.values()))
    _ann(axes, reports)
    return _finished(figure, axes, "accuracy (%)", within)


@style()
def agreement_against_steps(reports: dict[str, Report], *, within: float | None = None) -> "Figure":
    """The share of samples on which the spiking network answers as the ANN does, at each T."""
    figure, axes = one_panel()
    shown = [(i, name, r.agreement) for i, (name, r) in enumerate(reports.items()) if r.agreement is not None]
    if not shown:
        raise ValueError("no report has a reference: evaluate(snn, loader, steps=…, reference=ann) counts agreement")
    for index, name, agreement in shown:
        line(axes, index, name, list(range(1, len(agreement) + 1)), (100 * agreement).tolist())
    _steps_axis(axes, max(len(agreement) for _, _, agreement in shown))
    return _finished(figure, axes, "same answer as the ANN (%)", within)


@style()
def accuracy_against_ticks(reports: dict[str, Report], *, within: float | None = None) -> "Figure":
    """Accuracy against true latency: the ticks until the output at each T, calibration included."""
    figure, axes = one_panel()
    for index, (name, report) in enumerate(reports.items()):
        ticks = [report.cost(t).ticks for t in range(1, report.steps + 1)]
        line(axes, index, name, ticks, (100 * report.accuracy).tolist())
    log2_axis(axes)
    axes.set_xlabel("ticks until the output at T (log scale)")
    _ann(axes, reports)
    return _finished(figure, axes, "accuracy (%)", within)


@style()
def early_exit(exits: Mapping[str, EarlyExit]) -> "Figure":
    """Accuracy against the mean T of images that stop when their answer is clear, a line a method."""
    figure, axes = one_panel()
    for index, (name, found) in enumerate(exits.items()):
        line(axes, index, name, found.mean_steps.tolist(), (100 * found.accuracy).tolist(), every=True)
    axes.set_xlabel("mean time-steps T of an image")
    return _finished(figure, axes, "accuracy (%)")


@style()
def training(history: Sequence[Mapping[str, Any]]) -> "Figure":
    """Loss, and accuracy where it was measured, epoch by epoch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    loss, accuracy = figure.subplots(2, sharex=True)
    kinds = {"train_accuracy": "training", "validation_accuracy": "validation", "test_accuracy": "test"}
    for axes in (loss, accuracy):
        axes.grid(True)
    loss.plot([e["epoch"] for e in history], [e["loss"] for e in history], color=INK, label="_loss")
    loss.set_ylabel("loss")
    for index, (key, name) in enumerate(kinds.items()):
        measured = [(e["epoch"], e[key]) for e in history if key in e]
        if measured:
            x, y = zip(*measured, strict=True)
            line(accuracy, index, name, list(x), list(y), every=len(measured) <= 12)
    accuracy.set_ylabel("accuracy (%)")
    accuracy.set_xlabel("epoch")
    legend(figure, accuracy)
    return figure


def _ann(axes: "Axes", reports: dict[str, Report]) -> None:
    """A dashed line for the ANN; one for each, in its method's colour, where the reports have different ones."""
    references = [(i, name, r.reference_accuracy) for i, (name, r) in enumerate(reports.items())]
    known = [(i, name, accuracy) for i, name, accuracy in references if accuracy is not None]
    shared = len({accuracy for _, _, accuracy in known}) == 1
    for index, name, accuracy in known[:1] if shared else known:
        label, colour = ("ANN", INK) if shared else (f"ANN of {short(name)}", COLOURS[index % len(COLOURS)])
        axes.axhline(100 * accuracy, color=colour, linestyle=(0, (4, 3)), linewidth=1, label=label, zorder=1.5)


def _finished(figure: "Figure", axes: "Axes", label: str, within: float | None = None) -> "Figure":
    axes.set_ylabel(label)
    close_up(axes, within)
    legend(figure, axes)
    return figure


def _steps_axis(axes: "Axes", steps: int) -> None:
    axes.set_xlabel("time-steps T (log scale)" if steps > 8 else "time-steps T")
    axes.set_xticks(range(1, steps + 1))
    if steps > 8:
        log2_axis(axes)
