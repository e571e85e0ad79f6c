"""Ways to look at a training: functions that are called with each epoch's record. Library code itself never prints."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Epoch", "Watch", "log_lines", "progress", "tensorboard"]

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


Watch = Callable[[Epoch], None]


def log_lines(record: Epoch) -> None:
    """One line an epoch to the logger ``offspike.train``."""
    logger.info("%s", record)


@contextmanager
def progress(description: str = "training") -> Iterator[Watch]:
    """A progress bar with rate and time left on a terminal; log lines where there is none, or no ``rich``."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield log_lines
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield log_lines
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(description, total=None, status="")

        def show(record: Epoch) -> None:
            bar.update(task, total=record.epochs, completed=record.epoch, status=str(record).split("  ", 1)[1])

        yield show


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
