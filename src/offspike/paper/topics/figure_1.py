"""Figure 1: the distribution of offset spikes in each layer at θ/2, without and with the constraint ψ = 0 before it."""

from functools import partial

from offspike.figures import offset_spikes
from offspike.paper.cells import Cell
from offspike.paper.setting import Setting
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic
from offspike.paper.topics.iterations import line_up


def cells(setting: Setting) -> list[Cell]:
    """θ/2 on every network."""
    return [setting.offsets(net, line_up(setting)["baseline (θ/2)"]) for net in setting.nets]


def show(results: Results, setting: Setting) -> Shown:
    """Two panels of bars a network."""
    figures = {}
    for net, cell in zip(setting.nets, cells(setting), strict=True):
        layers = results.offsets(cell)
        if layers is not None:
            figures[f"{net}-without-constraint"] = partial(offset_spikes, layers, "unconstrained")
            figures[f"{net}-with-constraint"] = partial(offset_spikes, layers, "constrained")
    words = "Offset spikes of SNNs that start at θ/2: against the ANN, and against what the layer's own input asks for."
    return Shown(figures=figures, words=words)


TOPIC = Topic("figure-1", "Figure 1: offset spikes in each layer", cells, show)
