"""Thresholds for the third-party ReLU ResNet-20, compared on training images alone: 1,000 of them, in two halves.

    python reproduce/third_party_choices.py --weights resnet20-cifar10-relu.safetensors --data DIR --out choices.json

Exact calibration at T = ρ sends what the ANN quantised to ρ levels sends. So the quantised ANN, one pass an image, says
what a threshold rule is worth. One half of the images gives the thresholds, the other half and blends of its images
(which are hard, as test images are) are answered: the error of the logits, relative to their size, and the agreement.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from relu_resnet20 import EXAMPLE, MEAN, STD, relu_resnet20
from torch import Tensor, nn

import offspike as osp
from offspike.datasets import Dataset, load
from offspike.experiment import provenance
from offspike.preprocess import Preprocess
from offspike.thresholds import LeastError, Maximum, Percentile, Rule, measure

IMAGES = 1000


def trials() -> dict[str, tuple[int, Rule, float]]:
    """Levels, rule, and a factor on its thresholds, by name."""
    found: dict[str, tuple[int, Rule, float]] = {}
    for levels in (8, 12, 16, 24, 32, 48, 64):
        found[f"{levels} levels, least error"] = (levels, LeastError(levels), 1.0)
    for factor in (0.8, 0.9, 1.1, 1.25, 1.5):
        found[f"32 levels, least error × {factor}"] = (32, LeastError(32), factor)
    found["32 levels, least error, per layer"] = (32, LeastError(32, per="layer"), 1.0)
    for q in (99.9, 99.99):
        found[f"32 levels, {q} %, per channel"] = (32, Percentile(q, per="channel"), 1.0)
    found["32 levels, maximum, per channel"] = (32, Maximum(per="channel"), 1.0)
    return found


def quantised(relu: nn.Module, x: Tensor, levels: int, rule: Rule, factor: float) -> nn.Module:
    """The ANN with ``levels`` levels and the thresholds that ``x`` gives."""
    theta = measure(osp.prepare(relu, osp.ReLU(), example=EXAMPLE), rule, x.split(100))
    made = osp.prepare(relu, osp.QCFS(levels), example=EXAMPLE).eval()
    for name, value in theta.items():
        made.get_submodule(name).set_threshold(value * factor)  # type: ignore[operator]
    return made


def blends(x: Tensor) -> Tensor:
    """As many pairs of images, laid over one another."""
    draw = torch.Generator().manual_seed(0)
    one, other = (torch.randint(0, len(x), (len(x),), generator=draw) for _ in range(2))
    share = 0.55 + 0.3 * torch.rand(len(x), 1, 1, 1, generator=draw)
    return share * x[one] + (1 - share) * x[other]


def answers(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    logits = torch.cat([model(part) for part in x.split(100)])
    return logits - logits.mean(1, keepdim=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds cifar-10-batches-bin")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--out", type=Path, help="the file to write")
    chosen = parser.parse_args()
    relu = relu_resnet20(chosen.weights)
    train = load("cifar10", chosen.data, "train")
    assert isinstance(train, Dataset)
    halves = Preprocess(MEAN, STD)(train.images[: chosen.images]).chunk(2)
    asked = [{"images": half, "blends": blends(half)} for half in halves]
    wanted = [{kind: answers(relu, x) for kind, x in each.items()} for each in asked]
    rows = []
    for name, (levels, rule, factor) in trials().items():
        made = [quantised(relu, half, levels, rule, factor) for half in halves]
        row: dict[str, object] = {"trial": name}
        for kind in ("images", "blends"):
            got = torch.cat([answers(made[1 - k], asked[k][kind]) for k in range(2)])
            want = torch.cat([each[kind] for each in wanted])
            row[f"{kind}: error"] = round(float((got - want).square().sum() / want.square().sum()), 5)
            row[f"{kind}: agreement"] = round(100 * float((got.argmax(1) == want.argmax(1)).float().mean()), 2)
        rows.append(row)
        print(row, flush=True)
    if chosen.out:
        facts = provenance(images=f"{chosen.images} of CIFAR-10 train, in two halves")
        chosen.out.write_text(json.dumps({"trials": rows, **facts}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
