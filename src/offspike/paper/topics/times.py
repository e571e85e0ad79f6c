"""The running times of appendix A.5: θ/2, light, the shift, and exact, over the whole test set at T = 16."""

from offspike import methods
from offspike.methods import Method
from offspike.paper.cells import Cell
from offspike.paper.numbers import printed
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic

STEPS = 16


def cells(setting: Setting) -> list[Cell]:
    """One timed pass each."""
    return [_cell(setting, net, method) for net in setting.nets for method in _line(setting).values()]


def show(results: Results, setting: Setting) -> Shown:
    """Seconds, and microseconds an image."""
    rows = [
        (f"{row['architecture']}, {row['dataset']}", row["method"], "paper", MISSING, str(row["seconds"]), MISSING)
        for row in printed("times")
    ]
    for net in setting.nets:
        for name, method in _line(setting).items():
            found = results.seconds(_cell(setting, net, method))
            if found is not None:
                seconds, images = found["seconds"], found["images"]
                each = f"{1e6 * seconds / images:.0f}"
                rows.append(
                    (
                        f"{TITLES[net]}, {setting.data}",
                        name,
                        f"ours, {found['machine']}",
                        str(images),
                        f"{seconds:.2f}",
                        each,
                    )
                )
    columns = ("network", "method", "source", "images", "seconds", "µs an image")
    words = "Forward passes only, the kernels compiled before. The paper does not say how many images or which machine."
    return Shown((Sheet(f"Running time at T = {STEPS}", columns, tuple(rows), text=3),), words=words)


def _cell(setting: Setting, net: str, method: Method) -> Cell:
    return Cell("seconds", setting.checkpoint(net), method, STEPS, stage=7)


def _line(setting: Setting) -> dict[str, Method]:
    rho = setting.levels
    core = {"QCFS": methods.qcfs(), "lightweight": methods.cos_light(rho)}
    return core | {"shifting": methods.cos(rho), "exact": methods.exact(rho)}


TOPIC = Topic("times", "Running times (appendix A.5)", cells, show)
