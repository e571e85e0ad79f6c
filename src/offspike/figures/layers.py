"""Bars, a row a layer: offset spikes, firing rates, energy."""

from typing import TYPE_CHECKING, Literal

from offspike.energy import Energy
from offspike.figures.style import COLOURS, GREYS, layer_panel, legend, style
from offspike.record import LayerRecord
from offspike.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["energy", "firing_rates", "offset_share", "offset_spikes"]


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
def energy(spent: Energy) -> "Figure":
    """Nanojoules for one sample, layer by layer, and what the ANN spends there."""
    figure, axes = layer_panel(list(spent.layers))
    rows = range(len(spent.layers))
    parts = {
        "synaptic operations": [1e9 * part.synaptic_joules() for part in spent.layers.values()],
        "multiplications": [1e9 * part.mac_joules() for part in spent.layers.values()],
        "membrane updates": [1e9 * part.update_joules() for part in spent.layers.values()],
    }
    left = [0.0] * len(spent.layers)
    for (label, widths), colour in zip(parts.items(), GREYS, strict=True):
        axes.barh(rows, widths, 0.72, left, color=colour, edgecolor="white", label=label)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    ann = [1e9 * part.ann_joules() for part in spent.layers.values()]
    axes.plot(
        *zip(*((value, row) for row, value in enumerate(ann) if value), strict=True),
        "D", color=COLOURS[1], markeredgecolor="white", label="the ANN",
    )  # fmt: skip
    axes.set_xlim(0, 1.05 * max(*left, *ann, 1e-9))
    axes.set_xlabel("energy of one sample (nJ)")
    legend(figure, axes)
    return figure
