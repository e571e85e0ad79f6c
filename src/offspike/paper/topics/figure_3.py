"""Figure 3: the distribution of offset spikes before and after the shift."""

from functools import partial

from offspike.figures import offset_share
from offspike.paper.cells import Cell
from offspike.paper.drawings import offsets_side_by_side
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet, decimal
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic
from offspike.paper.topics.iterations import line_up

SHOWN = ("baseline (θ/2)", "COS", "exact")


def cells(setting: Setting) -> list[Cell]:
    """θ/2, one shift, exact."""
    return [setting.offsets(net, line_up(setting)[name]) for net in setting.nets for name in SHOWN]


def show(results: Results, setting: Setting) -> Shown:
    """Bars side by side, and the figures behind them."""
    return compare(results, setting, SHOWN, "before and after the shift")


def compare(
    results: Results, setting: Setting, names: tuple[str, ...], title: str, *, log: bool = False, words: str = ""
) -> Shown:
    """Offset spikes of every layer under several methods; ``log``: the figures have a logarithmic axis."""
    figures, rows, width = {}, [], 1
    for net in setting.nets:
        found = {name: results.offsets(setting.offsets(net, line_up(setting)[name])) for name in names}
        known = {name: layers for name, layers in found.items() if layers is not None}
        if known:
            figures[net] = partial(offsets_side_by_side, known, log=log)
        for name, layers in known.items():
            shares = zip(*(offset_share(layer, "unconstrained") for layer in layers.values()), strict=True)
            rows += [
                (TITLES[net], name, size, *(decimal(value) for value in row))
                for size, row in zip(("±1", "±2", "±3 and more"), shares, strict=True)
            ]
            width = max(width, len(layers))
    columns = ("network", "method", "ψ", *(f"L{index}" for index in range(1, width + 1)))
    filled = tuple(row + (MISSING,) * (len(columns) - len(row)) for row in rows)
    sheet = Sheet(f"Neurons (%) with offset spikes {title}, against the ANN", columns, filled, text=3)
    return Shown((sheet,), figures, words)


TOPIC = Topic("figure-3", "Figure 3: offset spikes before and after shifting", cells, show)
