"""One training, from its first epoch or a checkpoint to its last epoch; all that its parts share."""

import json
import logging
import math
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from offspike import distributed
from offspike.activations import Bounded
from offspike.datasets.data import Dataset
from offspike.datasets.imagefolder import FolderStream
from offspike.ops.memory import let_memory_stay
from offspike.prepare import init_thresholds
from offspike.preprocess import Preprocess
from offspike.training import snapshot as snapshots
from offspike.training.accuracy import accuracy
from offspike.training.feed import Feed, MemoryFeed, StreamFeed, epoch_seed
from offspike.training.recipe import Recipe, TrainingError
from offspike.training.sgd import SGD
from offspike.training.start import check_teacher
from offspike.training.step import Step, floors
from offspike.training.watch import Epoch, Moment, StepWatch, Watch

__all__ = ["CHECKPOINT", "LOG", "Run"]

logger = logging.getLogger("offspike.train")
CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"


class Run:
    """One call of :func:`offspike.train.train`, whose arguments these are; ``subject`` says what is trained on what."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset | FolderStream,
        recipe: Recipe,
        *,
        device: torch.device,
        folder: Path | None,
        test: Dataset | FolderStream | None,
        test_every: int,
        teacher: nn.Module | None,
        subject: dict[str, str],
        watch: Watch | None,
    ) -> None:
        self.recipe, self.device, self.folder, self.subject = recipe, device, folder, subject
        self.test, self.test_every = test.to(device) if isinstance(test, Dataset) else test, test_every
        self.watch = watch
        self.stepped = watch.stepped if isinstance(watch, StepWatch) and distributed.rank() == 0 else None
        self.validation: Dataset | None = None
        if isinstance(data, Dataset):
            data = data.to(device)
            if recipe.validation:
                data, self.validation = data.split(recipe.validation, seed=recipe.seed)
            self.feed: Feed = MemoryFeed(data, recipe)
        else:
            self.feed = StreamFeed(data, recipe, device)
        self.model = deepcopy(model).to(device).train()
        if device.type == "cpu":
            let_memory_stay()  # or a fifth of the time goes into clearing pages, the same ones at every step
        if device.type == "cuda":
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.teacher = None if teacher is None else deepcopy(teacher).to(device).eval().requires_grad_(False)
        if self.teacher is not None:
            check_teacher(self.teacher, data, device)
        self.done = 0
        self.history: list[dict[str, Any]] = []

    def start(self, resume: bool) -> None:
        """Take up a checkpoint, or set λ from data; either way the optimiser is ready."""
        path = self._found()
        if resume and path is not None:
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

    def _found(self) -> Path | None:
        """The checkpoint in the folder, if there is one."""
        path = self.folder / CHECKPOINT if self.folder else None
        return path if path is not None and path.exists() else None

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
        path = self._found()
        again = f"; --from {path}, with another --out, begins with the weights from before" if path else ""
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

    def _measured(self) -> dict[str, Dataset | FolderStream]:
        """The sets that are measured, by the names of what that gives."""
        sets = {"test_accuracy": self.test, "validation_accuracy": self.validation}
        return {name: data for name, data in sets.items() if data is not None}

    def _accuracies(self) -> dict[str, Any]:
        model = self.optimizer.result(self.model)
        return {name: accuracy(model, data).percent for name, data in self._measured().items()}

    def _measure_what_was_left(self) -> None:
        """Measure the last epoch of a training that had ended between saving and measuring it."""
        if self.done < self.recipe.epochs or self._measured().keys() <= self.history[-1].keys():
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


def _finite(tensors: dict[str, Tensor]) -> bool:
    """Whether every number is; the device is asked once."""
    return bool(torch.stack([t.isfinite().all() for t in tensors.values()]).all())
