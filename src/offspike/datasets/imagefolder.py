"""Folders of images, one for each class: ImageNet, Tiny-ImageNet, one's own.

Small sets are decoded once, by threads, and kept as uint8; larger ones are decoded by worker processes each time.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from offspike.datasets.augment import RATIO, SCALE
from offspike.datasets.data import DataError, Dataset
from offspike.distributed import cores
from offspike.preprocess import Preprocess

__all__ = ["FolderStream", "decode", "decode_part", "load_folder"]

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GIB = 1 << 30
SIZE = "--size (in Python size=)"
TRIES = 10  # to place a random part of an image before the middle is taken


def decode(path: Path, size: int | None) -> np.ndarray:
    """``uint8 [3, H, W]``, upright (EXIF) and RGB whatever the file holds.

    With ``size`` the shorter side is resized to it and the middle square is taken; an image that fits stays as it is.
    """
    image = _read(path)
    if size is not None and image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).transpose(2, 0, 1)


def decode_part(path: Path, size: int, draw: np.random.Generator) -> np.ndarray:
    """``uint8 [3, size, size]``: a random part of the whole image, 8 to 100 % of its area, at most 4 : 3 either way."""
    image = _read(path)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=_part(*image.size, draw))
    return np.asarray(image).transpose(2, 0, 1)


def _part(width: int, height: int, draw: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of a random part; of an image too long for any try, its middle."""
    for _ in range(TRIES):
        area = width * height * draw.uniform(*SCALE)
        aspect = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = (int(draw.integers(0, room, endpoint=True)) for room in (width - wide, height - high))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            return _rgb(ImageOps.exif_transpose(file))
    except FileNotFoundError:
        raise DataError(f"{path} has vanished; put it back or remove it from the set") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image ({error}); repair or remove it") from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # grey of more than 8 bits, which Pillow would not convert alike
        values = np.asarray(image).astype(np.int64)
        if image.mode.startswith("I;16"):  # the whole range is used; of 32 bits nobody knows, so they count as they are
            values >>= 8
        return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


@dataclass(frozen=True, eq=False)
class FolderStream:
    """A folder of images too large to be kept: decoded in worker processes when used. ``size`` is height and width."""

    paths: tuple[Path, ...]
    labels: Tensor
    classes: tuple[str, ...]
    size: int
    name: str = "folder"
    workers: int = field(default_factory=cores)
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return 3, self.size, self.size

    def preprocess(self, images: Tensor) -> Tensor:
        """``uint8 [B, C, H, W]`` to a network's float32 input."""
        return Preprocess(self.mean, self.std)(images)

    def take(self, index: Tensor) -> Self:
        """The images of this index."""
        return replace(self, paths=tuple(self.paths[i] for i in index.tolist()), labels=self.labels[index])

    def blocks(self, index: Tensor, batch: int, *, parts: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of this index, ``batch`` at a time.

        With ``parts``, a seed, each image is a random part of the whole picture that depends on seed and index alone.
        """
        loader = DataLoader(
            _Files(self, parts),
            batch_size=batch,
            sampler=index.tolist(),
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=torch.cuda.is_available(),
        )
        for images, labels, problem in loader:
            if problem:
                raise DataError(problem)
            yield images, labels


class _Files(TorchDataset[tuple[np.ndarray | str, int]]):
    """What a worker process does. A problem travels as text: an exception would arrive as a traceback."""

    def __init__(self, stream: FolderStream, parts: int | None) -> None:
        self.stream, self.parts = stream, parts

    def __getitem__(self, index: int) -> tuple[np.ndarray | str, int]:
        path, size = self.stream.paths[index], self.stream.size
        try:
            if self.parts is None:
                image = decode(path, size)
            else:
                image = decode_part(path, size, np.random.default_rng([self.parts, index]))
        except DataError as error:
            return str(error), -1
        return image, int(self.stream.labels[index])


def _collate(items: list[tuple[np.ndarray | str, int]]) -> tuple[Tensor, Tensor, str]:
    problems = [image for image, _ in items if isinstance(image, str)]
    if problems:
        return torch.empty(0), torch.empty(0), problems[0]
    images = torch.from_numpy(np.stack([image for image, _ in items]))
    return images, torch.tensor([label for _, label in items]), ""


def load_folder(
    root: Path | str,
    split: str = "train",
    *,
    size: int | None = None,
    memory: float = 4.0,
    workers: int | None = None,
) -> Dataset | FolderStream:
    """``root/train/<class>/*`` and ``root/val/<class>/*`` (or ``test``); a ``root`` without them is the class tree.

    All images must be of one size unless ``size`` is given. Up to ``memory`` GiB the set is kept, else streamed.
    """
    folder = _split_folder(Path(root), split)
    classes = _classes(folder)
    trained = Path(root) / "train"
    if folder != trained and trained.is_dir() and (expected := _classes(trained)) != classes:
        odd = sorted(set(classes) ^ set(expected))
        raise DataError(f"{folder} and {trained} differ in their classes: {', '.join(odd[:3])}")
    paths, labels = _files(folder, classes)
    workers = cores() if workers is None else workers
    height, width = decode(paths[0], None).shape[1:] if size is None else (size, size)
    if len(paths) * 3 * height * width > memory * GIB:
        if size is None:
            raise DataError(
                f"{folder} is larger than {memory:g} GiB and is streamed: give {SIZE}, the height and width"
            )
        return FolderStream(tuple(paths), labels, classes, size, Path(root).name, workers)
    return Dataset(_decode_all(paths, size, workers), labels, classes, MEAN, STD, Path(root).name)


def _split_folder(root: Path, split: str) -> Path:
    names = {"train": ("train",), "test": ("val", "test"), "val": ("val",)}.get(split, (split,))
    for name in names:
        if (root / name).is_dir():
            return root / name
    if not root.is_dir():
        raise DataError(f"{root} is missing; give the folder that holds train/<class>/… and val/<class>/…")
    if any((root / name).is_dir() for name in ("train", "val", "test")):
        raise DataError(f"{root / names[0]} is missing, so there is no split {split!r}")
    return root


def _classes(folder: Path) -> tuple[str, ...]:
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    if not classes:
        raise DataError(f"{folder} has no class folders; it should hold one folder of images for each class")
    return classes


def _files(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], Tensor]:
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(f"the class folder {folder / name} holds no images; fill it or remove it")
        paths += found
        labels += [label] * len(found)
    return paths, torch.tensor(labels)


def _decode_all(paths: list[Path], size: int | None, workers: int) -> Tensor:
    """All images as one tensor; the first one that has another size is named."""
    first = decode(paths[0], size)
    images = np.empty((len(paths), *first.shape), np.uint8)

    def put(number: int) -> None:
        image = decode(paths[number], size)
        if image.shape != first.shape:
            sizes = (
                f"{paths[0]} is {first.shape[2]}x{first.shape[1]}, {paths[number]} {image.shape[2]}x{image.shape[1]}"
            )
            raise DataError(f"mixed sizes: {sizes}; give {SIZE} to resize them")
        images[number] = image

    with ThreadPoolExecutor(max(1, workers)) as pool:
        for _ in pool.map(put, range(len(paths))):
            pass
    return torch.from_numpy(images)
