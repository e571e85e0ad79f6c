"""``evaluate``: accuracy, agreement with the ANN, spikes and rates at every t, in one pass over the data."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy

import torch
from torch import Tensor, nn

from offspike.clock import active_clock
from offspike.network import SpikingNetwork
from offspike.report import LayerActivity, Report
from offspike.schedules import Listen

__all__ = ["Progress", "evaluate"]

Progress = Callable[[int], None]  # called with the number of samples of each finished batch


@torch.no_grad()
def evaluate(
    snn: SpikingNetwork,
    loader: Iterable[tuple[Tensor, Tensor]],
    *,
    steps: int,
    reference: nn.Module | None = None,
    progress: Progress | None = None,
) -> Report:
    """A report on ``snn`` over batches ``(x, labels)``, for every t from 1 to ``steps``.

    With ``reference`` (the ANN) also how often the two give the same answer. Batches go to the network's device.
    """
    device = next(iter(snn.state_dict().values())).device
    ann = None if reference is None else deepcopy(reference).eval()
    report = Report.empty(snn.method, steps, list(snn.layers), reference=ann is not None)
    with _counting(snn, report.layers):
        for x, labels in loader:
            x, labels = x.to(device), labels.to(device)
            answers = snn(x, steps).cumsum(0).argmax(-1)
            report.samples += len(labels)
            report.correct += (answers == labels).sum(1).cpu().numpy()
            if ann is not None and report.agree is not None:
                expected = ann(x).argmax(-1)
                report.agree += (answers == expected).sum(1).cpu().numpy()
                report.reference_correct += int((expected == labels).sum())
            if progress is not None:
                progress(len(labels))
    if not report.samples:
        raise ValueError("the data loader is empty: there is nothing to evaluate")
    return report


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
