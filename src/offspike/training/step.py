"""One step of training: forward, backward, update, sums; compiled and captured as a CUDA graph where that is asked for.

The same code runs on the CPU. On a GPU the first few steps run as they are (they compile, tune and allocate), then the
whole step is captured once and replayed: one launch a step, no waiting for the host.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from offspike import distributed
from offspike.activations import QCFS, ClippedReLU
from offspike.preprocess import normalise, per_channel
from offspike.training.recipe import Recipe
from offspike.training.sgd import SGD

__all__ = ["Step", "working_stream"]

WARM_STEPS = 4
# Each process keeps its running statistics for an epoch; the option has another name since torch 2.13.
_NAMES = inspect.signature(DistributedDataParallel).parameters
_OWN_STATISTICS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers": False
}
logger = logging.getLogger("offspike.train")


class Step:
    """``step(images, labels)`` trains on one batch; ``sums`` holds Σ loss, Σ correct, Σ gradient norm since the start.

    ``mean`` and ``std`` are those of :class:`~offspike.datasets.Dataset`; a ``teacher`` is on the same device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: SGD,
        recipe: Recipe,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        teacher: nn.Module | None = None,
    ) -> None:
        device = optimizer.lr.device
        self.optimizer = optimizer
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.mean, self.std = per_channel(mean, device), per_channel(std, device)
        self.recipe, self.teacher = recipe, teacher
        self._forward = self._build(model)
        self._graphed = recipe.graph and device.type == "cuda" and distributed.world_size() == 1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._images: Tensor | None = None
        self._labels: Tensor | None = None
        self._count = 0

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        """Train on ``uint8 [B, C, H, W]`` and ``int64 [B]``, which may still lie in the host's memory."""
        images, labels = self._place(images, labels)
        self._count += 1
        if self._graphed and self._graph is None and self._count > WARM_STEPS:
            self._capture(images, labels)
        if self._graph is not None:
            self._graph.replay()
        else:
            self._work(images, labels)

    def _build(self, model: nn.Module) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The forward pass to the loss and the number of right answers; several processes average their gradients."""
        several = distributed.world_size() > 1
        if self.recipe.compile:
            torch.compiler.reset()  # the caches of an earlier model or phase would count against the recompile limit
        network: nn.Module = model
        if several:
            network = torch.compile(model, dynamic=False) if self.recipe.compile else model  # type: ignore[assignment]
            network = DistributedDataParallel(network, **_OWN_STATISTICS)
        low = self.recipe.dtype == "bfloat16"
        kind = self.sums.device.type

        def forward(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast(kind, torch.bfloat16, enabled=low, cache_enabled=False):
                inputs = normalise(images, self.mean, self.std)
                logits = network(inputs).float()
            loss = functional.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)
            if self.teacher is not None:
                with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=low, cache_enabled=False):
                    answers = self.teacher(inputs).float()
                loss = self._distilled(loss, logits, answers)
            return loss, (logits.argmax(1) == labels).sum()

        return torch.compile(forward, dynamic=False) if self.recipe.compile and not several else forward

    def _distilled(self, loss: Tensor, logits: Tensor, answers: Tensor) -> Tensor:
        """``(1 − w)·loss + w·τ²·KL(teacher ‖ student)``, both softened by the temperature τ (Hinton et al., 2015)."""
        weight, tau = self.recipe.distill, self.recipe.temperature
        soft = functional.log_softmax(logits / tau, 1), functional.log_softmax(answers / tau, 1)
        return (1 - weight) * loss + weight * tau**2 * functional.kl_div(*soft, reduction="batchmean", log_target=True)

    def _place(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch on the device; on a GPU always at the same address, channels last."""
        if self.sums.device.type != "cuda":
            return images, labels
        if self._images is None or self._labels is None or self._images.shape != images.shape:
            self._images = torch.empty_like(images, device=self.sums.device, memory_format=torch.channels_last)
            self._labels = torch.empty_like(labels, device=self.sums.device)
        self._images.copy_(images, non_blocking=True)
        self._labels.copy_(labels, non_blocking=True)
        return self._images, self._labels

    def _work(self, images: Tensor, labels: Tensor) -> None:
        for parameter in self.optimizer.params:
            parameter.grad = None
        loss, correct = self._forward(images, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self.optimizer.step()
        self.sums += torch.stack([(loss.detach() * len(images)).double(), correct.double(), norm.double()])

    def _capture(self, images: Tensor, labels: Tensor) -> None:
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                self._work(images, labels)
        except RuntimeError as error:  # nothing has run yet: go on without a graph, only slower
            logger.warning("no CUDA graph, steps are launched one by one: %s", str(error).splitlines()[0])
            self._graph, self._graphed = None, False


@contextmanager
def working_stream(device: torch.device) -> Iterator[None]:
    """A stream of one's own on a GPU (a graph cannot be captured on the default one), with fast convolutions."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(enabled=True, benchmark=True):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def floors(model: nn.Module, on: bool) -> Iterator[None]:
    """Inside, unless ``on``, each QCFS of the model is a clipped ReLU with the same λ (the very same parameter)."""
    swapped: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in () if on else list(model.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, QCFS):
                soft = ClippedReLU()
                soft.log2_lam = child.log2_lam
                swapped.append((parent, name, child))
                parent._modules[name] = soft.train(child.training)
    try:
        yield
    finally:
        for parent, name, module in swapped:
            parent._modules[name] = module
