"""Fills a store with the cells that are asked for: the most telling first, what is there left alone, and in time."""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch

from offspike.experiment import provenance
from offspike.paper.bench import Bench, MissingCheckpoint, Progress
from offspike.paper.cells import Cell
from offspike.paper.store import Store

NAMES = {
    "exact32": "float32",
    "tf32": "float32, products in TF32, weights in two parts",
    "bf16": "float32, products in bfloat16",
}

__all__ = ["Outcome", "commit", "in_order", "measure"]

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
    ahead: list[Cell] = []
    for cell in in_order(cell for cell in cells if cell.data == bench.data):
        try:
            fresh = known.checkpoint(cell) == bench.fingerprint(cell.network)
        except MissingCheckpoint:
            if cell not in known:
                outcome.missing.setdefault(cell.network, []).append(cell)
                continue
            fresh = True
        (outcome.found if fresh else ahead).append(cell)
    with _no_tf32():
        while ahead:
            cell = ahead[0]
            try:
                tell = watch(f"{cell.key} ({len(ahead)} to go)", bench.images(cell))
                _measure_one(cell, bench, store, tell, deadline)
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
        "precision": _precision(cell, bench),
        "checkpoint": bench.fingerprint(cell.network),
        "commit": commit(),
        "seconds": f"{time.perf_counter() - started:.1f}",
    }
    if cell.method.needs_data:
        facts["calibration"] = f"{bench.calibration} training images"
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
