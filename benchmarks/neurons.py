"""The neuron kernel by itself: bytes a second for each rule and block size, above all at T = ρ, where it computes most.

A part of `gpu.py`. The first size of each kind is the one that is in use. ``MAPS`` are images' neurons as networks run
them, finding v(0) included: place carry goes through a map neuron by neuron, place even does not. Bytes are those that
are needed: currents read once, spikes written once.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from offspike import bench, fused, timing
from offspike.initial import Exact, phases

Row = dict[str, Any]
# (warps, neurons or windows of a program) to try: without tables, with them or long listening, and for pooled spikes
SIZES = {
    "PLAIN": [(4, 1024), (4, 512), (8, 1024), (2, 256)],
    "LONG": [(4, 512), (4, 1024), (4, 256), (2, 256)],
    "POOLED": [(4, 512), (4, 1024), (2, 256)],
}
# T, ρ, rule, whether spikes are pooled
CASES = [
    (4, 4, "exact-even", False),
    (4, 4, "shift-keep", False),
    (8, 8, "exact-even", False),
    (8, 8, "shift-keep", False),
    (4, 4, "exact-even", True),
    (4, 4, "shift-keep", True),
    (16, 4, "exact-even", False),
    (16, 4, "shift-keep", False),
]
MAPS = [(256, 64, 32, 32), (2048, 512, 4, 4)]  # images, channels, height, width: early in VGG-16, late in ResNet-18
IMAGES = 1024  # of the rows that are not maps


def run(options: Any, device: torch.device) -> str:
    """Rows, saved as they come."""
    if device.type != "cuda":
        return "needs a GPU"
    rows: list[Row] = []
    coming = _rows(device)
    while time.perf_counter() <= options.until and (row := next(coming, None)):
        rows.append(row)
        print(row, f"   [{options.until - time.perf_counter():.0f} s left]", flush=True)
        bench.save(options.out / "neurons.csv", rows)
    return "\n".join(map(_line, rows))


def _rows(device: torch.device) -> Iterator[Row]:
    """The sizes in use, maps, the other sizes; each is measured when it is asked for."""
    yield from _sizes(0, device)
    for shape in MAPS:
        for place in ("even", "carry"):
            yield _map(shape, place, device)
    for choice in range(1, max(map(len, SIZES.values()))):
        yield from _sizes(choice, device)


def _sizes(choice: int, device: torch.device) -> Iterator[Row]:
    from offspike.ops import gpu

    for steps, rho, rule, pooled in CASES:
        usual = gpu.tile(rule.partition("-")[0], rho, pool=pooled)
        kind = next(kind for kind in SIZES if getattr(gpu, kind) == usual)
        tried = [usual, *(size for size in SIZES[kind] if size != usual)]
        if choice >= len(tried):
            continue
        setattr(gpu, kind, tried[choice])
        try:
            took = _alone(gpu, steps, rho, rule, pooled, device)
        finally:
            setattr(gpu, kind, usual)
        yield {"rule": rule, "steps": steps, "rho": rho, "kind": kind, "warps, block": tried[choice], **took}


def _alone(gpu: Any, steps: int, rho: int, rule: str, pooled: bool, device: torch.device) -> dict[str, float]:
    channels, width = 64, 32
    each = channels * width * width
    current = torch.randn(steps, IMAGES * each, device=device, dtype=torch.bfloat16)
    theta, bias = torch.ones(1, device=device), torch.zeros(channels, device=device)
    named: dict[str, Any] = {"bias": bias, "keep": False}
    if pooled:
        named |= {"pool": channels, "width": width}
    if rule == "exact-even":
        named["phase"] = phases(torch.empty(1, each, device=device))[0].contiguous()
    took = timing.seconds(
        lambda: gpu.calibrate_and_fire(current, theta, rule, rho, 1, 2.0**-10, **named), device, budget=0.1
    )
    return _took(took, timing.size(current) * (1.25 if pooled else 2))


def _map(shape: tuple[int, int, int, int], place: Any, device: torch.device) -> Row:
    """T = ρ = 4, as networks run it: channels innermost, a bias for each of them."""
    images, channels, *size = shape
    flat = torch.randn(4 * images, channels, *size, device=device, dtype=torch.bfloat16)
    current = flat.to(memory_format=torch.channels_last).view(4, *shape)
    theta, bias = torch.ones(1, device=device), torch.zeros(channels, 1, 1, device=device)
    drive = fused.Drive(current, 4, bias=bias, unit=True)
    go = _recorded(lambda: fused.run(drive, theta, policy=Exact(4, place)), device)
    took = _took(timing.seconds(go, device, budget=0.1), 2 * timing.size(current))
    kind = "MAPS " + "x".join(map(str, shape[1:]))
    return {"rule": f"exact-{place}", "steps": 4, "rho": 4, "kind": kind, "warps, block": None, **took}


def _recorded(run: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """The same as a CUDA graph: launching a few short kernels from Python takes longer than they do."""
    if device.type != "cuda":
        return run
    run()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _line(row: Row) -> str:
    return f"{row['rule']} T={row['steps']} {row['kind']} {row['warps, block']}: {row['tb_per_s']:.2f} TB/s"


def _took(seconds: float, moved: float) -> dict[str, float]:
    return {"us": seconds * 1e6, "tb_per_s": moved / seconds / 1e12}
