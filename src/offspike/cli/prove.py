"""Commands that prove: ``certify`` and ``verify``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from offspike.cli.measure import open_model_and_data
from offspike.cli.shared import (
    Batch,
    Data,
    Html,
    Json,
    Limit,
    Model,
    Root,
    check_writable,
    console,
    open_split,
    progress_bars,
    some_of,
    table_of,
)  # fmt: skip

Bits = Annotated[int, typer.Option(min=2, max=16, help="Bits of a weight, for a network that is not in fixed point.")]
Calibrate = Annotated[int, typer.Option(min=0, help="Training images that rounding looks at; 0: weights alone.")]
Save = Annotated[Path | None, typer.Option(help="Write the fixed-point network to this file.")]


def certify(
    model: Model,
    bits: Bits = 8,
    calibrate: Calibrate = 0,
    data: Data = "digits",
    root: Root = Path("data"),
    batch: Batch = 200,
    limit: Limit = None,
    save: Save = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Put a network into fixed point, convert it exactly, and certify that its spikes give the ANN's bits.

    Prints, for each layer, the bound of its sums and what was seen. Exit code 1 if equality is not proved.

    Example: offspike certify resnet20-cifar10-l4 --bits 8 --data cifar10 --root DIR --save q.safetensors --json c.json
    """
    from offspike import methods
    from offspike.checkpoint import save as write
    from offspike.convert import convert
    from offspike.evaluate import evaluate
    from offspike.experiment import levels_of
    from offspike.fixed.certify import certify as make
    from offspike.look.findings import Findings
    from offspike.page import write_page

    check_writable(save, json_file, html, keep=[model])
    opened = open_model_and_data(model, data, root, batch, limit)
    ann, batches, count = opened.ann, opened.batches, opened.count
    snapped = _snapped(ann, next(iter(batches()))[0], bits, calibrate, data, root)
    if save is None and json_file is not None and snapped is not ann:
        save = json_file.with_suffix(".safetensors")  # or nobody could check the certificate
        check_writable(save, keep=[model, html])
    if save:
        write(snapped, save, provenance={"source": model, "bits": bits})
    snn = convert(snapped, methods.exact(levels_of(snapped)))
    how = {"model": str(save or model), "data": data, "root": str(root), "images": str(count)}
    with progress_bars() as bar:
        certificate = make(snapped, snn, batches(), progress=bar("certify", count), provenance=how)
    show(certificate)
    if json_file:
        certificate.to_json(json_file)
        console.print(f"certificate: {json_file}")
    if save:
        console.print(f"network: {save}")
    if html:
        report = evaluate(snn, batches(), steps=certificate.steps, reference=snapped)
        findings = Findings(reports={"exact": report}, certificate=certificate)
        write_page(html, findings, title=f"{Path(model).name}: certificate", provenance=certificate.provenance)
        console.print(f"report: {html}")
    if not certificate.proved:
        raise typer.Exit(1)


def verify(
    file: Annotated[Path, typer.Argument(help="A certificate written by `offspike certify --json`.")],
    model: Annotated[str | None, typer.Option(help="The fixed-point network. Default: the one it names.")] = None,
    root: Annotated[Path | None, typer.Option(help="The folder of data sets. Default: the one it names.")] = None,
    batch: Batch = 200,
    static: Annotated[bool, typer.Option("--static", help="The proof alone, without running the data again.")] = False,
) -> None:
    """Check a certificate again: its weights, its proof and, unless --static, what it saw on its data.

    Example: offspike verify c.json
    """
    from offspike import methods
    from offspike.checkpoint import load
    from offspike.convert import convert
    from offspike.fixed.certificate import Certificate
    from offspike.fixed.certify import verify as check

    certificate = Certificate.from_json(file)
    named = certificate.provenance
    source = model or _network_of(file, named)
    if static:
        ann, batches = load(source), None
    else:
        limit = int(named["images"]) if named.get("images", "").isdecimal() else None
        where = root or Path(named.get("root", "data"))
        opened = open_model_and_data(source, named.get("data", "digits"), where, batch, limit)
        ann, batches = opened.ann, opened.batches()
    snn = convert(ann, methods.Method.from_dict(certificate.method))
    check(certificate, ann, snn, loader=batches)
    unseen = " (the data was not run again)" if static else ""
    console.print(f"[green]✓[/] {file}: {certificate.verdict()}{unseen}", soft_wrap=True)
    if not certificate.proved:
        raise typer.Exit(1)


def _network_of(file: Path, named: dict[str, str]) -> str:
    """The network that a certificate names: where it says, or beside it."""
    if "model" not in named:
        raise ValueError("the certificate does not name its network: give it with --model")
    beside = file.parent / Path(named["model"]).name
    return str(beside) if beside.is_file() and not Path(named["model"]).exists() else named["model"]


def show(certificate: Any) -> None:
    """The certificate as tables."""
    headings = ("layer", "θ", "current", "Σ bits", "v bits", "in", "out", "MSE")
    layers = table_of(headings, left=["layer"], title=f"T = ρ = L = {certificate.steps}, neuron layers")
    for name, layer in certificate.layers.items():
        bound = layer.bound
        numbers = ["–"] * 4 if bound is None else [
            f"{bound.threshold:,}", f"{bound.current:,}", str(bound.sum_bits), str(bound.membrane_bits)
        ]  # fmt: skip
        layers.add_row(name, *numbers, f"{100 * layer.inputs.ratio:.2f}", f"{100 * layer.outputs.ratio:.2f}",
                       f"{layer.outputs.mse:.4g}")  # fmt: skip
    sums = table_of(
        ("layer", "weights", "inputs", "sums", "exact in"), left=["layer", "exact in"],
        title="layers with weights (bits without sign)",
    )  # fmt: skip
    for name, made in certificate.sums.items():
        sums.add_row(name, str(made.weight_bits), str(made.input_bits), str(made.bits), ", ".join(made.exact_in) or "–")
    console.print(layers)
    legend = "θ and the largest current in whole units; bits of ΣI over ρ steps and, with sign, of the potential v; "
    console.print(legend + "in, out: per cent of neurons whose input and output are the ANN's.", style="dim")
    console.print(sums)
    if certificate.correct is not None:
        share = 100 * certificate.correct / certificate.samples
        console.print(f"{share:.2f} % of {certificate.samples:,} images right.", style="dim")
    style = "green" if certificate.proved else "yellow" if certificate.observed else "red"
    console.print(certificate.verdict(), style=style, markup=False, soft_wrap=True)
    for reason in certificate.reasons[1:6]:
        console.print(f"  {reason}", style="dim", markup=False, soft_wrap=True)


def _snapped(ann: Any, example: Any, bits: int, calibrate: int, data: str, root: Path) -> Any:
    """The network in fixed point, if it is not yet."""
    from offspike import datasets
    from offspike.arithmetic.grids import was_snapped
    from offspike.fixed.snap import snap

    if was_snapped(ann):
        return ann
    images = None
    if calibrate:
        train = open_split(ann, data, root, "train")
        if isinstance(train, datasets.FolderStream):
            raise ValueError(f"{root} is too large to be held in memory, which --calibrate needs: leave it out")
        images = getattr(ann, "preprocess", train.preprocess)(train.images[some_of(data, len(train), calibrate)])
    with progress_bars() as bar:
        layers = sum(hasattr(module, "weight") for module in ann.modules())
        advance = bar("snap", layers)
        return snap(ann, bits=bits, example=example, calibration=images, progress=lambda *_: advance(1))
