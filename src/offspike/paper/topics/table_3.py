"""Table 3: the share of ψ = 0 and the mean of ψ² in the last spiking layer, after 1, 2 and 4 iterations, and exact."""

from offspike.paper.cells import Cell
from offspike.paper.numbers import printed
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet, decimal, percent
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic
from offspike.paper.topics.iterations import doubles, line_up, singles
from offspike.record import Judgement

PRINTED = {"baseline (θ/2)": "baseline", "COS": "x1", "COS ×2": "x2", "COS ×4": "x4"}


def cells(setting: Setting) -> list[Cell]:
    """T = ρ = L, float32 and float64."""
    return singles(setting) + doubles(setting)


def show(results: Results, setting: Setting) -> Shown:
    """A row a network and precision."""
    names = list(line_up(setting))
    rows = []
    for net in setting.nets:
        for row in printed("table-3", architecture=TITLES[net]):
            cells = [
                (f"{row[f'{PRINTED[n]} ratio']:.2f}", f"{row[f'{PRINTED[n]} MSE']:.3f}") for n in names if n in PRINTED
            ]
            rows.append((TITLES[net], f"paper, {row['dataset']}", *sum(cells, ()), MISSING, MISSING))
        for precision, double in (("float32", False), ("float64", True)):
            values = [_last(results, setting.offsets(net, line_up(setting)[name], double=double)) for name in names]
            if any(value is not None for value in values):
                cells = [(percent(v.ratio), decimal(v.mse)) if v else (MISSING, MISSING) for v in values]
                rows.append((TITLES[net], f"ours, {setting.data}, {precision}", *sum(cells, ())))
    heads = [f"{name} {what}" for name in names for what in ("ratio (%)", "MSE")]
    title = f"ψ = 0 and mean ψ² in the last spiking layer at T = ρ = L = {setting.levels}"
    words = (
        "The SNN sums W·s(t) over t, the ANN multiplies W by the mean. Rounded, the two may fall on different sides of "
        "a step of the activation; then one spike more or less is wanted. What of a remainder is rounding shows in the "
        "rows measured in float64: the same networks, images and method."
    )
    return Shown((Sheet(title, ("network", "source", *heads), tuple(rows), text=2),), words=words)


def _last(results: Results, cell: Cell) -> Judgement | None:
    layers = results.offsets(cell)
    return None if layers is None else list(layers.values())[-1].unconstrained


TOPIC = Topic("table-3", "Table 3: ratio and MSE after iterating", cells, show)
