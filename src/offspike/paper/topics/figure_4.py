"""Figure 4: accuracy against T for several ρ.

At ρ = L the readout at T = ρ can be lossless; a larger ρ can do a little better, at a price in ticks.
"""

from functools import partial

from offspike import methods
from offspike.figures import accuracy_against_steps
from offspike.paper.cells import Cell
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import Sheet
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic, accuracies, steps_columns

RHOS = (1, 2, 4, 8, 16)


def cells(setting: Setting) -> list[Cell]:
    """COS at each ρ."""
    return [setting.accuracy(net, methods.cos(rho), stage=6) for net in setting.nets for rho in RHOS]


def show(results: Results, setting: Setting) -> Shown:
    """A line a ρ."""
    figures, rows = {}, []
    for net in setting.nets:
        found = {f"ρ = {rho}": results.report(setting.accuracy(net, methods.cos(rho))) for rho in RHOS}
        reports = {name: report for name, report in found.items() if report is not None}
        rows += [(TITLES[net], name, *accuracies(report, setting.readouts)) for name, report in reports.items()]
        if reports:
            figures[net] = partial(accuracy_against_steps, reports, within=15)
    columns = ("network", "ρ", *steps_columns(setting.readouts))
    title = f"Accuracy (%) of COS on {setting.data}, L = {setting.levels}"
    return Shown((Sheet(title, columns, tuple(rows), text=2),), figures)


TOPIC = Topic("figure-4", "Figure 4: accuracy for several ρ", cells, show)
