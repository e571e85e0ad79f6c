"""A topic: a table or a figure of the paper. Which cells it needs, and how their sums are shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offspike.paper.cells import Cell
from offspike.paper.setting import Setting
from offspike.paper.sheets import MISSING, Sheet, percent
from offspike.paper.store import Results
from offspike.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Shown", "Topic", "accuracies", "steps_columns"]


@dataclass(frozen=True)
class Shown:
    """Tables, figures by file name (drawn when they are called for), and what is to be said about them.

    ``unused`` are the keys of cells that none of them shows, since a longer run stands in for them.
    """

    sheets: tuple[Sheet, ...] = ()
    figures: "Mapping[str, Callable[[], Figure]]" = field(default_factory=dict)
    words: str = ""
    unused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Topic:
    """``name`` is what the command line calls it."""

    name: str
    title: str
    cells: Callable[[Setting], list[Cell]]
    show: Callable[[Results, Setting], Shown]


def accuracies(report: Report | None, readouts: Sequence[int]) -> list[str]:
    """Accuracy in per cent at each T; a T beyond the report is missing."""
    if report is None:
        return [MISSING] * len(readouts)
    return [percent(report.accuracy[t - 1]) if t <= report.steps else MISSING for t in readouts]


def steps_columns(readouts: Sequence[int]) -> list[str]:
    """Headings."""
    return [f"T={t}" for t in readouts]
