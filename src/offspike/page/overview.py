"""The finding in words; accuracy and agreement against T; what T really costs."""

import math
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from offspike import figures as draw
from offspike.look.findings import Findings
from offspike.page import markup
from offspike.page.markup import NONE, amount, percent
from offspike.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["accuracy", "headline", "latency"]

CLOSE = 5.0  # percentage points below the best: where good methods differ


def headline(findings: Findings) -> str:
    """The finding in words, and the best method at T = 1, 2 and ρ."""
    reports = findings.reports
    if not reports:
        return ""
    sentences, tiles = [], []
    for t in sorted({1, 2, findings.chosen} & set(range(1, findings.most_steps + 1))):
        names = findings.best(t)
        best, who = min((reports[name] for name in names), key=lambda report: report.cost(t).ticks), ", ".join(names)
        right, against, spent = percent(best.accuracy[t - 1]), _against_ann(best, t), best.cost(t)
        tied = " (a tie)" if len(names) > 1 else ""
        sentences.append(f"At T = {t} the best is {who}{tied}: {right}\u00a0% right{against and ', ' + against}.")
        price = f"{'from ' if tied else ''}{_ticks(spent.ticks)}, {spent.schedule}"
        price += f", ρ = {spent.rho}" if spent.rho else ""
        parts = {"at": f"Best at T = {t}", "value": f"{right}\u00a0%", "who": who, "gap": against, "price": price}
        tiles.append("".join(f'<span class="{kind}">{escape(text)}</span>' for kind, text in parts.items() if text))
    samples = min(report.samples for report in reports.values())
    anns = {percent(report.reference_accuracy) for report in reports.values() if report.agree is not None}
    sentences += [f"The ANN itself is right on {' or '.join(sorted(anns))}\u00a0%."] if anns else []
    return (
        markup.paragraph(" ".join(sentences), kind="finding")
        + f'<ul class="tiles">{"".join(f"<li>{tile}</li>" for tile in tiles)}</ul>\n'
        + markup.paragraph(
            f"{samples:,} samples: one sample is {100 / samples:.2g} percentage points.{_chance(findings)}",
            kind="muted",
        )
    )


def _chance(findings: Findings) -> str:
    """How far an accuracy would move with other samples: √(p(1 − p)/n)."""
    t = findings.chosen
    best = findings.reports[findings.best(t)[0]]
    p = float(best.accuracy[t - 1])
    if best.correct.dtype.kind != "i" or not 0 < p < 1:
        return ""
    error = 100 * math.sqrt(p * (1 - p) / best.samples)
    return (
        f" An accuracy of {percent(p)}\u00a0% has a standard error of {error:.2f}: smaller differences may be chance."
    )


def _against_ann(report: Report, t: int) -> str:
    if report.reference_accuracy is None:
        return ""
    gap = int(report.correct[t - 1]) - report.reference_correct
    if not gap:
        return "as often as the ANN"
    return f"{100 * abs(gap) / report.samples:.2f} points {'above' if gap > 0 else 'below'} the ANN"


def accuracy(findings: Findings) -> str:
    """Accuracy and agreement at each T, as tables and lines."""
    reports = findings.reports
    if not reports:
        return ""
    plots = _with_close_up("Accuracy against T.", "The dashed line is the ANN.", draw.accuracy_against_steps, reports)
    known = {name: report.agreement for name, report in reports.items() if report.agreement is not None}
    table = ""
    if known:
        text = "The share of samples on which the spiking network and the ANN give the same answer."
        plots += _with_close_up("Agreement with the ANN.", text, draw.agreement_against_steps, reports)
        steps = _columns(findings)
        rows = [[name, *(percent(a[t - 1]) if t <= len(a) else NONE for t in steps)] for name, a in known.items()]
        table = markup.table(f"Agreement (%). {text}", ["Method", *(f"T = {t}" for t in steps)], rows)
    return _accuracy_table(findings) + _what_steps_mean(findings) + markup.grid(plots) + table


def _with_close_up(title: str, text: str, plot: "Callable[..., Figure]", reports: dict[str, Report]) -> list[str]:
    """The figure, and beside it the part next to the best where the whole range would hide it."""
    whole = [markup.figure(title, text, plot(reports))]
    if _spread(reports) <= 2 * CLOSE:
        return whole
    closer = plot(reports, within=CLOSE)
    return [*whole, markup.figure(f"{title.rstrip('.')}, closer.", f"Only {CLOSE:g} points below the best.", closer)]


def _accuracy_table(findings: Findings) -> str:
    steps, chosen, rows = _columns(findings), findings.chosen, []
    for name, report in findings.reports.items():
        accuracies = [percent(report.accuracy[t - 1]) if t <= report.steps else NONE for t in steps]
        spent = report.cost(chosen)
        fits = chosen <= report.steps
        price = [amount(spent.ticks), amount(report.spikes(chosen))] if fits else [NONE, NONE]
        ann, rho = percent(report.reference_accuracy), str(spent.rho) if spent.rho else NONE
        rows.append([name, ann, *accuracies, rho, spent.schedule, *price])
    names = list(findings.reports)
    strong = {(names.index(name), 2 + column) for column, t in enumerate(steps) for name in findings.best(t)}
    caption = f"Accuracy (%) at each T, the best in bold. Ticks, and mean spikes per sample, at T = {chosen}."
    head = ["Method", "ANN", *(f"T = {t}" for t in steps), "ρ", "Schedule", "Ticks", "Spikes"]
    return markup.table(caption, head, rows, strong=strong)


def _what_steps_mean(findings: Findings) -> str:
    """What T says and what it does not, for the schedules in use."""
    costs = {name: report.cost(1) for name, report in findings.reports.items()}
    lines = {
        "layerwise": "In the layer-wise schedule every layer has seen ρ steps of its input whatever T is; T only says "
        "how many steps of the last layer's input are read out. That is why T = 1 can equal the ANN. The true cost is "
        "max(T, ρ) synaptic passes, and where all layers step together the output at T comes after "
        "layers × iterations × ρ + T ticks.",
        "causal": "In the causal schedule the whole network listens once, iterations × ρ ticks, and then runs T.",
        "uncalibrated": "Without calibration T steps are T ticks.",
    }
    used = [line for schedule, line in lines.items() if schedule in {spent.schedule for spent in costs.values()}]
    best = findings.best(1)[0]
    example = f"Here the best at T = 1, {best}, needs {_ticks(costs[best].ticks)} for it."
    return markup.paragraph(" ".join([*used, example]), kind="note", lead="What T means.")


def latency(findings: Findings) -> str:
    """What a readout at T costs: passes, updates, ticks."""
    reports = findings.reports
    if not reports:
        return ""
    moments, rows = sorted({1, findings.chosen}), []
    for name, report in reports.items():
        costs = [report.cost(t) for t in moments]
        spent = [(c.synaptic_passes, c.membrane_updates, c.ticks) for c in costs]
        rows.append([name, costs[0].schedule, *(amount(number) for three in spent for number in three)])
    head = ["Method", "Schedule", *("Synaptic passes", "Membrane updates", "Ticks") * len(moments)]
    groups = [("", 2), *((f"T = {t}", 3) for t in moments)]
    table = markup.table("What a readout at T costs.", head, rows, groups=groups)
    within = 2 * CLOSE if _spread(reports) > 2 * CLOSE else None
    text = "A tick is one step of hardware on which all layers step together. One marker for each T = 1, 2, 4, …"
    text += f"; only the {within:g} points below the best." if within else ""
    plot = draw.accuracy_against_ticks(reports, within=within)
    return markup.grid([markup.figure("Accuracy against ticks.", text, plot)]) + table


def _columns(findings: Findings) -> list[int]:
    """T = 1, 2, 4, … 32 as far as it was run, and the chosen one."""
    return sorted({t for t in (1, 2, 4, 8, 16, 32) if t <= findings.most_steps} | {findings.chosen})


def _spread(reports: dict[str, Report]) -> float:
    """How far the worst accuracy is from the best, in percentage points."""
    values = [float(value) for report in reports.values() for value in report.accuracy]
    return 100 * (max(values) - min(values))


def _ticks(number: int) -> str:
    return "1 tick" if number == 1 else f"{number:,} ticks"
