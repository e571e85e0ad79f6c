"""Table S4: the lightweight scheme v(0) ← v(ρ) beside the shift, and beside the exact method, which costs the same."""

from offspike import methods
from offspike.methods import Method
from offspike.paper.cells import Cell
from offspike.paper.numbers import printed
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic, accuracies, steps_columns


def cells(setting: Setting) -> list[Cell]:
    """QCFS, light, COS, exact."""
    return [setting.accuracy(net, method, stage=1) for net in setting.nets for method in _line(setting).values()]


def show(results: Results, setting: Setting) -> Shown:
    """The paper's ImageNet rows, then ours."""
    rows = []
    for row in printed("table-s4"):
        values = [f"{row[f'T={t}']:.2f}" if isinstance(row.get(f"T={t}"), float) else MISSING for t in setting.readouts]
        rows.append((f"{row['architecture']}, {row['dataset']}", row["method"], "paper", *values))
    for net in setting.nets:
        for name, method in _line(setting).items():
            report = results.report(setting.accuracy(net, method))
            title = f"{TITLES[net]}, {setting.data}"
            rows.append((title, name, "ours", *accuracies(report, setting.readouts)))
    columns = ("network", "method", "source", *steps_columns(setting.readouts))
    return Shown((Sheet("Accuracy (%) of the lightweight scheme", columns, tuple(rows), text=3),))


def _line(setting: Setting) -> dict[str, Method]:
    rho = setting.levels
    core = {"QCFS": methods.qcfs(), "lightweight": methods.cos_light(rho)}
    return core | {"shifting": methods.cos(rho), "exact": methods.exact(rho)}


TOPIC = Topic("table-s4", "Table S4: the lightweight scheme", cells, show)
