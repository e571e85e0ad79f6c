"""CIFAR-10 and CIFAR-100: the binary layout (no pickle), or the python layout once its hashes are checked."""

import hashlib
import io
import os
import pickle
import shutil
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offspike.datasets.data import DataError, Dataset, MissingData

__all__ = ["load_cifar10", "load_cifar100"]

SITE = "https://www.cs.toronto.edu/~kriz/"
COUNTS = {"train": 50_000, "test": 10_000}
COARSE = 20  # labels of CIFAR-100, before the 100 fine ones


@dataclass(frozen=True)
class Source:
    """Where a CIFAR lies: its tarball, its two folders, and the hash of each file (SHA-256 binary, MD5 python)."""

    name: str
    archive: str
    archive_md5: str
    binary: str
    python: str
    label_bytes: int
    binary_files: dict[str, tuple[str, ...]]
    python_files: dict[str, tuple[str, ...]]
    hashes: dict[str, str]
    python_label: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int


CIFAR10 = Source(
    name="cifar10",
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    label_bytes=1,
    binary_files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    python_files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    hashes={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    python_label="labels",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    classes=10,
)

CIFAR100 = Source(
    name="cifar100",
    archive="cifar-100-binary.tar.gz",
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    binary="cifar-100-binary",
    python="cifar-100-python",
    label_bytes=2,
    binary_files={"train": ("train.bin",), "test": ("test.bin",)},
    python_files={"train": ("train",), "test": ("test",)},
    hashes={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    python_label="fine_labels",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    classes=100,
)

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(root: Path | str, split: str = "train", *, download: bool = False, check: bool = True) -> Dataset:
    """CIFAR-10 from ``root`` (or its folder ``cifar-10-batches-bin`` or ``-py``), 50,000 or 10,000 images.

    ``check`` compares the SHA-256 of each binary file; files of the python layout are always checked before they are
    unpickled. ``download`` fetches the binary version from its site when it is not there.
    """
    return _load(CIFAR10, Path(root), split, download, check)


def load_cifar100(root: Path | str, split: str = "train", *, download: bool = False, check: bool = True) -> Dataset:
    """CIFAR-100 with its 100 fine labels, as :func:`load_cifar10`; binary, images are counted and labels checked."""
    return _load(CIFAR100, Path(root), split, download, check)


def _load(source: Source, root: Path, split: str, download: bool, check: bool) -> Dataset:
    if split not in source.binary_files:
        raise DataError(f'{source.name} has the splits "train" and "test", not {split!r}')
    folder = _find(source, root, split)
    if download and (folder is None or not _complete(source, folder, split)):
        _download(source, root)
        folder = _find(source, root, split)
    if folder is None:
        raise MissingData(
            f"{source.name}: {root / source.binary} is missing; unpack {SITE}{source.archive} into {root} "
            f'(offspike train … --download does it, and so does datasets.load("{source.name}", …, download=True))'
        )
    read = _read_binary if folder.name != source.python else _read_python
    images, labels = read(source, folder, split, check)
    return Dataset(
        torch.from_numpy(images.reshape(-1, 3, 32, 32)),
        torch.from_numpy(labels.astype(np.int64)),
        _classes(source, folder),
        source.mean,
        source.std,
        source.name,
    )


def _find(source: Source, root: Path, split: str) -> Path | None:
    """The folder with the files of the split; else an incomplete one, so that reading it names what is missing."""
    folders = [root, root / source.binary, root / source.python]
    begun = (f for f in folders if f.name in (source.binary, source.python) and f.is_dir())
    return next((f for f in folders if _complete(source, f, split)), None) or next(begun, None)


def _complete(source: Source, folder: Path, split: str) -> bool:
    files = source.python_files if folder.name == source.python else source.binary_files
    return all((folder / name).is_file() for name in files[split])


def _read_binary(source: Source, folder: Path, split: str, check: bool) -> tuple[np.ndarray, np.ndarray]:
    record = source.label_bytes + 3072
    parts = []
    for name in source.binary_files[split]:
        data = _bytes(folder / name)
        expected = source.hashes.get(name)
        if check and expected and hashlib.sha256(data).hexdigest() != expected:
            raise DataError(f"{folder / name} is damaged (its SHA-256 is not the original's); fetch it again")
        if not data or len(data) % record:
            raise DataError(f"{folder / name} is cut short: {len(data)} bytes are not whole records of {record}")
        parts.append(np.frombuffer(data, np.uint8).reshape(-1, record))
    records = np.concatenate(parts)
    if check and len(records) != COUNTS[split]:
        raise DataError(f"{folder}: {len(records)} {split} images, the original has {COUNTS[split]}; fetch it again")
    if check and source.label_bytes == 2 and (largest := records[:, 0].max()) >= COARSE:
        raise DataError(f"{folder}: a coarse label is {largest}, there are {COARSE}; fetch it again")
    return np.ascontiguousarray(records[:, source.label_bytes :]), records[:, source.label_bytes - 1]


def _read_python(source: Source, folder: Path, split: str, check: bool) -> tuple[np.ndarray, np.ndarray]:
    del check  # never unpickle what is not known byte for byte
    images, labels = [], []
    for name in source.python_files[split]:
        data = _bytes(folder / name)
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != source.hashes[name]:
            raise DataError(f"{folder / name} is not the original file (its MD5 differs) and was not unpickled")
        entry: dict[str, Any] = pickle.load(io.BytesIO(data), encoding="latin1")
        images.append(np.asarray(entry["data"], np.uint8))
        labels.append(np.asarray(entry[source.python_label]))
    return np.concatenate(images), np.concatenate(labels)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing; unpack the whole archive from {SITE} again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _classes(source: Source, folder: Path) -> tuple[str, ...]:
    if source.name == "cifar10":
        return CIFAR10_CLASSES
    names = folder / "fine_label_names.txt"
    lines = tuple(names.read_text().split()) if names.is_file() else ()
    return lines if len(lines) == source.classes else tuple(f"class {i}" for i in range(source.classes))


def _download(source: Source, root: Path) -> None:
    """Fetch the tarball, check it, and unpack only plain files that stay inside ``root``."""
    root.mkdir(parents=True, exist_ok=True)
    partial = root / (source.archive + ".part")
    url = SITE + source.archive
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, partial.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"{source.name} could not be fetched from {url}: {error}") from None
    with partial.open("rb") as file:
        if hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != source.archive_md5:
            partial.unlink()
            raise DataError(f"what came from {url} is not the known archive (its MD5 differs)")
    with tarfile.open(partial) as archive:
        archive.extractall(root, filter="data")
    os.unlink(partial)
