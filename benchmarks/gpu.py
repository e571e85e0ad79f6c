"""Everything about speed on one GPU in one go: kernels checked, networks timed, time by kernel.

    PYTHONPATH=src python3 benchmarks/gpu.py --out results [--quick]

Random weights: they cost what trained ones cost. Needs torch and Triton only.
"""

import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import offspike as osp
from offspike import bench, rivals, timing

CASES = [
    # network, T, rho, batches to try
    ("vgg16", 16, 4, (250, 500, 1000, 2000)),
    ("vgg16", 4, 4, (1000, 2000, 4000)),
    ("resnet20", 16, 4, (62, 250, 1000, 2500)),
    ("resnet18", 16, 4, (250, 500, 1000)),
    ("resnet18", 4, 4, (1000, 2000)),
    ("resnet34", 8, 8, (8, 16, 32)),
]
# A variant of a kernel takes a second to compile: not all of them.
SOME = (
    "triton and ((test_fire and f32) or (on_the_way and bf16 and 14-4 and (exact-first or shift-keep)) "
    "or ties or do_not_mix or ends_of or two_to_the_31)"
)
KEYS = ("us", "images_per_second", "peak_bytes")
QUICK = [("resnet20", 3, 2, (2,)), ("vgg16", 3, 2, (1, 2))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true", help="a tiny setting, to see that it runs")
    parser.add_argument("--skip-tests", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    if not options.skip_tests:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/test_kernels.py"]
        done = subprocess.run([*command, "-k", SOME], capture_output=True, text=True, check=False)
        (options.out / "tests.txt").write_text(done.stdout + done.stderr)
        print("kernel tests:", (done.stdout.strip().splitlines() or ["no output"])[-1], f"{time.perf_counter() - began:.0f} s")
    print("equal on a grid:", json.dumps(equal_on_a_grid(device)), flush=True)
    roofs = timing.roofs(torch.device(device), dtype=torch.bfloat16)
    print("roofs:", roofs, flush=True)
    print(sweep(device, options.quick), flush=True)
    rows: list[dict[str, Any]] = []
    for name, steps, rho, batches in QUICK if options.quick else CASES:
        for row in case(name, steps, rho, batches, device, roofs):
            rows.append(row)
            print(line(row), f"   [{time.perf_counter() - began:.0f} s]", flush=True)
            save(options.out / "gpu.csv", rows)
    layers, text = details(device, options.quick, roofs)
    save(options.out / "layers.csv", layers)
    (options.out / "profile.txt").write_text(text)
    print(text)
    print("\n".join(map(line, rows)))


def equal_on_a_grid(device: str) -> dict[str, bool]:
    """The plan against the model run layer by layer, on weights whose sums are exact."""
    sys.path.insert(0, "tests")
    result = {}
    torch.manual_seed(0)
    for name, model in {
        "vgg": osp.zoo.VGG((6, 8, "A", 10, "A"), (24, 24), classes=5, activation=osp.QCFS(4), channels=3, size=8),
        "resnet": osp.zoo.ResNet((6, 12), (1, 2), classes=5, activation=osp.QCFS(4), size=8),
    }.items():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 0.0
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.data = torch.randint(-3, 4, module.weight.shape) / 4
            if hasattr(module, "set_threshold"):
                module.set_threshold(0.5)
        ann = model.eval().to(device)
        x = (torch.randint(-8, 9, (9, 3, 8, 8)) / 8).to(device)
        for precision in ("exact32", "tf32", "bf16"):
            snn = osp.convert(ann, osp.methods.exact(4), precision=precision)
            reference = osp.convert(ann, osp.methods.exact(4))
            for layer in reference.layers.values():
                layer.register_forward_hook(lambda *_: None)  # the model itself runs, not its plan
            wanted = reference(x, steps=9)
            got = [snn(x, steps=9) for _ in range(4)]  # the last of them is a replay
            result[f"{name} {precision}"] = all(torch.equal(g, wanted) for g in got)
            result[f"{name} {precision} pieces"] = torch.equal(snn(x, steps=9, piece=2), wanted)
    return result


def sweep(device: str, quick: bool) -> str:
    """Bandwidth of the neuron kernel by block size and unrolling, in GB/s of what must be moved."""
    if device == "cpu":
        return "no GPU: kernels not swept"
    from offspike.ops import gpu

    neurons, theta = 1 << (16 if quick else 24), torch.ones(1, device=device)
    bias = torch.randn(64, device=device) * 0.1
    lines, usual = [], (gpu.PLAIN, gpu.POOLED, gpu.UNROLL)
    for what, steps, rho, kind in [
        ("T=16 rho=4", 16, 4, {}), ("T=4 rho=4", 4, 4, {}), ("T=8 rho=8", 8, 8, {}), ("shortcut", 16, 4, {"beside"}),
        ("pool", 16, 4, {"pool"}),
    ]:  # fmt: skip
        current = torch.randn(1 if "held" in kind else steps, neurons, device=device).to(torch.bfloat16)
        options: dict[str, Any] = {"bias": bias, "keep": False}
        options |= {"beside": current, "gain": theta} if "beside" in kind else {}
        options |= {"steps": steps} if "held" in kind else {}
        options |= {"pool": 64, "width": 32} if "pool" in kind else {}
        read = (1 if "held" in kind else steps) * (2 if "beside" in kind else 1)
        moved = 2 * neurons * (read + steps * (0.25 if "pool" in kind else 1))
        blocks = [(1, 64), (1, 128), (4, 256)] if "pool" in kind else [(4, 512), (4, 1024), (8, 1024)]
        cells = []
        for block in blocks:
            for unroll in (4, 12):
                gpu.PLAIN = gpu.POOLED = block
                gpu.UNROLL = unroll
                run = lambda: gpu.calibrate_and_fire(current, theta, "exact-first", rho, 1, 1e-3, **options)  # noqa: B023, E731
                took = timing.seconds(run, torch.device(device), budget=0.02)
                cells.append((moved / took / 1e9, f"{block}x{unroll}"))
        cells.sort(reverse=True)
        lines.append(f"{what:12} " + "  ".join(f"{name}: {rate:.0f}" for rate, name in [*cells[:5], cells[-1]]))
    gpu.PLAIN, gpu.POOLED, gpu.UNROLL = usual
    return "\n".join(lines)


def case(name: str, steps: int, rho: int, batches: tuple[int, ...], device: str, roofs: Any) -> Any:
    ann = bench.network(name).to(device)
    for batch in batches:
        x = torch.randn(batch, *ann.input_shape, device=device)
        row = {"network": name, "steps": steps, "rho": rho, "batch": batch}
        for precision in ("bf16", "tf32") if batch == batches[-1] else ("bf16",):
            snn = osp.convert(ann, osp.methods.exact(rho), precision=precision)
            try:
                yield {**row, "what": f"snn {precision}", **bench.speed(lambda: snn(x, steps), x, budget=0.5)}  # noqa: B023
            except torch.OutOfMemoryError:
                yield {**row, "what": f"snn {precision} out of memory", **dict.fromkeys(KEYS, float("nan"))}
        if batch == batches[-1]:
            for folded in (False, True):
                run = rivals.ann(ann, x, "bf16", folded=folded)
                yield {**row, "what": f"ann bf16{' folded' * folded}", **bench.speed(run, x, budget=0.5)}


def details(device: str, quick: bool, roofs: Any) -> tuple[list[dict[str, Any]], str]:
    rows, text = [], ""
    for name, steps, rho, batch in [("vgg16", 16, 4, 1000), ("resnet20", 16, 4, 1000), ("resnet18", 16, 4, 500)]:
        ann = bench.network(name).to(device)
        snn = osp.convert(ann, osp.methods.exact(rho), precision="bf16")
        x = torch.randn(2 if quick else batch, *ann.input_shape, device=device)
        found = bench.by_layer(snn, x, steps=steps, roofs=roofs)
        rows += [{"network": name, **row} for row in found]
        text += f"\n{name} T={steps}\n"
        for row in found + bench.summary(found, roofs):
            text += f"{row.get('layer', 'all')[:24]:24} {row['kind']:12} {row['us']:9.3f} {row['of_roof']:5.0%}\n"
        if device == "cuda" and name != "resnet18":
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                snn(x, steps)
                torch.cuda.synchronize()
            text += kernels(profile, len(x))
    return rows, text


def kernels(profile: Any, images: int) -> str:
    lines = []
    for event in sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)[:14]:
        lines.append(f"{event.self_device_time_total / images:8.3f} us/image {event.count:4d}x  {event.key[:90]}")
    return "\n".join(lines) + "\n"


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['network']:9} T={row['steps']:<3} rho={row['rho']:<2} B={row['batch']:<5} {row['what']:22} "
        f"{row['us']:9.2f} us/image  {(row['peak_bytes'] or 0) / 1e9:6.2f} GB"
    )


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
