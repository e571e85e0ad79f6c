"""How many bits weights between spikes need until a converted network gives the answers that it gives in float32.

    PYTHONPATH=src python3 benchmarks/bits.py --data FOLDER [--network NAME] [--method cos] [--images 10000]

Spikes are 0 and 1, so a layer that takes them rounds by its weights alone. Here these are rounded to so many bits of
their output channel's largest weight, or as ``precision="tf32"`` has them on a GPU, batch norms folded before; the
image's layer and the logits' stay as they are, and sums are made in float32. Answers are compared one by one with the
unrounded network's. ``--data`` holds CIFAR-10.
"""

import argparse
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from against import METHODS
from torch import Tensor, nn

import offspike as osp
from offspike import bench, datasets
from offspike.experiment import provenance
from offspike.fast.digits import digits
from offspike.paper.measure import commit

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BITS = ("8", "12", "16", "18", "20", "22", "24", "digits")
AT = (1, 2, 4, 8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds CIFAR-10")
    parser.add_argument("--network", default="resnet20-cifar10-l4", help="a packaged network, or a checkpoint")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--method", choices=METHODS, default="even")
    parser.add_argument("--bits", nargs="+", choices=BITS, default=BITS)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    test, name = datasets.load("cifar10", root=options.data, split="test"), Path(options.network).stem
    made = provenance()
    how = {"command": made["command"], "commit": commit()[:7], "date": made["date"]}
    machine = torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.machine()
    file = re.sub(r"[^a-z0-9.]+", "-", f"bits-{name}-{options.method}-float32-{torch.__version__}-{machine}".lower())
    rows = []
    for row in measured(osp.load(options.network), test, options):
        rows.append({"network": name, **row, **how})
        print(row, flush=True)
        bench.save(options.out / f"{file}.csv", rows)


def measured(ann: Any, test: Any, options: Any) -> Iterator[dict[str, Any]]:
    """A row for the network as it is, then one for each number of bits."""
    at = [t for t in AT if t <= options.steps]
    rho = max(int(module.levels) for module in ann.modules() if isinstance(module, osp.QCFS))
    labels, wanted = test.labels[: options.images], None
    for bits in (None, *options.bits):
        snn = osp.convert(ann, METHODS[options.method](rho))
        if bits is not None:
            rounded(snn.model, bits)
        found = answers(snn.to(DEVICE), ann.preprocess, test, len(labels), options.steps)
        wanted = found if wanted is None else wanted
        right, differ = ((found == labels).sum(1), (found != wanted).sum(1))
        points = 100 * (right - (wanted == labels).sum(1)).double() / len(labels)
        yield {
            "method": options.method, "rho": rho, "images": len(labels), "bits": bits or "float32",
            **{f"correct_at_{t}": int(right[t - 1]) for t in at},
            **{f"differ_at_{t}": int(differ[t - 1]) for t in at},
            **{f"points_at_{t}": round(float(points[t - 1]), 4) for t in at},
        }  # fmt: skip


def rounded(model: nn.Module, bits: str) -> None:
    """Round the weights of all layers but the first and the last to so many bits, sign included, or to three digits."""
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer in layers[1:-1]:
        weight = layer.weight.data.double()
        if bits == "digits":
            layer.weight.data = in_digits(weight).float()
            continue
        largest = weight.flatten(1).abs().amax(1).view(-1, *[1] * (weight.ndim - 1))
        unit = largest.clamp_min(1e-30) / (2 ** (int(bits) - 1) - 1)  # a channel may be all 0
        layer.weight.data = ((weight / unit).round() * unit).float()


def in_digits(weight: Tensor) -> Tensor:
    """What precision="tf32" multiplies with on a GPU; inputs may be counts of 4 spikes, which leaves fewer bits."""
    rows = weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight[:, None, None, :]
    parts, scale = digits(rows, 4)
    whole = sum(256.0 ** (len(parts) - 1 - place) * part.double() for place, part in enumerate(parts))
    whole = whole * scale.double()[:, None, None, None]
    return whole.permute(0, 3, 1, 2) if weight.ndim == 4 else whole[:, 0, 0]


def answers(snn: osp.SpikingNetwork, preprocess: Any, test: Any, images: int, steps: int) -> Tensor:
    """The class that the network gives each image after each step, ``[T, N]``."""
    size = 1000 if DEVICE.type == "cuda" else 100
    blocks = test.blocks(torch.arange(images), size)
    found = [snn(preprocess(x.to(DEVICE)), steps=steps).cumsum(0).argmax(-1).cpu() for x, _ in blocks]
    return torch.cat(found, 1)


if __name__ == "__main__":
    main()
