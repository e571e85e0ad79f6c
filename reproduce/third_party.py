"""Convert a ReLU ResNet-20 that others trained (CIFAR-10, 91.73 %), without training, and measure it.

    python reproduce/third_party.py --weights resnet20-cifar10-relu.safetensors --data DIR --steps 8 16 32 --out RECORD

The network is akamaster/pytorch_resnet_cifar10's (BSD-2): its architecture is written here from its description. For
each T the network is converted for ρ = T: thresholds from 1,000 training images, biases and weights from the first of
them. With --on train the images after those are measured instead of the test set: that is how choices are made.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from safetensors.torch import load_file
from torch import Tensor, nn

import offspike as osp
from offspike.corrections import Bias, Correction, Weights
from offspike.datasets import load
from offspike.experiment import batched, provenance
from offspike.thresholds import LeastError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two 3×3 convolutions; the shortcut drops every second pixel and pads channels with zeros (option A)."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.act2 = nn.ReLU()
        self.stride, self.pad = stride, (planes - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return self.act2(out + x)


class ThirdPartyResNet20(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.layer1 = nn.Sequential(*(Block(16, 16, 1) for _ in range(3)))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.layer3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.act(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def network(weights: Path) -> nn.Module:
    """As trained: true ReLUs, ready to convert."""
    model = ThirdPartyResNet20()
    missing, unexpected = model.load_state_dict(load_file(weights), strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise SystemExit(f"{weights} does not hold this network: {missing + unexpected}")
    return osp.prepare(model.eval(), osp.ReLU(), example=torch.zeros(1, 3, 32, 32)).eval()


def normalised(images: Tensor) -> Tensor:
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (images.float() / 255 - mean) / std


def method(steps: int, images: int, parts: str) -> osp.Method:
    """Exact calibration at ρ = T, θ of least error per channel, and the corrections named in ``parts``."""
    made: dict[str, Correction] = {"weights": Weights(steps, images), "bias": Bias(steps, images, iterations=2)}
    corrections = tuple(made[name] for name in parts.split(",") if name)
    return osp.methods.exact(steps, threshold=LeastError(steps), corrections=corrections)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", type=Path, required=True)
    add("--data", type=Path, required=True, help="the folder that holds cifar-10-batches-bin")
    add("--steps", type=int, nargs="+", default=[8, 16, 32])
    add("--images", type=int, default=1000, help="training images for calibration")
    add("--corrected", type=int, default=256, help="so many of them for corrections")
    add("--corrections", default="bias,weights,bias")
    add("--on", choices=("test", "train"), default="test")
    add("--limit", type=int, help="only so many images are measured")
    add("--batch", type=int, default=100)
    add("--out", type=Path, help="the folder of the record")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    ann = network(chosen.weights)
    train = load("cifar10", chosen.data, "train")
    calibration = normalised(train.images[: chosen.images])
    measured = train if chosen.on == "train" else load("cifar10", chosen.data, "test")
    first = chosen.images if chosen.on == "train" else 0
    last = None if chosen.limit is None else first + chosen.limit
    x, y = measured.images[first:last], measured.labels[first:last]
    with Progress() as bars:
        for steps in chosen.steps:
            result = measure(ann, steps, calibration, x, y, chosen, bars)
            print(json.dumps({k: v for k, v in result.items() if k != "method"}), flush=True)
            if chosen.out:
                how = {"images": f"{len(y)} of CIFAR-10 {chosen.on}", "calibration": f"{len(calibration)} of train"}
                write(chosen.out, {**result, **provenance(**how)})


def write(folder: Path, run: dict[str, object]) -> None:
    """Into the folder's record; a run for the same T takes the place of the old one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "record.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = sorted([*(old for old in runs if old["T"] != run["T"]), run], key=lambda each: each["T"])
    record = {"what": "a third-party ReLU ResNet-20 converted without training; binary spikes", "runs": runs}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def measure(
    ann: nn.Module, steps: int, calibration: Tensor, x: Tensor, y: Tensor, chosen: argparse.Namespace, bars: Progress
) -> dict[str, object]:
    started = time.perf_counter()
    how = method(steps, min(chosen.corrected, len(calibration)), chosen.corrections)
    fitting = bars.add_task(f"T={steps} corrections", total=None)
    snn = osp.convert(
        ann, how, calibration=calibration.split(200), progress=lambda what, done, total: bars.update(
            fitting, description=f"T={steps} {what}", completed=done, total=total
        ),
    )  # fmt: skip
    converted = time.perf_counter()
    bar = bars.add_task(f"T={steps} evaluation", total=len(y))
    layout = torch.channels_last  # a quarter faster on a CPU
    snn = snn.to(memory_format=layout)
    batches = ((normalised(images).to(memory_format=layout), labels) for images, labels in batched(x, y, chosen.batch))
    report = osp.evaluate(snn, batches, steps=steps, reference=ann, progress=lambda n: bars.advance(bar, n))
    cost = report.cost(steps)
    return {
        "T": steps, "rho": cost.rho, "schedule": cost.schedule, "ticks": cost.ticks, "samples": report.samples,
        "accuracy": round(100 * float(report.accuracy[-1]), 2),
        "agreement": round(100 * float(report.agreement[-1]), 2),
        "ann": round(100 * float(report.reference_accuracy), 2),
        "accuracy_at_each_step": [round(100 * float(a), 2) for a in report.accuracy],
        "spikes": report.spikes(steps),
        "seconds_to_convert": round(converted - started, 1), "seconds": round(time.perf_counter() - started, 1),
        "method": how.to_dict(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
