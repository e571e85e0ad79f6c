"""The command ``train``: from images to a trained network, its log and its checkpoint."""

import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from offspike import distributed
from offspike.cli.shared import Data, Json, Root, check_writable, console, write_json

ANN, PAGE = "ann.safetensors", "report.html"
Number = Annotated[float | None, typer.Option(min=0.0)]


def train(
    out: Annotated[Path, typer.Option(help="Folder for the network, log.jsonl, report.html and a checkpoint.")],
    data: Data = "cifar10",
    root: Root = Path("data"),
    net: Annotated[str, typer.Option(help="vgg16, resnet18, resnet20, resnet34, small.")] = "resnet20",
    levels: Annotated[str, typer.Option(help='Quantisation levels L; or "relu", or "clip".')] = "4",
    preset: Annotated[
        str | None, typer.Option(help="ours, paper or finetune. Default: ours, and finetune with --from.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images a step, of each process.")] = None,
    lr: Number = None,
    weight_decay: Number = None,
    clip: Annotated[float | None, typer.Option(min=0.0, help="Bound of the gradient's norm; 0: none.")] = None,
    clip_mean: Annotated[
        float | None, typer.Option(min=0.0, help="Bound as a multiple of the norm's running mean; 0: none.")
    ] = None,
    label_smoothing: Number = None,
    warm_floor: Annotated[float | None, typer.Option(help="Share of the epochs before the floor is on.")] = None,
    restart: Annotated[float | None, typer.Option(help="Rate at which the floor begins, as a share of --lr.")] = None,
    ema: Annotated[float | None, typer.Option(help="Average the weights with this decay a step.")] = None,
    augment: Annotated[str | None, typer.Option(help="crop,flip,autoaugment,cutout,resized-crop or none.")] = None,
    validation: Annotated[float | None, typer.Option(help="Share of the training set to hold out.")] = None,
    dropout: Annotated[float, typer.Option(min=0.0, max=1.0, help="In VGG-16's linear layers.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
    origin: Annotated[str | None, typer.Option("--from", help="Begin with this checkpoint's weights.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Learn from this checkpoint's answers too.")] = None,
    distill: Annotated[float | None, typer.Option(help="Weight of the teacher's answers (default 0.5).")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, or bfloat16 (default on a GPU).")] = None,
    fast: Annotated[bool | None, typer.Option("--fast/--plain", help="Compile each step (default on a GPU).")] = None,
    resume: Annotated[bool, typer.Option("--resume/--fresh", help="Go on from a checkpoint in --out.")] = True,
    test_every: Annotated[int, typer.Option(min=0, help="Measure the test set every so many epochs.")] = 0,
    size: Annotated[int | None, typer.Option(min=1, help="Side of the images of a folder.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch CIFAR-10 or -100 into --root.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many images of each set.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Curves for TensorBoard in --out.")] = False,
    json_file: Json = None,
) -> None:
    """Train a network of the zoo so that it can be converted; safe to kill, and to run again to go on.

    Several processes: torchrun --nproc-per-node=8 --max-restarts=3 -m offspike train …

    Example: offspike train --data cifar10 --root data --net resnet20 --levels 4 --out runs/resnet20
    """
    from offspike import checkpoint
    from offspike.look.findings import Findings
    from offspike.page import write_page
    from offspike.train import train as run_training
    from offspike.training.run import CHECKPOINT, LOG
    from offspike.training.start import begin_from, network, weights_of

    make_folder(out)
    check_writable(json_file, keep=[origin, teacher, *(out / name for name in (ANN, PAGE, LOG, CHECKPOINT))])
    changes = {
        "epochs": epochs, "batch": batch, "lr": lr, "weight_decay": weight_decay, "label_smoothing": label_smoothing,
        "clip": clip, "clip_mean": clip_mean,
        "warm_floor": warm_floor, "restart": restart, "ema": ema, "validation": validation, "dtype": dtype,
        "distill": 0.5 if teacher and distill is None else distill,
        "augment": None if augment is None else tuple(n for n in augment.split(",") if n not in ("", "none")),
    }  # fmt: skip
    with distributed.process_group() as device:
        if data == "folder" and root.is_dir() and not (root / "train").is_dir():
            raise ValueError(f"{root / 'train'} is missing: --root holds train/<class>/… and val/<class>/…")
        learn, test = (open_data(data, root, split, limit, size=size, download=download) for split in ("train", "test"))
        model = network(net, levels, shape=learn.shape, classes=len(learn.classes), seed=seed, dropout=dropout)
        known = begin_from(model, weights_of(origin)) if origin else False
        recipe = choose_recipe(preset or ("finetune" if origin else "ours"), changes, device, fast)
        recipe = replace(recipe, seed=seed, init_thresholds=not known)
        if not levels.isdigit():
            recipe = replace(recipe, warm_floor=0.0)
        with watching(out if tensorboard else None) as watch:
            result = run_training(
                model, learn, recipe, test=test, test_every=test_every, folder=out, resume=resume, device=device,
                teacher=checkpoint.load(teacher) if teacher else None, origin=came_from(origin), watch=watch,
            )  # fmt: skip
        if distributed.rank() == 0:
            facts = describe(net, levels, learn.name or data, len(test), recipe.to_dict(), result.history)
            keep(result.model, out / ANN, learn, facts)
            if json_file:
                write_json(json_file, {**facts, "history": result.history})
            write_page(
                out / PAGE,
                Findings(history=result.history),
                title=f"Training {net} on {facts['data']}",
                provenance=told(facts),
            )
            console.print(
                f"{facts['accuracy']:.2f} % of {len(test)} test images; the network: {out / ANN}; curves: {out / PAGE}"
            )


def make_folder(path: Path) -> None:
    """Make the folder for results before the work begins."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"--out {path} cannot be made a folder: {error.strerror}") from error


def came_from(checkpoint: str | None) -> str:
    """The checkpoint that gives the first weights: its name and, of a file, what is in it."""
    if checkpoint is None or not Path(checkpoint).is_file():
        return checkpoint or ""
    return f"{Path(checkpoint).name} ({zlib.crc32(Path(checkpoint).read_bytes()):08x})"


def open_data(
    name: str, root: Path, split: str, limit: int | None, *, size: int | None, download: bool
) -> Any:  # fmt: skip
    """A split of a data set, perhaps only some of its images."""
    from offspike import datasets

    options: dict[str, Any] = {"size": size} if size and name == "folder" else {}
    if download and name.startswith("cifar"):
        if distributed.rank() == 0:
            datasets.load(name, root, split, download=True)
        distributed.barrier()
    found = datasets.load(name, root, split, **options)
    return found.take(datasets.evenly_spaced(limit, len(found))) if limit else found


def choose_recipe(preset: str, changes: dict[str, Any], device: torch.device, fast: bool | None) -> Any:
    """The preset with what was given on the command line."""
    from offspike.train import Recipe

    presets = {"ours": Recipe.ours, "paper": Recipe.paper, "finetune": Recipe.finetune}
    if preset not in presets:
        raise ValueError(f"unknown preset {preset!r}; there are {', '.join(presets)}")
    gpu = device.type == "cuda"
    given = {name: value for name, value in changes.items() if value is not None}
    fast = gpu if fast is None else fast
    speed = {"dtype": "bfloat16" if gpu else "float32", "compile": fast, "graph": gpu and fast}
    return presets[preset](**(speed | given))


@contextmanager
def watching(folder: Path | None) -> Iterator[Any]:
    """A progress bar (log lines where there is no terminal), and TensorBoard in ``folder``."""
    from offspike.train import progress, tensorboard
    from offspike.training.watch import Together

    if distributed.rank() > 0:
        yield None
        return
    logging.getLogger("offspike.train").setLevel(logging.INFO)
    with progress() as show:
        if folder is None:
            yield show
            return
        with tensorboard(folder) as curves:
            yield Together((show, curves))


def describe(
    net: str, levels: str, data: str, images: int, recipe: dict[str, Any], history: tuple[dict[str, Any], ...]
) -> dict[str, Any]:
    """What a reader of the checkpoint should know."""
    from offspike.experiment import provenance

    return {
        **provenance(),
        "network": net,
        "levels": levels,
        "data": data,
        "recipe": recipe,
        "epochs": len(history),
        "seconds": round(sum(record["seconds"] for record in history), 1),
        "accuracy": history[-1]["test_accuracy"],
        "images": images,
        "weights": "of the last epoch",
    }


def told(facts: dict[str, Any]) -> dict[str, str]:
    """The facts as lines of a page."""
    recipe = ", ".join(f"{name} {value}" for name, value in facts["recipe"].items())
    return {name: str(value) for name, value in facts.items() if name != "recipe"} | {"recipe": recipe}


def keep(model: nn.Module, path: Path, data: Any, facts: dict[str, Any]) -> None:
    """Write the trained network with its preprocessing."""
    from offspike.checkpoint import save

    save(model.cpu(), path, preprocess={"mean": data.mean, "std": data.std}, provenance=facts)
