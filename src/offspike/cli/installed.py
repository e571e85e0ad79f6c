"""Commands that say what is there: ``doctor`` and ``models``."""

import typer
from rich.markup import escape
from rich.table import Table

from offspike.cli.shared import Json, check_writable, console, table_of, write_json


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
        write_json(json_file, [asdict(check) for check in checks])
    if not all(check.fine for check in checks):
        raise typer.Exit(1)


def models(json_file: Json = None) -> None:
    """The packaged checkpoints: measured accuracy, size, and whether the file is on this machine.

    Example: offspike models; then: offspike evaluate resnet20-cifar10-l4 --data cifar10 --root DIR
    """
    from dataclasses import asdict

    from offspike.catalogue import MODELS, VARIABLE, find

    check_writable(json_file)
    headings = ("name", "L", "data", "accuracy", "images", "size", "file")
    table = table_of(headings, left=["name", "data", "file"])
    rows = []
    for entry in MODELS:
        path = find(entry.name)
        size = path.stat().st_size if path else None
        rows.append(asdict(entry) | {"accuracy": entry.accuracy, "bytes": size, "present": path is not None})
        cells = [str(entry.levels or "ReLU"), entry.data, f"{entry.accuracy:.2f} %", f"{entry.images:,}"]
        table.add_row(entry.name, *cells, f"{size / 1e6:.1f} MB" if size else "–", "here" if path else "not here")
    console.print(table)
    console.print(
        "Accuracy of the ANN, measured after loading the file on a CPU. A file that is not here lies in models/ of the "
        f"project's repository; name its folder in {VARIABLE}.",
        style="dim",
    )
    if json_file:
        write_json(json_file, rows)
