"""Memory that is freed is there again, without the system clearing its pages once more."""

import platform
import subprocess
import sys

import pytest
import torch

from offspike.ops import memory

PROGRAM = """
import resource, torch
from offspike.ops.memory import let_memory_stay

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(5_000_000) for _ in range(8)]  # 20 MB each, as in a training step
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

let_memory_stay()
print(faults(), faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_pages_are_cleared_once():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    first, second = map(int, ran.stdout.split())
    assert second < first / 4


def test_large_tensors_are_lent_again_once_nobody_sees_them():
    first = memory.empty((3 << 20,), torch.float32)
    view, where = first[5:], first.data_ptr()
    del first
    other = memory.empty((3 << 20,), torch.float32)
    assert other.data_ptr() != where  # the view still needs it
    del view
    assert memory.empty((3 << 20,), torch.float32).data_ptr() == where
