"""A data set held whole in memory, and the one error that every reader of data sets raises."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from offspike.preprocess import Preprocess

__all__ = ["DataError", "Dataset", "MissingData", "evenly_spaced"]


class DataError(ValueError):
    """A data set that cannot be used: one line that names the file and says what to do."""


class MissingData(DataError):
    """A data set that is not on this machine at all."""


def evenly_spaced(count: int, total: int) -> Tensor:
    """So many of the indices 0 … total − 1 (all where there are fewer), from end to end: ``⌊i·total/count⌋``.

    A folder lists its images class by class; these are of every class, where there are enough of them.
    """
    count = min(count, total)
    return torch.arange(count) * total // max(1, count)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images ``uint8 [N, C, H, W]``, labels ``int64 [N]``, class names, and the mean and deviation of each channel.

    ``mean`` and ``std`` are on the scale of 0 to 1: a network's input is ``(image/255 − mean)/std``.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DataError(f"images must be uint8 [N, C, H, W], got {self.images.dtype} {tuple(self.images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(f"{len(self.images)} images but labels are {self.labels.dtype} {tuple(self.labels.shape)}")
        if not len(self.images):
            raise DataError(f"the data set {self.name or '(unnamed)'} is empty")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(f"labels run from {low} to {high}, but there are {len(self.classes)} classes")
        if not len(self.mean) == len(self.std) == self.images.shape[1]:
            raise DataError(
                f"{self.images.shape[1]} channels, but {len(self.mean)} means and {len(self.std)} deviations"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def to(self, device: torch.device | str) -> Self:
        """The same data on that device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def take(self, index: Tensor | slice) -> Self:
        """The images of this index."""
        return replace(self, images=self.images[index], labels=self.labels[index])

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Self, Self]:
        """The data without, and of, a random ``fraction`` (0 to 1, exclusive): training and validation."""
        count = round(len(self) * fraction)
        if not 0 < count < len(self):
            raise DataError(f"a fraction of {fraction:g} leaves nothing of {len(self)} images on one side")
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).to(self.images.device)
        return self.take(order[count:].sort().values), self.take(order[:count].sort().values)

    def blocks(self, index: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of this index, ``batch`` at a time."""
        for part in torch.split(index.to(self.images.device), batch):
            yield self.images[part], self.labels[part]

    def preprocess(self, images: Tensor) -> Tensor:
        """``uint8 [B, C, H, W]`` to a network's float32 input."""
        return Preprocess(self.mean, self.std)(images)
