"""Commands that measure: ``evaluate`` and ``analyze``."""

import json
from collections.abc import Callable, Iterator
from functools import reduce
from operator import add
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
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Accuracy, agreement with the ANN, spikes and ticks at every t, under one or several methods.

    Under torchrun each process takes its share of the images, and the sums are merged exactly.

    Example: offspike evaluate ann.safetensors --data digits --method cos --method exact --steps 8
    """
    from offspike import experiment, methods

    check_writable(html, json_file)
    with distributed.process_group() as device:
        ann, batches, count = open_model_and_data(model, data, root, batch, limit)
        rho = rho or experiment.levels_of(ann)
        schedule: Any = "causal" if causal else "layerwise"
        line = experiment.line_up(rho, schedule=schedule)
        if method:
            options = {"rho": rho, "schedule": schedule}
            line = {name: methods.by_name(name, **({} if name == "qcfs" else options)) for name in method}
        with progress_bars() as bar:
            mine = experiment.compare(
                ann.to(device), batches, line, steps=steps, progress=lambda name: bar(name, count)
            )
        reports = {name: reduce(add, distributed.gather(report)) for name, report in mine.items()}
        if distributed.rank() == 0:
            show_reports(reports)
            images = next(iter(reports.values())).samples
            how = experiment.provenance(model=Path(model).name, data=data, images=str(images))
            publish(html, json_file, f"{Path(model).name} on {data}", reports, None, how)


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
        how = experiment.provenance(model=Path(model).name, data=data, images=str(count))
        json_file.write_text(json.dumps({"method": chosen.to_dict(), "layers": layers, "provenance": how}, indent=1))


def open_model_and_data(
    model: str, data: str, root: Path, batch: int, limit: int | None
) -> tuple[Any, Callable[[], Iterator[Any]], int]:
    """The ANN of a checkpoint, this process's test images as batches, and their number."""
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

    return ann, batches, len(mine)
