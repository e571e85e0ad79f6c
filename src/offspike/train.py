"""From images to a trained network: fast on a GPU, the same on a CPU, and safe from being killed."""

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offspike import distributed
from offspike.activations import Activation
from offspike.datasets.data import Dataset
from offspike.datasets.imagefolder import FolderStream
from offspike.training import snapshot
from offspike.training.accuracy import Accuracy, accuracy
from offspike.training.recipe import Recipe, TrainingError
from offspike.training.run import Run
from offspike.training.step import working_stream
from offspike.training.watch import Epoch, Watch, log_lines, progress, tensorboard

__all__ = [
    "Accuracy",
    "Epoch",
    "Recipe",
    "Trained",
    "TrainingError",
    "accuracy",
    "log_lines",
    "progress",
    "tensorboard",
    "train",
]


@dataclass(frozen=True, eq=False)
class Trained:
    """The network of the last epoch (never the best one), what each epoch gave, and whether all epochs have run."""

    model: nn.Module
    history: tuple[dict[str, Any], ...]
    finished: bool


def train(
    model: nn.Module,
    data: Dataset | FolderStream,
    recipe: Recipe | None = None,
    *,
    test: Dataset | FolderStream | None = None,
    test_every: int = 0,
    teacher: nn.Module | None = None,
    origin: str = "",
    folder: Path | str | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 60.0,
    max_seconds: float | None = None,
    device: torch.device | str | None = None,
    watch: Watch | None = None,
) -> Trained:
    """Train a copy of ``model`` by a recipe (:meth:`Recipe.ours` if not given).

    ``folder`` receives ``log.jsonl`` and, about every ``checkpoint_seconds`` (after an epoch) and at the end,
    ``checkpoint.safetensors``; with ``resume`` a checkpoint found there is continued, on the CPU to the same bits.
    Training stops early, with a checkpoint, before it would pass ``max_seconds``. ``test`` is measured after the last
    epoch, and after each ``test_every`` epochs; nothing is chosen by it. A ``teacher`` sees the same inputs, and its
    answers count as much as the recipe's ``distill`` says. A checkpoint of another network, data set, teacher, number
    of processes or ``origin`` (where the weights of ``model`` come from, in words) is not continued.
    """
    recipe = Recipe.ours() if recipe is None else recipe
    if (teacher is None) != (recipe.distill == 0):
        raise TrainingError("a teacher and a recipe with distill > 0 belong together: give both, or neither")
    where = torch.device(device) if device is not None else _home(data)
    devices = [where] if where.type == "cuda" else []
    with torch.random.fork_rng(devices), working_stream(where):
        run = Run(
            model, data, recipe, device=where, folder=Path(folder) if folder is not None else None, test=test,
            test_every=test_every, teacher=teacher, subject=_subject(model, data, teacher, origin), watch=watch,
        )  # fmt: skip
        run.start(resume)
        finished = run.epochs(checkpoint_seconds, max_seconds)
        result = run.optimizer.result(run.model)
    return Trained(result.eval(), tuple(run.history), finished)


def _subject(
    model: nn.Module, data: Dataset | FolderStream, teacher: nn.Module | None, origin: str
) -> dict[str, str]:  # fmt: skip
    """What is trained on what, in words that differ where a checkpoint must not be taken up."""
    activations = {str(module): None for module in model.modules() if isinstance(module, Activation)}
    shape = "x".join(map(str, data.shape))
    labels = ",".join(data.classes).encode() + data.labels.cpu().numpy().tobytes()
    weights = {} if teacher is None else teacher.state_dict()
    return {
        "network": f"{type(model).__name__} with {', '.join(activations) or 'no activation of its own'}"
        f" ({zlib.crc32(repr(model).encode()):08x})",
        "data set": f"{len(data)} images {shape} of {len(data.classes)} classes ({zlib.crc32(labels):08x})",
        "teacher": f"{snapshot.checksum(weights):08x}" if weights else "",
        "origin": origin,
        "number of processes": str(distributed.world_size()),
    }


def _home(data: Dataset | FolderStream) -> torch.device:
    return data.images.device if isinstance(data, Dataset) else torch.device("cpu")
