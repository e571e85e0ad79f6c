"""``evaluate``: accuracy, agreement with the ANN, spikes and rates at every t, in one pass over the data.

Sums stay on the device until the end: while a GPU computes a batch, the next one is being read.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offspike.clock import active_clock, whole
from offspike.fast.precision import Precision, check_precision
from offspike.fit import Fit
from offspike.graph import map_values, values_in
from offspike.inputs import attempt, classes, labelled
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork, check_reference, check_spiking
from offspike.report import Report
from offspike.schedules import Listen, shortest

__all__ = ["Metric", "Progress", "Watch", "evaluate"]

Metric = Callable[[Any, Any], Tensor]  # (output of the model, target) -> how good each sample is, [B]
Progress = Callable[[int], None]  # called with the number of samples of each finished batch
Watch = Callable[[list[Tensor], Any, Any, Any], None]  # (inputs, labels, outputs of each step, the ANN's output)


def evaluate(
    snn: SpikingNetwork,
    loader: Iterable[tuple[Any, Any]],
    *,
    steps: int,
    reference: nn.Module | None = None,
    metric: Metric | None = None,
    precision: Precision | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Report:
    """A report on ``snn`` over batches ``(x, labels)``, for every t from 1 to ``steps``.

    With ``reference`` (the ANN) also how often the two give the same answer. Batches go to the network's device; a
    model of several inputs gets them as a tuple x. A batch that does not fit into memory is run in parts, and a long
    time in pieces, with the same result. ``precision`` is that of this evaluation (None: the network's own).

    For answers that are not classes, ``metric(output, target)`` says how good each sample of an output is: a tensor
    ``[B]``, where ``output`` is what the model returns. ``report.accuracy`` is then its mean for the readout at each t,
    and ``report.agreement`` the share of samples on which network and ANN are exactly as good.

    ``watch`` sees every batch: its inputs, labels, outputs, and the ANN's output or None (see ``answers.Answers``).
    """
    check_spiking(snn, "evaluate")
    if reference is not None:
        check_reference(reference)
    steps = whole("steps", steps)
    ann = None if reference is None else deepcopy(reference).eval()
    report = Report.empty(snn.method, steps, list(snn.layers), reference=ann is not None)
    with torch.inference_mode(), _computing_in(snn, precision):
        sums = _Sums(snn, ann, metric, steps, watch)
        fit = Fit(steps, least=shortest(snn.method, steps), neurons=sums.neurons)
        for batch in loader:
            inputs, labels = labelled(batch, sums.device)
            if metric is None:
                labels = classes(labels, inputs)
            labels = map_values(labels, lambda v: v.to(sums.device, non_blocking=True) if isinstance(v, Tensor) else v)
            fit.run(lambda part, piece: sums.take(inputs, labels, part, piece), len(inputs[0]), sums.device)  # noqa: B023
            report.samples += len(inputs[0])
            if progress is not None:
                progress(len(inputs[0]))
    if not report.samples:
        raise ValueError("the data loader is empty: there is nothing to evaluate")
    sums.fill(report)
    return report


class _Sums:
    """What is summed over batches, on the device."""

    def __init__(
        self, snn: SpikingNetwork, ann: nn.Module | None, metric: Metric | None, steps: int, watch: Watch | None
    ) -> None:
        self.snn, self.ann, self.metric, self.steps, self.watch = snn, ann, metric, steps, watch
        self.device = next(iter(snn.state_dict().values())).device
        self.names = {layer: name for name, layer in snn.layers.items()}
        self.totals: dict[Any, Tensor] = {}
        self.neurons: dict[str, int] = {}

    def take(self, inputs: list[Tensor], labels: Any, part: slice, piece: int | None) -> None:
        """Run some samples of a batch, and add what they give once all of it is known."""
        found: dict[Any, list[Tensor]] = {}
        some = [x[part] for x in inputs]
        target = labels if len(some[0]) == len(inputs[0]) else _of_samples(labels, part, len(inputs[0]))
        outputs = self.snn(*some, steps=self.steps, piece=piece, heard=lambda *heard: self._count(found, *heard))
        answers, right = _score(outputs, target, self.metric)
        result: dict[Any, Tensor] = {("spikes", name): torch.cat(counts) for name, counts in found.items()}
        result["correct"] = right.sum(1)
        result["bad"] = answers.new_zeros(1) + _undefined(outputs)
        plain = None if self.ann is None else attempt(self.ann, some)
        if plain is not None:
            once = map_values(plain, lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf)
            expected, good = _score(once, target, self.metric)
            result["agree"], result["good"] = (answers == expected).sum(1), good.sum()
        totals = {key: self.totals[key] + value if key in self.totals else value for key, value in result.items()}
        if self.watch is not None:
            self.watch(some, target, outputs, plain)
        self.totals |= totals  # last: a part that runs out of memory before is taken again

    def fill(self, report: Report) -> None:
        """Put the sums into a report."""
        sums = {key: value.cpu().numpy() for key, value in self.totals.items()}
        if sums["bad"].any():
            raise ValueError("the input holds NaN or infinite values")
        report.correct = sums["correct"] if self.metric is None else sums["correct"].astype(np.float64)
        for name, activity in report.layers.items():
            activity.neurons = self.neurons.get(name, 0)
            for key, spikes in ((name, activity.spikes), ((name, "listening"), None)):
                if ("spikes", key) in sums:
                    counted = sums["spikes", key].astype(np.int64)
                    if spikes is None:
                        activity.listening = int(counted.sum())
                    else:
                        spikes += counted
        if report.agree is not None:
            report.agree, report.reference_correct = sums["agree"], sums["good"].item()

    def _count(self, found: dict[Any, list[Tensor]], layer: SpikingLayer, spikes: Tensor) -> None:
        """Spikes of a layer at each step. In float32 a sum over a sample is exact up to 2²⁴ neurons."""
        name = self.names[layer]
        spikes = spikes.unsqueeze(-1) if spikes.ndim == 2 else spikes  # one neuron a sample
        axes = tuple(range(2, spikes.ndim))
        if spikes.dtype == torch.int8:  # 0 and 1
            each = spikes.sum(axes, dtype=torch.float32)
        elif spikes.device.type == "cpu":  # where norms are not vectorised, and take as long as the whole network
            each = spikes.sign().abs_().sum(axes, dtype=torch.float32)
        else:
            each = torch.linalg.vector_norm(spikes, 0, dim=axes, dtype=torch.float32)
        self.neurons[name] = spikes[0, 0].numel()
        key = (name, "listening") if isinstance(active_clock().phase, Listen) else name
        found.setdefault(key, []).append(each.double().sum(1))


def _of_samples(labels: Any, part: slice, batch: int) -> Any:
    """Some samples' labels, of those of a batch: rows of tensors, entries of lists; what is for all stays."""
    if isinstance(labels, dict):
        return type(labels)({key: _of_samples(value, part, batch) for key, value in labels.items()})
    if isinstance(labels, Tensor | np.ndarray):
        return labels[part] if labels.ndim and len(labels) == batch else labels
    if not isinstance(labels, list | tuple):
        return labels
    rows = [isinstance(value, Tensor | np.ndarray) and value.ndim and len(value) == batch for value in labels]
    if len(labels) == batch and not all(rows):
        return labels[part]
    several = [_of_samples(value, part, batch) for value in labels]
    return type(labels)(*several) if hasattr(labels, "_fields") else type(labels)(several)


def _undefined(outputs: Any) -> Any:
    """Whether an output is NaN: on a GPU that is how a network says that its input was not finite."""
    return sum(x.isnan().any() for x in values_in(outputs, Tensor) if x.is_floating_point())


@contextmanager
def _computing_in(snn: SpikingNetwork, precision: Precision | None) -> Any:
    usual = snn.precision
    if precision is not None:
        check_precision(precision)
        snn.precision = precision
    try:
        yield
    finally:
        snn.precision = usual


def _score(outputs: Any, labels: Any, metric: Metric | None) -> tuple[Tensor, Tensor]:
    """What is answered at each t and how good that is, both ``[T, B]``, for outputs of T steps."""
    if metric is None:
        if not isinstance(outputs, Tensor):
            raise TypeError("the model returns more than logits: tell evaluate how good they are, metric=…")
        if outputs.ndim != 3:
            shape = ", ".join(["B", *map(str, outputs.shape[2:])])
            raise TypeError(f"the model returns [{shape}], not logits [B, classes]: tell how good that is, metric=…")
        answers = outputs.cumsum(0).argmax(-1)
        return answers, answers == labels
    scores = [
        metric(map_values(outputs, lambda leaf: leaf[:t].mean(0) if isinstance(leaf, Tensor) else leaf), labels)  # noqa: B023
        for t in range(1, len(values_in(outputs, Tensor)[0]) + 1)
    ]
    good = torch.stack([score.double() for score in scores])
    return good, good
