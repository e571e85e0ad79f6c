"""The command line. Each command is a thin layer over the library: arguments in, tables and files out."""

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console

from offspike.cli import audit, bench, demo, export, installed, measure, prove, reproduce, train

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (
    demo.demo,
    train.train,
    measure.evaluate,
    measure.analyze,
    audit.audit,
    export.export,
    prove.certify,
    prove.verify,
    reproduce.reproduce,
    bench.bench,
    installed.models,
    installed.doctor,
):
    app.command()(command)


def _say_version(wanted: bool) -> None:
    if wanted:
        from offspike import __version__

        Console().print(f"offspike {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Which it is.")
    ] = False,
) -> None:
    """Trained networks as spiking networks that answer the same, in as few time-steps as possible."""


def main() -> None:
    """Run a command; bad input is one line and exit code 2, a traceback only with --debug."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    logging.basicConfig(level=logging.WARNING, format="offspike: %(message)s")
    try:
        app(arguments)
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        if "--debug" in sys.argv:
            raise
        message = " ".join(_words(error).split())
        Console(stderr=True).print(f"offspike: {message}", style="red", markup=False, soft_wrap=True)
        raise SystemExit(2) from None


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ImportError):
        return f"{error}: `offspike doctor` says what is missing and how to get it"
    return str(error)
