"""Where the tables are measured: the paper's networks on CIFAR-10, or a small one on digits in a minute or two.

Every topic builds its cells with these few functions, so that two topics which need the same pass share it.
"""

from dataclasses import dataclass

from offspike import methods
from offspike.methods import Method
from offspike.paper.cells import Cell

__all__ = ["FULL", "HARDER", "NARROW", "TINY", "TITLES", "Setting"]

TITLES = {
    "vgg16": "VGG-16",
    "resnet18": "ResNet-18",
    "resnet20": "ResNet-20",
    "resnet34": "ResNet-34",
    "small": "small",
}


@dataclass(frozen=True)
class Setting:
    """Networks and how far they are run: ``steps`` for calibrated methods, ``long`` for those of older papers."""

    data: str
    nets: tuple[str, ...]
    levels: int = 4
    steps: int = 32
    long: int = 128
    seeds: tuple[int, ...] = (0, 1, 2)
    images_for_energy: int = 1000

    @property
    def readouts(self) -> list[int]:
        """The T that tables show."""
        return [2**k for k in range(self.steps.bit_length()) if 2**k <= self.steps]

    @property
    def long_readouts(self) -> list[int]:
        """The T of methods that need many."""
        return [2**k for k in range(self.long.bit_length()) if 2**k <= self.long]

    def checkpoint(self, net: str, kind: str | None = None) -> str:
        """The name of a checkpoint: ``kind`` is "l4" or "relu"."""
        return f"{net}-{self.data}-{kind or f'l{self.levels}'}"

    def accuracy(self, net: str, method: Method, *, stage: int = 3, kind: str | None = None) -> Cell:
        """Accuracy at every T that tables show."""
        return Cell("accuracy", self.checkpoint(net, kind), method, self.steps, stage)

    def early(self, net: str) -> Cell:
        """Accuracy up to T = ρ of the exact method at place "carry", which is made for T < ρ."""
        return Cell("accuracy", self.checkpoint(net), methods.exact(self.levels, place="carry"), self.levels, 3)

    def offsets(self, net: str, method: Method, *, stage: int = 2, double: bool = False) -> Cell:
        """Offset spikes at T = ρ = L, as in the paper."""
        return Cell("offsets", self.checkpoint(net), method, self.levels, stage, double)

    def core(self) -> dict[str, Method]:
        """What the paper compares on a QCFS network, and the exact method."""
        return {"QCFS": methods.qcfs(), "COS": methods.cos(self.levels), "exact": methods.exact(self.levels)}


HARDER = Setting("tiny-imagenet-100", ("vgg16", "resnet18"))  # stands in for CIFAR-100 and ImageNet
NARROW = Setting("tiny-imagenet-100", ("resnet20",), levels=8)  # the paper's ResNet-20 has L = 8 there, too
FULL = Setting("cifar10", ("vgg16", "resnet18", "resnet20"))
TINY = Setting("digits", ("small",), steps=8, long=16, seeds=(0,), images_for_energy=100)
