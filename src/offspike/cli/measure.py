"""Commands that measure: ``evaluate`` and ``analyze``."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from offspike import distributed
from offspike.cli.shared import (
    Batch,
    Causal,
    Data,
    Html,
    Json,
    Limit,
    Model,
    Rho,
    Root,
    Steps,
    check_writable,
    console,
    progress_bars,
    publish,
    show_energy,
    show_exits,
    show_reports,
)


def evaluate(
    model: Model,
    method: Annotated[list[str] | None, typer.Option(help="qcfs, cos_light, cos, exact; repeat for several.")] = None,
    data: Data = "digits",
    root: Root = Path("data"),
    steps: Steps = 8,
    rho: Rho = None,
    causal: Causal = False,
    energy: Annotated[bool, typer.Option("--energy", help="Meter synaptic operations and joules too.")] = False,
    early_exit: Annotated[bool, typer.Option("--early-exit", help="Mean T when clear answers stop early.")] = False,
    certificate: Annotated[Path | None, typer.Option(help="Show this certificate in the page.")] = None,
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Accuracy, agreement with the ANN, spikes and ticks at every t, under one or several methods.

    A page (--html) holds everything: energy, early exit, offset spikes, answers, and one neuron step by step. Under
    torchrun each process takes its share of the images, and the sums are merged exactly.

    Example: offspike evaluate ann.safetensors --data digits --method cos --method exact --steps 8
    """
    from offspike import experiment, methods
    from offspike.certificate import Certificate
    from offspike.examine import examine

    check_writable(html, json_file)
    proof = Certificate.from_json(certificate) if certificate else None
    with distributed.process_group() as device:
        opened = open_model_and_data(model, data, root, batch, limit)
        rho = rho or experiment.levels_of(opened.ann)
        schedule: Any = "causal" if causal else "layerwise"
        line = experiment.line_up(rho, schedule=schedule)
        if method:
            options = {"rho": rho, "schedule": schedule}
            line = {name: methods.by_name(name, **({} if name == "qcfs" else options)) for name in method}
        page = html is not None
        with progress_bars() as bar:
            found = examine(
                opened.ann.to(device), opened.batches, line, steps=steps, count=opened.count, progress=bar,
                with_energy=energy or page, with_answers=early_exit or page, with_layers=page, classes=opened.classes,
            )  # fmt: skip
        found.certificate = proof
        if distributed.rank() == 0:
            show_reports(found.reports)
            if energy:
                show_energy(found)
            if early_exit:
                show_exits(found)
            images = next(iter(found.reports.values())).samples
            how = experiment.provenance(model=Path(model).name, data=data, images=str(images))
            publish(html, json_file, found, title=f"{Path(model).name} on {data}", how=how)


def analyze(
    model: Model,
    method: Annotated[str, typer.Option(help="qcfs, cos_light, cos or exact.")] = "cos",
    data: Data = "digits",
    root: Root = Path("data"),
    steps: Annotated[int | None, typer.Option(min=1, help="Time-steps T. Default: the network's levels L.")] = None,
    rho: Rho = None,
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Offset spikes of every layer: against the ANN, and against the layer's own input.

    Example: offspike analyze ann.safetensors --data digits --method qcfs
    """
    from offspike import experiment, methods
    from offspike.convert import convert
    from offspike.examine import look_closely
    from offspike.findings import Findings

    check_writable(html, json_file)
    opened = open_model_and_data(model, data, root, batch, limit)
    ann, count = opened.ann, opened.count
    rho = rho or experiment.levels_of(ann)
    chosen = methods.by_name(method, **({} if method == "qcfs" else {"rho": rho}))
    with progress_bars() as bar:
        records = experiment.analyse(ann, opened.batches(), chosen, steps=steps or rho, progress=bar(method, count))
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
    how = experiment.provenance(model=Path(model).name, data=data, images=str(count))
    if json_file:
        layers = {name: seen.to_dict() for name, seen in records.items()}
        json_file.write_text(json.dumps({"method": chosen.to_dict(), "layers": layers, "provenance": how}, indent=1))
    if html:
        snn = convert(ann, chosen)
        look = look_closely(snn, opened.batches, name=method, steps=steps or rho, reference=ann)
        found = Findings(records={method: records}, close_up=look, classes=opened.classes)
        publish(html, None, found, title=f"Offset spikes of {Path(model).name} on {data}", how=how)


@dataclass(frozen=True)
class Opened:
    """The ANN of a checkpoint, this process's test images as batches, their number, and the names of classes."""

    ann: Any
    batches: Callable[[], Iterator[Any]]
    count: int
    classes: tuple[str, ...]


def open_model_and_data(model: str, data: str, root: Path, batch: int, limit: int | None) -> Opened:
    """What a command measures, and on what."""
    from offspike import datasets
    from offspike.checkpoint import load
    from offspike.network import SpikingNetwork

    ann = load(model)
    if isinstance(ann, SpikingNetwork):
        raise ValueError(f"{model} holds a spiking network; give the ANN, its methods are chosen here")
    test = datasets.load(data, root=root, split="test")
    if isinstance(test, datasets.FolderStream):
        raise ValueError(f"{root} is too large to be held in memory, which this command needs: take fewer images")
    mine = distributed.shard(torch.arange(len(test))[:limit])
    if not len(mine):
        raise ValueError(f"{limit} images are not enough for {distributed.world_size()} processes")
    inputs = getattr(ann, "preprocess", test.preprocess)

    def batches() -> Iterator[Any]:
        return ((inputs(x), y) for x, y in test.blocks(mine, batch))

    return Opened(ann, batches, len(mine), test.classes)
