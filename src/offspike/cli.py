"""The command line. Each command is a thin layer over the library: arguments in, tables and files out."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

__all__ = ["app", "main"]

app = typer.Typer(
    help="Trained networks as spiking networks that answer the same, in as few time-steps as possible.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console()

Json = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a report page to this file.")]
Data = Annotated[str, typer.Option(help="Data set: digits (built in), cifar10, …")]
Root = Annotated[Path, typer.Option(help="The folder that holds data sets.")]
Steps = Annotated[int, typer.Option(min=1, help="Time-steps T.")]
Rho = Annotated[int | None, typer.Option(min=1, help="Steps listened to, ρ. Default: the network's levels L.")]
Batch = Annotated[int, typer.Option(min=1, help="Images at a time.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first images of the test set.")]
Causal = Annotated[bool, typer.Option("--causal", help="Network-wide phase 1 instead of layer by layer.")]


@app.command()
def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 15,
    steps: Steps = 16,
    levels: Annotated[int, typer.Option(min=1, help="Quantisation levels L; ρ is the same.")] = 4,
    html: Annotated[Path, typer.Option(help="Where the report page goes.")] = Path("report.html"),
    json_file: Json = None,
    seed: int = 0,
) -> None:
    """Train a small network on real digits, convert it, and show accuracy against time-steps.

    Example: offspike demo --steps 8 --html report.html
    """
    from offspike.demo import run_demo

    check_writable(html, json_file)
    with progress_bars() as bar:
        result = run_demo(epochs=epochs, steps=steps, levels=levels, seed=seed, progress=bar)
    show_reports(result.reports)
    publish(html, json_file, "A network of spikes reads digits", result.reports, {"COS": result.records}, result.how)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A checkpoint written by osp.save (.safetensors).")],
    method: Annotated[list[str] | None, typer.Option(help="qcfs, cos_light, cos, exact; repeat for several.")] = None,
    data: Data = "digits",
    root: Root = Path("data"),
    steps: Steps = 8,
    rho: Rho = None,
    causal: Causal = False,
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Accuracy, agreement with the ANN, spikes and ticks at every t, under one or several methods.

    Example: offspike evaluate ann.safetensors --data digits --method cos --method exact --steps 8
    """
    from offspike import experiment, methods

    check_writable(html, json_file)
    ann, batches, count = open_model_and_data(model, data, root, batch, limit)
    rho = rho or experiment.levels_of(ann)
    schedule: Any = "causal" if causal else "layerwise"
    line = experiment.line_up(rho, schedule=schedule)
    if method:
        options = {"rho": rho, "schedule": schedule}
        line = {name: methods.by_name(name, **({} if name == "qcfs" else options)) for name in method}
    with progress_bars() as bar:
        reports = experiment.compare(ann, batches, line, steps=steps, progress=lambda name: bar(name, count))
    show_reports(reports)
    how = experiment.provenance(model=model.name, data=data, images=str(count))
    publish(html, json_file, f"{model.name} on {data}", reports, None, how)


@app.command()
def analyze(
    model: Annotated[Path, typer.Argument(help="An ANN checkpoint written by osp.save (.safetensors).")],
    method: Annotated[str, typer.Option(help="qcfs, cos_light, cos or exact.")] = "cos",
    data: Data = "digits",
    root: Root = Path("data"),
    steps: Annotated[int | None, typer.Option(min=1, help="Time-steps T. Default: the network's levels L.")] = None,
    rho: Rho = None,
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
) -> None:
    """Offset spikes of every layer: against the ANN, and against the layer's own input.

    Example: offspike analyze ann.safetensors --data digits --method qcfs
    """
    from offspike import experiment, methods

    check_writable(json_file)
    ann, batches, count = open_model_and_data(model, data, root, batch, limit)
    rho = rho or experiment.levels_of(ann)
    chosen = methods.by_name(method, **({} if method == "qcfs" else {"rho": rho}))
    with progress_bars() as bar:
        records = experiment.analyse(ann, batches(), chosen, steps=steps or rho, progress=bar(method, count))
    table = Table(title=f"{method}, ρ={chosen.rho}, T={steps or rho}, {count} images of {data}")
    for heading in ("layer", "ψ=0", "MSE", "ψ=0, own input", "MSE, own input", "inputs equal"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for name, seen in records.items():
        free, tied = seen.unconstrained, seen.constrained
        row = [
            f"{free.ratio:.2%}",
            f"{free.mse:.4f}",
            f"{tied.ratio:.2%}",
            f"{tied.mse:.4f}",
            f"{seen.inputs.ratio:.2%}",
        ]
        table.add_row(name, *row)
    console.print(table)
    if json_file:
        layers = {name: seen.to_dict() for name, seen in records.items()}
        how = experiment.provenance(model=model.name, data=data, images=str(count))
        json_file.write_text(json.dumps({"method": chosen.to_dict(), "layers": layers, "provenance": how}, indent=1))


@app.command()
def doctor(json_file: Json = None) -> None:
    """What is installed, which kernels will run, what is missing and how to get it.

    Example: offspike doctor
    """
    from dataclasses import asdict

    from offspike.doctor import diagnose

    check_writable(json_file)
    checks = diagnose()
    table = Table(show_header=False, box=None)
    for check in checks:
        mark = "[green]✓[/]" if check.found else "[red]✗[/]" if check.needed else "[dim]–[/]"
        table.add_row(mark, check.name, escape(check.found or check.remedy))
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps([asdict(check) for check in checks], indent=1))
    if not all(check.fine for check in checks):
        raise typer.Exit(1)


def open_model_and_data(
    model: Path, data: str, root: Path, batch: int, limit: int | None
) -> tuple[Any, Callable[[], Iterator[Any]], int]:
    """The ANN of a checkpoint, its test images as batches, and their number."""
    from offspike import datasets, experiment
    from offspike.checkpoint import load
    from offspike.network import SpikingNetwork

    ann = load(model)
    if isinstance(ann, SpikingNetwork):
        raise ValueError(f"{model} holds a spiking network; give the ANN, its methods are chosen here")
    test = datasets.load(data, root=root, split="test")
    if isinstance(test, datasets.FolderStream):
        raise ValueError(f"{root} is too large to be held in memory, which this command needs: take fewer images")
    test = test.take(slice(0, limit)) if limit else test
    inputs = getattr(ann, "preprocess", test.preprocess)

    def batches() -> Iterator[Any]:
        return ((inputs(x), y) for x, y in experiment.batched(test.images, test.labels, batch))

    return ann, batches, len(test)


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
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:

        def bar(name: str, total: int) -> Callable[[int], None]:
            task = progress.add_task(name, total=total)
            return lambda done: progress.update(task, advance=done)

        yield bar


def main() -> None:
    """Run a command; bad input is one line and exit code 2, a traceback only with --debug."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    logging.basicConfig(level=logging.WARNING, format="offspike: %(message)s")
    try:
        app(arguments)
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        message = " ".join(str(error).split())
        Console(stderr=True).print(f"offspike: {message}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(2) from None
