"""How many neurons a program of the GPU's neuron kernel should have: bytes a second for several sizes, at T = ρ.

    PYTHONPATH=src python3 benchmarks/neuron_blocks.py [--quick]

bfloat16 currents with a bias, 0 and 1 as bfloat16 out, as between the layers of a network. Needs a GPU and Triton.
"""

import argparse
import time
from typing import Any

import torch

from offspike import fused, timing
from offspike.initial import Exact, Shift
from offspike.ops import gpu

SIZES = ((4, 1024), (4, 512), (4, 256), (2, 256), (8, 1024))  # warps, neurons
DEVICE = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few neurons and sizes, to see that it runs")
    quick = parser.parse_args().quick
    began = time.perf_counter()
    for steps in (4, 8):
        shape = (steps, 16 if quick else 1024, 64, 32, 32)
        current = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).permute(0, 1, 3, 4, 2)
        current = current.contiguous().permute(0, 1, 4, 2, 3)
        bias = torch.zeros(64, 1, 1, device=DEVICE)
        drive = fused.Drive(current, steps, bias=bias, unit=True)
        for policy in (Shift(steps), Exact(steps)):
            for size in SIZES[: 2 if quick else None]:
                gpu.PLAIN = gpu.LONG = size
                rate = 2 * timing.size(current) / timing.seconds(lambda: run(drive, policy), DEVICE, budget=0.2)  # noqa: B023
                took = time.perf_counter() - began
                print(f"[{took:3.0f} s] T={steps} {type(policy).__name__:5} {size}: {rate / 1e12:.2f} TB/s", flush=True)


def run(drive: fused.Drive, policy: Any) -> object:
    return fused.run(drive, torch.ones(1, device=DEVICE), policy=policy)


if __name__ == "__main__":
    main()
