"""``evaluate``: accuracy, agreement with the ANN, spikes and rates at every t, in one pass over the data."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offspike.clock import active_clock
from offspike.graph import map_values
from offspike.network import SpikingNetwork
from offspike.report import LayerActivity, Report
from offspike.schedules import Listen

__all__ = ["Metric", "Progress", "Watch", "evaluate"]

Metric = Callable[[Any, Any], Tensor]  # (output of the model, target) -> how good each sample is, [B]
Progress = Callable[[int], None]  # called with the number of samples of each finished batch
Watch = Callable[[list[Tensor], Any, Any, Any], None]  # (inputs, labels, outputs of each step, the ANN's output)


@torch.no_grad()
def evaluate(
    snn: SpikingNetwork,
    loader: Iterable[tuple[Any, Any]],
    *,
    steps: int,
    reference: nn.Module | None = None,
    metric: Metric | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Report:
    """A report on ``snn`` over batches ``(x, labels)``, for every t from 1 to ``steps``.

    With ``reference`` (the ANN) also how often the two give the same answer. Batches go to the network's device; a
    model of several inputs gets them as a tuple x.

    For answers that are not classes, ``metric(output, target)`` says how good each sample of an output is: a tensor
    ``[B]``, where ``output`` is what the model returns. ``report.accuracy`` is then its mean for the readout at each t,
    and ``report.agreement`` the share of samples on which network and ANN are exactly as good.

    ``watch`` sees every batch: its inputs, labels, outputs, and the ANN's output or None (see ``answers.Answers``).
    """
    device = next(iter(snn.state_dict().values())).device
    ann = None if reference is None else deepcopy(reference).eval()
    report = Report.empty(snn.method, steps, list(snn.layers), reference=ann is not None)
    if metric is not None:
        report.correct = report.correct.astype(np.float64)
    with _counting(snn, report.layers):
        for x, labels in loader:
            inputs = [value.to(device) for value in (x if isinstance(x, tuple | list) else (x,))]
            labels = map_values(labels, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)
            count = len(inputs[0])
            outputs = snn(*inputs, steps=steps)
            answers, right = _score(outputs, labels, metric)
            plain = None if ann is None else ann(*inputs)
            report.samples += count
            report.correct += right.sum(1).cpu().numpy()
            if ann is not None and report.agree is not None:
                once = map_values(plain, lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf)
                expected, good = _score(once, labels, metric)
                report.agree += (answers == expected).sum(1).cpu().numpy()
                report.reference_correct += good.sum().item()
            if watch is not None:
                watch(inputs, labels, outputs, plain)
            if progress is not None:
                progress(count)
    if not report.samples:
        raise ValueError("the data loader is empty: there is nothing to evaluate")
    return report


def _score(outputs: Any, labels: Any, metric: Metric | None) -> tuple[Tensor, Tensor]:
    """What is answered at each t and how good that is, both ``[T, B]``, for outputs of T steps."""
    if metric is None:
        if not isinstance(outputs, Tensor):
            raise TypeError("the model returns more than logits: tell evaluate how good they are, metric=…")
        answers = outputs.cumsum(0).argmax(-1)
        return answers, answers == labels
    tensors: list[Tensor] = []
    map_values(outputs, lambda leaf: tensors.append(leaf) if isinstance(leaf, Tensor) else None)
    scores = [
        metric(map_values(outputs, lambda leaf: leaf[:t].mean(0) if isinstance(leaf, Tensor) else leaf), labels)  # noqa: B023
        for t in range(1, len(tensors[0]) + 1)
    ]
    good = torch.stack([score.double() for score in scores])
    return good, good


@contextmanager
def _counting(snn: SpikingNetwork, layers: dict[str, LayerActivity]) -> Iterator[None]:
    """Count the spikes of every layer and step while the ``with`` block runs."""

    def count(activity: LayerActivity, output: Tensor) -> None:
        clock = active_clock()
        spikes = clock.unfold(output)
        activity.neurons = spikes[0, 0].numel()
        sent = torch.count_nonzero(spikes, dim=tuple(range(1, spikes.ndim))).cpu().numpy()
        if isinstance(clock.phase, Listen):
            activity.listening += int(sent.sum())
        else:
            activity.spikes += sent

    with ExitStack() as stack:
        for name, layer in snn.layers.items():
            hook = layer.register_forward_hook(lambda m, args, out, name=name: count(layers[name], out))
            stack.callback(hook.remove)
        yield
