"""Figure 6: the distribution of offset spikes after iterating the shift."""

from offspike.paper.cells import Cell
from offspike.paper.setting import Setting
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic
from offspike.paper.topics.figure_3 import compare
from offspike.paper.topics.iterations import line_up

SHOWN = ("COS", "COS ×2", "COS ×4", "exact")


def cells(setting: Setting) -> list[Cell]:
    """One, two and four shifts, and exact."""
    return [setting.offsets(net, line_up(setting)[name]) for net in setting.nets for name in SHOWN]


def show(results: Results, setting: Setting) -> Shown:
    """Bars side by side, on an axis that shows the least of them, and the figures behind them."""
    words = (
        "The figures' axis is logarithmic: a shade reaches up to the share of neurons whose |ψ| is at least as large, "
        "and where a bar is missing there are none."
    )
    return compare(results, setting, SHOWN, "after iterating", log=True, words=words)


TOPIC = Topic("figure-6", "Figure 6: offset spikes after iterating", cells, show)
