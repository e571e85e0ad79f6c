"""Membrane traces and spike rasters as small SVG drawings whose parts belong to a time-step (``data-t``)."""

import math
from collections.abc import Callable
from html import escape

from offspike.look.closeup import LayerView, Run

__all__ = ["raster", "trace"]

WIDTH, HEIGHT, LEFT, BOTTOM = 380, 220, 44, 34  # room for axes on the left and below


def trace(view: LayerView, run: Run, n: int, rho: int, title: str, limits: tuple[float, float]) -> str:
    """The potential of one neuron, in units of θ: dots are v(t), triangles spikes."""
    theta, low, high = float(view.theta[n]), *limits
    steps = len(run.spikes)
    v0 = float(run.v0[n]) / theta

    def x(t: float) -> float:
        return LEFT + t * (WIDTH - LEFT - 10) / steps

    def y(v: float) -> float:
        return (HEIGHT - BOTTOM) * (high - v) / (high - low)

    top, tall = y(v0 + 0.5), y(v0 - 0.5) - y(v0 + 0.5)
    parts = [
        f'<rect class="band" x="{LEFT}" width="{WIDTH - LEFT - 10}" y="{top:.1f}" height="{tall:.1f}"/>',
        f'<path class="threshold" d="M{LEFT} {y(1):.1f}H{WIDTH - 10}"/>',
        *(
            f'<text x="{LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{_thresholds(v)}</text>'
            for v in _levels(low, high)
        ),
        f'<path class="axis" d="M{LEFT} 0V{HEIGHT - BOTTOM}H{WIDTH - 10}"/>',
        f'<circle class="dot" cx="{x(0):.1f}" cy="{y(v0):.1f}" r="3.5"/>',
        _steps_axis(steps, x),
    ]
    before = v0
    for t in range(1, steps + 1):
        fired, after = int(run.spikes[t - 1, n]), float(run.potential[t - 1, n]) / theta
        peak = after + fired
        rise = f'<path class="line" d="M{x(t - 1):.1f} {y(before):.1f}L{x(t):.1f} {y(peak):.1f}V{y(after):.1f}"/>'
        dot = f'<circle class="dot" cx="{x(t):.1f}" cy="{y(after):.1f}" r="3.5"/>'
        spike = f'<path class="spike" d="M{x(t):.1f} {y(peak) - 12:.1f}l5 9h-10z"/>' if fired else ""
        parts.append(f'<g data-t="{t}">{rise}{dot}{spike}</g>')
        before = after
    count, psi = int(run.spikes[:rho, n].sum()), int(run.psi[rho - 1, n])
    text = f"v(0) = {v0:.3g} θ, {_spikes(count)} in {rho} steps, ψ = {f'{psi:+d}' if psi else '0'}."
    return _figure(title, text, "".join(parts), HEIGHT)


def raster(view: LayerView, run: Run, title: str) -> str:
    """Spikes of some neurons of a layer, a row a neuron; those that can be chosen are marked."""
    steps, rows = run.spikes.shape
    order = sorted(range(rows), key=lambda n: view.neurons[n])
    tall = 7
    height = rows * tall + BOTTOM
    width = (WIDTH - LEFT - 10) / steps

    def x(t: float) -> float:
        return LEFT + (t - 0.5) * width

    parts = [f'<path class="axis" d="M{LEFT} 0V{rows * tall}H{WIDTH - 10}"/>', _steps_axis(steps, x, base=rows * tall)]
    for row, n in enumerate(order):
        if n < view.traced:
            parts.append(f'<path class="mark" d="M{LEFT - 6} {row * tall + tall / 2}h5"/>')
    for t in range(1, steps + 1):
        fired = "".join(
            f"M{x(t):.1f} {row * tall + 1}v{tall - 2}" for row, n in enumerate(order) if run.spikes[t - 1, n]
        )
        if fired:
            parts.append(f'<path class="event" data-t="{t}" d="{fired}"/>')
    text = f"{rows} neurons, a row each; {_spikes(int(run.spikes.abs().sum()))} in {steps} steps. Marked: those above."
    return _figure(title, text, "".join(parts), height)


def _levels(low: float, high: float) -> range:
    """Multiples of θ, at most seven or so, θ itself among them."""
    every = max(1, round((high - low) / 6))
    least = math.ceil(low)
    return range(least + (1 - least) % every, math.floor(high) + 1, every)


def _thresholds(number: int) -> str:
    return {0: "0", 1: "θ", -1: "−θ"}.get(number, f"{number}θ".replace("-", "−"))


def _steps_axis(steps: int, x: Callable[[float], float], base: int = HEIGHT - BOTTOM) -> str:
    every = max(1, -(-steps // 8))
    labels = "".join(
        f'<text x="{x(t):.1f}" y="{base + 15}" text-anchor="middle">{t}</text>' for t in range(every, steps + 1, every)
    )
    middle = LEFT + (WIDTH - LEFT - 10) / 2
    return labels + f'<text x="{middle}" y="{base + 30}" text-anchor="middle">time-step t</text>'


def _figure(title: str, text: str, parts: str, height: int) -> str:
    label = escape(f"{title}. {text}")
    return (
        f"<figure>\n<figcaption><strong>{escape(title)}.</strong> {escape(text)}</figcaption>\n"
        f'<svg class="steps" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height}">{parts}</svg>\n</figure>\n'
    )


def _spikes(count: int) -> str:
    return "1 spike" if count == 1 else f"{count} spikes"
