"""The progress bar of a training on a terminal. Imported where it is used: it needs ``rich``."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from offspike.training.watch import Epoch, Moment

__all__ = ["Bar", "filling"]


class _Rate(ProgressColumn):
    """Images a second, of the last half minute."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} images/s" if task.speed else "")


class Bar:
    """Fills with each step; beside it rate, time left, and what the last epoch gave."""

    def __init__(self, bars: Progress, description: str) -> None:
        self._bars, self._begun = bars, False
        self._task = bars.add_task(description, total=None, status="")

    def stepped(self, moment: Moment) -> None:
        """A step is done."""
        if not self._begun:  # a resumed training begins part-way, and what was done before says nothing of the rate
            self._bars.reset(self._task, total=moment.total, completed=moment.images)
            self._begun = True
        title = f"epoch {moment.epoch}/{moment.epochs}"
        self._bars.update(self._task, total=moment.total, completed=moment.images, description=title)

    def __call__(self, record: Epoch) -> None:
        """An epoch is done."""
        each = round(record.images_per_second * record.seconds)
        self.stepped(Moment(record.epoch, record.epochs, record.epoch * each, record.epochs * each))
        gave = str(record).split("  ")[1:-1]  # the epoch stands before the bar, the rate beside it
        self._bars.update(self._task, status="  ".join(gave))


@contextmanager
def filling(console: Console, description: str) -> Iterator[Bar]:
    """A bar on this console, for the length of a ``with`` block."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as bars:
        yield Bar(bars, description)
