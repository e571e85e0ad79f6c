"""Convert a ReLU ResNet-20 that others trained (CIFAR-10, 91.73 %), without training, and measure it.

    python reproduce/third_party.py --weights resnet20-cifar10-relu.safetensors --data DIR --steps 8 16 32 --out RECORD

For each T the network is converted for ρ = T (or for --rho, and T steps are read): thresholds from 1,000 training
images, biases and weights from the first of them. With --on train the images after those are measured instead of the
test set: that is how choices are made.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
from relu_resnet20 import EXAMPLE, MEAN, STD, relu_resnet20
from torch import Tensor, nn

import offspike as osp
from offspike.corrections import Bias, Correction, Weights
from offspike.datasets import Dataset, load
from offspike.experiment import provenance
from offspike.thresholds import LeastError


def method(rho: int, images: int, parts: str, shifts: int) -> osp.Method:
    """θ of least error per channel, the corrections named in ``parts``, and exact calibration; or ``shifts`` of COS.

    The errors that a weight fit can mend shrink as 1/ρ, and so does its rate.
    """
    fit = Weights(rho, images, iterations=150, lr=3.2e-3 / rho)
    made: dict[str, Correction] = {"weights": fit, "bias": Bias(rho, images, iterations=2)}
    corrections = tuple(made[name] for name in parts.split(",") if name)
    rule = LeastError(rho)
    if shifts:
        return osp.methods.cos(rho, iterations=shifts, threshold=rule, corrections=corrections)
    return osp.methods.exact(rho, threshold=rule, corrections=corrections)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", type=Path, required=True)
    add("--data", type=Path, required=True, help="the folder that holds cifar-10-batches-bin")
    add("--steps", type=int, nargs="+", default=[8, 16, 32])
    add("--rho", type=int, help="steps that a layer listens to (default: T)")
    add("--shifts", type=int, default=0, help="COS with so many iterations instead of exact: made for a large ρ")
    add("--images", type=int, default=1000, help="training images for calibration")
    add("--corrected", type=int, default=256, help="so many of them for corrections")
    add("--corrections", default="bias,weights,bias")
    add("--on", choices=("test", "train"), default="test")
    add("--limit", type=int, help="only so many images are measured")
    add("--batch", type=int, default=100)
    add("--parts", type=Path, help="keep the network of one T and the images done here; run again to go on")
    add("--max-seconds", type=float, default=float("inf"), help="stop in time, with --parts")
    add("--out", type=Path, help="the folder of the record")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False
    relu = relu_resnet20(chosen.weights)
    ann = osp.prepare(relu, osp.ReLU(), example=EXAMPLE).eval().to(device)
    train = images(chosen, "train")
    calibration = train.preprocess(train.images[: chosen.images])
    measured = train if chosen.on == "train" else images(chosen, "test")
    first = chosen.images if chosen.on == "train" else 0
    last = None if chosen.limit is None else first + chosen.limit
    measured = measured.take(slice(first, last))
    for steps in chosen.steps:
        result = measure(ann, steps, calibration, measured, chosen)
        print(json.dumps({k: v for k, v in result.items() if k != "method"}), flush=True)
        if chosen.out:
            how = {"images": f"{len(measured)} of CIFAR-10 {chosen.on}", "calibration": f"{len(calibration)} of train"}
            write(chosen.out, {**result, **provenance(**how)})


def images(chosen: argparse.Namespace, split: str) -> Dataset:
    """CIFAR-10 with the mean and deviation that the network was trained with."""
    data = load("cifar10", chosen.data, split)
    assert isinstance(data, Dataset)
    return replace(data, mean=MEAN, std=STD)


def write(folder: Path, run: dict[str, object]) -> None:
    """Into the folder's record; a run for the same T and ρ takes the place of the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "record.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    kept = {(each["T"], each["rho"]): each for each in (*runs, run)}
    runs = [kept[key] for key in sorted(kept)]
    record = {"what": "a third-party ReLU ResNet-20 converted without training; binary spikes", "runs": runs}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def network(ann: nn.Module, how: osp.Method, calibration: Tensor, parts: Path | None) -> osp.SpikingNetwork:
    """The converted network: what lies in ``parts``, or a new one."""
    path = None if parts is None else parts / "network.safetensors"
    if path is not None and path.exists():
        found = osp.load(path)
        if not isinstance(found, osp.SpikingNetwork) or found.method != how:
            raise SystemExit(f"{path} was converted in another way: name another folder")
        return found
    made = osp.convert(ann, how, calibration=calibration.split(200))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        osp.save(made, path)
    return made


def run(snn: osp.SpikingNetwork, ann: nn.Module, data: Dataset, steps: int, chosen: argparse.Namespace) -> osp.Report:
    """The report on all images, batch by batch; with ``--parts`` it goes on where it stopped."""
    started = time.perf_counter()
    layout = torch.channels_last  # a quarter faster on a CPU
    snn = snn.to(memory_format=layout)
    path = None if chosen.parts is None else chosen.parts / "report.json"
    report = osp.Report.from_json(path) if path is not None and path.exists() else None
    done = report.samples if report else 0
    for x, y in data.blocks(torch.arange(done, len(data)), chosen.batch):
        if time.perf_counter() - started > chosen.max_seconds:
            raise SystemExit(f"{done} of {len(data)} images are done: run again to go on")
        part = osp.evaluate(
            snn, [(data.preprocess(x).to(memory_format=layout), y)], steps=steps, reference=ann
        )  # fmt: skip
        report = part if report is None else report + part
        done = report.samples
        if path is not None:
            report.to_json(path)
    assert report is not None
    return report


def measure(
    ann: nn.Module, steps: int, calibration: Tensor, data: Dataset, chosen: argparse.Namespace
) -> dict[str, object]:
    """Convert for this T, run every image, and say what came out."""
    started = time.perf_counter()
    how = method(chosen.rho or steps, min(chosen.corrected, len(calibration)), chosen.corrections, chosen.shifts)
    snn = network(ann, how, calibration, chosen.parts)
    converted = time.perf_counter()
    report = run(snn, ann, data, steps, chosen)
    cost = report.cost(steps)
    return {
        "T": steps, "rho": cost.rho, "schedule": cost.schedule, "ticks": cost.ticks,
        "synaptic_passes": cost.synaptic_passes, "samples": report.samples,
        "accuracy": round(100 * float(report.accuracy[-1]), 2),
        "agreement": round(100 * float(report.agreement[-1]), 2),
        "ann": round(100 * float(report.reference_accuracy), 2),
        "accuracy_at_each_step": [round(100 * float(a), 2) for a in report.accuracy],
        "spikes": report.spikes(steps),
        "method": how.to_dict(),
    } | timed(started, converted, chosen.parts)  # fmt: skip


def timed(started: float, converted: float, parts: Path | None) -> dict[str, object]:
    """How long it took; nothing of a run in parts, whose last process knows only its own time."""
    if parts is not None:
        return {}
    return {"seconds_to_convert": round(converted - started, 1), "seconds": round(time.perf_counter() - started, 1)}


if __name__ == "__main__":
    main()
