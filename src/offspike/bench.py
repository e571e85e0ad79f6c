"""How fast a spiking network runs: images a second, time by layer, and how near that is to what the machine can do."""

import csv
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from offspike import rivals, timing, zoo
from offspike.atomic import whole
from offspike.convert import convert
from offspike.fast.joins import Join
from offspike.fast.precision import Precision
from offspike.graph import Node
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.timing import Roofs

__all__ = ["accuracy", "by_layer", "compare", "network", "save", "speed", "summary"]

Row = dict[str, Any]
Batches = Callable[[], Iterator[tuple[Tensor, Tensor]]]


def network(name: str, **options: Any) -> nn.Module:
    """A network of the zoo with random weights (they cost what trained ones cost), such that its neurons fire."""
    if name not in zoo.NETWORKS:
        raise ValueError(f"there is no network {name!r}; choose from {', '.join(zoo.NETWORKS)}, or give a file")
    generator = torch.Generator().manual_seed(0)
    model = zoo.NETWORKS[name](**options)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            spread = (2 / module.weight[0].numel()) ** 0.5
            module.weight.data = torch.randn(module.weight.shape, generator=generator) * spread
    return model.eval()


def speed(run: Callable[[], object], x: Tensor, *, budget: float = 1.0) -> Row:
    """Microseconds an image, images a second, and the peak of GPU memory in bytes."""
    timing.forget_peak(x.device)
    took = timing.seconds(run, x.device, budget=budget)
    return {"us": took / len(x) * 1e6, "images_per_second": len(x) / took, "peak_bytes": timing.peak(x.device)}


def compare(
    ann: nn.Module,
    x: Tensor,
    method: Method,
    *,
    steps: int,
    precisions: Sequence[Precision],
    with_reference: bool = False,
    budget: float = 1.0,
) -> Iterator[Row]:
    """The spiking network in each precision, the ANN, and SpikingJelly where it is installed, on the batch ``x``.

    The ANN and SpikingJelly compute in bfloat16 beside ``"bf16"``, in float32 beside the others.
    """
    for precision in precisions:
        snn = convert(ann, method, precision=precision)
        runs: dict[str, Callable[[], Any] | None] = {
            "offspike": functools.partial(snn, x, steps=steps),
            "ann": rivals.ann(ann, x, precision, folded=False),
            "ann, batch norms folded": rivals.ann(ann, x, precision, folded=True),
            "spikingjelly": rivals.spikingjelly(ann, x, steps, precision),
            "spikingjelly, first layer once": rivals.spikingjelly(ann, x, steps, precision, once=True),
        }
        for what, run in runs.items():
            if run is not None:
                yield {"what": what, "precision": precision, "batch": len(x), **speed(run, x, budget=budget)}
    if with_reference:
        snn = convert(ann, method)
        with rivals.reference(snn):
            row = speed(lambda: snn(x, steps), x, budget=budget)
        yield {"what": "reference", "precision": "exact32", "batch": len(x), **row}


def by_layer(snn: SpikingNetwork, x: Tensor, *, steps: int, roofs: Roofs, repeats: int = 4) -> list[Row]:
    """Time of each step of the network's plan, what operations and bytes it needs, and how near it is to its roof."""
    plan, *_ = snn.prepared()
    if plan is None:
        raise ValueError("this model runs without a plan: its code cannot be followed, so it has no steps to time")
    rows: list[Row] = []
    times: list[list[float]] = []
    for _ in range(repeats + 1):
        rows, marks = [], [timing.mark(x.device)]

        def watch(node: Node, taken: list[Any], made: Any) -> None:
            marks.append(timing.mark(x.device))  # noqa: B023
            join = None if plan.joined is None else plan.joined.joins.get(node.name)
            row = _needs(node, snn.model, taken, made)
            rows.append(row if join is None else row | _product(join, snn.model, made, row["bytes"]))  # noqa: B023

        plan.watch = watch
        try:
            snn(x, steps=steps, heard=None)
        finally:
            plan.watch = None
        if x.is_cuda:
            torch.cuda.synchronize(x.device)
        times.append([timing.between(*moments) for moments in itertools.pairwise(marks)])
    for index, row in enumerate(rows):
        took = statistics.median(run[index] for run in times[1:])
        row |= {"us": took / len(x) * 1e6, "of_roof": roofs.bound(row["operations"], row["bytes"]) / max(took, 1e-9)}
    return [row for row in rows if row["bytes"]]


def _needs(node: Node, model: nn.Module, taken: list[Any], made: Any) -> Row:
    """The fewest operations and bytes that a step needs: each value read once, its result written once."""
    module = model.get_submodule(node.target) if node.kind == "module" else None
    inputs = [value for value in taken if isinstance(value, Tensor)]
    passed = not isinstance(made, Tensor) or any(made.data_ptr() == value.data_ptr() for value in inputs)
    moved = 0 if passed or not inputs else timing.size(made) + sum(map(timing.size, inputs))
    kind, operations = "other", 0
    if isinstance(module, SpikingLayer):
        kind = "neurons"
    elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
        kind = "convolution" if module.weight.ndim > 2 else "linear"
        operations = 2 * made.numel() * module.weight[0].numel()
        moved += module.weight.numel() * made.element_size()
    return {"layer": node.target, "kind": kind, "operations": operations, "bytes": moved}


def _product(join: Join, model: nn.Module, made: Tensor, moved: int) -> Row:
    """What is needed besides where neurons make a product in whole numbers themselves: weights are bytes."""
    module: Any = model.get_submodule(join.product.target)
    sums = made.numel() * (1 if join.pool is None else 4)
    kind = f"{'convolution' if join.image else 'linear'} and neurons"
    operations = 2 * sums * module.weight[0].numel()
    moved += module.weight.numel()
    return {"layer": join.product.target, "kind": kind, "operations": operations, "bytes": moved}


def summary(rows: Sequence[Row]) -> list[Row]:
    """The rows of ``by_layer`` summed by kind, and all of them."""
    found = []
    for kind in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        some = [row for row in rows if kind in (row["kind"], "all")]
        took = sum(row["us"] for row in some)
        bound = sum(row["us"] * row["of_roof"] for row in some)
        found.append({"kind": kind, "us": took, "of_roof": bound / took})
    return found


def accuracy(
    ann: nn.Module, method: Method, batches: Batches, *, steps: int, precisions: Sequence[Precision]
) -> Iterator[Row]:
    """Accuracy at every t of the reference path and of each precision, on the same images."""
    from offspike.evaluate import evaluate

    snn = convert(ann, method)
    with rivals.reference(snn):
        yield {"what": "reference", "accuracy": evaluate(snn, batches(), steps=steps).accuracy.tolist()}
    for precision in precisions:
        report = evaluate(snn, batches(), steps=steps, precision=precision)
        yield {"what": precision, "accuracy": report.accuracy.tolist()}


def save(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV; a column that a row lacks stays empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as beside, beside.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
