"""Packaged checkpoints: what there is, how good it was measured to be, and where its file lies.

The smallest is part of the package; the others lie in ``models/`` of the repository, or wherever the environment
variable ``OFFSPIKE_MODELS`` points.
"""

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MODELS", "Entry", "find", "resolve"]

VARIABLE = "OFFSPIKE_MODELS"


@dataclass(frozen=True)
class Entry:
    """A trained network: ``correct`` of ``images`` test images were right after its file was loaded on a CPU."""

    name: str
    network: str
    data: str
    levels: int | None  # L of QCFS; None: a ReLU network
    correct: int
    images: int
    record: str  # how it was trained, a folder of the repository

    @property
    def accuracy(self) -> float:
        """Right answers in per cent."""
        return 100 * self.correct / self.images


MODELS = (
    Entry("resnet20-cifar10-l4", "resnet20", "cifar10", 4, 9232, 10000,
          "reproduce/records/2026-11-16_resnet20-cifar10-l4"),
    Entry("resnet20-cifar10-l8", "resnet20", "cifar10", 8, 9259, 10000,
          "reproduce/records/2026-11-16_resnet20-cifar10-l8"),
    Entry("resnet18-cifar10-l4", "resnet18", "cifar10", 4, 9600, 10000,
          "reproduce/records/2026-11-16_resnet18-cifar10-l4"),
    Entry("vgg16-cifar10-l4", "vgg16", "cifar10", 4, 9543, 10000,
          "reproduce/records/2026-11-16_vgg16-cifar10-l4"),
    Entry("resnet20-cifar10-relu", "resnet20", "cifar10", None, 9324, 10000,
          "reproduce/records/2026-11-16_resnet20-cifar10-relu"),
    Entry("resnet18-cifar10-relu", "resnet18", "cifar10", None, 9609, 10000,
          "reproduce/records/2026-11-16_resnet18-cifar10-relu"),
)  # fmt: skip


def folders() -> list[Path]:
    """Where checkpoints are looked for, in this order."""
    package = Path(__file__).parent
    found = [package / "weights", package.parents[1] / "models"]
    return [*found, Path(os.environ[VARIABLE])] if os.environ.get(VARIABLE) else found


def find(name: str) -> Path | None:
    """The file of a packaged checkpoint, if it is on this machine."""
    return next((path for folder in folders() if (path := folder / f"{name}.safetensors").is_file()), None)


def resolve(path: str | Path) -> Path:
    """A path as it is; a bare name, which no file has, as the packaged checkpoint of that name."""
    path = Path(path)
    if path.exists() or path.suffix or len(path.parts) != 1:
        return path
    found = find(path.name)
    if found is not None:
        return found
    if any(path.name == entry.name for entry in MODELS):
        advice = f"take models/{path.name}.safetensors from the project's repository and name its folder in {VARIABLE}"
        raise FileNotFoundError(f"the file of {path.name} is not on this machine: {advice}")
    names = ", ".join(entry.name for entry in MODELS)
    raise FileNotFoundError(f"there is no file and no packaged model {path.name!r}; packaged are {names}")
