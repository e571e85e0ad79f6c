"""The command line. Each command is a thin layer over the library: arguments in, tables and files out."""

import logging
import sys

import typer
from rich.console import Console

from offspike.cli import audit, bench, demo, export, installed, measure, prove, reproduce, train

__all__ = ["app", "main"]

app = typer.Typer(
    help="Trained networks as spiking networks that answer the same, in as few time-steps as possible.",
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
