"""What the commands share: options, tables, progress bars, and files that are checked before the work begins."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from offspike import distributed
from offspike.atomic import why

console = Console()

Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a report page to this file.")]
Model = Annotated[str, typer.Argument(help="A file written by osp.save, or a name that `offspike models` lists.")]
Data = Annotated[str, typer.Option(help="Data set: digits (built in), cifar10, …")]
Root = Annotated[Path, typer.Option(help="The folder that holds data sets.")]
Steps = Annotated[int, typer.Option(min=1, help="Time-steps T.")]
Rho = Annotated[
    int | None, typer.Option(min=1, help="Steps listened to, ρ. Default: the network's levels L; T for ReLUs.")
]
Calibration = Annotated[int, typer.Option(min=1, help="Training images for methods that take θ from data.")]
Batch = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many images of the test set.")]
Causal = Annotated[bool, typer.Option("--causal", help="Network-wide phase 1 instead of layer by layer.")]


def place(device: str | None) -> torch.device:
    """The device of this name; None: a GPU where there is one. Refused here if the machine has no such device."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # PyTorch asserts that it was built for a GPU
        found = f"cpu and {torch.cuda.device_count()} GPUs (cuda)" if torch.cuda.is_available() else "cpu only"
        raise ValueError(f"there is no device {name!r}: PyTorch sees {found}") from error


def table_of(
    headings: Iterable[str], *, left: Collection[str], title: str | None = None, tight: bool = False, wrap: bool = False
) -> Table:
    """A table without rows yet: the columns named in ``left`` stand to the left, numbers to the right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=tight)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=not wrap)
    return table


def show_reports(reports: dict[str, Any]) -> None:
    """The accuracy table: T is only half the truth, so ρ, ticks and spikes stand beside it."""
    from offspike.experiment import readouts

    first = next(iter(reports.values()))
    at = min(max(1, *(report.method.rho for report in reports.values())), first.steps)
    headings = ("method", "ρ", *(f"T={t}" for t in readouts(first.steps)), "ticks", "spikes")
    table = table_of(headings, left=["method"], title=_headline(first), tight=True)
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


def show_energy(findings: Any) -> None:
    """What one image costs, next to the ANN: also where the spiking network loses."""
    headings = ("method", "synaptic ops", "MACs", "updates", "energy", "the ANN's")
    table = table_of(headings, left=["method"], title=f"Energy of one image at T={findings.chosen}")
    for name, spent in findings.energies.items():
        counts = (spent.synaptic_operations, spent.macs, spent.membrane_updates)
        cells = [_short(count / spent.samples) for count in counts]
        table.add_row(name, *cells, f"{_short(spent.joules())}J", f"{_short(spent.ann_joules())}J")
    console.print(table)
    console.print("4.6 pJ a MAC, 0.9 pJ an accumulate or update (45 nm); phase 1 included, memory not.", style="dim")


def _short(number: float) -> str:
    """Three digits and a prefix: 31.6 M, 1.24 µ."""
    power = min(3, max(-4, math.floor(math.log10(number) / 3))) if number > 0 else 0
    prefix = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G"}[power]
    return f"{number / 1000**power:.3g} {prefix}"


def show_exits(findings: Any, losses: tuple[float, ...] = (0.0, 0.005, 0.01)) -> None:
    """The smallest mean T for a loss of accuracy that one may accept."""
    headings = ("method", *(f"mean T, {100 * loss:g} points lost" for loss in losses))
    table = table_of(headings, left=["method"], title="Early exit", wrap=True)
    for name, found in findings.exits.items():
        places = [found.cheapest(loss) for loss in losses]
        table.add_row(name, *(f"{found.mean_steps[k]:.2f} (margin {found.margins[k]:.3g})" for k in places))
    console.print(table)


def _headline(report: Any) -> str:
    ann = "" if report.reference_accuracy is None else f"; the ANN has {100 * report.reference_accuracy:.2f}"
    return f"{report.samples} test images{ann}"


def publish(html: Path | None, json_file: Path | None, findings: Any, *, title: str, how: dict[str, str]) -> None:
    """Write what was asked for, and say where it is."""
    from offspike.page import write_page

    for report in findings.reports.values():
        report.provenance.update(how)
    if json_file:
        write_json(json_file, findings.to_dict())
        console.print(f"figures: {json_file}")
    if html:
        write_page(html, findings, title=title, provenance=how)
        console.print(f"report: {html}")


def open_split(network: Any, data: str, root: Path, split: str) -> Any:
    """A split of a data set; the images of a folder are made as large as the network's inputs."""
    from offspike import datasets

    shape = getattr(network, "input_shape", None)
    size = {"size": shape[-1]} if data == "folder" and shape is not None else {}
    found = datasets.load(data, root=root, split=split, **size)
    if shape is not None and tuple(found.shape) != tuple(shape):
        wanted, given = ("x".join(map(str, sizes)) for sizes in (shape, found.shape))
        raise ValueError(
            f"the network takes images of {wanted}, those of {data} are {given}: "
            "name its data set, --data NAME --root DIR"
        )
    return found


def some_of(data: str, total: int, count: int | None) -> torch.Tensor:
    """Which images to take: the first ones of a set; of a folder, which lists them class by class, evenly spaced."""
    from offspike.datasets import evenly_spaced

    return evenly_spaced(count, total) if count and data == "folder" else torch.arange(total)[:count]


def write_json(path: Path, found: Any) -> None:
    """Write figures; an error names the file."""
    try:
        path.write_text(json.dumps(found, indent=1))
    except OSError as error:
        raise OSError(f"cannot write {path}: {why(error)}") from error


def check_writable(*paths: Path | None, keep: Collection[str | Path | None] = ()) -> None:
    """Refuse an output path that cannot be written before the work begins, not after.

    Nor may one be written over another, or over what is to be kept: a trained network would be lost.
    """
    taken = {Path(path).resolve() for path in keep if path is not None}
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise OSError(f"cannot write {path}: it is a folder; give the name of a file in it")
        if not path.parent.is_dir():
            raise OSError(f"cannot write {path}: its folder does not exist; make it first")
        if path.resolve() in taken:
            raise ValueError(f"{path} is used twice: it would be written over; give each file a name of its own")
        taken.add(path.resolve())
        new = not path.exists()
        try:
            with path.open("ab"):
                pass
            if new:
                path.unlink(missing_ok=True)  # nothing is left behind if the work fails
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
