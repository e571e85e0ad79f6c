"""The GPU kernels as a GPU would run them, looked at without one: registers, spills, shared memory, instructions.

    PYTHONPATH=src python benchmarks/compiled.py [--out benchmarks/results] [--only WORD …] [--sass FOLDER]

Triton compiles each launch for an H200 (sm_90); its own disassembler shows what came out. ``cycles`` is what a warp's
share of one scheduler takes for one neuron of each of its threads, if nothing ever waits: an instruction a cycle, and
two for comparisons, selections, minima and integers (throughput table of the CUDA programming guide, compute capability
9.0; the compiler sends moves and sums of whole numbers as IMAD through a pipe of their own). At T = ρ an H200 takes
about 27 cycles to bring and store the two bytes of one step (1.7 GHz, 4.2 TB/s). Kernels with loops have no such
number.
"""

import argparse
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)  # looked at when a kernel is first imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from offspike import bench
from offspike.ops import conv, gpu

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED = 227 << 10  # bytes that a program may have on an H200
FULL_RATE = {"FADD", "FMUL", "FFMA"}  # 128 results a cycle and multiprocessor; nearly all others 64
LOW, HALF = torch.bfloat16, torch.int8


class Launch(NamedTuple):
    """What one launch was compiled to."""

    name: str
    cubin: bytes
    shared: int


class Absent:
    """A GPU driver with no GPU: kernels are compiled for an H200, and running them does nothing."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED, "multiprocessor_count": 132}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *operands: None

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.launches.append(Launch(name, kernel, shared))
        return (1, 1, 0, 0, 1024)  # module, function, registers, spills, threads

    def unload_module(self, module: int) -> None:
        pass


class Case(NamedTuple):
    """A launch to look at."""

    what: str
    neurons: int  # of a thread; 0: the kernel loops, so that instructions do not tell its time
    launch: Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", nargs="*", default=[], help="cases that have one of these words in their names")
    parser.add_argument("--sass", type=Path, help="a folder for the instructions themselves")
    options = parser.parse_args()
    absent = Absent()
    driver.set_active(absent)
    rows = []
    for case in [case for case in cases() if not options.only or any(word in case.what for word in options.only)]:
        absent.launches.clear()
        case.launch()
        for launch in absent.launches:
            rows.append(looked_at(case, launch, options.sass))
            print(*(f"{name} {value}" for name, value in rows[-1].items() if value != ""), sep="  ", flush=True)
    bench.save(options.out / f"compiled-sm90-triton-{triton.__version__}.csv", rows)


def cases() -> Iterator[Case]:
    """The kernels as networks launch them."""
    for rho in (1, 2, 4, 8):
        for rule in ("exact-even", "exact-first", "exact-near", "shift-keep", "residual"):
            yield Case(f"{rule} T=rho={rho}", _each(rule, rho), lambda rule=rule, rho=rho: neurons(rule, rho, rho))
    for rho in (4, 8):
        for rule in ("exact-even", "shift-keep"):
            each = _each(rule, rho)
            yield Case(f"{rule} T=rho={rho} shortcut", each, lambda r=rule, t=rho: neurons(r, t, t, beside=True))
            yield Case(f"{rule} T=16 rho={rho}", 0, lambda rule=rule, rho=rho: neurons(rule, 16, rho))
            yield Case(f"{rule} T=rho={rho} pool", 0, lambda rule=rule, rho=rho: neurons(rule, rho, rho, pool=True))
    yield Case("exact-even T=rho=16", 0, lambda: neurons("exact-even", 16, 16))
    yield Case("exact-even T=rho=32", 0, lambda: neurons("exact-even", 32, 32))
    yield Case("given T=16", 0, lambda: neurons("given", 16, 0))
    for rho in (1, 4, 8):
        yield Case(f"carry rho={rho}", 0, lambda rho=rho: maps(rho))
    yield Case("probe", 0, lambda: gpu.probe(torch.zeros(4, 4096), torch.ones(1), torch.zeros(4096)))
    for rule in ("exact-even", "shift-keep"):
        for steps, rho in ((1, 1), (2, 2), (4, 4), (8, 8), (16, 4), (16, 8)):
            for channels, outputs in ((64, 64), (256, 512)):
                what = f"conv {channels}->{outputs} {rule} T={steps} rho={rho}"
                sizes = (rule, steps, rho, channels, outputs)
                yield Case(what, 0, lambda sizes=sizes: product(*sizes))
                yield Case(what + " pool", 0, lambda sizes=sizes: product(*sizes, pool=True))
                yield Case(what + " shortcut", 0, lambda sizes=sizes: product(*sizes, beside=True))
                yield Case(what + " three digits", 0, lambda sizes=sizes: product(*sizes, digits=3))


def _each(rule: str, rho: int) -> int:
    warps, block = gpu.tile(rule.partition("-")[0], rho)
    return block // (32 * warps)


def neurons(rule: str, steps: int, rho: int, *, beside: bool = False, pool: bool = False) -> None:
    """Spikes of a convolution's currents in bfloat16, with a bias for each of 64 channels of 32x32 pixels."""
    count, channels = 1 << 17, 64
    current = torch.zeros(steps, count, dtype=LOW)
    named: dict[str, Any] = {"bias": torch.zeros(channels), "keep": False}
    if rule == "exact-even":
        named["phase"] = torch.zeros(count // 2)
    if rule == "given":
        named["v0"] = torch.zeros(count)
    if beside:
        named |= {"beside": current, "gain": torch.ones(1)}
    if pool:
        named |= {"pool": channels, "width": 32}
    gpu.calibrate_and_fire(current, torch.ones(1), rule, rho, 1, 2.0**-10, **named)


def maps(rho: int) -> None:
    """Place carry: two samples of 64 maps."""
    gpu.carry(torch.zeros(rho, 2, 64, 64), torch.ones(1), torch.zeros(64, 64), 2.0**-10)


def product(
    rule: str,
    steps: int,
    rho: int,
    channels: int,
    outputs: int,
    *,
    beside: bool = False,
    pool: bool = False,
    digits: int = 1,
) -> None:
    """A convolution of 3x3 in whole numbers with its neurons."""
    named: dict[str, Any] = {"bias": torch.zeros(outputs), "pool": pool}
    if rule == "exact-even":
        named["phase"] = torch.zeros(64 * outputs)
    if beside:
        named |= {"beside": torch.zeros(steps, 2, 8, 8, outputs, dtype=HALF), "gain": torch.ones(1)}
    spikes = torch.zeros(steps, 2, 8, 8, channels, dtype=HALF)
    weight = torch.zeros(digits, outputs, 3, 3, channels, dtype=HALF)
    conv.conv_and_fire(spikes, weight, torch.ones(outputs), torch.ones(1), rule, rho, **named)


def looked_at(case: Case, launch: Launch, folder: Path | None) -> dict[str, Any]:
    """A row of the table."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(launch.cubin)
        file.flush()
        used = _tool("cuobjdump", "-res-usage", file.name)
        listing = _tool("nvdisasm", "-c", file.name)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{case.what.replace(' ', '_').replace('>', '')}.sass").write_text(listing)
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", used)}
    kinds = instructions(listing)
    row = {"case": case.what, "kernel": launch.name, "registers": found["REG"]}
    row |= {"spilled_bytes": found["STACK"] + found["LOCAL"], "shared_bytes": launch.shared}
    total = sum(kinds.values())
    halves = total - sum(kinds[name] for name in FULL_RATE) - kinds["IMAD"]
    tensor = sum(count for name, count in kinds.items() if name in ("IGMMA", "IMMA"))
    row |= {"instructions": total, "half_rate": halves, "tensor_core": tensor, "cycles": ""}
    if case.neurons:
        row["cycles"] = round(max(total, 2 * halves) / case.neurons, 1)
    return row


def instructions(listing: str) -> Counter[str]:
    """How many of each kind lie before the first end of the kernel: rare ways, such as long division, come after it."""
    kinds: Counter[str] = Counter()
    for line in listing.splitlines():
        found = re.search(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", line)
        if found:
            kinds[found[2]] += 1
            if found[2] == "EXIT" and found[1] is None:
                break
    return kinds


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
