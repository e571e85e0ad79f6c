"""How figures look, and how they are written: readable in grey and by the colour-blind.

Nothing here touches pyplot's state, and matplotlib is imported when a figure is drawn.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["close_up", "layer_panel", "legend", "line", "log2_axis", "one_panel", "save", "short", "style", "to_svg"]

# Okabe and Ito's colours, told apart with any colour vision; marker and dashes repeat what the colour says.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (3, 1, 1, 1)), (0, (1.5, 1)))
GREYS = ("#a6cbe3", "#3f88bd", "#0b3c6f")  # |ψ| = 1, 2, >= 3: the darker, the worse
INK, MUTED = "#222222", "#666666"
WIDTH = 4.8  # inches: one column of a page, and still readable on a phone

STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "text.parse_math": False,  # a "$" in the name of a layer is a "$"
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "svg.fonttype": "none",  # text stays text: small, sharp, and it can be searched
    "svg.hashsalt": "offspike",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the house style: a ``with`` block, or a decorator."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


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


def one_panel(height: float = 3.5) -> tuple["Figure", "Axes"]:
    """A figure with one pair of axes and a grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(True)
    return figure, axes


def layer_panel(names: list[str]) -> tuple["Figure", "Axes"]:
    """A row a layer, the first on top."""
    figure, axes = one_panel(1.15 + 0.24 * max(len(names), 4))
    axes.grid(False, axis="y")
    axes.set_yticks(range(len(names)), [short(name, keep_end=True) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("layer", labelpad=8)
    return figure, axes


def line(axes: "Axes", index: int, name: str, x: Sequence[float], y: Sequence[float], *, every: bool = False) -> None:
    """A method's line, with a marker at each T up to 8 and at powers of two beyond (or at ``every`` point)."""
    marked = [t - 1 for t in range(1, len(x) + 1) if every or len(x) <= 8 or t & (t - 1) == 0]
    colour, marker, dashes = (looks[index % len(looks)] for looks in (COLOURS, MARKERS, DASHES))
    drawn = axes.plot(x, y, color=colour, marker=marker, linestyle=dashes, markevery=marked, label=short(name))[0]
    drawn.set(markeredgecolor="white", markeredgewidth=0.7)


def close_up(axes: "Axes", within: float | None) -> None:
    """Show only what lies ``within`` below the highest line: the part where good methods differ."""
    if within is not None:
        top = max(float(np.max(line.get_ydata())) for line in axes.get_lines())
        axes.set_ylim(top - within, top + within / 20)


def log2_axis(axes: "Axes") -> None:
    """T or ticks on a scale on which each doubling is as wide."""
    from matplotlib.ticker import NullLocator, StrMethodFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def legend(figure: "Figure", axes: "Axes") -> None:
    """Below the axes, in as many columns as the names allow: no line is ever covered."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), 56 // (max(map(len, labels)) + 7)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9, handlelength=2.6)


def short(name: str, *, keep_end: bool = False, longest: int = 28) -> str:
    """The name where it fits, without a leading underscore, which matplotlib would take for "not in the legend"."""
    name = " ".join(name.split())
    name = f" {name}" if name.startswith("_") else name
    if len(name) <= longest:
        return name
    return f"…{name[-longest + 1 :]}" if keep_end else f"{name[: longest - 1]}…"
