"""Figure 3: the distribution of offset spikes before and after the shift."""

from offspike.figures import offset_share
from offspike.paper.cells import Cell
from offspike.paper.drawings import offsets_side_by_side
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import Sheet
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


def compare(results: Results, setting: Setting, names: tuple[str, ...], title: str) -> Shown:
    """Offset spikes of every layer under several methods."""
    figures, rows = {}, []
    for net in setting.nets:
        found = {name: results.offsets(setting.offsets(net, line_up(setting)[name])) for name in names}
        known = {name: layers for name, layers in found.items() if layers is not None}
        if known:
            figures[net] = lambda known=known: offsets_side_by_side(known)
        for name, layers in known.items():
            for index, layer in enumerate(layers.values(), 1):
                shares = offset_share(layer, "unconstrained")
                rows.append((TITLES[net], name, f"L{index}", *(f"{share:.3f}" for share in shares)))
    columns = ("network", "method", "layer", "ψ = ±1 (%)", "ψ = ±2 (%)", "∣ψ∣ ≥ 3 (%)")
    return Shown((Sheet(f"Offset spikes {title}, against the ANN", columns, tuple(rows), text=3),), figures)


TOPIC = Topic("figure-3", "Figure 3: offset spikes before and after shifting", cells, show)
