"""Measure the cells of the paper's tables and figures: raw sums as JSON, one file a cell, to be shown elsewhere.

    PYTHONPATH=src python3 reproduce/measure.py all --data DIR --models DIR --out RAW --device cuda --batch 500 \\
        --max-seconds 540
    offspike reproduce all --from RAW

It needs torch, numpy and safetensors only. What lies in --out (or --done) is not measured again, so the same command
goes on where it stopped; the most telling cells come first. `--list` says what would be measured and does nothing.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from offspike.paper.bench import Bench
from offspike.paper.cells import Cell
from offspike.paper.measure import in_order, measure
from offspike.paper.setting import FULL, HARDER, TINY, Setting
from offspike.paper.store import Store
from offspike.paper.tiny import train_small
from offspike.paper.topics import TOPICS


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("topics", nargs="+", choices=[*TOPICS, "all"], metavar="TOPIC", help=f"all, or some of {', '.join(TOPICS)}")
    add("--out", type=Path, required=True, help="the folder of raw results")
    add("--done", type=Path, action="append", default=[], help="folders of results or records, not measured again")
    add("--data", type=Path, default=Path("data"), help="the folder that holds the data set")
    add("--dataset", choices=(FULL.data, HARDER.data), default=FULL.data)
    add("--models", type=Path, help="a folder of checkpoints, looked through before the packaged ones")
    add("--nets", nargs="+", choices=FULL.nets, help="only these networks")
    add("--measure", nargs="+", default=None, help="only accuracy, offsets, energy or seconds")
    add("--stages", type=int, default=99, help="only cells up to this (1: Table S1 … 8, 9: old methods; 11: T > 32)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--batch", type=int, help="images at a time for T <= 32 (default: 500 on a GPU, 50 on a CPU)")
    add("--limit", type=int, help="only the first test images")
    add("--calibration", type=int, default=Bench.calibration, help="training images for thresholds and corrections")
    add("--precision", choices=("exact32", "tf32", "bf16"), default="exact32", help="the last two are faster on a GPU")
    add("--max-seconds", type=float, help="stop in time; run again to go on")
    add("--tiny", action="store_true", help="small networks on digits, trained on the spot")
    add("--list", action="store_true", help="only say what would be measured")
    return parser.parse_args()


def wanted(chosen: argparse.Namespace, setting: Setting) -> list[Cell]:
    names = TOPICS if "all" in chosen.topics else chosen.topics
    cells = [cell for name in names for cell in TOPICS[name].cells(setting)]
    kinds = chosen.measure or ("accuracy", "offsets", "energy", "seconds")
    return [cell for cell in cells if cell.stage <= chosen.stages and cell.measure in kinds]


def bench(chosen: argparse.Namespace, setting: Setting) -> Bench:
    size = chosen.batch or (500 if chosen.device.startswith("cuda") else 50)
    models = chosen.out / "models" if chosen.tiny else chosen.models
    data = setting.data if chosen.tiny else chosen.dataset
    few = setting.images_for_energy
    return Bench(
        data, chosen.data, models, chosen.device, size, chosen.limit, few, chosen.calibration, chosen.precision
    )


def watch(started: float) -> Callable[[str, int], Callable[[int], None]]:
    """A line a cell, rewritten while it goes on: images done, seconds left."""

    def begin(what: str, images: int) -> Callable[[int], None]:
        begun, done = time.monotonic(), 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            spent = time.monotonic() - begun
            left = f"{spent / done * (images - done):.0f} s left" if done else "starting"
            end = "\n" if done == images else ""
            print(f"\r[{begun - started:6.0f} s] {what}: {done}/{images}, {left}   ", end=end, flush=True)

        return tell

    return begin


def main() -> None:
    chosen = options()
    setting = TINY if chosen.tiny else FULL
    if chosen.nets:
        setting = replace(setting, nets=tuple(chosen.nets))
    cells = wanted(chosen, setting)
    if chosen.list:
        for cell in in_order(cells):
            print(cell.stage, cell.key)
        return
    stand = bench(chosen, setting)
    if chosen.tiny:
        train_small([cell.network for cell in cells], chosen.out / "models")
    store = Store(chosen.out, tuple(chosen.done))
    outcome = measure(cells, stand, store, watch=watch(time.monotonic()), seconds=chosen.max_seconds)
    print(f"\n{outcome.sentence()}", flush=True)


if __name__ == "__main__":
    main()
