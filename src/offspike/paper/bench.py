"""Measures one cell: checkpoint and images in, raw sums out."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offspike import catalogue, datasets
from offspike.checkpoint import load
from offspike.convert import convert
from offspike.corrections import Progress as Corrected
from offspike.energy import COUNTS, energies
from offspike.evaluate import evaluate
from offspike.experiment import analyse, rectified
from offspike.fast.precision import Precision
from offspike.fixed.fingerprint import fingerprint
from offspike.network import SpikingNetwork
from offspike.paper.cells import Cell

__all__ = ["Bench", "MissingCheckpoint"]

Progress = Callable[[int], None]
LONGEST = 32  # steps that a batch of ``Bench.batch`` images is meant for; longer runs take fewer images at a time


class MissingCheckpoint(FileNotFoundError):
    """A network that is not on this machine."""


@dataclass(frozen=True)
class Bench:
    """The images and networks that cells are measured with.

    ``models`` is looked through before the packaged checkpoints. ``calibration`` training images give thresholds and
    corrections to the methods that want them; ``limit`` cuts the test set, ``energy_images`` that of energy cells.
    ``precision`` is that of accuracy and energy cells; "tf32" and "bf16" are faster on a GPU, and bf16 rounds weights.
    """

    data: str
    root: Path
    models: Path | None = None
    device: str = "cpu"
    batch: int = 50
    limit: int | None = None
    energy_images: int = 1000
    calibration: int = 1000
    precision: Precision = "exact32"

    def has(self, network: str) -> bool:
        """Whether a checkpoint is on this machine."""
        return self._find(network) is not None

    def path(self, network: str) -> Path:
        """The file of a checkpoint."""
        found = self._find(network)
        if found is None:
            raise MissingCheckpoint(
                f"the checkpoint {network} is not on this machine: name its folder with --models or in "
                f"{catalogue.VARIABLE}, or train it with reproduce/train_cifar.py"
            )
        return found

    def _find(self, network: str) -> Path | None:
        own = None if self.models is None else self.models / f"{network}.safetensors"
        return own if own is not None and own.is_file() else catalogue.find(network)

    def fingerprint(self, network: str) -> str:
        """The hash of a checkpoint's network: figures of an older one must not pass for those of a newer."""
        return _fingerprint(self.path(network))

    def images(self, cell: Cell) -> int:
        """How many images a cell takes."""
        count = len(_read(self.data, self.root, "test"))
        count = count if self.limit is None else min(count, self.limit)
        return min(count, self.energy_images) if cell.measure == "energy" else count

    def measure(self, cell: Cell, progress: Progress, corrected: Corrected | None = None) -> Any:
        """The raw sums of a cell, ready for JSON; ``corrected`` hears of the layers that a method fits to data."""
        ann = _network(self.path(cell.network), self.device, _read(self.data, self.root, "test").shape)
        ann = ann.double() if cell.double else ann.float()
        batches = self._batches(ann, cell)
        if cell.measure == "offsets":
            records = analyse(ann, batches, cell.method, steps=cell.steps, progress=progress)
            return {name: record.to_dict() for name, record in records.items()}
        calibration = self._calibration(ann) if cell.method.needs_data else None
        precision: Precision = "exact32" if cell.double else self.precision
        snn = convert(ann, cell.method, calibration=calibration, precision=precision, progress=corrected)
        if cell.measure == "energy":
            spent = energies(snn, batches, cell.steps, progress=progress)
            return [{name: getattr(each, name) for name in ("samples", *COUNTS)} for each in spent]
        if cell.measure == "seconds":
            return self._seconds(snn, batches, cell.steps, progress)
        report = evaluate(snn, batches, steps=cell.steps, reference=ann, progress=progress).to_dict()
        del report["derived"]
        return report

    def _batches(self, ann: nn.Module, cell: Cell) -> Iterator[tuple[Tensor, Tensor]]:
        test = _read(self.data, self.root, "test")
        size = max(1, self.batch * LONGEST // max(cell.steps, cell.method.rho, LONGEST))
        for images, labels in test.blocks(torch.arange(self.images(cell)), size):
            yield self._input(ann, test, images), labels.to(self.device)

    def _calibration(self, ann: nn.Module) -> Iterator[Tensor]:
        """The first training images."""
        train = _read(self.data, self.root, "train")
        for images, _ in train.blocks(torch.arange(min(self.calibration, len(train))), min(self.batch, 250)):
            yield self._input(ann, train, images)

    def _input(self, ann: nn.Module, data: datasets.Dataset, images: Tensor) -> Tensor:
        preprocess: Callable[[Tensor], Tensor] = getattr(ann, "preprocess", data.preprocess)
        return preprocess(images.to(self.device)).to(next(ann.parameters()).dtype)

    def _seconds(
        self, snn: SpikingNetwork, batches: Iterator[tuple[Tensor, Tensor]], steps: int, progress: Progress
    ) -> dict[str, float]:
        """How long forward passes take; the first batch is run once before, so that kernels are compiled."""
        count, spent = 0, 0.0
        for x, labels in batches:
            if not count:
                snn(x, steps)
            self._wait()
            started = time.perf_counter()
            snn(x, steps)
            self._wait()
            spent += time.perf_counter() - started
            count += len(labels)
            progress(len(labels))
        return {"images": count, "seconds": spent}

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


@lru_cache(maxsize=32)
def _fingerprint(path: Path) -> str:
    return fingerprint(load(path))


@lru_cache(maxsize=2)
def _read(name: str, root: Path, split: str) -> datasets.Dataset:
    data = datasets.load(name if name in datasets.NAMES else "folder", root, split)
    if isinstance(data, datasets.FolderStream):
        raise ValueError(f"{root} is too large to be held in memory, which measuring needs")
    return data


@lru_cache(maxsize=1)
def _network(path: Path, device: str, shape: tuple[int, ...]) -> nn.Module:
    """The ANN, ready to be converted."""
    ann: nn.Module = load(path)
    if isinstance(ann, SpikingNetwork):
        raise ValueError(f"{path} holds a spiking network; its ANN is needed")
    return rectified(ann, shape).to(device)
