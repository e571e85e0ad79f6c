"""The kernels of products and neurons, compiled by processes side by side before times are taken: a part of `gpu.py`.

Triton compiles a kernel when it is first launched, one after the other, and those of a network in tf32 take a minute or
more together. Here each process goes through a network and launches only its share of the kinds of kernels that come:
results are of no use, but Triton keeps all kernels on disk, where they are found when it counts.
"""

import contextlib
import functools
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch
from against import METHODS

import offspike as osp
from offspike import bench
from offspike.ops import synapse

SHARES = 8  # of a network's kinds of kernels
IMAGES = 2


class Case(NamedTuple):
    """A network of the zoo, by name, or a checkpoint, and how it runs."""

    source: str
    steps: int
    rho: int
    precision: Any
    method: str


class Share:
    """A kernel that is launched for every eighth kind of launches only."""

    def __init__(self, kernel: Any, share: int) -> None:
        self.kernel, self.share, self.kinds = kernel, share, dict[Any, int]()

    def __getitem__(self, grid: Any) -> Any:
        def launch(*operands: Any, **constants: Any) -> None:
            dtypes = tuple(x.dtype if isinstance(x, torch.Tensor) else x is None for x in operands)
            place = self.kinds.setdefault((dtypes, *sorted(constants.items())), len(self.kinds))
            if place % SHARES == self.share:
                self.kernel[grid](*operands, **constants)

        return launch


def compiled(cases: Iterable[Case], seconds: float) -> str:
    """Compile what these need, for so many seconds at most; what is not done then is compiled when it is launched."""
    begin, lines = time.perf_counter(), list[str]()
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("spawn"))
    every = list(dict.fromkeys(cases))
    jobs = [pool.submit(launched, case, share) for share in range(SHARES) for case in every]
    with contextlib.suppress(TimeoutError):
        for job in as_completed(jobs, timeout=seconds):
            lines += [job.result()] if job.result() else []
    done = sum(job.done() for job in jobs)
    for process in list((pool._processes or {}).values()):  # at work or not
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
    lines.append(f"compiled ahead: {done} of {len(jobs)} shares in {time.perf_counter() - begin:.0f} s")
    return "\n".join(lines)


def launched(case: Case, share: int) -> str:
    """Run in a process of its own; the reason if it fails."""
    torch.set_num_threads(1)
    real = synapse.conv_and_fire
    synapse.conv_and_fire = Share(real, share)
    try:
        model, shape = network(case.source, case.precision == "int8")
        snn = osp.convert(model, METHODS[case.method](case.rho), precision=case.precision)
        snn(torch.randn(IMAGES, *shape, device=_device()), case.steps)
    except Exception as error:  # the other kernels are still wanted
        return f"{case}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
    finally:
        synapse.conv_and_fire = real
    return ""


@functools.cache
def network(source: str, in_fixed_point: bool) -> tuple[Any, tuple[int, ...]]:
    """The ANN and the shape of its input; a process keeps those that it has made."""
    ann: Any = (osp.load if Path(source).suffix else bench.network)(source).to(_device())
    shape = ann.input_shape
    if in_fixed_point:
        ann = osp.snap(ann, bits=8, example=torch.randn(1, *shape, device=_device()))
    return ann, shape


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
