"""The command ``demo``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from offspike.cli.shared import Json, Steps, check_writable, console, progress_bars, publish, show_reports


def demo(
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 25,
    steps: Steps = 16,
    levels: Annotated[int, typer.Option(min=1, help="Quantisation levels L; ρ is the same.")] = 4,
    html: Annotated[Path, typer.Option(help="Where the report page goes.")] = Path("report.html"),
    json_file: Json = None,
    seed: int = 0,
    root: Annotated[Path | None, typer.Option(help="Where CIFAR-10 lies. Default: $OFFSPIKE_DATA, or data.")] = None,
    images: Annotated[int, typer.Option(min=0, help="CIFAR-10 test images to look at; 0 for none.")] = 300,
) -> None:
    """Train a small network on real digits, convert it, and show accuracy against time-steps.

    Where CIFAR-10 is present, the packaged ResNet-20 follows on its test images.

    Example: offspike demo --steps 8 --html report.html
    """
    from offspike.demo import run_cifar, run_demo

    check_writable(html, json_file)
    with progress_bars() as bar:
        result = run_demo(epochs=epochs, steps=steps, levels=levels, seed=seed, progress=bar)
    console.print("[bold]A small network, trained just now on the digits of scikit-learn[/]")
    show_reports(result.findings.reports)
    publish(html, json_file, result.findings, title="A network of spikes reads digits", how=result.how)
    if not images:
        return
    root = root or Path(os.environ.get("OFFSPIKE_DATA", "data"))
    with progress_bars() as bar:
        reports = run_cifar(root, images=images, steps=8, progress=bar)
    if reports is None:
        console.print(
            "For the packaged ResNet-20 on real photographs, unpack "
            f"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz into {root} (or name its folder in "
            "OFFSPIKE_DATA) and run this again."
        )
        return
    console.print("[bold]The packaged ResNet-20 (resnet20-cifar10-l4) on CIFAR-10[/]")
    show_reports(reports)
