"""Batches of an epoch, in an order and with augmentations that depend on the recipe's seed and the epoch alone.

Nothing has to be remembered between epochs, so a resumed training sees exactly what an uninterrupted one would.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from offspike import distributed
from offspike.datasets.augment import pipeline
from offspike.datasets.data import Dataset, evenly_spaced
from offspike.datasets.imagefolder import FolderStream
from offspike.training.recipe import Recipe, TrainingError

__all__ = ["Feed", "MemoryFeed", "StreamFeed", "epoch_seed"]

CHUNK = 16384
PARTS = "resized-crop"


def epoch_seed(seed: int, epoch: int, stream: int = 0) -> int:
    """A different seed for each epoch and use of it; 63 bits, by a multiplicative hash (SplitMix64's constants)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) >> 1


class Feed(Protocol):
    """Where the batches come from."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    steps: int  # batches an epoch, the same for every process

    def first(self) -> Tensor:
        """Some training images as they are, ``uint8 [B, C, H, W]``, the same for every process."""
        ...

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's batches of that epoch."""
        ...


def _steps(count: int, batch: int) -> int:
    world = distributed.world_size()
    if count < world * batch:
        raise TrainingError(
            f"{count} images are less than a batch of {batch} for each of {world} processes: lower --batch"
        )
    return count // world // batch


class MemoryFeed:
    """A data set that lies whole on the device, shuffled and augmented there thousands of images at a time.

    The ragged end of an epoch (less than a batch for each process) is left out; the next epoch has another order.
    """

    def __init__(self, data: Dataset, recipe: Recipe) -> None:
        self.data, self.recipe = data, recipe
        self.mean, self.std = data.mean, data.std
        self.augment = pipeline(recipe.augment, mean=data.mean)
        self.steps = _steps(len(data), recipe.batch)

    def first(self) -> Tensor:
        """Evenly spaced images of the whole set."""
        return self.data.images[evenly_spaced(self.recipe.batch, len(self.data)).to(self.data.images.device)]

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's batches of that epoch."""
        device = self.data.images.device
        shuffle = torch.Generator(device).manual_seed(epoch_seed(self.recipe.seed, epoch))
        order = torch.randperm(len(self.data), generator=shuffle, device=device)
        order = distributed.shard_equally(order, self.recipe.batch)
        draws = torch.Generator(device).manual_seed(epoch_seed(self.recipe.seed, epoch, 1 + distributed.rank()))
        batch = self.recipe.batch
        for part in torch.split(order, max(1, CHUNK // batch) * batch):
            images = self.augment(self.data.images[part], draws)
            labels = self.data.labels[part]
            for start in range(0, len(part), batch):
                yield images[start : start + batch], labels[start : start + batch]


class StreamFeed:
    """A folder decoded by worker processes, batch by batch, and augmented on the device.

    A random resized crop is taken first and by the workers: they alone see the whole picture.
    """

    def __init__(self, data: FolderStream, recipe: Recipe, device: torch.device) -> None:
        if recipe.validation:
            raise TrainingError("a streamed folder has its own validation set: leave the recipe's validation at 0")
        self.data, self.recipe, self.device = data, recipe, device
        self.mean, self.std = data.mean, data.std
        self.parts = PARTS in recipe.augment
        self.augment = pipeline([name for name in recipe.augment if name != PARTS], mean=data.mean)
        self.steps = _steps(len(data), recipe.batch)

    def first(self) -> Tensor:
        """Evenly spaced images of the whole set."""
        index = evenly_spaced(self.recipe.batch, len(self.data))
        return next(self.data.blocks(index, len(index)))[0]

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's batches of that epoch."""
        seed = epoch_seed(self.recipe.seed, epoch)
        shuffle = torch.Generator().manual_seed(seed)
        order = distributed.shard_equally(torch.randperm(len(self.data), generator=shuffle), self.recipe.batch)
        draws = torch.Generator(self.device).manual_seed(epoch_seed(self.recipe.seed, epoch, 1 + distributed.rank()))
        for images, labels in self.data.blocks(order, self.recipe.batch, parts=seed if self.parts else None):
            on_device = images.to(self.device, non_blocking=True)
            yield self.augment(on_device, draws), labels.to(self.device, non_blocking=True)
