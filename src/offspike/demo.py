"""The main job on embedded data: train on real digits, convert, compare. Under three minutes on two cores."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from offspike import datasets, zoo
from offspike.activations import QCFS
from offspike.checkpoint import load
from offspike.evaluate import Progress
from offspike.experiment import batched, compare, levels_of, line_up, provenance
from offspike.look.examine import examine
from offspike.look.findings import Findings
from offspike.report import Report
from offspike.train import Recipe, train

__all__ = ["Demo", "run_cifar", "run_demo"]


@dataclass(frozen=True)
class Demo:
    """What the demonstration made."""

    ann: nn.Module
    findings: Findings
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
    trained = train(model, learn, recipe, test=test, test_every=5, watch=lambda record: epoch_done(1))

    x, y = test.preprocess(test.images), test.labels
    found = examine(
        trained.model, lambda: batched(x, y, 200), line_up(levels), steps=steps, count=len(y), progress=progress,
        with_energy=True, with_answers=True, with_layers=True, classes=test.classes,
    )  # fmt: skip
    found.history = trained.history
    data = f"scikit-learn digits, {len(learn)} to train and {len(test)} to test"
    how = provenance(data=data, network=f"zoo.small, QCFS L={levels}", training=f"{epochs} epochs, seed {seed}")
    return Demo(trained.model, found, how)


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
