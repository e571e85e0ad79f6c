"""How many samples and steps fit into memory at a time: an estimate first, and half as much when it was wrong."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

__all__ = ["Fit", "cached"]

FIRST = 1  # sample, where nothing is known yet
PIECE = 32  # steps at a time where not all fit: the membrane is then read and written once in so many
COPIES = 5  # of the largest layer that live at once: currents, spikes, a shortcut, and room for the convolution
CACHED = 16 << 20  # bytes of the largest layer's currents, which a CPU's cache keeps for neurons (benchmarks/parts.py)

MACHINE, CONTAINER = Path("/proc/meminfo"), Path("/sys/fs/cgroup")

_log = logging.getLogger(__name__)


class Fit:
    """Runs batches in parts, and time in pieces, that fit.

    A GPU says when its memory is used up: there the whole batch is tried first. A CPU's program is killed instead, so
    there a few samples show how large the layers are (``neurons``, filled in while they run), and no more are taken at
    a time than its cache holds.
    """

    def __init__(self, steps: int, *, least: int, neurons: Mapping[str, int]) -> None:
        self.steps, self.least, self.neurons = steps, least, neurons
        self.samples: int | None = None
        self.piece = None if steps <= 2 * PIECE else max(PIECE, least)

    def run(self, take: Callable[[slice, int | None], None], batch: int, device: torch.device) -> None:
        """``take(part, piece)`` for the parts of a batch. One that runs out of memory is taken again, halved."""
        start = 0
        while start < batch:
            if self.samples is None and self.neurons and device.type == "cpu":
                self.samples = self._estimate()
            size = self.samples or (FIRST if device.type == "cpu" else batch)
            part = slice(start, min(start + size, batch))
            try:
                take(part, self.piece)
            except (torch.OutOfMemoryError, MemoryError):
                self._halve(part.stop - part.start)
                continue
            start = part.stop

    def _estimate(self) -> int:
        """Samples at a time that fit into half of the memory there is, and whose largest layer stays in the cache."""
        at_once = max(self.least, self.piece or self.steps)
        largest = max(self.neurons.values())
        sample = COPIES * 4 * largest * at_once + 4 * sum(self.neurons.values())
        return max(1, min(_available() // 2 // sample, cached(largest, at_once)))

    def _halve(self, samples: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        at_once = self.piece or self.steps
        if samples > 1:
            self.samples = samples // 2
        elif at_once > self.least:
            self.piece = max(self.least, at_once // 2)
        else:
            raise torch.OutOfMemoryError(f"one sample and {self.least} steps at a time do not fit into memory")
        at_once = self.piece or self.steps
        _log.warning("out of memory: going on with %d samples and %d steps at a time", self.samples or 1, at_once)


def cached(neurons: int, steps: int) -> int:
    """Samples whose currents a CPU's cache holds, for the ``neurons`` of the largest layer over ``steps``."""
    return max(1, CACHED // (4 * neurons * steps))


def _available() -> int:
    """Bytes of main memory that can be had: what the machine has left, and a container's limit where there is one."""
    left = _numbers(MACHINE).get("MemAvailable:")
    if left is not None:
        free = 1024 * left
    elif hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    else:
        free = 4 << 30
    try:
        limit = int((CONTAINER / "memory.max").read_text())
    except (OSError, ValueError):  # no container, or one without a limit
        return free
    return max(0, min(free, limit - _numbers(CONTAINER / "memory.stat").get("anon", 0)))


def _numbers(path: Path) -> dict[str, int]:
    """The lines ``name number …`` of a file of the system; none where there is no such file."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
