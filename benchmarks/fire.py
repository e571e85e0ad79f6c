"""How much faster the CPU kernels are than the plain PyTorch specification, as a caller sees it.

    python benchmarks/fire.py [--steps 16] [--neurons 1000000] [--repeats 15]

Medians, after a warm-up (which compiles), go to ``benchmarks/results/fire-float32-<torch>-<cpu>.csv``. A result is
dropped before the next run, as in a network.
"""

import argparse
import csv
import functools
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from offspike import fused, initial, ops

RHO = 4
POLICIES = {"light": initial.Residual(RHO), "shift": initial.Shift(RHO), "exact": initial.Exact(RHO)}


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    return names[0].strip() if names else platform.processor() or platform.machine()


def specification(run: Callable[[], object]) -> Callable[[], object]:
    """The same call with every kernel switched off: PyTorch, one operation at a time."""

    def call() -> object:
        with ExitStack() as stack:
            for operator in (ops._fire, ops._probe, fused._calibrate_and_fire):
                stack.enter_context(operator.set_kernel_enabled("cpu", False))
            return run()

    return call


def median(run: Callable[[], object], repeats: int) -> float:
    """Seconds, after one warm-up."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--neurons", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    current = torch.randn(options.steps, options.neurons, generator=torch.Generator().manual_seed(0)) * 0.7 + 0.3
    runs = {"fire": lambda: ops.fire(current, 1.0, 0.5)}
    for name, policy in POLICIES.items():
        runs[f"{name}, then fire"] = functools.partial(fused.calibrate_and_fire, policy, current, 1.0)
    rows = []
    for name, run in runs.items():
        eager, kernel = median(specification(run), options.repeats), median(run, options.repeats)
        rows.append(
            {
                "operation": name,
                "rho": 0 if name == "fire" else RHO,
                "steps": options.steps,
                "neurons": options.neurons,
                "dtype": "float32",
                "kernel": ops.backend("cpu"),
                "reference_seconds": f"{eager:.5f}",
                "seconds": f"{kernel:.5f}",
                "ratio": f"{eager / kernel:.1f}",
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "cpu": cpu_model(),
                "command": " ".join(["python benchmarks/fire.py", *sys.argv[1:]]),
            }
        )
    report(rows)


def report(rows: list[dict[str, object]]) -> None:
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_model().lower()).strip("-")
    path = Path(__file__).parent / "results" / f"fire-float32-{torch.__version__}-{slug}.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    shown = ("operation", "rho", "reference_seconds", "seconds", "ratio")
    table = Table(*shown, title=f"[{rows[0]['steps']}, {rows[0]['neurons']}] float32, {rows[0]['threads']} threads")
    for row in rows:
        table.add_row(*(str(row[column]) for column in shown))
    Console().print(table)


if __name__ == "__main__":
    main()
