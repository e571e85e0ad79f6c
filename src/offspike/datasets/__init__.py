"""Data sets: CIFAR-10 and -100, folders of images, Fashion-MNIST, digits, and augmentations that run on the device."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from offspike.datasets.cifar import load_cifar10, load_cifar100
from offspike.datasets.data import DataError, Dataset, MissingData, evenly_spaced
from offspike.datasets.digits import load_digits
from offspike.datasets.idx import load_fashion_mnist
from offspike.datasets.imagefolder import FolderStream, load_folder

__all__ = [
    "NAMES",
    "DataError",
    "Dataset",
    "FolderStream",
    "MissingData",
    "evenly_spaced",
    "load",
    "load_cifar10",
    "load_cifar100",
    "load_digits",
    "load_fashion_mnist",
    "load_folder",
]

NAMES = ("digits", "cifar10", "cifar100", "fashion-mnist", "folder")


def load(name: str, root: Path | str | None = None, split: str = "train", **options: Any) -> Dataset | FolderStream:
    """The split ("train" or "test") of a data set by its name; all but ``digits`` are read from the folder ``root``.

    ``options`` are those of ``load_cifar10`` and its siblings: ``download`` for the CIFARs, ``size`` for folders.
    """
    if name == "digits":
        return load_digits(split)
    readers: dict[str, Callable[..., Dataset | FolderStream]] = {
        "cifar10": load_cifar10,
        "cifar100": load_cifar100,
        "fashion-mnist": load_fashion_mnist,
        "folder": load_folder,
    }
    if name not in readers:
        raise DataError(f"unknown data set {name!r}; there are {', '.join(NAMES)}")
    if root is None:
        raise DataError(f"say where {name} lies: root is its folder")
    return readers[name](root, split, **options)
