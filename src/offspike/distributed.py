"""Several processes as one: who am I, which part is mine, and sums over all.

Everything works without a process group too: then there is one process, and it is the first.
"""

import gc
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

__all__ = [
    "all_reduce_sums",
    "barrier",
    "cores",
    "gather",
    "process_group",
    "rank",
    "shard",
    "shard_equally",
    "world_size",
]


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """The number of this process, 0 to world size − 1."""
    return dist.get_rank() if _running() else 0


def world_size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if _running() else 1


def cores() -> int:
    """This process's share of the cores it may use: those that ``torchrun`` started beside it have theirs."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, allowed // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()


@contextmanager
def process_group() -> Iterator[torch.device]:
    """Join the group that ``torchrun`` describes (if it does), and leave it at the end. Gives this process's device.

    NCCL with one GPU for each local rank, or gloo on CPUs.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or _running():
        yield device
        return
    _import_what_holds_a_group()
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    try:
        yield device
    finally:
        gc.collect()  # models that averaged gradients hold the group too, in cycles
        dist.destroy_process_group()


def _import_what_holds_a_group() -> None:
    """Import, while there is no group, the module whose functions' defaults are the group that there is at its import.

    ``DistributedDataParallel`` imports it when the group is there, which ``destroy_process_group`` then cannot end: its
    threads go on, and one that lets go of a tensor while Python ends aborts the process (pytorch/pytorch#179291).
    """
    importlib.import_module("torch.distributed.nn.functional")


def shard(order: Tensor) -> Tensor:
    """This process's part of a list of indices: every index belongs to exactly one process, none is repeated."""
    return order[rank() :: world_size()]


def shard_equally(order: Tensor, batch: int) -> Tensor:
    """This process's part, cut to whole batches of ``batch`` and to the same length for every process."""
    each = len(order) // world_size() // batch * batch
    return shard(order)[:each]


def all_reduce_sums(sums: Tensor) -> Tensor:
    """The sum over all processes, in place; counts stay exact in integers and in float64 up to 2⁵³."""
    if world_size() > 1:
        dist.all_reduce(sums)
    return sums


def gather(value: Any) -> list[Any]:
    """What each process gives here, in the order of their ranks, for every process."""
    found = [value]
    if world_size() > 1:
        found = [None] * world_size()
        dist.all_gather_object(found, value)
    return found
