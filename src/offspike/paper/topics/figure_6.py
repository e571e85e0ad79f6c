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
    """Bars side by side, and the figures behind them."""
    return compare(results, setting, SHOWN, "after iterating")


TOPIC = Topic("figure-6", "Figure 6: offset spikes after iterating", cells, show)
