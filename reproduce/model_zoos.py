"""Convert the models of public zoos, and compare each spiking network with the model itself, its ReLUs quantised.

    python reproduce/model_zoos.py --out RECORD     # every listed model of the packages that are installed
    python reproduce/model_zoos.py 'timm:resnet*' pytorchcv:nin_cifar10

Each model has random weights and batch norms with the statistics of its two inputs. It is converted without training,
as docs/your-own-model.md says: ReLUs kept, thresholds of channels from data, max-pools gated, exact calibration at
ρ = T = 4. The mean of four steps must then be what the package's own code answers, run as it is with
θ/4·clip(⌊4x/θ + ½⌋, 0, 4) for each ReLU: no part of offspike reads the model for that. In float64 the two differ by
rounding alone; errors are fractions of the largest output. Verdicts: converted; wrong (another answer); refused, with
the reason that the user reads; crashed; no time (--seconds a model); not built (the package itself cannot run the model
here). A record that is there is gone on with: what it holds is run again only where it is named.
"""

import argparse
import importlib.util
import json
import multiprocessing
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import zoo_lists
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import offspike as osp
from offspike.activations import Activation
from offspike.experiment import provenance
from offspike.graph import map_values
from offspike.paper.measure import commit

LEVELS = 4
TOLERANCE = 1e-6
RELUS = {"relu", "relu_", "relu6", "hardtanh", "hardtanh_", "clamp", "clamp_", "clamp_min", "leaky_relu", "leaky_relu_"}
VERDICTS = ("converted", "wrong", "refused", "crashed", "no time", "not built")
Row = dict[str, Any]


class Quantised(TorchFunctionMode):
    """Every ReLU that is called rounds to LEVELS levels below the next of ``thetas``."""

    def __init__(self, thetas: list[Tensor]) -> None:
        super().__init__()
        self.thetas = list(thetas)

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """ReLUs as the mean of LEVELS steps of a neuron; the rest as it is."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        least = args[1] if len(args) > 1 else kwargs.get("min", kwargs.get("min_val", 0))
        if name not in RELUS or (("clamp" in name or "hardtanh" in name) and least != 0):
            return func(*args, **kwargs)
        if not self.thetas:
            raise LookupError("the model calls more ReLUs than the network has spiking layers")
        x, theta = args[0] if args else kwargs["input"], self.thetas.pop(0)
        y = theta / LEVELS * (x * LEVELS / theta + 0.5).floor().clamp(0, LEVELS)
        return x.copy_(y) if name.endswith("_") or kwargs.get("inplace") else y


def settle(model: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """Give every batch norm the statistics of these inputs, as training would; the rest is in eval mode."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
            module.train()
    model(*(x.clone() for x in inputs))
    return model.eval()


def numbers(output: Any) -> Tensor:
    """All numbers of an output, whatever it is made of."""
    found: list[Tensor] = []
    map_values(output, lambda leaf: found.append(leaf.flatten(1)) if isinstance(leaf, Tensor) else None)
    return torch.cat(found, 1)


def calls(ann: nn.Module, inputs: tuple[Tensor, ...]) -> list[str]:
    """The names of the activations in the order in which they are called."""
    order: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: order.append(name))
        for name, module in ann.named_modules()
        if isinstance(module, Activation)
    ]
    ann(*inputs)
    for hook in hooks:
        hook.remove()
    return order


def compare(model: nn.Module, inputs: tuple[Tensor, ...]) -> Row:
    """How far the spiking network is from the model with quantised ReLUs, or why there is none."""
    example = inputs[0] if len(inputs) == 1 else inputs
    try:
        ann = osp.prepare(model, osp.ReLU(), example=example, pool="gate").eval()
        method = osp.methods.exact(LEVELS, threshold=osp.thresholds.Percentile(99, per="channel"))
        snn = osp.convert(ann, method, calibration=example)
    except ValueError as error:
        return {"verdict": "refused", **reasons(str(error))}
    plan, _ = snn.prepared()
    got = snn(*inputs, steps=LEVELS)
    got = numbers(map_values(got, lambda leaf: leaf.mean(0) if isinstance(leaf, Tensor) else leaf))
    order = calls(ann, inputs)
    quantised = Quantised([snn.layers[name].theta for name in order])
    with quantised:
        wanted = numbers(model(*(x.clone() for x in inputs)))
    if quantised.thetas:
        raise LookupError("the network has more spiking layers than the model calls ReLUs")
    scale = float(wanted.abs().max()) or 1.0
    error = float((got - wanted).abs().max()) / scale
    return {
        "verdict": "converted" if error <= TOLERANCE else "wrong",
        "spiking_layers": len(order),
        "fast_plan": plan is not None,
        "error": error,
        "two_images_differ_by": float((wanted[0] - wanted[1]).abs().max()) / scale,
    }


def reasons(message: str) -> Row:
    """The first obstacle, and how many there are; of paths the last name is kept."""
    said = re.sub(r"(?<![\w.])/\S*/", "", message)
    obstacles = [line[2:] for line in said.splitlines() if line.startswith("- ")] or [said]
    return {"obstacles": len(obstacles), "reason": obstacles[0]}


@torch.no_grad()
def judge(name: str) -> Row:
    """Build one model and compare."""
    try:
        model, inputs = zoo_lists.build(name)
        inputs = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        model = settle(model.double(), inputs)
    except Exception as error:  # third-party code may raise anything
        return {"verdict": "not built", "reason": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    try:
        return compare(model, inputs)
    except Exception as error:  # this is what the sweep is looking for
        return {"verdict": "crashed", "reason": f"{type(error).__name__}: {error}"}


def _child(name: str, pipe: Connection) -> None:
    warnings.simplefilter("ignore")  # of the packages
    pipe.send(judge(name))


def rows(names: list[str], seconds: float) -> Iterator[Row]:
    """The verdicts one after the other, each from a process of its own that may be ended."""
    context = multiprocessing.get_context("fork")  # the packages are imported once
    for name in names:
        started = time.perf_counter()
        mine, its = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(name, its))
        process.start()
        its.close()
        try:
            row = mine.recv() if mine.poll(seconds) else {"verdict": "no time", "reason": f"more than {seconds:.0f} s"}
        except EOFError:
            row = {"verdict": "crashed", "reason": "the process died"}
        process.kill()
        process.join()
        yield {"model": name, **row, "seconds": round(time.perf_counter() - started, 1)}


def line(row: Row) -> str:
    """A row of the table: model, verdict, fast plan, time, reason or figures."""
    said, plan = row.get("reason", ""), {True: "fast plan", False: "no plan"}.get(row.get("fast_plan"), "-")
    if "error" in row:
        said = f"{row['spiking_layers']} spiking layers, error {row['error']:.1e}"
    return f"{row['model']:48} {row['verdict']:10} {plan:10} {row['seconds']:6} s  {said}"


def summary(done: list[Row]) -> dict[str, dict[str, int]]:
    """How many models of each package met which verdict."""
    counts = Counter((row["model"].partition(":")[0], row["verdict"]) for row in done)
    packages = dict.fromkeys(package for package, _ in counts)
    return {package: {v: counts[package, v] for v in VERDICTS if counts[package, v]} for package in packages}


def held(folder: Path | None) -> dict[str, Row]:
    """The rows that the record has, by model."""
    file = folder / "record.json" if folder else None
    return {row["model"]: row for row in json.loads(file.read_text())["models"]} if file and file.exists() else {}


def add(row: Row, folder: Path, listed: list[str], packages: list[str]) -> None:
    """One row more in the record, which another process may be writing too."""
    known = held(folder) | {row["model"]: {**row, "commit": commit()}}
    done = [known[name] for name in dict.fromkeys([*listed, *known]) if name in known]
    counts = summary(done)
    how = provenance(**{package: version(package) for package in packages})
    folder.mkdir(parents=True, exist_ok=True)
    record = {"what": (__doc__ or "").partition("\n")[0], "counts": counts, "models": done, "provenance": how}
    (folder / "record.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    heads = [
        f"{package}: " + ", ".join(f"{n} {verdict}" for verdict, n in of.items()) for package, of in counts.items()
    ]
    (folder / "table.txt").write_text("\n".join([*heads, "", *map(line, done)]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="package:name, also with * and ?; default: all that are listed")
    parser.add_argument("--seconds", type=float, default=120.0, help="the longest that one model may take")
    parser.add_argument("--out", type=Path, help="the folder of the record")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    zoo_lists.let_torchvision_in()
    installed = [package for package in zoo_lists.BUILDERS if importlib.util.find_spec(package)]
    for package in installed:
        importlib.import_module(package)
    listed = zoo_lists.select([], installed)
    done = held(chosen.out)
    names = zoo_lists.select(chosen.names, installed) if chosen.names else [n for n in listed if n not in done]
    for count, row in enumerate(rows(names, chosen.seconds), 1):
        print(f"{count:3}/{len(names)} {line(row)}", flush=True)
        if chosen.out:
            add(row, chosen.out, listed, installed)


if __name__ == "__main__":
    main()
