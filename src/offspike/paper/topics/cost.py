"""Accuracy against true cost: synaptic passes, ticks and energy. What low latency really takes."""

from functools import partial

from offspike import methods
from offspike.methods import Method
from offspike.paper.cells import Cell
from offspike.paper.drawings import Point, cost_panels, cut_off
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet, percent
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic

LEVELS = (1, 2, 4, 8)
STEPS = (1, 2, 4, 8)


def cells(setting: Setting) -> list[Cell]:
    """Accuracy and energy of each line."""
    pairs = [pair for net in setting.nets for line in _lines(setting).values() for pair in _pairs(setting, net, *line)]
    return [cell for pair in pairs for cell in pair]


def show(results: Results, setting: Setting) -> Shown:
    """A table and a figure a network."""
    sheets, figures, lost = [], {}, []
    for net in setting.nets:
        points = _points(results, setting, net)
        if points:
            sheets.append(_sheet(net, points, setting))
            figures[f"cost-{net}"] = partial(cost_panels, points)
            lost += _lost(net, points)
    words = (
        f"Energy on the first {setting.images_for_energy} test images, 45 nm: 4.6 pJ a multiply-accumulate, 0.9 pJ an "
        "accumulate or a membrane update, memory not counted; listening is included. What T means in each schedule: "
        "docs/theory.md."
    )
    return Shown(tuple(sheets), figures, " ".join([words, *lost]))


Line = tuple[tuple[tuple[str, Method], ...], tuple[int, ...] | None]


def _lines(setting: Setting) -> dict[str, Line]:
    """A line: its (kind of network, method) pairs, and the T at which it is read; None: T = L."""
    rho, own = setting.levels, f"l{setting.levels}"
    by_levels = tuple((f"l{levels}", methods.exact(levels)) for levels in LEVELS)
    plain = tuple((f"l{levels}", methods.qcfs()) for levels in LEVELS)
    return {
        "exact, L=ρ=T": (by_levels, None),
        "θ/2, L=T": (plain, None),
        f"COS, L={rho}": (((own, methods.cos(rho)),), STEPS),
        f"light, L={rho}": (((own, methods.cos_light(rho)),), STEPS),
        f"light, causal, L={rho}": (((own, methods.cos_light(rho, schedule="causal")),), STEPS),
        f"SRP, L={rho}": (((own, methods.srp(rho)),), STEPS),
        f"θ/2, L={rho}": (((own, methods.qcfs()),), STEPS),
    }


def _pairs(
    setting: Setting, net: str, kinds: tuple[tuple[str, Method], ...], readouts: tuple[int, ...] | None
) -> list[tuple[Cell, Cell]]:
    """The accuracy cell and the energy cell of each network in a line. L = 4 shares the long pass of other tables."""
    pairs = []
    for kind, method in kinds:
        own = kind == f"l{setting.levels}"
        steps = setting.steps if own else max(readouts or (int(kind[1:]),))
        accuracy = Cell("accuracy", setting.checkpoint(net, kind), method, steps, stage=4 if own else 5)
        pairs.append((accuracy, Cell("energy", setting.checkpoint(net, kind), method, max(STEPS), stage=6)))
    return pairs


def _points(results: Results, setting: Setting, net: str) -> list[Point]:
    points = []
    for name, (kinds, readouts) in _lines(setting).items():
        for (kind, _), (accuracy, energy) in zip(kinds, _pairs(setting, net, kinds, readouts), strict=True):
            report = results.report(accuracy)
            for t in readouts or (int(kind[1:]),) if report is not None else ():
                assert report is not None
                points.append(Point(name, t, report, results.energies(energy)))
    return points


def _lost(net: str, points: list[Point]) -> list[str]:
    """What the figure of a network does not show; its table does."""
    count, foot = cut_off(points)
    said = f"The figure of {TITLES[net]} leaves out {count} of {len(points)} points, which lie below {foot} %."
    return [said] if count else []


def _sheet(net: str, points: list[Point], setting: Setting) -> Sheet:
    rows = []
    for point in points:
        cost, joules = point.report.cost(point.steps), point.joules
        ann = None if point.energies is None else point.energies[-1].ann_joules()
        energy = [MISSING if value is None else f"{1e6 * value:.1f}" for value in (joules, ann)]
        costs = [str(cost.synaptic_passes), str(cost.membrane_updates), str(cost.ticks), *energy]
        accuracy = [percent(point.accuracy), percent(point.report.reference_accuracy)]
        rows.append((point.line, cost.schedule, str(point.steps), *accuracy, *costs))
    columns = (
        "method", "schedule", "T", "accuracy (%)", "ANN (%)", "synaptic passes", "membrane updates", "ticks",
        "µJ an image", "ANN, µJ",
    )  # fmt: skip
    return Sheet(
        f"{TITLES[net]} on {setting.data}: accuracy and true cost", columns, tuple(rows), text=2, name=net
    ).trimmed()


TOPIC = Topic("cost", "Accuracy against true cost", cells, show)
