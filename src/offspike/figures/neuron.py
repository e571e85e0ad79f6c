"""One neuron's potential, before and after its v(0) is shifted."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offspike import equations, ops
from offspike.figures.style import COLOURS, GREYS, MUTED, WIDTH, legend, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["membrane_trace"]


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
