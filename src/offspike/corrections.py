"""Corrections for a data set as a whole (SNNC, Li et al., ICML 2021), made once by ``convert`` on calibration images.

The spiking network runs layer by layer, so one pass corrects all layers in turn: a hook sees a layer's currents, which
come from layers corrected already, compares the mean output with the ANN's activation a of the same images, corrects
the layer, and sends the corrected spikes on. The images are run as one batch: T · images is what memory must hold.

A correction is a small frozen value, called with the spiking network (which it changes), the ANN and the images.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from offspike.activations import Activation
from offspike.clock import active_clock, keep_whole
from offspike.equations import qcfs
from offspike.hooks import after

__all__ = ["CORRECTIONS", "Bias", "Correction", "HalfStep", "Potential", "Progress", "Weights"]

Progress = Callable[[str, int, int], None]  # what is being done, how many layers of how many
LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Correction(Protocol):
    """What ``convert`` does to a network once its thresholds are known."""

    @property
    def images(self) -> int:
        """How many calibration images it looks at (the first ones; 0: none)."""
        ...

    def __call__(self, snn: Any, ann: nn.Module, x: Tensor, progress: Progress | None = None) -> None:
        """Correct ``snn`` in place."""
        ...


@dataclass(frozen=True)
class HalfStep:
    """Add ``θ/(2T)`` to the current at each step, so that T steps round to the nearest count instead of down."""

    steps: int
    images: ClassVar[int] = 0

    def __post_init__(self) -> None:
        keep_whole(self, "steps")

    def __call__(self, snn: Any, ann: nn.Module, x: Tensor, progress: Progress | None = None) -> None:
        """No data is looked at."""
        for layer in snn.layers.values():
            _shift(layer, layer.theta / (2 * self.steps))


@dataclass(frozen=True)
class Bias:
    """``bias −= mean over images, places and T steps of (θ·s − a)``, one number a channel."""

    steps: int
    images: int = 128
    iterations: int = 1

    def __post_init__(self) -> None:
        keep_whole(self, "steps", "images", "iterations")

    def __call__(self, snn: Any, ann: nn.Module, x: Tensor, progress: Progress | None = None) -> None:
        """In one pass; each layer is mended ``iterations`` times before the next one sees it."""

        def correct(layer: Any, current: Tensor, output: Tensor, answer: Tensor) -> Tensor:
            for _ in range(self.iterations):
                error = _rate(output) - answer
                mean = error.mean([axis for axis in range(error.ndim) if axis != 1])
                _shift(layer, -mean.reshape(-1, *[1] * (error.ndim - 2)))
                output = layer.forward(current)
            return output

        with _correcting(snn, ann, x, correct, progress and _named(progress, "bias")):
            snn(x, self.steps)


@dataclass(frozen=True)
class Potential:
    """``v(0) += T · mean over images of (a − θ·s)``, one number a neuron. For policies that do not listen."""

    steps: int
    images: int = 128

    def __post_init__(self) -> None:
        keep_whole(self, "steps", "images")

    def __call__(self, snn: Any, ann: nn.Module, x: Tensor, progress: Progress | None = None) -> None:
        """In one pass."""

        def correct(layer: Any, current: Tensor, output: Tensor, answer: Tensor) -> Tensor:
            error = (answer - _rate(output)).mean(0) * self.steps
            layer.start = error if layer.start is None else layer.start + error
            return layer.forward(current)  # type: ignore[no-any-return]

        with _correcting(snn, ann, x, correct, progress and _named(progress, "potential")):
            snn(x, self.steps)


@dataclass(frozen=True)
class Weights:
    """Fit each layer's weights W, so that T steps of the input that it really gets give the ANN's activation::

        min_W  Σ (a − θ/T · clip(⌊I(W)·T/θ + v(0)/θ⌋, 0, T))²,   I(W) the mean current; the floor lets gradients through

    Adam, ``iterations`` batches of ``batch`` images a layer, its rate falling from ``lr`` to 0 on a line. W belongs to
    the last linear layer before the neurons (and its batch norm, which stays as it is); layers whose weights reach the
    neurons in any other way keep theirs.
    """

    steps: int
    images: int = 128
    iterations: int = 100
    batch: int = 32
    lr: float = 1e-3

    def __post_init__(self) -> None:
        keep_whole(self, "steps", "images", "iterations", "batch")

    def __call__(self, snn: Any, ann: nn.Module, x: Tensor, progress: Progress | None = None) -> None:
        """In one pass over the network."""
        chain = _Chain()

        def correct(layer: Any, current: Tensor, output: Tensor, answer: Tensor) -> Tensor:
            if chain.linear is None or chain.output.shape != current.shape:
                return output
            with chain.resting():
                return layer.forward(self._fitted(layer, chain, current, answer))  # type: ignore[no-any-return]

        with chain.watching(snn.model), _correcting(snn, ann, x, correct, progress and _named(progress, "weights")):
            snn(x, self.steps)

    def _fitted(self, layer: Any, chain: "_Chain", current: Tensor, answer: Tensor) -> Tensor:
        """Fit W; the currents that it gives."""
        inputs = chain.input if layer.steady else _rate(chain.input)
        with torch.no_grad():
            rest = layer.unfold(current).mean(0) - chain.run(inputs)  # shortcuts, and corrections made before
        weight = chain.weight.detach().clone().requires_grad_()
        optimiser = torch.optim.Adam([weight], lr=self.lr)
        start = 0.5 if layer.policy.rho else getattr(layer.policy, "fraction", 0.5)
        draw = torch.Generator().manual_seed(0)
        for done in range(self.iterations):
            optimiser.param_groups[0]["lr"] = self.lr * (1 - done / self.iterations)
            chosen = torch.randint(0, len(inputs), (self.batch,), generator=draw).to(inputs.device)
            with torch.enable_grad():
                mean = chain.run(inputs[chosen], weight) + rest[chosen]
                made = qcfs(mean + (start - 0.5) * layer.theta / self.steps, layer.theta, self.steps)
                loss = (made - answer[chosen]).square().mean()
                (gradient,) = torch.autograd.grad(loss, [weight])
            weight.grad = gradient
            optimiser.step()
        with torch.no_grad():
            change = chain.run(chain.input, weight.detach()) - chain.output
            chain.weight.copy_(weight)
        return current + change


CORRECTIONS = (HalfStep, Bias, Potential, Weights)


class _Chain:
    """The last linear layer that ran and, if it follows at once, its batch norm."""

    def __init__(self) -> None:
        self.linear: nn.Module | None = None
        self.norm: nn.Module | None = None
        self.input = self.output = torch.zeros(0)
        self._rests = False

    @property
    def weight(self) -> Tensor:
        assert self.linear is not None
        return self.linear.get_parameter("weight")

    def run(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """The chain on another input, with other weights."""
        assert self.linear is not None
        changed = {} if weight is None else {"weight": weight}
        y: Tensor = functional_call(self.linear, changed, (x,))
        return y if self.norm is None else self.norm(y)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Not watching: what runs inside is a trial."""
        self._rests = True
        try:
            yield
        finally:
            self._rests = False

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        return after({n: m for n, m in model.named_modules() if isinstance(m, LINEAR + NORMS)}, self._see)

    def _see(self, name: str, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if self._rests:
            return
        if isinstance(module, LINEAR):
            self.linear, self.norm, self.input = module, None, args[0]
        elif args[0] is self.output and self.norm is None:
            self.norm = module
        else:
            self.linear = None  # a norm of something else
        self.output = output


Correct = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


@contextmanager
def _correcting(
    snn: Any, ann: nn.Module, x: Tensor, correct: Correct, progress: Callable[[int, int], None] | None
) -> Iterator[None]:
    """``correct(layer, current, output, a)`` at each spiking layer in turn; what it returns is sent on."""
    answers = _activations(ann, x)
    done: list[str] = []

    def look(name: str, layer: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not active_clock().phase.final:
            return None
        output = correct(layer, args[0], output, answers.pop(name))
        done.append(name)
        if progress is not None:
            progress(len(done), len(snn.layers))
        return output

    with after(snn.layers, look):
        yield


@torch.no_grad()
def _activations(ann: nn.Module, x: Tensor) -> dict[str, Tensor]:
    ann = deepcopy(ann).eval()
    answers: dict[str, Tensor] = {}
    activations = {name: m for name, m in ann.named_modules() if isinstance(m, Activation)}
    with after(activations, lambda name, m, args, out: answers.update({name: out})):
        ann(x)
    return answers


def _rate(folded: Tensor) -> Tensor:
    """The mean over time of ``[T·B, …]``."""
    return active_clock().unfold(folded).mean(0)


def _shift(layer: Any, change: Tensor) -> None:
    layer.shift = change if layer.shift is None else layer.shift + change


def _named(progress: Progress, what: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(what, done, total)
