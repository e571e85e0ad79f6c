"""Layer-wise and causal side by side, with the ticks that each needs. The paper has no such table."""

from offspike import methods
from offspike.methods import Method
from offspike.paper.cells import Cell
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import Sheet, percent
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic, accuracies, steps_columns

TICKS_AT = (1, 4)


def cells(setting: Setting) -> list[Cell]:
    """Every calibrated method under both schedules; SRP, which is causal; θ/2, which does not listen."""
    return [setting.accuracy(net, method, stage=4) for net in setting.nets for _, method in _line(setting)]


def show(results: Results, setting: Setting) -> Shown:
    """A row a method and schedule."""
    rows = []
    for net in setting.nets:
        for name, method in _line(setting):
            report = results.report(setting.accuracy(net, method))
            if report is not None:
                ticks = [str(report.cost(t).ticks) for t in TICKS_AT]
                head = (TITLES[net], name, report.cost(1).schedule, percent(report.reference_accuracy))
                rows.append((*head, *ticks, *accuracies(report, setting.readouts)))
    ticks = [f"ticks, T={t}" for t in TICKS_AT]
    columns = ("network", "method", "schedule", "ANN", *ticks, *steps_columns(setting.readouts))
    words = (
        f"ρ = {setting.levels}. Layer-wise: each layer listens to the calibrated output of the one before. Causal: the "
        "whole network runs ρ steps from θ/2, then every layer starts from what it has heard. Ticks: steps of hardware "
        "on which all layers step together, until the output at T. Exact starts at place even layer by layer, and at "
        "place near in the causal schedule, where what was heard comes otherwise the second time."
    )
    title = f"Accuracy (%) under both schedules on {setting.data}"
    return Shown((Sheet(title, columns, tuple(rows), text=3),), words=words)


def _line(setting: Setting) -> list[tuple[str, Method]]:
    rho = setting.levels
    line: list[tuple[str, Method]] = [("θ/2", methods.qcfs()), ("SRP", methods.srp(rho))]
    for name, build in (("COS", methods.cos), ("light", methods.cos_light), ("exact", methods.exact)):
        line += [(name, build(rho)), (name, build(rho, schedule="causal"))]
    return [*line, ("exact, even", methods.exact(rho, place="even", schedule="causal"))]


TOPIC = Topic("causal", "Causal and layer-wise schedules", cells, show)
