"""Ours against SpikingJelly on the same network, T and machine, in one run: a part of `gpu.py`.

SpikingJelly runs plain IF neurons without calibration, multi-step, batch norms folded. The setting that is fastest on
this machine counts: precision, batch, memory layout, the first layer once or for every step, the neurons' kernels.

Most of the time would go into compiling Triton kernels one by one (theirs for every shape). On a GPU, processes side by
side do that first, each with some of the rows (``--rows``); what they leave in Triton's cache is used when it counts.
"""

import functools
import gc
import itertools
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

import offspike as osp
from offspike import bench, rivals
from offspike.ops import LONGEST

Row = dict[str, Any]
METHODS = {"even": osp.methods.exact, "cos": osp.methods.cos}
OURS = [(precision, method) for precision in ("bf16", "int8", "tf32") for method in METHODS]
# precision, batch, and how it differs from the usual setting; the first ones count most, the others if there is time
THEIRS: list[tuple[Any, int, dict[str, Any]]] = [
    ("tf32", 500, {"once": True}),
    ("tf32", 500, {}),
    ("bf16", 500, {}),
    ("bf16", 500, {"once": True}),
    ("tf32", 500, {"channels_last": False}),
    ("bf16", 500, {"channels_last": False}),
    ("tf32", 500, {"kernels": "torch"}),
    ("bf16", 2000, {}),
    ("tf32", 2000, {}),
    ("tf32", 2000, {"once": True}),
]
FIRST = 3  # of THEIRS, for every T before the rest for any
PROCESSES = 8  # that compile
FEW = 64  # images, where a pass only compiles (our kernels do not depend on the batch)


def run(options: Any, device: torch.device) -> str:
    """Rows of both, saved as they come; their ratios."""
    if not find_spec("spikingjelly"):
        return "SpikingJelly is not installed: put it, loguru and tqdm on PYTHONPATH"
    name, cases = ("resnet20", [(3, 2, 2), (2, 2, 2)]) if options.quick else ("vgg16", [(16, 4, 2000), (4, 4, 8000)])
    ann = bench.network(name).to(device)

    @functools.cache
    def in_fixed_point() -> Any:
        return osp.snap(ann, bits=8, example=torch.randn(1, *ann.input_shape, device=device))

    if options.rows is None and device.type == "cuda":
        print(_compile(options), flush=True)
    rows: list[Row] = []
    places = itertools.count()
    wanted = [(precision, method) for precision, method in OURS if precision in (options.precisions or (precision,))]
    for ours, theirs in ((wanted, THEIRS[:FIRST]), ([], THEIRS[FIRST:])):
        for steps, rho, batch in cases:
            for precision, method in ours:
                if precision == "int8" and not in_whole_numbers(device, rho):
                    continue
                row = {"network": name, "steps": steps, "rho": rho, "who": "offspike", "precision": precision}
                images = min(batch, FEW) if options.rows else batch
                model = in_fixed_point if precision == "int8" else lambda: ann
                measure = _ours(model, device, images, **row, method=method)
                _add(rows, {**row, "setting": method}, measure, options, next(places))
            for precision, size, setting in theirs:
                words = " ".join(f"{key}={value}" for key, value in setting.items())
                row = {"network": name, "steps": steps, "who": "spikingjelly", "precision": precision, "setting": words}
                size = 2 if options.quick else size
                _add(rows, row, _theirs(ann, device, size, steps, precision, setting), options, next(places))
    return "\n".join([*map(_line, rows), *ratios(rows)])


def in_whole_numbers(device: torch.device, rho: int) -> bool:
    """Whether "int8" can be timed: on a GPU a longer ρ has no such path."""
    return device.type != "cuda" or rho <= LONGEST


def ratios(rows: list[Row]) -> list[str]:
    """For each T: their best time over each of ours."""
    lines = []
    for steps in dict.fromkeys(row["steps"] for row in rows):
        timed = [row for row in rows if row["steps"] == steps and "us" in row]
        theirs = sorted((row for row in timed if row["who"] == "spikingjelly"), key=lambda row: row["us"])
        for ours in (row for row in timed if row["who"] == "offspike") if theirs else ():
            best = theirs[0]
            lines.append(
                f"T={steps}: {best['us'] / ours['us']:.2f} times faster than SpikingJelly's best "
                f"({best['us']:.1f} us, {best['precision']} {best['setting']}) with {ours['precision']} "
                f"{ours['setting']} ({ours['us']:.2f} us)"
            )
    return lines


def _ours(
    model: Callable[[], Any], device: torch.device, batch: int, *, steps: int, rho: int, precision: Any, method: str,
    **_: Any,
) -> Callable[[], Row]:  # fmt: skip
    def measure() -> Row:
        x = torch.randn(batch, *model().input_shape, device=device)
        snn = osp.convert(model(), METHODS[method](rho), precision=precision)
        return {"batch": batch, **bench.speed(lambda: snn(x, steps), x, budget=0.3)}

    return measure


def _theirs(
    ann: Any, device: torch.device, batch: int, steps: int, precision: Any, setting: dict[str, Any]
) -> Callable[[], Row]:
    def measure() -> Row:
        x = torch.randn(batch, *ann.input_shape, device=device)
        options = {key: value for key, value in setting.items() if key != "kernels"}
        with _kernels(setting.get("kernels", "auto")) as chosen:
            go = rivals.spikingjelly(ann, x, steps, precision, **options)
            assert go is not None
            row = bench.speed(go, x, budget=0.3)
            return {"batch": batch, **row, "kernels": chosen(device)}

    return measure


@contextmanager
def _kernels(name: str) -> Iterator[Callable[[torch.device], str]]:
    """SpikingJelly reads its choice from the environment once; this is the same choice, inside the block."""
    from spikingjelly._ops.if_ import _selection

    before = _selection._requested
    _selection._requested = name if name != "auto" else before
    _selection._selections.clear()
    try:
        yield lambda device: _selection.diagnostics(device)["implementation"] if device.type == "cuda" else device.type
    finally:
        _selection._requested = before
        _selection._selections.clear()


def _compile(options: Any) -> str:
    """Run all rows in processes side by side, not to be timed."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, sys.argv[0], "--only", "rivals", "--max-seconds", "60", "--out", folder]
        command += ["--quick"] * options.quick + ["--precisions", *options.precisions] * bool(options.precisions)
        some = [
            subprocess.Popen([*command, "--rows", f"{part}/{PROCESSES}"], stdout=subprocess.DEVNULL)
            for part in range(PROCESSES)
        ]
        for process in some:
            try:
                process.wait(timeout=max(1.0, (options.until - begin) / 2 - (time.perf_counter() - begin)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return f"kernels compiled by {PROCESSES} processes in {time.perf_counter() - begin:.0f} s"


def _add(rows: list[Row], row: Row, measure: Callable[[], Row], options: Any, place: int) -> None:
    """Measure, print and save one more row; what fails is a row too. Nothing if it is late, or a row of others."""
    if time.perf_counter() > options.until:
        return
    if options.rows is not None:
        part, parts = map(int, options.rows.split("/"))
        if place % parts != part:
            return
    try:
        rows.append(row | measure())
    except Exception as error:
        rows.append({**row, "failed": f"{type(error).__name__}: {error}".splitlines()[0]})
        traceback.print_exc()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    print(_line(rows[-1]), f"   [{options.until - time.perf_counter():.0f} s left]", flush=True)
    bench.save(options.out / "rivals.csv", rows)


def _line(row: Row) -> str:
    took = f"{row['us']:9.2f} us/image, batch {row['batch']}" if "us" in row else f"failed: {row['failed']}"
    return f"{row['network']:9} T={row['steps']:<3} {row['who']:13} {row['precision']:5} {row['setting']:20} {took}"
