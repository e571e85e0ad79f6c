"""Table 2: other ways to train spiking networks. The paper's rows, ours beside them, with their true latency."""

from offspike.paper.cells import Cell
from offspike.paper.numbers import printed
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet, percent
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic

STEPS = (1, 2, 4)


def cells(setting: Setting) -> list[Cell]:
    """COS and exact."""
    return [setting.accuracy(net, setting.core()[name], stage=1) for net in setting.nets for name in ("COS", "exact")]


def show(results: Results, setting: Setting) -> Shown:
    """Accuracy at T = 1, 2 and 4; ticks are what step-synchronous hardware needs."""
    rows = []
    for row in printed("table-2"):
        name, accuracy = row["method"].replace("Ours", "COS"), f"{row['accuracy']:.2f}"
        rows.append((row["dataset"], name, row["type"], row["architecture"], "paper", accuracy, str(row["T"]), MISSING))
    for net in setting.nets:
        for name in ("COS", "exact"):
            report = results.report(setting.accuracy(net, setting.core()[name]))
            for t in STEPS if report is not None else ():
                assert report is not None
                accuracy, ticks = percent(report.accuracy[t - 1]), str(report.cost(t).ticks)
                title = f"{name} (ρ={report.method.rho})"
                rows.append((setting.data, title, "ANN-SNN conversion", TITLES[net], "ours", accuracy, str(t), ticks))
    columns = ("data set", "method", "type", "network", "source", "accuracy (%)", "T", "ticks")
    words = "Ticks: the layer-wise schedule's latency where all layers step together. Directly trained networks take T."
    return Shown((Sheet("Other types of training", columns, tuple(rows), text=5),), words=words)


TOPIC = Topic("table-2", "Table 2: other types of training", cells, show)
