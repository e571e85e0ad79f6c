"""The report as one HTML file: what was found, in words, tables and figures, and how it was made.

The file needs nothing else: no network, no scripts, no fonts. Every word and number in it is derived from the reports.
"""

from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Literal

from offspike import figures as draw
from offspike import markup
from offspike.certificate import Certificate
from offspike.record import LayerRecord
from offspike.report import Report
from offspike.seal import certificate_section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_page"]

CLOSE = 5.0  # percentage points below the best: where good methods differ
NONE = "–"

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
$css</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<h1>$title</h1>
$headline
<nav aria-label="Contents"><ul>
$contents
</ul></nav>
</header>
<main id="main">
$sections</main>
<footer><p>Made by offspike. One file; nothing is loaded from elsewhere.</p></footer>
</body>
</html>
""")


def write_page(
    path: str | Path,
    *,
    title: str,
    reports: dict[str, Report],
    records: dict[str, dict[str, LayerRecord]] | None = None,
    provenance: dict[str, str],
    figures: "Mapping[str, Figure] | None" = None,
    certificate: Certificate | None = None,
) -> None:
    """Write the page on ``reports``, by name of the method.

    ``records`` adds offset spikes (by method, then layer); ``figures`` adds figures under their captions, such as a
    ``membrane_trace``; ``certificate`` adds what ``osp.certify`` proved; ``provenance`` says how it was made: command,
    versions, data, samples, seed.
    """
    if not reports:
        raise ValueError("a page needs at least one report")
    sections = {
        "Accuracy": _accuracy(reports),
        "True latency": _latency(reports),
        "Offset spikes": _offset_spikes(records or {}),
        "Firing rates": _firing_rates(reports),
        "A closer look": markup.grid(markup.figure(text, "", figure) for text, figure in (figures or {}).items()),
        "Certificate": certificate_section(certificate) if certificate else "",
        "How it was made": markup.definitions(provenance),
    }
    shown = {name: body for name, body in sections.items() if body}
    html = PAGE.substitute(
        title=escape(title),
        css=files("offspike").joinpath("page.css").read_text(encoding="utf-8"),
        headline=_headline(reports),
        contents="\n".join(f'<li><a href="#{markup.slug(name)}">{name}</a></li>' for name in shown),
        sections="".join(markup.section(name, body) for name, body in shown.items()),
    )
    try:
        Path(path).write_text(markup.with_unique_ids(html), encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, f"cannot write the page: {error.strerror}", str(path)) from error


def _headline(reports: dict[str, Report]) -> str:
    """The finding in words, and the best method at T = 1, 2 and ρ."""
    sentences, tiles = [], []
    for t in sorted({1, 2, _chosen_step(reports)} & set(range(1, _most_steps(reports) + 1))):
        names = _best(reports, t)
        best, who = min((reports[name] for name in names), key=lambda report: report.cost(t).ticks), ", ".join(names)
        right, against, spent = _percent(best.accuracy[t - 1]), _against_ann(best, t), best.cost(t)
        tied = " (a tie)" if len(names) > 1 else ""
        sentences.append(f"At T = {t} the best is {who}{tied}: {right}\u00a0% right{against and ', ' + against}.")
        price = f"{'from ' if tied else ''}{_ticks(spent.ticks)}, {spent.schedule}"
        price += f", ρ = {spent.rho}" if spent.rho else ""
        parts = {"at": f"Best at T = {t}", "value": f"{right}\u00a0%", "who": who, "gap": against, "price": price}
        tiles.append("".join(f'<span class="{kind}">{escape(text)}</span>' for kind, text in parts.items() if text))
    samples = min(report.samples for report in reports.values())
    anns = {_percent(report.reference_accuracy) for report in reports.values() if report.agree is not None}
    sentences += [f"The ANN itself is right on {' or '.join(sorted(anns))}\u00a0%."] if anns else []
    return (
        markup.paragraph(" ".join(sentences), kind="finding")
        + f'<ul class="tiles">{"".join(f"<li>{tile}</li>" for tile in tiles)}</ul>\n'
        + markup.paragraph(f"{samples:,} samples: one sample is {100 / samples:.2g} percentage points.", kind="muted")
    )


def _against_ann(report: Report, t: int) -> str:
    if report.reference_accuracy is None:
        return ""
    gap = int(report.correct[t - 1]) - report.reference_correct
    if not gap:
        return "as often as the ANN"
    return f"{100 * abs(gap) / report.samples:.2f} points {'above' if gap > 0 else 'below'} the ANN"


def _accuracy(reports: dict[str, Report]) -> str:
    plots = _with_close_up("Accuracy against T.", "The dashed line is the ANN.", draw.accuracy_against_steps, reports)
    known = {name: report.agreement for name, report in reports.items() if report.agreement is not None}
    table = ""
    if known:
        text = "The share of samples on which the spiking network and the ANN give the same answer."
        plots += _with_close_up("Agreement with the ANN.", text, draw.agreement_against_steps, reports)
        steps = _columns(reports)
        rows = [[name, *(_percent(a[t - 1]) if t <= len(a) else NONE for t in steps)] for name, a in known.items()]
        table = markup.table(f"Agreement (%). {text}", ["Method", *(f"T = {t}" for t in steps)], rows)
    return _accuracy_table(reports) + _what_steps_mean(reports) + markup.grid(plots) + table


def _with_close_up(title: str, text: str, plot: "Callable[..., Figure]", reports: dict[str, Report]) -> list[str]:
    """The figure, and beside it the part next to the best where the whole range would hide it."""
    whole = [markup.figure(title, text, plot(reports))]
    if _spread(reports) <= 2 * CLOSE:
        return whole
    closer = plot(reports, within=CLOSE)
    return [*whole, markup.figure(f"{title.rstrip('.')}, closer.", f"Only {CLOSE:g} points below the best.", closer)]


def _accuracy_table(reports: dict[str, Report]) -> str:
    steps, chosen, rows = _columns(reports), _chosen_step(reports), []
    for name, report in reports.items():
        accuracies = [_percent(report.accuracy[t - 1]) if t <= report.steps else NONE for t in steps]
        spent = report.cost(chosen)
        fits = chosen <= report.steps
        price = [_amount(spent.ticks), _amount(report.spikes(chosen))] if fits else [NONE, NONE]
        ann, rho = _percent(report.reference_accuracy), str(spent.rho) if spent.rho else NONE
        rows.append([name, ann, *accuracies, rho, spent.schedule, *price])
    names = list(reports)
    strong = {(names.index(name), 2 + column) for column, t in enumerate(steps) for name in _best(reports, t)}
    caption = f"Accuracy (%) at each T, the best in bold. Ticks, and mean spikes per sample, at T = {chosen}."
    head = ["Method", "ANN", *(f"T = {t}" for t in steps), "ρ", "Schedule", "Ticks", "Spikes"]
    return markup.table(caption, head, rows, strong=strong)


def _what_steps_mean(reports: dict[str, Report]) -> str:
    """What T says and what it does not, for the schedules in use."""
    costs = {name: report.cost(1) for name, report in reports.items()}
    lines = {
        "layerwise": "In the layer-wise schedule every layer has seen ρ steps of its input whatever T is; T only says "
        "how many steps of the last layer's input are read out. That is why T = 1 can equal the ANN. The true cost is "
        "max(T, ρ) synaptic passes, and where all layers step together the output at T comes after "
        "layers × iterations × ρ + T ticks.",
        "causal": "In the causal schedule the whole network listens once, iterations × ρ ticks, and then runs T.",
        "uncalibrated": "Without calibration T steps are T ticks.",
    }
    used = [line for schedule, line in lines.items() if schedule in {spent.schedule for spent in costs.values()}]
    best = _best(reports, 1)[0]
    example = f"Here the best at T = 1, {best}, needs {_ticks(costs[best].ticks)} for it."
    return markup.paragraph(" ".join([*used, example]), kind="note", lead="What T means.")


def _latency(reports: dict[str, Report]) -> str:
    moments, rows = sorted({1, _chosen_step(reports)}), []
    for name, report in reports.items():
        costs = [report.cost(t) for t in moments]
        spent = [(c.synaptic_passes, c.membrane_updates, c.ticks) for c in costs]
        rows.append([name, costs[0].schedule, *(_amount(number) for three in spent for number in three)])
    head = ["Method", "Schedule", *("Synaptic passes", "Membrane updates", "Ticks") * len(moments)]
    groups = [("", 2), *((f"T = {t}", 3) for t in moments)]
    table = markup.table("What a readout at T costs.", head, rows, groups=groups)
    within = 2 * CLOSE if _spread(reports) > 2 * CLOSE else None
    text = "A tick is one step of hardware on which all layers step together. One marker for each T = 1, 2, 4, …"
    text += f"; only the {within:g} points below the best." if within else ""
    plot = draw.accuracy_against_ticks(reports, within=within)
    return markup.grid([markup.figure("Accuracy against ticks.", text, plot)]) + table


def _offset_spikes(records: dict[str, dict[str, LayerRecord]]) -> str:
    meanings: dict[Literal["unconstrained", "constrained"], str] = {
        "unconstrained": "Against the ANN's own activation of the same sample: errors of earlier layers count too.",
        "constrained": "Against what the ANN makes of the input that a layer really got: the layer's own error alone.",
    }
    intro = "ψ is how many spikes a neuron owes (ψ > 0) or has fired too many (ψ < 0) over the steps that it ran."
    body = "".join(_judged(records, judgement, meaning) for judgement, meaning in meanings.items())
    return body and markup.paragraph(intro) + body


def _judged(
    records: dict[str, dict[str, LayerRecord]], judgement: Literal["unconstrained", "constrained"], meaning: str
) -> str:
    seen = {
        method: {name: r for name, r in layers.items() if getattr(r, judgement).total}
        for method, layers in records.items()
    }
    seen = {method: layers for method, layers in seen.items() if layers}
    if not seen:
        return ""
    limit = max(sum(draw.offset_share(r, judgement)) for layers in seen.values() for r in layers.values())
    plots = [
        markup.figure(f"{m}.", f"Offset spikes, {judgement}.", draw.offset_spikes(r, judgement, limit=limit))
        for m, r in seen.items()
    ]
    cells = {
        method: {n: [_percent((j := getattr(r, judgement)).ratio), f"{j.mse:.4f}"] for n, r in layers.items()}
        for method, layers in seen.items()
    }
    caption = f"Offset spikes, {judgement}: the share of neurons with ψ = 0 (%), and the mean of ψ²."
    heading = f"<h3>{judgement.capitalize()}</h3>\n" + markup.paragraph(meaning)
    return heading + markup.grid(plots) + _by_layer(caption, cells, ["ψ\u00a0=\u00a00", "mean ψ²"])


def _firing_rates(reports: dict[str, Report]) -> str:
    rates = {method: report.rates for method, report in reports.items()}
    limit = max(100 * float(max(r.mean(), r[0])) for layers in rates.values() for r in layers.values())
    text = "The share of neurons that fire at a step."
    plots = [markup.figure(f"{m}.", text, draw.firing_rates(report, limit=limit)) for m, report in reports.items()]
    cells = {method: {name: [_percent(r.mean())] for name, r in layers.items()} for method, layers in rates.items()}
    return markup.grid(plots) + _by_layer("Mean firing rate (%) over all steps run.", cells, ["rate"])


def _by_layer(caption: str, cells: Mapping[str, Mapping[str, list[str]]], kinds: list[str]) -> str:
    """A row a layer, ``kinds`` columns a method."""
    names = dict.fromkeys(name for layers in cells.values() for name in layers)
    rows = [
        [name, *(cell for layers in cells.values() for cell in layers.get(name, [NONE] * len(kinds)))] for name in names
    ]
    if len(kinds) == 1:
        return markup.table(caption, ["Layer", *cells], rows)
    groups = [("", 1), *((method, len(kinds)) for method in cells)]
    return markup.table(caption, ["Layer", *kinds * len(cells)], rows, groups=groups)


def _most_steps(reports: dict[str, Report]) -> int:
    return max(report.steps for report in reports.values())


def _chosen_step(reports: dict[str, Report]) -> int:
    """The T at which methods are compared: the largest ρ, or the last step where nothing listens or ρ was not run."""
    rho = max(report.method.rho for report in reports.values())
    return rho if 1 <= rho <= _most_steps(reports) else _most_steps(reports)


def _columns(reports: dict[str, Report]) -> list[int]:
    """T = 1, 2, 4, … 32 as far as it was run, and the chosen one."""
    return sorted({t for t in (1, 2, 4, 8, 16, 32) if t <= _most_steps(reports)} | {_chosen_step(reports)})


def _best(reports: dict[str, Report], t: int) -> list[str]:
    """The methods with the highest accuracy at t."""
    accuracy = {name: float(report.accuracy[t - 1]) for name, report in reports.items() if t <= report.steps}
    return [name for name, value in accuracy.items() if value == max(accuracy.values())]


def _spread(reports: dict[str, Report]) -> float:
    """How far the worst accuracy is from the best, in percentage points."""
    values = [float(value) for report in reports.values() for value in report.accuracy]
    return 100 * (max(values) - min(values))


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.2f}"


def _amount(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def _ticks(number: int) -> str:
    return "1 tick" if number == 1 else f"{number:,} ticks"
