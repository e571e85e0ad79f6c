"""Table S3: where the membrane starts. Random, θ/2, v(ρ), the paper's shift, and every place of the exact method."""

from typing import get_args, get_type_hints

from offspike import methods
from offspike.initial import Exact
from offspike.methods import Method
from offspike.paper.cells import Cell
from offspike.paper.numbers import printed
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic, accuracies, steps_columns

PLACES = get_args(get_type_hints(Exact)["place"])  # "carry" differs for T < ρ alone, and is measured there


def cells(setting: Setting) -> list[Cell]:
    """Every strategy on every network."""
    return [_cell(setting, net, method) for net in setting.nets for method in _strategies(setting).values()]


def show(results: Results, setting: Setting) -> Shown:
    """The paper's CIFAR-100 rows, then ours."""
    rows = []
    for row in printed("table-s3"):
        values = [f"{row[f'T={t}']:.2f}" if isinstance(row.get(f"T={t}"), float) else MISSING for t in setting.readouts]
        rows.append(
            (f"{row['architecture']}, {row['dataset']}", row["strategy"].replace("Ours", "COS"), "paper", *values)
        )
    for net in setting.nets:
        for name, method in _strategies(setting).items():
            report = results.report(_cell(setting, net, method))
            if report is not None:
                title = f"{TITLES[net]}, {setting.data}"
                rows.append((title, name, "ours", *accuracies(report, setting.readouts)))
    columns = ("network", "v(0)", "source", *steps_columns(setting.readouts))
    return Shown((Sheet(f"Accuracy (%) of ways to start, ρ = {setting.levels}", columns, tuple(rows), text=3),))


def _cell(setting: Setting, net: str, method: Method) -> Cell:
    early = setting.early(net)
    return early if method == early.method else setting.accuracy(net, method)


def _strategies(setting: Setting) -> dict[str, Method]:
    rho = setting.levels
    return {
        **{f"random, seed {seed}": methods.random(seed) for seed in setting.seeds},
        "θ/2": methods.qcfs(),
        f"v(ρ), ρ={rho}": methods.cos_light(rho),
        f"COS, ρ={rho}": methods.cos(rho),
        **{f"exact, {place}, ρ={rho}": methods.exact(rho, place=place) for place in PLACES},
    }


TOPIC = Topic("table-s3", "Table S3: initialisation strategies", cells, show)
