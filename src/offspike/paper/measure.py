"""Fills a store with the cells that are asked for: the most telling first, what is there left alone, and in time."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from offspike.experiment import provenance
from offspike.paper.bench import Bench, MissingCheckpoint, Progress
from offspike.paper.cells import Cell
from offspike.paper.store import Store

__all__ = ["Outcome", "in_order", "measure"]

Watch = Callable[[str, int], Progress]  # what is measured and how many images; the answer hears of finished images


class OutOfTime(Exception):
    """The time is over; a cell that was begun is given up."""


@dataclass
class Outcome:
    """What became of the cells."""

    measured: list[Cell] = field(default_factory=list)
    found: list[Cell] = field(default_factory=list)  # measured before
    missing: dict[str, list[Cell]] = field(default_factory=dict)  # no checkpoint, by its name
    left: list[Cell] = field(default_factory=list)  # no time

    def sentence(self) -> str:
        """One line for people."""
        said = [f"{len(self.measured)} cells measured", f"{len(self.found)} were there"]
        if self.missing:
            lost = sum(map(len, self.missing.values()))
            said.append(f"{lost} left out, for want of the checkpoints {', '.join(sorted(self.missing))}")
        if self.left:
            said.append(f"{len(self.left)} left for want of time: run the same command again")
        return "; ".join(said)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, at the earliest stage that any topic gives it."""
    earliest: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.stage):
        earliest.setdefault(cell.key, cell)
    return list(earliest.values())


def measure(
    cells: Iterable[Cell], bench: Bench, store: Store, *, watch: Watch, seconds: float | None = None
) -> Outcome:
    """Measure what is not in the store yet, by stage; each cell is written when it is done.

    Cells of another data set than the bench's are not looked at.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    known, outcome = store.read(), Outcome()
    todo = []
    for cell in in_order(cell for cell in cells if cell.data == bench.data):
        try:
            bench.path(cell.network)
        except MissingCheckpoint:
            if cell not in known:
                outcome.missing.setdefault(cell.network, []).append(cell)
                continue
        (outcome.found if cell in known else todo).append(cell)
    while todo:
        try:
            _measure_one(todo[0], bench, store, watch(_title(todo[0], len(todo)), bench.images(todo[0])), deadline)
        except OutOfTime:
            outcome.left = todo
            break
        outcome.measured.append(todo.pop(0))
    return outcome


def _measure_one(cell: Cell, bench: Bench, store: Store, tell: Progress, deadline: float | None) -> None:
    def progress(done: int) -> None:
        tell(done)
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime

    progress(0)
    started = time.perf_counter()
    result = bench.measure(cell, progress)
    facts = {
        "data": bench.data,
        "images": str(bench.images(cell)),
        "batch": str(bench.batch),
        "precision": _precision(cell, bench.device),
        "seconds": f"{time.perf_counter() - started:.1f}",
    }
    if cell.method.needs_data:
        facts["calibration"] = f"{bench.calibration} training images"
    store.write(cell, result, provenance(**facts))


def _title(cell: Cell, left: int) -> str:
    return f"{cell.key} ({left} to go)"


def _precision(cell: Cell, device: str) -> str:
    if cell.double:
        return "float64"
    tf32 = device.startswith("cuda") and torch.backends.cudnn.allow_tf32
    return "float32, convolutions in TF32" if tf32 else "float32"
