"""The command that measures speed: ``bench``."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.table import Table

from offspike.cli.shared import Data, Json, Limit, Root, Steps, check_writable, console, open_split, place

Network = Annotated[
    str, typer.Argument(help="vgg16, resnet18, resnet20, resnet34 or small (random weights), or a file.")
]
Rho = Annotated[int, typer.Option(min=1, help="Steps listened to, ρ.")]
Batch = Annotated[list[int] | None, typer.Option(min=1, help="Images at a time; repeat to try several.")]
Chosen = Annotated[list[str] | None, typer.Option(help="exact32, tf32, bf16; repeat for several.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; default: a GPU where there is one.")]
Out = Annotated[Path | None, typer.Option(help="A folder for the CSV files, such as benchmarks/results.")]


def bench(
    network: Network = "resnet20",
    steps: Steps = 16,
    rho: Rho = 4,
    batch: Batch = None,
    precision: Chosen = None,
    device: Device = None,
    reference: Annotated[bool, typer.Option("--reference", help="Also time the plain PyTorch path.")] = False,
    accuracy: Annotated[bool, typer.Option("--accuracy", help="Compare the accuracy of precisions on --data.")] = False,
    data: Data = "cifar10",
    root: Root = Path("data"),
    limit: Limit = None,
    out: Out = None,
    json_file: Json = None,
) -> None:
    """Images a second, against the ANN and SpikingJelly; time by layer, against what the machine can do.

    Example: offspike bench vgg16 --steps 16 --batch 500 --precision bf16
    """
    from offspike import bench as core
    from offspike import experiment, methods, timing
    from offspike.convert import convert

    check_writable(json_file)
    where = place(device)
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out names a folder")
    ann = _model(network).to(where)
    chosen: Any = precision or (["exact32", "tf32", "bf16"] if where.type == "cuda" else ["exact32"])
    method = methods.exact(rho)
    how = experiment.provenance(network=network, steps=str(steps), rho=str(rho))
    rows: list[dict[str, Any]] = []
    for size in batch or ([1, 64, 512] if where.type == "cuda" else [8]):
        x = torch.randn(size, *_shape(ann), device=where)
        for row in core.compare(ann, x, method, steps=steps, precisions=chosen, with_reference=reference):
            rows.append(row | how)
    console.print(_speeds(rows, f"{network}, T={steps}, ρ={rho}, {how['machine']}"))
    if not find_spec("spikingjelly"):
        console.print("To compare with SpikingJelly too: pip install spikingjelly", style="dim")
    roofs = timing.roofs(where, dtype=torch.bfloat16 if where.type == "cuda" else torch.float32)
    layers = core.by_layer(convert(ann, method, precision=chosen[-1]), x, steps=steps, roofs=roofs)
    console.print(_layers(layers, core.summary(layers, roofs), roofs, f"{chosen[-1]}, batch {len(x)}"))
    right = _accuracy(ann, method, steps, chosen, data, root, limit) if accuracy else []
    if out is not None:
        name = re.sub(
            r"[^a-z0-9.]+", "-", f"{Path(network).stem}-T{steps}-{torch.__version__}-{_machine(where)}".lower()
        )
        core.save(out / f"speed-{name}.csv", rows)
        core.save(out / f"layers-{name}.csv", layers)
        console.print(f"written: {out}/speed-{name}.csv and layers-{name}.csv")
    if json_file:
        found = {"speed": rows, "layers": layers, "roofs": roofs._asdict(), "accuracy": right, "provenance": how}
        json_file.write_text(json.dumps(found, indent=1))


def _model(network: str) -> Any:
    from offspike import bench, checkpoint, zoo
    from offspike.network import SpikingNetwork

    if network in zoo.NETWORKS:
        return bench.network(network)
    model = checkpoint.load(network)
    if isinstance(model, SpikingNetwork):
        raise ValueError(f"{network} holds a spiking network; give the ANN, it is converted here")
    return model


def _shape(ann: Any) -> tuple[int, ...]:
    if getattr(ann, "input_shape", None) is None:
        raise ValueError("this network does not say what its input looks like: save it with an input_shape")
    return tuple(ann.input_shape)


def _machine(device: torch.device) -> str:
    import platform

    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def _speeds(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    metered = any(row["peak_bytes"] is not None for row in rows)  # on a GPU
    for heading in ("what", "precision", "batch", "µs/image", "images/s", *["peak memory"] * metered):
        table.add_column(heading, justify="left" if heading in ("what", "precision") else "right", no_wrap=True)
    for row in rows:
        peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.2f} GB"
        cells = [f"{row['us']:,.1f}", f"{row['images_per_second']:,.0f}", *[peak] * metered]
        table.add_row(row["what"], row["precision"], str(row["batch"]), *cells)
    return table


def _layers(rows: list[dict[str, Any]], sums: list[dict[str, Any]], roofs: Any, title: str) -> Table:
    limits = f"{roofs.operations / 1e12:.1f} T operations/s, {roofs.bytes / 1e9:.0f} GB/s"
    table = Table(title=f"{title}; the machine: {limits}", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("layer", "kind", "µs/image", "of its roof"):
        table.add_column(heading, justify="right" if heading[0] in "µo" else "left", no_wrap=True)
    for row in [*rows, *sums]:
        table.add_row(row.get("layer", "together"), row["kind"], f"{row['us']:,.2f}", f"{row['of_roof']:.0%}")
    return table


def _accuracy(
    ann: Any, method: Any, steps: int, precisions: Any, data: str, root: Path, limit: int | None
) -> list[dict[str, Any]]:
    from offspike import bench, experiment

    test = open_split(ann, data, root, "test")
    inputs, images = getattr(ann, "preprocess", test.preprocess), torch.arange(len(test))[:limit]
    where = next(ann.parameters()).device

    def batches() -> Any:
        return ((inputs(x.to(where)), y) for x, y in test.blocks(images, 500))

    rows = list(bench.accuracy(ann, method, batches, steps=steps, precisions=precisions))
    table = Table(title=f"accuracy in per cent, {len(images)} images of {data}", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("path", *(f"T={t}" for t in experiment.readouts(steps))):
        table.add_column(heading, justify="left" if heading == "path" else "right")
    for row in rows:
        table.add_row(row["what"], *(f"{100 * row['accuracy'][t - 1]:.2f}" for t in experiment.readouts(steps)))
    console.print(table)
    return rows
