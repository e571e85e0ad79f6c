"""Layer by layer: offset spikes, firing rates, energy."""

from collections.abc import Mapping
from typing import Literal

from offspike import figures as draw
from offspike.energy import CostModel
from offspike.look.findings import Findings
from offspike.page import markup
from offspike.page.markup import NONE, amount, percent
from offspike.record import LayerRecord
from offspike.report import Report

__all__ = ["energy", "firing_rates", "offset_spikes"]


def offset_spikes(records: dict[str, dict[str, LayerRecord]]) -> str:
    """How far each layer is from what the ANN wanted of it."""
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
        method: {n: [percent((j := getattr(r, judgement)).ratio), f"{j.mse:.4f}"] for n, r in layers.items()}
        for method, layers in seen.items()
    }
    caption = f"Offset spikes, {judgement}: the share of neurons with ψ = 0 (%), and the mean of ψ²."
    heading = f"<h3>{judgement.capitalize()}</h3>\n" + markup.paragraph(meaning)
    return heading + markup.grid(plots) + _by_layer(caption, cells, ["ψ\u00a0=\u00a00", "mean ψ²"])


def firing_rates(reports: dict[str, Report]) -> str:
    """How many neurons fire at a step."""
    if not reports:
        return ""
    rates = {method: report.rates for method, report in reports.items()}
    limit = max(100 * float(max(r.mean(), r[0])) for layers in rates.values() for r in layers.values())
    text = "The share of neurons that fire at a step."
    plots = [markup.figure(f"{m}.", text, draw.firing_rates(report, limit=limit)) for m, report in reports.items()]
    cells = {method: {name: [percent(r.mean())] for name, r in layers.items()} for method, layers in rates.items()}
    return markup.grid(plots) + _by_layer("Mean firing rate (%) over all steps run.", cells, ["rate"])


def energy(findings: Findings) -> str:
    """What a sample costs in joules, layer by layer, and what the ANN would cost."""
    spent = findings.energies
    if not spent:
        return ""
    model, t = CostModel(), findings.chosen
    rows = []
    for name, e in spent.items():
        counts = (amount(count / e.samples) for count in (e.synaptic_operations, e.macs, e.membrane_updates))
        rows.append([name, *counts, _nano(e.joules()), _nano(e.ann_joules()), f"{e.joules() / e.ann_joules():.2f}"])
    head = ["Method", "Synaptic operations", "MACs", "Membrane updates", "nJ", "ANN, nJ", "SNN / ANN"]
    text = (
        f"At T = {t}, phase 1 included. The model: {1e12 * model.mac:g} pJ a multiply-accumulate, "
        f"{1e12 * model.accumulate:g} pJ an accumulate, {1e12 * model.update:g} pJ a membrane update (32-bit floating "
        "point at 45 nm). Moving data to and from memory is not counted."
    )
    focus = findings.focus(spent)
    plot = markup.figure(f"{focus}.", "Energy of one sample.", draw.energy(spent[focus]))
    cells = {name: {layer: [_nano(part.joules())] for layer, part in e.layers.items()} for name, e in spent.items()}
    cells["ANN"] = {layer: [_nano(part.ann_joules())] for layer, part in next(iter(spent.values())).layers.items()}
    table = markup.table(f"What one sample costs at T = {t}, on average.", head, rows)
    by_layer = _by_layer(f"Energy of one sample (nJ) at T = {t}, by layer.", cells, ["nJ"])
    return (
        markup.paragraph(text) + table + markup.grid([plot]) + markup.details("Energy by layer, as a table", by_layer)
    )


def _nano(joules: float) -> str:
    return f"{1e9 * joules:,.3g}" if joules < 1e-7 else f"{1e9 * joules:,.0f}"


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
