"""One neuron, step by step: its potential and the layer's spikes from θ/2 and from the calibrated start.

Everything is drawn here; every part belongs to a step (``data-t``), and the page's script only fades what comes later.
"""

from collections.abc import Callable
from html import escape

from offspike.look.closeup import CloseUp, LayerView, Run
from offspike.look.findings import Findings
from offspike.page import markup
from offspike.page.traces import raster, trace

__all__ = ["close_up"]


def close_up(findings: Findings) -> str:
    """A slider over T, a choice of neurons, and what each of them does."""
    look = findings.close_up
    views = [view for view in look.layers if view.traced] if look else []
    if look is None or not views:
        return ""
    owed = [abs(int(view.before.psi[look.rho - 1, 0])) for view in views]
    first = (owed.index(max(owed)), 0)  # the neuron that owes most is shown first
    options, panels = [], []
    for k, view in enumerate(views):
        choices = "".join(
            f'<option value="{k}-{n}"{" selected" if (k, n) == first else ""}>{_choice(view, n, look.rho)}</option>'
            for n in range(view.traced)
        )
        options.append(f'<optgroup label="{escape(view.name)}">{choices}</optgroup>')
        panels += [_neuron(look, view, f"{k}-{n}", n, shown=(k, n) == first) for n in range(view.traced)]
    panels += [_layer(look, view, k, shown=k == first[0]) for k, view in enumerate(views)]
    controls = (
        '<div class="controls" hidden>\n'
        f'<label for="neuron">Neuron</label><select id="neuron">{"".join(options)}</select>\n'
        f'<label for="step">Time-step T</label><input id="step" type="range" min="1" max="{look.steps}" step="1" '
        f'value="{look.rho}">\n<output for="step neuron" id="said"></output>\n</div>\n'
    )
    return _sample(findings, look) + f'<div id="look">\n{controls}{"".join(panels)}</div>\n'


def _sample(findings: Findings, look: CloseUp) -> str:
    name = findings.class_name
    said = f"{name(look.given[0])} at every T"
    if len(set(look.given)) > 1:
        said = ", ".join(f"{name(k)} at T = {t}" for t, k in enumerate(look.given, 1))
    ann = "" if look.expected is None else f" The ANN answers {name(look.expected)}."
    text = (
        f"The first sample is of class {name(look.label)}.{ann} {look.method} answers {said}. Below, the same input "
        "current meets a neuron twice: from θ/2, and from the start that calibration chose for this sample. A line "
        "rises to v(t−1) + I(t) and falls by θ at a spike. A v(t) inside the band, half a threshold around v(0), owes "
        "nothing: ψ = 0, unless counts are at their bounds."
    )
    image = markup.picture(look.sample, f"The first sample, {name(look.label)}")
    return f'<div class="sample">{image}{markup.paragraph(text)}</div>\n'


def _choice(view: LayerView, n: int, rho: int) -> str:
    before, after = (int(run.psi[rho - 1, n]) for run in (view.before, view.after))
    return escape(f"{view.name}, neuron {view.neurons[n]}: ψ = {_signed(before)} before, {_signed(after)} after")


def _neuron(look: CloseUp, view: LayerView, key: str, n: int, *, shown: bool) -> str:
    label = f"{view.name}, neuron {view.neurons[n]}"
    limits = _limits(view, n)
    figures = _pair(view, look, lambda run, title: trace(view, run, n, look.rho, f"{label}, {title}", limits))
    steps = range(1, look.steps + 1)
    rows = "".join(_row(view, n, t) for t in steps)
    head = "".join(
        f'<th scope="col">{text}</th>'
        for text in ("t", "I(t)/θ", "v(t)/θ", "spikes", "ψ", "v(t)/θ", "spikes", "ψ")
    )  # fmt: skip
    groups = (
        '<td colspan="2"></td><th scope="colgroup" colspan="3">before</th><th scope="colgroup" colspan="3">after</th>'
    )
    caption = f"{label}: current, potential, spikes so far and spikes owed after each step."
    table = (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">\n<table>\n'
        f"<caption><span>{escape(caption)}</span></caption>\n<thead><tr>{groups}</tr><tr>{head}</tr></thead>\n"
        f"<tbody>{rows}</tbody>\n</table>\n</div>\n"
    )
    hidden = "" if shown else " hidden"
    return f'<div data-neuron="{key}"{hidden}>\n{figures}{markup.details("The same as a table", table)}</div>\n'


def _layer(look: CloseUp, view: LayerView, k: int, *, shown: bool) -> str:
    rasters = _pair(view, look, lambda run, title: raster(view, run, title))
    return (
        f'<div data-layer="{k}"{"" if shown else " hidden"}>\n<h3>Spikes of {escape(view.name)}</h3>\n{rasters}</div>\n'
    )


def _row(view: LayerView, n: int, t: int) -> str:
    theta = float(view.theta[n])
    cells, said = [f"{float(view.current[t - 1, n]) / theta:.3f}"], []
    for run, title in ((view.before, "before"), (view.after, "after")):
        count, psi = int(run.spikes[:t, n].sum()), int(run.psi[t - 1, n])
        cells += [f"{float(run.potential[t - 1, n]) / theta:.3f}", str(count), _signed(psi)]
        said.append(f"{title} {count} {'spike' if count == 1 else 'spikes'}, ψ = {_signed(psi)}")
    say = escape(f"T = {t}: {'; '.join(said)}.")
    return f'<tr data-t="{t}" data-say="{say}"><th scope="row">{t}</th>{"".join(f"<td>{c}</td>" for c in cells)}</tr>'


def _pair(view: LayerView, look: CloseUp, draw: Callable[[Run, str], str]) -> str:
    runs = {"before, from θ/2": view.before, f"after, {look.method}": view.after}
    return markup.grid(draw(run, title) for title, run in runs.items())


def _limits(view: LayerView, n: int) -> tuple[float, float]:
    """The lowest and highest potential of both runs, in units of θ, the band and the threshold included."""
    theta, values = float(view.theta[n]), [1.0]
    for run in (view.before, view.after):
        values += [float(v) / theta for v in _path(view, run, n)]
        values += [float(run.v0[n]) / theta - 0.5, float(run.v0[n]) / theta + 0.5]
    return min(values) - 0.1, max(values) + 0.25


def _path(view: LayerView, run: Run, n: int) -> list[float]:
    """Potentials and the peaks before a spike takes θ away."""
    after = run.potential[:, n]
    peaks = after + view.theta[n] * run.spikes[:, n]
    return [float(run.v0[n]), *after.tolist(), *peaks.tolist()]


def _signed(psi: int) -> str:
    return f"{psi:+d}" if psi else "0"
