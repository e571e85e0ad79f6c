"""Fills a store with the cells that are asked for: the most telling first, what is there left alone, and in time."""

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch

from offspike.datasets import MissingData
from offspike.experiment import Bar, layers_of, provenance
from offspike.paper.bench import Bench, MissingCheckpoint, Progress
from offspike.paper.cells import Cell
from offspike.paper.store import Results, Store

NAMES = {
    "exact32": "float32",
    "tf32": "float32, products in TF32, weights in two parts",
    "bf16": "float32, products in bfloat16",
}

__all__ = ["Outcome", "commit", "in_order", "measure"]


class OutOfTime(Exception):
    """The time is over; a cell that was begun is given up."""


@dataclass
class Outcome:
    """What became of the cells."""

    measured: list[Cell] = field(default_factory=list)
    found: list[Cell] = field(default_factory=list)  # measured before
    missing: dict[str, list[Cell]] = field(default_factory=dict)  # no checkpoint, by its name
    other: dict[str, list[Cell]] = field(default_factory=dict)  # not of the bench's data set, by the name of theirs
    left: list[Cell] = field(default_factory=list)  # no time

    def sentence(self) -> str:
        """One line for people."""
        said = [f"{len(self.measured)} cells measured", f"{len(self.found)} were there"]
        if self.missing:
            lost = sum(map(len, self.missing.values()))
            said.append(f"{lost} left out, for want of the checkpoints {', '.join(sorted(self.missing))}")
        for data, cells in sorted(self.other.items()):
            said.append(f"{len(cells)} left out, which are of another data set: measure them with --dataset {data}")
        if self.left:
            said.append(f"{len(self.left)} left for want of time: run the same command again")
        return "; ".join(said)


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, at the earliest stage that any topic gives it."""
    earliest: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.stage):
        earliest.setdefault(cell.key, cell)
    return list(earliest.values())


def measure(cells: Iterable[Cell], bench: Bench, store: Store, *, watch: Bar, seconds: float | None = None) -> Outcome:
    """Measure what is not in the store yet, by stage; each cell is written when it is done.

    ``watch`` makes a bar of a cell's images, and one of the layers that a method fits. Cells of another data set than
    the bench's are not measured.
    """
    if seconds is not None:
        watch = _until(time.monotonic() + seconds, watch)
    outcome = Outcome()
    ahead = _sort_out(cells, bench, store.read(), outcome)
    with _no_tf32():
        while ahead:
            cell = ahead[0]
            try:
                _measure_one(cell, bench, store, watch, f"{cell.key} ({len(ahead)} to go)")
            except OutOfTime:
                outcome.left = ahead
                break
            except torch.OutOfMemoryError:
                if bench.batch == 1:
                    raise
                bench = replace(bench, batch=bench.batch // 2)  # and again
                torch.cuda.empty_cache()
                continue
            outcome.measured.append(ahead.pop(0))
    return outcome


def _sort_out(cells: Iterable[Cell], bench: Bench, known: Results, outcome: Outcome) -> list[Cell]:
    """The cells to measure, in order; what is to be said of the others goes into the outcome."""
    ahead: list[Cell] = []
    for cell in in_order(cells):
        if _fresh(cell, bench, known):
            outcome.found.append(cell)
        elif cell.data != bench.data:
            outcome.other.setdefault(cell.data, []).append(cell)
        elif not bench.has(cell.network):
            outcome.missing.setdefault(cell.network, []).append(cell)
        else:
            ahead.append(cell)
    return ahead


def _fresh(cell: Cell, bench: Bench, known: Results) -> bool:
    """Whether a cell is there, of this checkpoint, on no fewer images, and calibrated on as many.

    Its precision is not compared: float32 serves for any, and for a cell in TF32 the GPU may no longer be at hand; it
    stays, and `conditions` names it.
    """
    how = known.provenance(cell)
    if how is None:
        return False
    if cell.data != bench.data:  # nothing to compare with
        return True
    try:
        enough = int(how["images"]) >= bench.images(cell) and how.get("calibration") == _calibration(cell, bench)
        return enough and how["checkpoint"] == bench.fingerprint(cell.network)
    except (MissingCheckpoint, MissingData):  # nor here
        return True


def _calibration(cell: Cell, bench: Bench) -> str | None:
    """On how many images a cell is calibrated; None for methods that take nothing from data."""
    return f"{bench.calibration} training images" if cell.method.needs_data else None


def _until(deadline: float, watch: Bar) -> Bar:
    """Bars that stop the work once the time is over."""

    def begin(what: str, total: int) -> Progress:
        tell = watch(what, total)

        def progress(done: int) -> None:
            tell(done)
            if time.monotonic() > deadline:
                raise OutOfTime

        return progress

    return begin


def _measure_one(cell: Cell, bench: Bench, store: Store, watch: Bar, title: str) -> None:
    progress = watch(title, bench.images(cell))
    progress(0)
    facts = {
        "data": bench.data,
        "images": str(bench.images(cell)),
        "batch": str(bench.batch),
        "precision": _precision(cell, bench),
        "checkpoint": bench.fingerprint(cell.network),
        "commit": commit(),  # asked before: someone may commit meanwhile
    }
    calibration = _calibration(cell, bench)
    if calibration is not None:
        facts["calibration"] = calibration
    started = time.perf_counter()
    result = bench.measure(cell, progress, layers_of(watch, title))
    facts["seconds"] = f"{time.perf_counter() - started:.1f}"
    store.write(cell, result, provenance(**facts))


def _precision(cell: Cell, bench: Bench) -> str:
    if cell.double:
        return "float64"
    fast = cell.measure != "offsets" and bench.device.startswith("cuda")
    return NAMES[bench.precision] if fast else NAMES["exact32"]


@contextmanager
def _no_tf32() -> Iterator[None]:
    """PyTorch lets convolutions of the ANN round to TF32 unless told otherwise."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@lru_cache(maxsize=1)
def commit() -> str:
    """Of the clone that this code lies in; "unknown" elsewhere, unless OFFSPIKE_COMMIT says it."""
    if os.environ.get("OFFSPIKE_COMMIT"):
        return os.environ["OFFSPIKE_COMMIT"]
    here = Path(__file__).parent
    try:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return "unknown"
    return asked.stdout.strip() or "unknown"
