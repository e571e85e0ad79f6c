"""The command that measures speed: ``bench``."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from offspike.cli.shared import (
    Data,
    Json,
    Limit,
    Root,
    Steps,
    check_writable,
    console,
    open_split,
    place,
    some_of,
    table_of,
    write_json,
)

Network = Annotated[
    str, typer.Argument(help="vgg16, resnet18, resnet20, resnet34 or small (random weights), or a file.")
]
Rho = Annotated[int, typer.Option(min=1, help="Steps listened to, ρ.")]
Batch = Annotated[list[int] | None, typer.Option(min=1, help="Images at a time; repeat to try several.")]
Chosen = Annotated[list[str] | None, typer.Option(help="exact32, tf32, bf16, int8 (fixed point); repeat for several.")]
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

    With --precision int8 the network is put into fixed point first (osp.snap, 8 bits), for all that is timed.

    Example: offspike bench vgg16 --steps 16 --batch 500 --precision bf16
    """
    from offspike import bench as core
    from offspike import experiment, methods
    from offspike.convert import convert

    check_writable(json_file, keep=[network])
    where = place(device)
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; --out names a folder")
    ann = _model(network, whole="int8" in (precision or ())).to(where)
    test = open_split(ann, data, root, "test") if accuracy else None  # what is missing is said before the timing
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
    roofs = _roofs(where, chosen[-1])
    layers = core.by_layer(convert(ann, method, precision=chosen[-1]), x, steps=steps, roofs=roofs)
    console.print(_layers(layers, core.summary(layers), roofs, f"{chosen[-1]}, batch {len(x)}"))
    name = f"{Path(network).stem}-T{steps}-{torch.__version__}-{_machine(where)}"
    _save(out, name, {"speed": rows, "layers": layers})
    right: list[dict[str, Any]] = []
    if test is not None:
        images = some_of(data, len(test), limit)
        right = _accuracy(ann, method, steps, chosen, test, images)
        console.print(_accuracies(right, f"accuracy in per cent, {len(images)} images of {data}"))
        _save(out, name, {"accuracy": [row | how for row in _by_step(right, len(images))]})
    if json_file:
        found = {"speed": rows, "layers": layers, "roofs": roofs._asdict(), "accuracy": right, "provenance": how}
        write_json(json_file, found)


def _roofs(device: torch.device, precision: Any) -> Any:
    """What the machine can do in the numbers of this precision."""
    from offspike import timing
    from offspike.fast.precision import arithmetic

    with arithmetic(precision):
        return timing.roofs(device, dtype={"bf16": torch.bfloat16, "int8": torch.int8}.get(precision, torch.float32))


def _save(out: Path | None, name: str, tables: dict[str, list[dict[str, Any]]]) -> None:
    """One CSV file a table in the folder, and a line that says so."""
    from offspike import bench

    if out is None:
        return
    paths = [out / f"{kind}-{re.sub(r'[^a-z0-9.]+', '-', name.lower())}.csv" for kind in tables]
    for path, rows in zip(paths, tables.values(), strict=True):
        bench.save(path, rows)
    console.print(f"written: {' and '.join(map(str, paths))}", soft_wrap=True)


def _model(network: str, *, whole: bool) -> Any:
    """The ANN; ``whole``: in fixed point, if it is not yet."""
    from offspike import bench, checkpoint, zoo
    from offspike.arithmetic.grids import was_snapped
    from offspike.fixed.snap import snap
    from offspike.network import SpikingNetwork

    model: Any = bench.network(network) if network in zoo.NETWORKS else checkpoint.load(network)
    if isinstance(model, SpikingNetwork):
        raise ValueError(f"{network} holds a spiking network; give the ANN, it is converted here")
    if whole and not was_snapped(model):
        return snap(model, bits=8, example=torch.randn(1, *_shape(model)))
    return model


def _shape(ann: Any) -> tuple[int, ...]:
    if getattr(ann, "input_shape", None) is None:
        raise ValueError("this network does not say what its input looks like: save it with an input_shape")
    return tuple(ann.input_shape)


def _machine(device: torch.device) -> str:
    import platform

    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def _speeds(rows: list[dict[str, Any]], title: str) -> Table:
    metered = any(row["peak_bytes"] is not None for row in rows)  # on a GPU
    headings = ("what", "precision", "batch", "µs/image", "images/s", *["peak memory"] * metered)
    table = table_of(headings, left=["what", "precision"], title=title, tight=True)
    for row in rows:
        peak = "–" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e9:.2f} GB"
        cells = [f"{row['us']:,.1f}", f"{row['images_per_second']:,.0f}", *[peak] * metered]
        table.add_row(row["what"], row["precision"], str(row["batch"]), *cells)
    return table


def _layers(rows: list[dict[str, Any]], sums: list[dict[str, Any]], roofs: Any, title: str) -> Table:
    limits = f"{roofs.operations / 1e12:.1f} T operations/s, {roofs.bytes / 1e9:.0f} GB/s"
    headings = ("layer", "kind", "µs/image", "of its roof")
    table = table_of(headings, left=["layer", "kind"], title=f"{title}; the machine: {limits}")
    for row in [*rows, *sums]:
        table.add_row(row.get("layer", "together"), row["kind"], f"{row['us']:,.2f}", f"{row['of_roof']:.0%}")
    return table


def _accuracy(
    ann: Any, method: Any, steps: int, precisions: Any, test: Any, images: torch.Tensor
) -> list[dict[str, Any]]:  # fmt: skip
    from offspike import bench

    inputs = getattr(ann, "preprocess", test.preprocess)
    where = next(ann.parameters()).device

    def batches() -> Any:
        return ((inputs(x.to(where)), y) for x, y in test.blocks(images, 500))

    return list(bench.accuracy(ann, method, batches, steps=steps, precisions=precisions))


def _by_step(rows: list[dict[str, Any]], images: int) -> list[dict[str, Any]]:
    """A row for each path and time-step."""
    return [
        {"what": row["what"], "t": t, "accuracy": value, "images": images}
        for row in rows
        for t, value in enumerate(row["accuracy"], start=1)
    ]


def _accuracies(rows: list[dict[str, Any]], title: str) -> Table:
    from offspike.experiment import readouts

    shown = readouts(len(rows[0]["accuracy"]))
    table = table_of(("path", *(f"T={t}" for t in shown)), left=["path"], title=title, wrap=True)
    for row in rows:
        table.add_row(row["what"], *(f"{100 * row['accuracy'][t - 1]:.2f}" for t in shown))
    return table
