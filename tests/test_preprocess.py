"""One formula from images to inputs: data sets, folders, checkpoints and training give the same bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from offspike import zoo
from offspike.checkpoint import load, save
from offspike.datasets import Dataset, FolderStream
from offspike.preprocess import Preprocess
from offspike.training.recipe import Recipe
from offspike.training.sgd import SGD
from offspike.training.step import Step

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10
IMAGES = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8).expand(4, 3, 8, 8)  # every value in every channel
LABELS = torch.zeros(4, dtype=torch.int64)


def by_hand() -> Tensor:
    """``(x/255 − mean)/std``, each operation rounded to float32, by NumPy."""
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (MEAN, STD))
    return torch.from_numpy((IMAGES.numpy().astype(np.float32) / np.float32(255) - mean) / std)


class Spy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 2)
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach().clone()
        return self.linear(x.flatten(1))


def test_every_path_gives_the_same_bits(tmp_path: Path) -> None:
    expected = by_hand()
    assert torch.equal(Preprocess(MEAN, STD)(IMAGES), expected)
    assert torch.equal(Dataset(IMAGES, LABELS, ("a",), MEAN, STD).preprocess(IMAGES), expected)
    stream = FolderStream((), LABELS, ("a",), 8, mean=MEAN, std=STD)
    assert torch.equal(stream.preprocess(IMAGES), expected)
    save(zoo.resnet20(size=8), tmp_path / "x", preprocess={"mean": MEAN, "std": STD})
    assert torch.equal(load(tmp_path / "x").preprocess(IMAGES), expected)
    model, recipe = Spy(), Recipe(epochs=1, batch=4, compile=False, graph=False, dtype="float32")
    Step(model, SGD(model, recipe), recipe, mean=MEAN, std=STD)(IMAGES, LABELS)
    assert model.seen is not None
    assert torch.equal(model.seen, expected)


def test_what_is_no_image_is_refused() -> None:
    preprocess = Preprocess(MEAN, STD)
    for wrong in (IMAGES.float(), IMAGES[0], IMAGES[:, :1]):
        with pytest.raises(ValueError, match=r"takes uint8 images \[B, 3, H, W\]"):
            preprocess(wrong)
