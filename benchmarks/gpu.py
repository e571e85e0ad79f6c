"""Everything about speed on one GPU in one go: kernels checked, networks timed, precisions compared.

    PYTHONPATH=src python3 benchmarks/gpu.py --out results [--data FOLDER] [--only rivals memory …] [--max-seconds 120]

Speed is measured on random weights: they cost what trained ones cost. ``--data`` names the folder that holds CIFAR-10;
accuracy needs it and checkpoints (``--models``, or the project's own). Needs torch and Triton only; the tests also
pytest, the rivals also SpikingJelly with loguru and tqdm. Kernels that take long to compile are compiled by processes
side by side before they are timed. Results are written as they come. Each part may take its share of ``--max-seconds``
and what those before it left over; one that fails does not stop the others.
"""

import argparse
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import against
import ahead
import bounded
import neurons
import precisions
import torch
import whole
from torch import nn

import offspike as osp
from offspike import bench, rivals, timing
from offspike.fast.precision import Precision, arithmetic
from offspike.surgery import replace

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# network, T, ρ, batches
CASES = [
    ("vgg16", 4, 4, (4000, 8000)),
    ("vgg16", 16, 4, (2000,)),
    ("resnet20", 16, 4, (62, 2500)),
    ("resnet18", 4, 4, (2000,)),
    ("resnet18", 16, 4, (1000,)),
    ("resnet34", 8, 8, (64, 128)),
]
# whose layers are timed: network, precision, method, T, ρ, batch
LAYERS = [
    ("vgg16", "bf16", "even", 4, 4, 4000),
    ("vgg16", "int8", "cos", 4, 4, 4000),
    ("vgg16", "int8", "cos", 16, 4, 2000),
    ("vgg16", "int8", "even", 4, 4, 4000),
    ("resnet34", "bf16", "cos", 8, 8, 32),
    ("resnet20", "bf16", "even", 16, 4, 2500),
    ("resnet18", "int8", "cos", 4, 4, 2000),
    ("resnet34", "bf16", "even", 8, 8, 32),
    ("vgg16", "tf32", "even", 4, 4, 4000),
]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "int8": torch.int8, "tf32": torch.float32}
QUICK = [("resnet20", 3, 2, (2,)), ("vgg16", 3, 2, (2,))]
# A variant of a kernel takes a second to compile: not all of them.
SOME = (
    "triton and ((test_fire and f32 and 1025) or (on_the_way and bf16 and 14-4 and (exact-even or shift-keep)) "
    "or (ties and exact) or rounding_decides or do_not_mix or ends_of or two_to_the_31)"
)
CHECKS = ("memcheck", "initcheck", "racecheck")
GUARDED = "(rules and 1025) or (pooled and 6-5) or products_stay or (neurons and f32 and (1-1025 or 3-7)) or contiguous"
BEGAN = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--data", type=Path, help="the folder that holds CIFAR-10")
    parser.add_argument("--models", type=Path, help="a folder of checkpoints (*cifar10*.safetensors) to compare")
    parser.add_argument("--precisions", nargs="+", help="only these: accuracy, rivals, speed")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--max-seconds", type=float, default=3600.0)
    parser.add_argument("--networks", nargs="+", help="only these networks' speed and accuracy")
    parser.add_argument("--rows", help="I/N: every N-th of the rivals' rows, from the I-th on")
    parser.add_argument("--quick", action="store_true", help="a tiny setting, to see that it runs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = {name: part for name, part in PARTS.items() if name in options.only}
    found, failed = [f"torch {torch.__version__}, {_machine()}"], False
    for place, (name, (share, part)) in enumerate(chosen.items()):
        left = BEGAN + options.max_seconds - time.perf_counter()
        shares = sum(share for share, _ in list(chosen.values())[place:])
        options.until = time.perf_counter() + left * share / shares
        print(f"--- {name}, {options.until - time.perf_counter():.0f} s", flush=True)
        try:
            found.append(f"{name}:\n{part(options)}")
        except Exception:  # the other parts are still wanted: a lent machine is dear
            found.append(f"{name} failed:\n{traceback.format_exc()}")
            failed = True
            print(found[-1], flush=True)
        _free()
        (options.out / "gpu.txt").write_text("\n\n".join(found))
    print("=" * 80 + "\n" + "\n\n".join(found)[-9000:])
    raise SystemExit(failed)


def _machine() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"


def _free() -> None:
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def tests(options: Any) -> str:
    return _pytest(options, "tests/test_kernels.py", "-k", SOME)


def guards(options: Any) -> str:
    """No kernel reads or writes beyond its operands: by guarded memory, and by compute-sanitizer where there is one.

    All run side by side, so that each has the whole time: nothing is timed here.
    """
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    running = {} if tool is None else {check: _sanitizer(options, tool, check) for check in CHECKS}
    lines = [_pytest(options, "tests/test_guarded_kernels.py", "-k", GUARDED)]
    lines += [_ended(options, check, process) for check, process in running.items()]
    return "\n".join(lines if running else [*lines, "compute-sanitizer: not found on this machine"])


def _sanitizer(options: Any, tool: str, check: str) -> Any:
    command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "tests/test_guarded_kernels.py"]
    with (options.out / f"{check}.txt").open("w") as file:  # a group of its own: it has a child
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def _ended(options: Any, check: str, process: Any) -> str:
    """What a tool said last; it is stopped when the time is up."""
    try:
        process.wait(timeout=max(1.0, options.until - time.perf_counter()))
        state = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        state = "not finished in time"
    said = (options.out / f"{check}.txt").read_text().strip().splitlines()
    return f"{check}: {state}: {(said or ['nothing'])[-1]}"


def _pytest(options: Any, file: str, *more: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, *more]
    left = max(1.0, options.until - time.perf_counter())
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        return f"{file}: not finished in {left:.0f} s"
    (options.out / f"{Path(file).stem}.txt").write_text(done.stdout + done.stderr)
    return f"{file}: " + "\n".join((done.stdout.strip().splitlines() or [done.stderr])[-4:])


def grid(options: Any) -> str:
    """The plan, its replay and its pieces against the model run layer by layer, on weights whose sums are exact."""
    torch.manual_seed(0)
    models = {
        "vgg": osp.zoo.VGG((8, 8, "A", 8, "A"), (8, 8), classes=5, activation=osp.QCFS(4), channels=3, size=8),
        "resnet": osp.zoo.ResNet((8, 8), (1, 2), classes=5, activation=osp.QCFS(4), size=8),
    }
    lines = []
    for name, normed in models.items():
        model = replace(normed, nn.BatchNorm2d, lambda name, module: nn.Identity())  # its statistics would round
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.weight.data = torch.randint(-3, 4, module.weight.shape) / 4
            if hasattr(module, "set_threshold"):
                module.set_threshold(0.5)
        x = (torch.randint(-8, 9, (9, 3, 8, 8)) / 8).to(DEVICE)
        for precision in ("exact32", "tf32", "bf16"):
            snn = osp.convert(model.eval(), osp.methods.exact(4), precision=precision).to(DEVICE)
            snn.precision, wanted = "exact32", None
            with rivals.reference(snn):
                wanted = snn(x, steps=6)
            snn.precision = precision
            equal = [torch.equal(snn(x, steps=6), wanted) for _ in range(4)]  # the last is a replay
            lines.append(f"{name} {precision}: {equal}, in pieces {torch.equal(snn(x, steps=6, piece=1), wanted)}")
    return "\n".join(lines)


def speed(options: Any) -> str:
    rows: list[dict[str, Any]] = []
    cases = [case for case in (QUICK if options.quick else CASES) if case[0] in (options.networks or (case[0],))]
    chosen = [precision for precision in DTYPES if precision in (options.precisions or DTYPES)]
    if DEVICE.type == "cuda":
        each = product(cases, [precision for precision in chosen if precision != "bf16"], against.METHODS)
        wanted = [ahead.Case(name, steps, rho, *how) for (name, steps, rho, _), *how in each]
        print(ahead.compiled(wanted, (options.until - time.perf_counter()) / 2), flush=True)
    roofs = timing.roofs(DEVICE, dtype=torch.bfloat16)
    print(roofs, flush=True)
    for name, steps, rho, batches in cases:
        ann: Any = bench.network(name).to(DEVICE)
        for batch in batches:
            x = torch.randn(batch, *ann.input_shape, device=DEVICE)
            row = {"network": name, "steps": steps, "rho": rho, "batch": batch}
            for what, run in _runs(ann, x, steps, rho, chosen, rivals_too=batch == batches[0]):
                if time.perf_counter() > options.until:
                    return "\n".join(map(_line, rows))
                rows.append({**row, "what": what, **_timed(run, x)})
                print(_line(rows[-1]), f"   [{time.perf_counter() - BEGAN:.0f} s]", flush=True)
                bench.save(options.out / "gpu.csv", rows)
    return "\n".join(map(_line, rows))


def _timed(run: Callable[[], Any], x: Any) -> dict[str, Any]:
    """What fails, of memory say, is a row too: the others are still wanted."""
    _free()
    try:
        return bench.speed(run, x, budget=0.3)
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def _runs(
    ann: Any, x: Any, steps: int, rho: int, chosen: Iterable[Precision], *, rivals_too: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    for precision in chosen:
        if precision == "int8" and not against.in_whole_numbers(DEVICE, rho):
            continue
        model = osp.snap(ann, bits=8, example=x[:1]) if precision == "int8" else ann
        for what, method in against.METHODS.items():
            snn = osp.convert(model, method(rho), precision=precision)
            yield f"snn {what} {precision}", lambda snn=snn: snn(x, steps)
    if rivals_too and steps == 4:
        yield "ann bf16", rivals.ann(ann, x, "bf16", folded=False)
        yield "ann bf16, folded", rivals.ann(ann, x, "bf16", folded=True)


def layers(options: Any) -> str:
    """Each layer of some networks: its time, and how far it is from its roof."""
    text, rows = "", []
    roofs = {precision: _roofs(precision) for precision in DTYPES}
    for name, precision, what, steps, rho, batch in LAYERS:
        if options.networks and name not in options.networks:
            continue
        if time.perf_counter() > options.until:
            break
        ann: Any = bench.network(name).to(DEVICE)
        x = torch.randn(1 if options.quick else batch, *ann.input_shape, device=DEVICE)
        ann = osp.snap(ann, bits=8, example=x[:1]) if precision == "int8" else ann
        snn = osp.convert(ann, against.METHODS[what](rho), precision=precision)
        found = bench.by_layer(snn, x, steps=steps, roofs=roofs[precision])
        given = {"network": name, "precision": precision, "method": what, "steps": steps, "rho": rho, "batch": len(x)}
        rows += [given | row for row in found]
        text += f"{name} {precision} {what} T={steps}, of its roof:\n"
        text += "\n".join(f"{r['kind']:24} {r['us']:9.3f} {r['of_roof']:5.0%}" for r in bench.summary(found)) + "\n"
        bench.save(options.out / "layers.csv", rows)
        if options.quick:
            break
    return text


def _roofs(precision: Precision) -> timing.Roofs:
    with arithmetic(precision):  # TF32 is a float32 product that may round
        return timing.roofs(DEVICE, dtype=DTYPES[precision])


def _line(row: dict[str, Any]) -> str:
    case = f"{row['network']:9} T={row['steps']:<3} rho={row['rho']:<2} B={row['batch']:<5} {row['what']:18}"
    if "failed" in row:
        return f"{case} failed: {row['failed']}"
    return f"{case} {row['us']:9.2f} us/image  {(row['peak_bytes'] or 0) / 1e9:6.2f} GB"


# name: share of the time, what it does; in the order of their worth
PARTS: dict[str, tuple[float, Callable[[Any], str]]] = {
    "rivals": (5, lambda options: against.run(options, DEVICE)),
    "memory": (2, lambda options: bounded.run(options, DEVICE)),
    "accuracy": (4, lambda options: precisions.run(options, DEVICE)),
    "testset": (1, lambda options: precisions.testset(options, DEVICE)),
    "guards": (2, guards),
    "neurons": (2, lambda options: neurons.run(options, DEVICE)),
    "whole": (1, lambda options: whole.run(options, DEVICE)),
    "speed": (3, speed),
    "layers": (1, layers),
    "tests": (2, tests),
    "grid": (1, grid),
}


if __name__ == "__main__":
    main()
