"""The command ``export``: a converted network as a file for other programs."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from offspike.cli.shared import (
    Json,
    Model,
    Rho,
    Root,
    check_writable,
    console,
    open_split,
    progress_bars,
    some_of,
    table_of,
    write_json,
)

Data = Annotated[str | None, typer.Option(help="Images for the check and --v0: digits, cifar10, … Default: noise.")]
FORMATS = ("nir", "onnx", "safetensors")
METHODS = ("qcfs", "cos_light", "cos", "exact")
STARTS = ("half", "channel", "neuron")


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    format: Annotated[str, typer.Option(help="nir, onnx or safetensors.")] = "nir",
    method: Annotated[
        str | None, typer.Option(help="qcfs (θ/2), cos_light, cos or exact; for an ANN. Default: qcfs.")
    ] = None,
    rho: Rho = None,
    v0: Annotated[
        str | None, typer.Option(help="One v(0) for all images: half, or the mean by channel or neuron.")
    ] = None,
    variant: Annotated[str, typer.Option(help="NIR for nir, norse, sinabs, snntorch, spikingjelly.")] = "nir",
    steps: Annotated[int, typer.Option(min=1, help="Steps of the check; with onnx, steps in the file.")] = 4,
    data: Data = None,
    root: Root = Path("data"),
    images: Annotated[int, typer.Option(min=1, help="How many images the check runs.")] = 8,
    calibration: Annotated[int, typer.Option(min=1, help="Training images that --v0 is the mean of.")] = 256,
    measure: Annotated[int, typer.Option(min=1, help="Test images that --v0 is measured on first.")] = 1000,
    check: Annotated[bool, typer.Option(help="Run the file and compare its spikes with the network's.")] = True,
    json_file: Json = None,
) -> None:
    """Write a network as NIR, ONNX or safetensors; the file is read back, and every spike must be the same.

    Example: offspike export resnet20-cifar10-l4 --format nir --out resnet20.nir --data cifar10 --root DIR
    """
    from offspike.exchange.nir import to_nir
    from offspike.exchange.onnx import to_onnx

    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    check_writable(json_file, out, keep=[model])
    ann, snn = open_network(model, method, rho, v0)
    x = inputs(ann or snn, data, root, "test", images)
    facts: dict[str, Any] = {"file": str(out), "format": format, "checked": check, "steps": steps}
    if v0 in ("channel", "neuron"):
        snn, facts["accuracy"] = freeze_and_measure(ann, snn, v0, data, root, calibration, measure)
    if format == "nir":
        to_nir(snn, x, out, variant=variant, steps=steps, check=check)
    elif format == "onnx":
        to_onnx(snn, x, out, steps=steps, check=check)
    else:
        save(snn, x, out, steps, check)
    facts["bytes"] = out.stat().st_size
    what = f"{len(x)} {'inputs of noise' if data is None else f'images of {data}'}, {steps} steps"
    said = f"every spike is the same on {what}" if check else "not checked"
    console.print(f"{out}: {format}, {facts['bytes'] / 1e6:.2f} MB; {said}", soft_wrap=True)
    if json_file:
        write_json(json_file, facts)


def open_network(model: str, method: str | None, rho: int | None, v0: str | None) -> tuple[Any, Any]:
    """The ANN of a checkpoint (None where it holds a spiking network), and the spiking network."""
    from offspike import experiment, methods
    from offspike.checkpoint import load
    from offspike.convert import convert
    from offspike.folding import fold
    from offspike.network import SpikingNetwork

    if v0 is not None and v0 not in STARTS:
        raise ValueError(f"v0 must be one of {', '.join(STARTS)}; got {v0!r}")
    if method is not None and method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    found = load(model)
    if isinstance(found, SpikingNetwork):
        for name, value in (("v0", v0), ("method", method), ("rho", rho)):
            if value is not None:
                raise ValueError(f"{model} is a spiking network, and has its v(0): --{name} is for an ANN")
        return None, found
    if v0 == "half" or method is None:
        method = "qcfs"
    if v0 in ("channel", "neuron") and method == "qcfs":
        method = "cos"
    chosen = methods.qcfs()
    if method != "qcfs":
        chosen = methods.by_name(method, rho=rho or experiment.levels_of(found))
    return found, convert(fold(found), chosen)  # formats have no BatchNorm


def inputs(network: Any, data: str | None, root: Path, split: str, count: int) -> Any:
    """Some images of a data set as the network takes them; noise without a data set."""

    if data is None:
        shape = network.input_shape
        if shape is None:
            raise ValueError("this checkpoint does not say how large its inputs are: give --data")
        return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    found = open_split(network, data, root, split)
    x, _ = next(iter(found.blocks(some_of(data, len(found), count), count)))
    return getattr(network, "preprocess", found.preprocess)(x)


def freeze_and_measure(
    ann: Any, snn: Any, per: Any, data: str | None, root: Path, calibration: int, measure: int
) -> tuple[Any, dict[str, list[float]]]:
    """The network with one v(0) for all images, and what that costs: accuracy at each t, three ways."""
    from offspike import methods
    from offspike.convert import convert
    from offspike.evaluate import evaluate
    from offspike.exchange.freeze import freeze

    if data is None:
        raise ValueError("a mean v(0) needs images: give --data")
    frozen = freeze(snn, inputs(ann, data, root, "train", calibration), per=per)
    test = open_split(ann, data, root, "test")
    ways = {
        f"{snn.method.name}, v(0) of each image": snn,
        "θ/2": convert(ann, methods.qcfs()),
        f"mean by {per}": frozen,
    }
    found = {}
    with progress_bars() as bar:
        for name, network in ways.items():
            chosen = some_of(data, len(test), measure)
            advance = bar(name, len(chosen))
            prepare = getattr(ann, "preprocess", test.preprocess)
            batches = ((prepare(x), y) for x, y in test.blocks(chosen, 200))
            report = evaluate(network, batches, steps=2 * snn.method.rho, progress=advance)
            found[name] = [float(value) for value in report.accuracy]
    headings = ("v(0)", *(f"T={t}" for t in range(1, 2 * snn.method.rho + 1)))
    title = f"accuracy on {len(chosen)} test images of {data}, per cent"
    table = table_of(headings, left=["v(0)"], title=title, wrap=True)
    for name, values in found.items():
        table.add_row(name, *(f"{100 * value:.2f}" for value in values))
    console.print(table)
    return frozen, found


def save(snn: Any, x: Any, out: Path, steps: int, check: bool) -> None:
    """A checkpoint, read back."""
    from offspike import checkpoint
    from offspike.exchange.nir import differing, spikes

    checkpoint.save(snn, out)
    if check:
        try:
            loaded: Any = checkpoint.load(out)
            differing(spikes(snn, x, steps), spikes(loaded, x, steps))
        except ValueError:
            out.unlink()
            raise
