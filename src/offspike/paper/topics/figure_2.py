"""Figure 2 (Example 1): four neurons before and after their v(0) is shifted by Theorem 2, two down and two up."""

from functools import partial

import torch
from torch import Tensor

from offspike.figures import membrane_trace
from offspike.initial import Shift
from offspike.paper.cells import Cell
from offspike.paper.setting import Setting
from offspike.paper.sheets import Sheet
from offspike.paper.store import Results
from offspike.paper.topic import Shown, Topic

THETA = 1.0
# Currents over ρ = 4 steps. Down: too much too early; up: too late. In the b cases the shift must be more than θ.
CASES = {
    "down-a": (1.0, 0.75, -0.5, -0.75),
    "down-b": (2.25, -1.5, -0.25, -0.25),
    "up-a": (-0.75, -0.5, 1.25, 1.5),
    "up-b": (-1.5, -0.25, 0.25, 3.0),
}


def cells(setting: Setting) -> list[Cell]:
    """Nothing is measured: the traces follow from the equations."""
    return []


def show(results: Results, setting: Setting) -> Shown:
    """A figure a case, and what the shift was."""
    figures = {f"trace-{name}": partial(membrane_trace, _current(name), THETA, *_starts(name)) for name in CASES}
    rows = []
    for name, currents in CASES.items():
        before, after = _starts(name)
        rows.append((name, ", ".join(f"{value:g}" for value in currents), f"{before:g}", f"{after:g}"))
    sheet = Sheet(
        "The four cases (θ = 1, ρ = 4)", ("case", "I(1) … I(4)", "v(0) before", "v(0) after"), tuple(rows), text=2
    )
    return Shown((sheet,), figures, "Shifting v(0) down takes one spike away, shifting it up adds one.")


def _current(name: str) -> Tensor:
    return torch.tensor(CASES[name], dtype=torch.float64)


def _starts(name: str) -> tuple[float, float]:
    current = _current(name)
    return THETA / 2, float(Shift(len(current))(current[:, None], THETA))


TOPIC = Topic("figure-2", "Figure 2: shifting the initial potential (Example 1)", cells, show)
