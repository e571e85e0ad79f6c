"""The paper's experiments in miniature: small networks, trained on digits within seconds."""

from collections.abc import Iterable
from pathlib import Path

import torch

from offspike import datasets
from offspike.checkpoint import save
from offspike.train import Recipe, train
from offspike.training.start import network

__all__ = ["train_small"]

EPOCHS = 4


def train_small(names: Iterable[str], folder: Path) -> None:
    """Train the checkpoints of these names, "small-digits-l4", that ``folder`` does not have yet."""
    folder.mkdir(parents=True, exist_ok=True)
    learn = datasets.load_digits("train")
    for name in sorted(set(names)):
        path = folder / f"{name}.safetensors"
        if path.is_file():
            continue
        net, _, kind = name.split("-")
        levels = kind.removeprefix("l")
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            model = network(net, levels, shape=learn.shape, classes=len(learn.classes))
            recipe = Recipe(epochs=EPOCHS, batch=50, augment=(), warm_floor=0.3, seed=0)
            save(train(model, learn, recipe).model, path, preprocess={"mean": learn.mean, "std": learn.std})
