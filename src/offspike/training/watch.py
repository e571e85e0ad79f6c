"""Ways to look at a training: functions that are called with each epoch's record. Library code itself never prints."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

__all__ = ["Epoch", "Moment", "StepWatch", "Together", "Watch", "log_lines", "progress", "tensorboard"]

logger = logging.getLogger("offspike.train")


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave. Accuracies are percentages; those of the test or validation set only where measured."""

    epoch: int
    epochs: int
    loss: float
    train_accuracy: float
    gradient: float
    lr: float
    images_per_second: float
    seconds: float
    test_accuracy: float | None = None
    validation_accuracy: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without what was not measured."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        measured = "".join(
            f"  {name} {value:.2f} %"
            for name, value in (("validation", self.validation_accuracy), ("test", self.test_accuracy))
            if value is not None
        )
        return (
            f"epoch {self.epoch}/{self.epochs}  loss {self.loss:.4f}  train {self.train_accuracy:.2f} %{measured}  "
            f"{self.images_per_second:,.0f} images/s"
        )


@dataclass(frozen=True)
class Moment:
    """Where a training stands inside an epoch (1-based): images handed out by now, and in the whole training."""

    epoch: int
    epochs: int
    images: int
    total: int


Watch = Callable[[Epoch], None]


@runtime_checkable
class StepWatch(Protocol):
    """A watch that hears of each step too. On a GPU a step has then been launched and may still be running."""

    def __call__(self, record: Epoch, /) -> None:
        """An epoch is done."""

    def stepped(self, moment: Moment) -> None:
        """A step is done."""


@dataclass(frozen=True)
class Together:
    """Several watches as one."""

    watches: tuple[Watch, ...]

    def __call__(self, record: Epoch) -> None:
        """An epoch is done."""
        for watch in self.watches:
            watch(record)

    def stepped(self, moment: Moment) -> None:
        """A step is done."""
        for watch in self.watches:
            if isinstance(watch, StepWatch):
                watch.stepped(moment)


def log_lines(record: Epoch) -> None:
    """One line an epoch to the logger ``offspike.train``."""
    logger.info("%s", record)


@contextmanager
def progress(description: str = "training") -> Iterator[Watch]:
    """A bar that moves with each step, with rate and time left; log lines without a terminal, or without ``rich``."""
    try:
        from rich.console import Console

        from offspike.training.bar import filling
    except ImportError:
        yield log_lines
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield log_lines
        return
    with filling(console, description) as bar:
        yield bar


@contextmanager
def tensorboard(folder: Path | str) -> Iterator[Watch]:
    """Curves for TensorBoard, which must be installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RuntimeError("TensorBoard is not installed: pip install tensorboard") from None
    writer = SummaryWriter(str(folder))

    def write(record: Epoch) -> None:
        for name, value in record.to_dict().items():
            if name not in ("epoch", "epochs"):
                writer.add_scalar(name, value, record.epoch)

    try:
        yield write
    finally:
        writer.close()
