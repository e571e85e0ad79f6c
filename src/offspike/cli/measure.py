"""Commands that measure: ``evaluate`` and ``analyze``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.table import Table

from offspike import distributed
from offspike.cli.shared import (
    Batch,
    Calibration,
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
    open_split,
    progress_bars,
    publish,
    show_energy,
    show_exits,
    show_reports,
    some_of,
    write_json,
)
from offspike.experiment import NAMES

METHODS = ", ".join(NAMES)


def evaluate(
    model: Model,
    method: Annotated[list[str] | None, typer.Option(help=f"all, or {METHODS}; repeat for several.")] = None,
    data: Data = "digits",
    root: Root = Path("data"),
    steps: Steps = 8,
    rho: Rho = None,
    causal: Causal = False,
    calibration: Calibration = 1000,
    precision: Annotated[
        str, typer.Option(help="exact32; tf32 or bf16 on a GPU; int8 for networks in fixed point.")
    ] = "exact32",
    energy: Annotated[bool, typer.Option("--energy", help="Meter synaptic operations and joules too.")] = False,
    early_exit: Annotated[bool, typer.Option("--early-exit", help="Mean T when clear answers stop early.")] = False,
    certificate: Annotated[Path | None, typer.Option(help="Show this certificate in the page.")] = None,
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Accuracy, agreement with the ANN, spikes and ticks at every t, under one or several methods.

    Without --method: the paper's methods and exact. Methods that take thresholds or corrections from data get
    --calibration images of the training set; so do all methods on a ReLU network, which has no thresholds of its own.

    A page (--html) holds everything: energy, early exit, offset spikes, answers, and one neuron step by step. Under
    torchrun each process takes its share of the images, and the sums are merged exactly.

    Example: offspike evaluate ann.safetensors --data digits --method all --steps 8
    """
    from offspike import experiment
    from offspike.fast.precision import Precision, check_precision
    from offspike.fixed.certificate import Certificate
    from offspike.look.examine import examine

    check_writable(html, json_file, keep=[model, certificate])
    check_precision(precision)
    proof = Certificate.from_json(certificate) if certificate else None
    with distributed.process_group() as device:
        opened = open_model_and_data(model, data, root, batch, limit)
        line = choose(opened.ann, method, rho=rho, steps=steps, causal=causal)
        images, said = opened.calibration(line, calibration)
        page = html is not None
        with progress_bars() as bar:
            found = examine(
                opened.ann.to(device), opened.batches, line, steps=steps, count=opened.count, progress=bar,
                calibration=images, precision=cast(Precision, precision), with_energy=energy or page,
                with_answers=early_exit or page, with_layers=page, classes=opened.classes,
            )  # fmt: skip
        found.certificate = proof
        if distributed.rank() == 0:
            show_reports(found.reports)
            for sentence in said:
                console.print(sentence, style="dim")
            if energy:
                show_energy(found)
            if early_exit:
                show_exits(found)
            count = next(iter(found.reports.values())).samples
            how = experiment.provenance(model=Path(model).name, data=data, images=str(count), precision=precision)
            if images:
                how["calibration"] = f"{sum(map(len, images))} training images"
            publish(html, json_file, found, title=f"{Path(model).name} on {data}", how=how)


def analyze(
    model: Model,
    method: Annotated[str, typer.Option(help=f"One of {METHODS}.")] = "cos",
    data: Data = "digits",
    root: Root = Path("data"),
    steps: Annotated[int | None, typer.Option(min=1, help="Time-steps T. Default: the network's levels L.")] = None,
    rho: Rho = None,
    calibration: Calibration = 1000,
    batch: Batch = 200,
    limit: Limit = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Offset spikes of every layer: against the ANN, and against the layer's own input.

    Example: offspike analyze ann.safetensors --data digits --method qcfs
    """
    from offspike import experiment
    from offspike.convert import convert
    from offspike.look.examine import look_closely
    from offspike.look.findings import Findings

    check_writable(html, json_file, keep=[model])
    if method == "all":
        raise ValueError(f"analyze looks at one method at a time: {METHODS}")
    opened = open_model_and_data(model, data, root, batch, limit)
    ann, count = opened.ann, opened.count
    steps = steps or rho or experiment.levels_of(ann)
    line = choose(ann, [method], rho=rho or experiment.levels_of(ann), steps=steps, causal=False)
    chosen = line[method]
    images, said = opened.calibration(line, calibration)
    with progress_bars() as bar:
        records = experiment.analyse(
            ann, opened.batches(), chosen, steps=steps, calibration=images, progress=bar(method, count)
        )
    table = Table(title=f"{method}, ρ={chosen.rho}, T={steps}, {count} images of {data}")
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
    for sentence in said:
        console.print(sentence, style="dim")
    how = experiment.provenance(model=Path(model).name, data=data, images=str(count))
    if json_file:
        layers = {name: seen.to_dict() for name, seen in records.items()}
        write_json(json_file, {"method": chosen.to_dict(), "layers": layers, "provenance": how})
    if html:
        snn = convert(ann, chosen, calibration=images)
        look = look_closely(snn, opened.batches, name=method, steps=steps, reference=ann)
        found = Findings(records={method: records}, close_up=look, classes=opened.classes)
        publish(html, None, found, title=f"Offset spikes of {Path(model).name} on {data}", how=how)


def choose(ann: Any, names: list[str] | None, *, rho: int | None, steps: int, causal: bool) -> dict[str, Any]:
    """The methods of these names, "all" for every one; the paper's if none is named.

    A network without levels is calibrated over T steps, one without thresholds gets those of least error.
    """
    from offspike import experiment
    from offspike.methods import LEARNED
    from offspike.thresholds import LeastError

    trained = experiment.has_thresholds(ann)
    rho = rho or (experiment.levels_of(ann) if trained else steps)
    options: Any = {
        "schedule": "causal" if causal else "layerwise",
        "threshold": LEARNED if trained else LeastError(rho),
    }
    if not names:
        return experiment.line_up(rho, **options)
    wanted = NAMES if "all" in names else names
    return {name: experiment.named(name, rho=rho, steps=steps, **options) for name in wanted}


@dataclass(frozen=True)
class Opened:
    """The ANN of a checkpoint, this process's test images as batches, their number, and the names of classes.

    ``training`` gives so many images of the training set as batches: the same ones in every process.
    """

    ann: Any
    batches: Callable[[], Iterator[Any]]
    count: int
    classes: tuple[str, ...]
    training: Callable[[int], list[Any]]

    def calibration(self, line: dict[str, Any], count: int) -> tuple[list[Any] | None, list[str]]:
        """Calibration images if a method wants them, and what a reader of the figures should know about that."""
        from offspike.experiment import has_thresholds
        from offspike.thresholds import LeastError

        wanting = [name for name, method in line.items() if method.needs_data]
        if not wanting:
            return None, []
        images = self.training(count)
        said = [f"θ or corrections of {', '.join(wanting)}: from {sum(map(len, images))} training images."]
        fitted = {name: line[name].corrections[0].steps for name in wanting if line[name].corrections}
        plain = [name for name in wanting if isinstance(line[name].threshold, LeastError) and name not in fitted]
        if plain and not has_thresholds(self.ann):
            said.append(f"ReLUs have no thresholds of their own: θ of least error for {', '.join(plain)}.")
        if fitted:
            made_for = ", ".join(f"{name} for T={steps}" for name, steps in fitted.items())
            said.append(f"Fitted: {made_for}; other T are read from the same run.")
        return images, said


def open_model_and_data(model: str, data: str, root: Path, batch: int, limit: int | None) -> Opened:
    """What a command measures, and on what."""
    from offspike.checkpoint import load
    from offspike.datasets import evenly_spaced
    from offspike.experiment import rectified
    from offspike.network import SpikingNetwork

    ann = load(model)
    if isinstance(ann, SpikingNetwork):
        raise ValueError(f"{model} holds a spiking network; give the ANN, its methods are chosen here")
    test = open_split(ann, data, root, "test")
    mine = distributed.shard(some_of(data, len(test), limit))
    if not len(mine):
        raise ValueError(f"{limit} images are not enough for {distributed.world_size()} processes")
    inputs = getattr(ann, "preprocess", test.preprocess)

    def batches() -> Iterator[Any]:
        return ((inputs(x), y) for x, y in test.blocks(mine, batch))

    def training(count: int) -> list[Any]:
        train = open_split(ann, data, root, "train")
        return [inputs(x) for x, _ in train.blocks(evenly_spaced(count, len(train)), batch)]

    return Opened(rectified(ann, test.shape), batches, len(mine), test.classes, training)
