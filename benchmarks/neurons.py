"""The neuron kernel by itself at T = ρ, where arithmetic bounds it: bytes a second for each rule and block size.

A part of `gpu.py`. The first size of each kind is the one that is in use.
"""

import time
from typing import Any

import torch

from offspike import bench, timing
from offspike.initial import phases

# (warps, neurons or windows of a program) to try: without tables, with them or long listening, and for pooled spikes
SIZES = {
    "PLAIN": [(4, 1024), (4, 512), (8, 1024), (2, 256)],
    "LONG": [(4, 512), (4, 1024), (4, 256), (2, 256)],
    "POOLED": [(1, 64), (1, 32), (2, 64)],
}


def run(options: Any, device: torch.device) -> str:
    """Rows, saved as they come."""
    if device.type != "cuda":
        return "needs a GPU"
    from offspike.ops import gpu

    rows: list[dict[str, Any]] = []
    kinds = [("LONG", 4, "exact-even"), ("PLAIN", 4, "shift-keep"), ("LONG", 8, "exact-even")]
    kinds += [("LONG", 8, "shift-keep"), ("POOLED", 4, "exact-even"), ("POOLED", 4, "shift-keep")]
    cases = [(place, *kind) for place in range(4) for kind in kinds if place < len(SIZES[kind[0]])]
    for place, kind, rho, rule in cases:
        if time.perf_counter() > options.until:
            break
        usual = getattr(gpu, kind)
        setattr(gpu, kind, SIZES[kind][place])
        try:
            took = _seconds(gpu, rule, rho, kind == "POOLED", device)
        finally:
            setattr(gpu, kind, usual)
        rows.append({"rule": rule, "steps": rho, "rho": rho, "kind": kind, "warps, block": SIZES[kind][place], **took})
        print(rows[-1], f"   [{options.until - time.perf_counter():.0f} s left]", flush=True)
        bench.save(options.out / "neurons.csv", rows)
    return "\n".join(f"{row['rule']} {row['kind']} {row['warps, block']}: {row['tb_per_s']:.2f} TB/s" for row in rows)


def _seconds(gpu: Any, rule: str, rho: int, pooled: bool, device: torch.device) -> dict[str, float]:
    samples, channels, width = 1024, 64, 32
    neurons = samples * channels * width * width
    current = torch.randn(rho, neurons, device=device, dtype=torch.bfloat16)
    theta, bias = torch.ones(1, device=device), torch.zeros(channels, device=device)
    named: dict[str, Any] = {"bias": bias, "keep": False}
    if pooled:
        named |= {"pool": channels, "width": width}
    if rule == "exact-even":
        named["phase"] = phases(torch.empty(1, neurons // samples, device=device))[0].contiguous()
    took = timing.seconds(
        lambda: gpu.calibrate_and_fire(current, theta, rule, rho, 1, 2.0**-10, **named), device, budget=0.1
    )
    moved = timing.size(current) * (1.25 if pooled else 2)
    return {"us": took * 1e6, "tb_per_s": moved / took / 1e12}
