"""What the commands share: options, tables, progress bars, and files that are checked before the work begins."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from offspike import distributed

console = Console()

Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a report page to this file.")]
Model = Annotated[str, typer.Argument(help="A file written by osp.save, or a name that `offspike models` lists.")]
Data = Annotated[str, typer.Option(help="Data set: digits (built in), cifar10, …")]
Root = Annotated[Path, typer.Option(help="The folder that holds data sets.")]
Steps = Annotated[int, typer.Option(min=1, help="Time-steps T.")]
Rho = Annotated[int | None, typer.Option(min=1, help="Steps listened to, ρ. Default: the network's levels L.")]
Batch = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first images of the test set.")]
Causal = Annotated[bool, typer.Option("--causal", help="Network-wide phase 1 instead of layer by layer.")]


def show_reports(reports: dict[str, Any]) -> None:
    """The accuracy table: T is only half the truth, so ρ, ticks and spikes stand beside it."""
    from offspike.experiment import readouts

    first = next(iter(reports.values()))
    at = min(max(1, *(report.method.rho for report in reports.values())), first.steps)
    table = Table(title=_headline(first), box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("method", "ρ", *(f"T={t}" for t in readouts(first.steps)), f"ticks, T={at}", "spikes"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for name, report in reports.items():
        cells = [f"{100 * report.accuracy[t - 1]:.2f}" for t in readouts(report.steps)]
        cost = report.cost(at)
        table.add_row(name, str(cost.rho), *cells, str(cost.ticks), f"{report.spikes(at):,.0f}")
    console.print(table)
    schedules = {report.cost(at).schedule for report in reports.values()} - {"uncalibrated"}
    console.print(
        f"Accuracy in per cent; schedule: {', '.join(sorted(schedules)) or 'uncalibrated'}. "
        f"Ticks and spikes for one image until the readout at T={at}.",
        style="dim",
    )


def _headline(report: Any) -> str:
    ann = "" if report.reference_accuracy is None else f"; the ANN has {100 * report.reference_accuracy:.2f}"
    return f"{report.samples} test images{ann}"


def publish(html: Path | None, json_file: Path | None, title: str, reports: Any, records: Any, how: Any) -> None:
    """Write what was asked for, and say where it is."""
    from offspike.page import write_page

    for report in reports.values():
        report.provenance.update(how)
    if json_file:
        json_file.write_text(json.dumps({name: report.to_dict() for name, report in reports.items()}, indent=1))
        console.print(f"figures: {json_file}")
    if html:
        write_page(html, title=title, reports=reports, records=records, provenance=how)
        console.print(f"report: {html}")


def check_writable(*paths: Path | None) -> None:
    """Refuse an output path that cannot be written before the work begins, not after."""
    for path in paths:
        if path is None:
            continue
        if path.is_dir() or not path.parent.is_dir():
            raise OSError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")
        try:
            with path.open("ab"):
                pass
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Bars with rate and time left on a terminal; ``bar(name, total)`` returns a function that advances it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    quiet = distributed.rank() > 0
    bars = Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, disable=quiet
    )  # fmt: skip
    with bars as progress:

        def bar(name: str, total: int) -> Callable[[int], None]:
            task = progress.add_task(name, total=total)
            return lambda done: progress.update(task, advance=done)

        yield bar
