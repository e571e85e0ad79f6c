"""The spiking network: the user's own model, run over time."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from offspike import schedules
from offspike.clock import Clock, Phase
from offspike.graph import map_values
from offspike.layers import SpikingLayer
from offspike.methods import Method

__all__ = ["Proven", "SpikingNetwork"]


class Proven(Protocol):
    """What a network has to know of its certificate."""

    @property
    def proved(self) -> bool:
        """Whether its logits at T = ρ = L are proved to be those of the quantised ANN."""
        ...


class SpikingNetwork(nn.Module):
    """``snn(x, steps=T)`` returns the logits of each step, ``[T, B, classes]``.

    ``logits[:t].mean(0)`` is the readout at t. A model with several inputs takes them in its order,
    ``snn(a, b, steps=T)``; a tuple, list or dictionary comes back with a leading time axis on each tensor.

    The input is the same image at each step, so whatever lies before the first spiking layer is computed once; with
    ``repeat_input`` (a model where the image and spikes meet) the image is repeated instead. Nothing is kept between
    calls, and ``snn(x, 16)[:t] == snn(x, t)``.

    ``certificate`` is what ``osp.certify`` has found about this network, if it has been asked.
    """

    certificate: Proven | None = None

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        input_shape: tuple[int, ...] | None = None,
        repeat_input: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.method = method
        self.input_shape = input_shape
        self.repeat_input = repeat_input
        self.eval()

    @torch.no_grad()
    def forward(self, *inputs: Any, steps: int | None = None) -> Any:
        """The output of each step, ``[steps, B, …]``; ``steps`` may also stand last, ``snn(x, 8)``."""
        if steps is None and inputs and isinstance(inputs[-1], int):
            *inputs, steps = inputs  # type: ignore[assignment]
        if steps is None or not inputs:
            raise TypeError("a spiking network takes its input and the number of time-steps: snn(x, steps=8)")
        if steps < 1:
            raise ValueError(f"steps must be >= 1, got {steps}")
        self._check_all(inputs)

        def one_pass(horizon: int, phase: Phase) -> Any:
            out = self._pass(inputs, Clock(horizon, len(inputs[0]), phase))
            return map_values(out, lambda leaf: leaf[:steps] if isinstance(leaf, Tensor) else leaf)

        return schedules.run(self.method, steps, one_pass)

    @torch.no_grad()
    def fast(self, *inputs: Any) -> Any:
        """The readout at T = ρ = L, ``[B, …]``, in one pass: the same bits as ``snn(x, L).mean(0)``, L times faster.

        Only a network with a certificate that proves this has it: ``osp.certify(ann, snn, loader)``.
        """
        if self.certificate is None or not self.certificate.proved:
            what = "has no certificate" if self.certificate is None else "has a certificate that proves nothing"
            raise ValueError(
                f"this network {what}, so one pass may answer otherwise than its spikes. "
                "osp.snap(ann, …), convert with osp.methods.exact(rho=L), then osp.certify(ann, snn, loader)"
            )
        self._check_all(inputs)
        out = self._pass(inputs, Clock(1, len(inputs[0]), schedules.Count()))
        return map_values(out, lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf)

    def _pass(self, inputs: Sequence[Tensor], clock: Clock) -> Any:
        """What the model returns at each step of the clock, ``[T, B, …]``."""
        with clock.ticking():
            # A copy: the model may change its input in place, and a second pass needs it as it was.
            out = self._run(*(clock.fold(clock.hold(x)) if self.repeat_input else x.clone() for x in inputs))
            return map_values(out, lambda leaf: clock.unfold(leaf) if isinstance(leaf, Tensor) else leaf)

    def _check_all(self, inputs: Sequence[Any]) -> None:
        for x in inputs:
            self._check(x, alone=len(inputs) == 1)
        if len({len(x) for x in inputs}) > 1:
            raise ValueError(f"all inputs are batches of one size, got {', '.join(str(len(x)) for x in inputs)}")

    def _run(self, *inputs: Tensor) -> Any:
        try:
            return self.model(*inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            shapes = " and ".join(f"[{_sizes(x.shape)}]" for x in inputs)
            raise ValueError(f"the model does not take inputs of shape {shapes}: {error}") from error

    @property
    def layers(self) -> dict[str, SpikingLayer]:
        """The spiking layers by name, in the model's order."""
        return {name: layer for name, layer in self.model.named_modules() if isinstance(layer, SpikingLayer)}

    @property
    def preprocess(self) -> Callable[[Tensor], Tensor]:
        """From uint8 images to the input, where the model says how."""
        return cast(Callable[[Tensor], Tensor], self.model.preprocess)

    def train(self, mode: bool = True) -> Self:
        """A converted network is only evaluated."""
        if mode:
            raise ValueError("a spiking network is not trained: train the ANN, then convert it")
        return super().train(mode)

    def _check(self, x: Tensor, *, alone: bool) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"the input must be a tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"the input must be floating point, got {x.dtype}: scale images first, x.float() / 255")
        if x.ndim < 2 or len(x) < 1:
            raise ValueError(f"the input must be a batch [B, …] with B >= 1, got shape {tuple(x.shape)}")
        if alone and self.input_shape is not None and tuple(x.shape[1:]) != tuple(self.input_shape):
            raise ValueError(f"this network takes inputs [B, {_sizes(self.input_shape)}], got [{_sizes(x.shape)}]")
        if not bool(x.isfinite().all()):
            raise ValueError("the input holds NaN or infinite values")


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape)
