"""CUDA graphs: a pass whose shapes come again is recorded once and then replayed, without Python in between."""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from offspike.graph import map_values

__all__ = ["Replays", "short"]

LIMIT = 8  # recordings kept, the latest used ones
WARM_UP = 2  # ordinary runs before a recording: kernels are compiled and algorithms chosen in them
LARGEST = 1 << 25  # input numbers times steps; a longer pass hides the time that launching takes

_log = logging.getLogger(__name__)


class Replays:
    """The recordings of one network. They share their memory: one is replayed at a time, and its result copied."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._lock = threading.Lock()
        self._seen: Counter[Hashable] = Counter()
        self._recordings: OrderedDict[Hashable, tuple[Any, list[Tensor], Any]] = OrderedDict()

    def run(self, key: Hashable, run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
        """``run(inputs)``, from a recording if there is one for ``key`` and these shapes; one thread at a time."""
        with self._lock:
            return self._run(key, run, inputs)

    def _run(self, key: Hashable, run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]) -> Any:
        key = (key, tuple((x.shape, x.dtype, x.device) for x in inputs))
        if key not in self._recordings:
            self._seen[key] += 1
            if self._seen[key] <= WARM_UP or not self._record(key, run, inputs):
                return run(inputs)
        self._recordings.move_to_end(key)
        graph, places, result = self._recordings[key]
        for place, x in zip(places, inputs, strict=True):
            place.copy_(x)
        graph.replay()
        return map_values(result, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)

    def _record(self, key: Hashable, run: Callable[[Sequence[Tensor]], Any], inputs: Sequence[Tensor]) -> bool:
        graph, places = torch.cuda.CUDAGraph(), [x.clone() for x in inputs]
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool):
                result = run(places)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation of the model that cannot be recorded
            _log.info("this pass is not replayed: %s", str(error).partition("\n")[0])
            self._seen[key] = -(1 << 60)
            return False
        self._recordings[key] = (graph, places, result)
        while len(self._recordings) > LIMIT:
            self._recordings.popitem(last=False)
        return True


def short(inputs: Sequence[Tensor], steps: int) -> bool:
    """Whether a pass is so short that launching its kernels one by one would show."""
    return all(x.is_cuda for x in inputs) and sum(x.numel() for x in inputs) * steps <= LARGEST
