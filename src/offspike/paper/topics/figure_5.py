"""Figure 5: the mean of ψ² in each layer against the number of iterations."""

from functools import partial

from offspike.paper.cells import Cell
from offspike.paper.drawings import mse_by_layer
from offspike.paper.setting import TITLES, Setting
from offspike.paper.sheets import MISSING, Sheet, decimal
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic
from offspike.paper.topics.iterations import line_up, singles


def cells(setting: Setting) -> list[Cell]:
    """θ/2, COS, COS ×2, COS ×4, exact."""
    return singles(setting)


def show(results: Results, setting: Setting) -> Shown:
    """A line a method."""
    figures, rows, width = {}, [], 1
    for net in setting.nets:
        found = {name: results.offsets(setting.offsets(net, method)) for name, method in line_up(setting).items()}
        errors = {
            name: [layer.unconstrained.mse for layer in layers.values()]
            for name, layers in found.items()
            if layers is not None
        }
        rows += [(TITLES[net], name, *(decimal(value, 4) for value in values)) for name, values in errors.items()]
        width = max([width, *map(len, errors.values())])
        if errors:
            figures[net] = partial(mse_by_layer, errors)
    columns = ("network", "method", *(f"L{index}" for index in range(1, width + 1)))
    filled = tuple(row + (MISSING,) * (len(columns) - len(row)) for row in rows)
    title = f"Mean ψ² against the ANN, T = ρ = L = {setting.levels}"
    return Shown((Sheet(title, columns, filled, text=2),), figures, "In the figures 0 lies at the foot of the axis.")


TOPIC = Topic("figure-5", "Figure 5: MSE of each layer against iterations", cells, show)
