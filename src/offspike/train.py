"""From images to a trained network: fast on a GPU, the same on a CPU, and safe from being killed."""

import json
import logging
import math
import time
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from offspike import distributed
from offspike.activations import Activation, Bounded
from offspike.datasets.data import Dataset
from offspike.datasets.imagefolder import FolderStream
from offspike.prepare import init_thresholds
from offspike.preprocess import Preprocess
from offspike.training import snapshot as snapshots
from offspike.training.feed import Feed, MemoryFeed, StreamFeed, epoch_seed
from offspike.training.recipe import Recipe, TrainingError
from offspike.training.sgd import SGD
from offspike.training.start import check_teacher
from offspike.training.step import Step, floors, working_stream
from offspike.training.watch import Epoch, Moment, StepWatch, Watch, log_lines, progress, tensorboard

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

logger = logging.getLogger("offspike.train")
CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"


class Accuracy(NamedTuple):
    """Right answers of how many."""

    correct: int
    total: int

    @property
    def percent(self) -> float:
        """Right answers in per cent."""
        return 100 * self.correct / self.total


@dataclass(frozen=True, eq=False)
class Trained:
    """The network of the last epoch (never the best one), what each epoch gave, and whether all epochs have run."""

    model: nn.Module
    history: tuple[dict[str, Any], ...]
    finished: bool


@torch.inference_mode()
def accuracy(model: nn.Module, data: Dataset | FolderStream, *, batch: int = 1000) -> Accuracy:
    """Count the right answers in float32 (no TF32), every image once, over all processes; the mode is put back."""
    device = next(model.parameters()).device
    correct = torch.zeros((), dtype=torch.int64, device=device)
    mine = distributed.shard(torch.arange(len(data)))
    training = model.training
    model.eval()
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for images, labels in data.blocks(mine, batch):
                correct += (model(data.preprocess(images.to(device))).argmax(1) == labels.to(device)).sum()
    finally:
        model.train(training)
    return Accuracy(int(distributed.all_reduce_sums(correct)), len(data))


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
        run = _Run(model, data, recipe, where, Path(folder) if folder is not None else None)
        run.test = test.to(where) if isinstance(test, Dataset) else test
        run.test_every, run.watch = test_every, watch
        run.stepped = watch.stepped if isinstance(watch, StepWatch) and distributed.rank() == 0 else None
        run.teacher = None if teacher is None else deepcopy(teacher).to(where).eval().requires_grad_(False)
        if run.teacher is not None:
            check_teacher(run.teacher, data, where)
        run.subject = _subject(model, data, teacher, origin)
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
        "teacher": f"{snapshots.checksum(weights):08x}" if weights else "",
        "origin": origin,
        "number of processes": str(distributed.world_size()),
    }


def _home(data: Dataset | FolderStream) -> torch.device:
    return data.images.device if isinstance(data, Dataset) else torch.device("cpu")


def _finite(tensors: dict[str, Tensor]) -> bool:
    """Whether every number is; the device is asked once."""
    return bool(torch.stack([t.isfinite().all() for t in tensors.values()]).all())


class _Run:
    """One call of :func:`train`: what its parts share."""

    test: Dataset | FolderStream | None
    test_every: int
    watch: Watch | None
    teacher: nn.Module | None
    subject: dict[str, str]
    stepped: Callable[[Moment], None] | None

    def __init__(
        self, model: nn.Module, data: Dataset | FolderStream, recipe: Recipe, device: torch.device, folder: Path | None
    ) -> None:
        self.recipe, self.device, self.folder = recipe, device, folder
        self.validation: Dataset | None = None
        if isinstance(data, Dataset):
            data = data.to(device)
            if recipe.validation:
                data, self.validation = data.split(recipe.validation, seed=recipe.seed)
            self.feed: Feed = MemoryFeed(data, recipe)
        else:
            self.feed = StreamFeed(data, recipe, device)
        self.model = deepcopy(model).to(device).train()
        if device.type == "cuda":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.done = 0
        self.history: list[dict[str, Any]] = []

    def start(self, resume: bool) -> None:
        """Take up a checkpoint, or set λ from data; either way the optimiser is ready."""
        path = self.folder / CHECKPOINT if self.folder else None
        if resume and path is not None and path.exists():
            saved = snapshots.read(path, self.recipe, self.subject)
            self.optimizer = SGD(self.model, self.recipe)
            self._restore(path, saved)
            if distributed.rank() == 0:
                logger.info("going on after epoch %d of %d: %s", self.done, self.recipe.epochs, path)
        else:
            if self.recipe.init_thresholds and any(isinstance(m, Bounded) for m in self.model.modules()):
                init_thresholds(self.model, self._input(self.feed.first()))
            self.optimizer = SGD(self.model, self.recipe)
        if len(epochs := set(distributed.gather(self.done))) > 1:
            found = " and ".join(map(str, sorted(epochs)))
            raise TrainingError(f"processes go on after different epochs ({found}): all must see the same folder")
        self._write_log()

    def _write_log(self) -> None:
        if self.folder and distributed.rank() == 0:
            lines = "".join(json.dumps(record) + "\n" for record in self.history)
            snapshots.write_atomically(self.folder / LOG, lines.encode())

    def _restore(self, path: Path, saved: snapshots.Snapshot) -> None:
        try:
            self.model.load_state_dict(snapshots.weights(saved))
            self.optimizer.load(saved.tensors)
        except (RuntimeError, KeyError):
            raise TrainingError(f"{path} belongs to another network; use another folder") from None
        self.done, self.history = saved.epoch, saved.history

    def _input(self, images: Tensor) -> Tensor:
        return Preprocess(self.feed.mean, self.feed.std)(images.to(self.device))

    def epochs(self, checkpoint_seconds: float, max_seconds: float | None) -> bool:
        """Run what is left; False if the time was up first."""
        begin = saved = time.monotonic()
        first = 0.0  # a phase's first epoch compiles and is the longest
        self._measure_what_was_left()
        while self.done < self.recipe.epochs:
            warm = self.done < self.recipe.warm_epochs
            until = self.recipe.warm_epochs if warm else self.recipe.epochs
            with floors(self.model, on=not warm):
                mean, std = self.feed.mean, self.feed.std
                step = Step(self.model, self.optimizer, self.recipe, mean=mean, std=std, teacher=self.teacher)
                while self.done < until:
                    started = time.monotonic()
                    self._epoch(step)
                    now = time.monotonic()
                    first = max(first, now - started)
                    expected = first if self.done == until else now - started
                    late = max_seconds is not None and now - begin + expected > max_seconds
                    # clocks differ, and a process that saves waits for all: the first one decides
                    late, due = distributed.gather((late, now - saved >= checkpoint_seconds))[0]
                    stop = late and self.done < self.recipe.epochs
                    if stop or self.done == self.recipe.epochs or due:
                        self._save()
                        saved = now
                    if stop:
                        return False
        return True

    def _epoch(self, step: Step) -> None:
        epoch, steps = self.done, self.feed.steps
        torch.manual_seed(epoch_seed(self.recipe.seed, epoch, -1 - distributed.rank()))
        begin = time.monotonic()
        before = step.sums.clone()
        lr = 0.0
        for number, (images, labels) in enumerate(self.feed.batches(epoch)):
            lr = self.recipe.rate(epoch * steps + number, self.recipe.epochs * steps)
            self.optimizer.lr.fill_(lr)
            step(images, labels)
            self._tell(number + 1)
        loss, correct, norm = distributed.all_reduce_sums(step.sums - before).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._not_finite(f"the loss is not finite in epoch {epoch + 1}")
        self._average_statistics()
        if not _finite(self._tensors()):  # the last update comes after the last loss
            raise self._not_finite(f"weights are not finite after epoch {epoch + 1}")
        seconds = time.monotonic() - begin
        seen = steps * self.recipe.batch * distributed.world_size()
        record = Epoch(
            epoch=epoch + 1,
            epochs=self.recipe.epochs,
            loss=loss / seen,
            train_accuracy=100 * correct / seen,
            gradient=norm / (steps * distributed.world_size()),
            lr=lr,
            images_per_second=seen / seconds,
            seconds=seconds,
        )
        self.done += 1
        self._record(record)

    def _not_finite(self, what: str) -> TrainingError:
        path = self.folder / CHECKPOINT if self.folder else None
        saved = path is not None and path.exists()
        again = f"; --from {path}, with another --out, begins with the weights from before" if saved else ""
        return TrainingError(f"{what}: take a smaller learning rate{again}")

    def _average_statistics(self) -> None:
        """Each process has seen other images: give all the mean of their running statistics."""
        if distributed.world_size() > 1:
            for buffer in (*self.model.buffers(), *self.optimizer.averages.values()):
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= distributed.world_size()

    def _tell(self, steps: int) -> None:
        """A watch that wants to hear of steps, of how many this epoch has had; nothing is read from the device."""
        if self.stepped is not None:
            epoch, epochs, each = self.done, self.recipe.epochs, self.recipe.batch * distributed.world_size()
            seen = (epoch * self.feed.steps + steps) * each
            self.stepped(Moment(epoch + 1, epochs, seen, epochs * self.feed.steps * each))

    def _accuracies(self) -> dict[str, Any]:
        model = self.optimizer.result(self.model)
        sets = {"test_accuracy": self.test, "validation_accuracy": self.validation}
        return {name: accuracy(model, data).percent for name, data in sets.items() if data is not None}

    def _measure_what_was_left(self) -> None:
        """Measure the last epoch of a training that had ended between saving and measuring it."""
        wanted = {"test_accuracy": self.test, "validation_accuracy": self.validation}
        if self.done < self.recipe.epochs or all(d is None or n in self.history[-1] for n, d in wanted.items()):
            return
        with floors(self.model, on=self.recipe.warm_epochs < self.recipe.epochs):
            self.history[-1] |= self._accuracies()
        self._write_log()
        self._save()

    def _record(self, record: Epoch) -> None:
        self.history.append(record.to_dict())
        last = self.done == self.recipe.epochs
        if last:
            self._save()  # before it is measured: a bad test image must not cost the epoch
        if last or (self.test_every and self.done % self.test_every == 0):
            record = replace(record, **self._accuracies())
            self.history[-1] = record.to_dict()
        if distributed.rank() == 0:
            if self.folder:
                snapshots.append_line(self.folder / LOG, json.dumps(record.to_dict()))
            if self.watch:
                self.watch(record)

    def _tensors(self) -> dict[str, Tensor]:
        return {f"model.{n}": t for n, t in self.model.state_dict().items()} | self.optimizer.state()

    def _save(self) -> None:
        if self.folder and distributed.rank() == 0:
            saved = snapshots.Snapshot(self.done, self._tensors(), self.recipe.to_dict(), self.history, self.subject)
            snapshots.write(self.folder / CHECKPOINT, saved)
        distributed.barrier()
