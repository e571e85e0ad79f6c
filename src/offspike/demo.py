"""The main job on embedded data: train on real digits, convert, compare. Under three minutes on two cores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from offspike import datasets, methods, zoo
from offspike.activations import QCFS
from offspike.checkpoint import load
from offspike.evaluate import Progress
from offspike.experiment import analyse, batched, compare, levels_of, line_up, provenance
from offspike.record import LayerRecord
from offspike.report import Report
from offspike.train import Recipe, train

__all__ = ["Demo", "run_cifar", "run_demo"]


@dataclass(frozen=True)
class Demo:
    """What the demonstration made."""

    ann: nn.Module
    reports: dict[str, Report]
    records: dict[str, LayerRecord]  # of COS at T = ρ = L
    how: dict[str, str]


def run_demo(
    *, epochs: int, steps: int, levels: int, seed: int, progress: Callable[[str, int], Progress]
) -> Demo:  # fmt: skip
    """Train a small QCFS network on the digits of scikit-learn and compare the methods on the held-out ones."""
    learn, test = datasets.load_digits("train"), datasets.load_digits("test")
    torch.manual_seed(seed)
    model = zoo.small(activation=QCFS(levels))
    recipe = Recipe(epochs=epochs, batch=50, augment=(), warm_floor=0.3, seed=seed)
    epoch_done = progress(f"training, {len(learn)} images an epoch", epochs)
    ann = train(model, learn, recipe, watch=lambda record: epoch_done(1)).model

    x, y = test.preprocess(test.images), test.labels
    reports = compare(
        ann, lambda: batched(x, y, 200), line_up(levels), steps=steps, progress=lambda name: progress(name, len(y))
    )
    records = analyse(ann, batched(x, y, 200), methods.cos(levels), steps=levels)
    data = f"scikit-learn digits, {len(learn)} to train and {len(test)} to test"
    how = provenance(data=data, network=f"zoo.small, QCFS L={levels}", training=f"{epochs} epochs, seed {seed}")
    return Demo(ann, reports, records, how)


def run_cifar(
    root: Path, *, images: int, steps: int, progress: Callable[[str, int], Progress], name: str = "resnet20-cifar10-l4"
) -> dict[str, Report] | None:
    """A packaged network on the first CIFAR-10 test images below ``root``; None where CIFAR-10 is not there."""
    try:
        test = datasets.load_cifar10(root, "test")
    except datasets.MissingData:
        return None
    ann = load(name)
    test = test.take(slice(images))
    x, y = ann.preprocess(test.images), test.labels
    rho = levels_of(ann)
    return compare(
        ann, lambda: batched(x, y, 100), line_up(rho), steps=steps, progress=lambda name: progress(name, len(y))
    )
