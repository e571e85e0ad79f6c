"""Fashion-MNIST and its kin: idx files, compressed or not."""

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch

from offspike.datasets.data import DataError, Dataset

__all__ = ["load_fashion_mnist", "read_idx"]

PREFIX = {"train": "train", "test": "t10k"}
CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def load_fashion_mnist(root: Path | str, split: str = "train") -> Dataset:
    """28x28 grey images of clothes, 60,000 or 10,000, from ``train-images-idx3-ubyte(.gz)`` and so on in ``root``."""
    if split not in PREFIX:
        raise DataError(f'fashion-mnist has the splits "train" and "test", not {split!r}')
    images = read_idx(_find(Path(root), f"{PREFIX[split]}-images-idx3-ubyte"), 3)
    labels = read_idx(_find(Path(root), f"{PREFIX[split]}-labels-idx1-ubyte"), 1)
    if len(images) != len(labels):
        raise DataError(f"{root}: {len(images)} {split} images but {len(labels)} labels; fetch both files again")
    return Dataset(
        torch.from_numpy(images[:, None].copy()),
        torch.from_numpy(labels.astype(np.int64)),
        CLASSES,
        (0.2860,),
        (0.3530,),
        "fashion-mnist",
    )


def _find(root: Path, name: str) -> Path:
    for path in (root / name, root / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(
        f"{root / name}(.gz) is missing; get it from https://github.com/zalandoresearch/fashion-mnist "
        "or Debian's package dataset-fashion-mnist"
    )


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an idx file: two zeros, type 8, the number of dimensions, sizes (big-endian), values."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path} is not an idx file of {dimensions} dimensions of bytes")
    shape = [int(n) for n in np.frombuffer(data, ">u4", dimensions, 4)]
    if len(data) - head != int(np.prod(shape)):
        raise DataError(f"{path} is cut short: {len(data) - head} bytes of {int(np.prod(shape))}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)
