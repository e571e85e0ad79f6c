"""The spiking network: the user's own model, run over time."""

import functools
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from offspike import outputs, schedules
from offspike.capture import capture
from offspike.clock import Clock, Phase
from offspike.fast.parts import in_fixed_point
from offspike.fast.plan import Plan
from offspike.fast.portions import Portions, several
from offspike.fast.precision import Precision, arithmetic, check_precision
from offspike.fast.replay import Replays, short
from offspike.fast.whole import check_run
from offspike.folding import blanks, known_shapes, stand_in
from offspike.graph import Graph, GraphNetwork, map_values
from offspike.inputs import attempt, check_call, not_finite
from offspike.inspection.batch import mixed
from offspike.inspection.obstacles import refuse
from offspike.layers import SpikingLayer
from offspike.methods import Method

__all__ = ["Proven", "SpikingNetwork", "check_reference", "check_spiking"]


class Proven(Protocol):
    """What a network has to know of its certificate."""

    @property
    def proved(self) -> bool:
        """Whether its logits at T = ρ = L are proved to be those of the quantised ANN."""
        ...

    def covers(self, snn: Any) -> bool:
        """Whether it is about this network, as it is now."""
        ...


Heard = Callable[[SpikingLayer, Tensor], None]


class SpikingNetwork(nn.Module):
    """``snn(x, steps=T)`` returns the logits of each step, ``[T, B, classes]``.

    ``logits[:t].mean(0)`` is the readout at t. A model with several inputs takes them in its order,
    ``snn(a, b, steps=T)``; a tuple, list or dictionary comes back with a leading time axis on each tensor. A parameter
    that the model returns is the same at each step.

    The input is the same image at each step, so whatever lies before the first spiking layer is computed once; with
    ``repeat_input`` (a model where the image and spikes meet) the image is repeated instead. Nothing is kept between
    calls, and ``snn(x, 16)[:t] == snn(x, t)``. Where ``convert`` was given no example, the first call looks whether the
    model keeps samples of this shape apart, and refuses it if not.

    ``precision``: ``"exact32"`` computes as the ANN does; ``"tf32"`` gives the tensor cores of a GPU each weight in two
    parts, 23 bits together (one where 11 do), and ``"bf16"`` rounds it to 8 bits (spikes are exact in any format, and
    the membrane stays float32); ``"int8"`` multiplies spikes and 8-bit weights as whole numbers, for networks in fixed
    point (``osp.snap``), with the bits of ``"exact32"`` (on a GPU for ρ <= 8). The network runs as a plan
    (`fast/plan.py`); with hooks on its layers the model itself is run, one layer after the other (in float32 where the
    plan has two parts). ``certificate`` is what ``osp.certify`` has found about this network, if it has been asked.

    On a GPU nobody waits for the input to be looked at: a sample with NaN or infinite values gets NaN for an answer,
    where a CPU refuses it.
    """

    certificate: Proven | None = None
    _ready: tuple[Any, Plan | None, Replays, Portions] | None = None
    _covered: tuple[Any, Any] | None = None
    _rows: Any = True  # of networks that were pickled before it was looked at
    _apart: frozenset[Any] = frozenset()  # shapes of inputs of which it is known that samples do not mix

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        *,
        input_shape: tuple[int, ...] | None = None,
        repeat_input: bool = False,
        precision: Precision = "exact32",
    ) -> None:
        super().__init__()
        check_precision(precision)
        self.model = model
        self.method = method
        self.input_shape = input_shape
        self.repeat_input = repeat_input
        self.precision = precision
        self._rows = self._read_rows()
        self._apart = frozenset([self._shapes()])
        self.eval()

    def forward(
        self, *inputs: Any, steps: int | None = None, piece: int | None = None, heard: Heard | None = None
    ) -> Any:
        """The output of each step, ``[steps, B, …]``; ``steps`` may also stand last, ``snn(x, 8)``.

        ``piece`` bounds memory: that many steps are run at a time (never fewer than ρ at first), with the same result.
        ``heard(layer, spikes)`` is told what each spiking layer sends, ``[T, B, …]``, piece by piece.
        """
        if steps is None and inputs and isinstance(inputs[-1], Integral):
            *inputs, steps = inputs  # type: ignore[assignment]
        total, piece = check_call(inputs, steps, piece, shape=self.input_shape)
        self._check_apart(inputs)
        plan, replays, portions = self.prepared()
        if plan is not None and self.precision == "int8":
            check_run(self.method, inputs[0].device)
        if plan is None:
            with torch.no_grad(), arithmetic(self._unplanned()):
                return self._passes(self._run, inputs, total, piece, heard)
        run = functools.partial(self._passes, plan, steps=total, piece=piece, heard=heard)
        ours = torch.autocast(inputs[0].device.type, enabled=False)  # nobody else decides in what numbers it computes
        with torch.inference_mode(), arithmetic(self.precision), ours:
            if heard is not None or plan.watch is not None:  # someone looks on, and wants to see all samples at once
                return run(inputs)
            if several(inputs):
                largest = functools.partial(self._largest, plan, inputs)
                return outputs.beside(portions.run(run, inputs, piece or total, largest), self._rows)
            return replays.run((total, piece), run, inputs) if short(inputs, total) else run(inputs)

    def fast(self, *inputs: Any) -> Any:
        """The readout at T = ρ = L, ``[B, …]``, in one pass: the same bits as ``snn(x, L).mean(0)``, L times faster.

        Only a network with a certificate that proves this has it: ``osp.certify(ann, snn, loader)``. If tensors, layers
        or the precision have changed since, hashes are compared first, and another network is refused. Changes that
        PyTorch does not count (through ``.data``, or of weights made in inference mode) are not noticed.
        """
        if self.certificate is None or not self.certificate.proved:
            what = "has no certificate" if self.certificate is None else "has a certificate that proves nothing"
            raise ValueError(
                f"this network {what}, so one pass may answer otherwise than its spikes. "
                "osp.snap(ann, …), convert with osp.methods.exact(rho=L), then osp.certify(ann, snn, loader)"
            )
        check_call(inputs, 1, None, shape=self.input_shape)
        self._check_covered(self.certificate)
        with torch.no_grad(), arithmetic(self.precision):
            out = self._pass(self._run, inputs, Clock(1, len(inputs[0]), schedules.Count()))
        return map_values(out, lambda leaf: leaf[0] if isinstance(leaf, Tensor) else leaf)

    def _check_covered(self, certificate: Proven) -> None:
        """Refuse a certificate for another network than this one is now; hash it only where it may have changed."""
        seen = (certificate, self._state())
        if self._covered is None or self._covered[0] is not certificate or self._covered[1] != seen[1]:
            if not certificate.covers(self):
                raise ValueError(
                    "this network is not the one that was certified: its weights, layers, method or precision have "
                    "changed since. Certify it again: osp.certify(ann, snn, loader)"
                )
            self._covered = seen

    def _passes(
        self, run: Callable[..., Any], inputs: Sequence[Tensor], steps: int, piece: int | None, heard: Heard | None
    ) -> Any:
        """All passes that the schedule asks for."""
        bad = not_finite(inputs)

        def one_pass(horizon: int, phase: Phase, carry: dict[Any, Tensor] | None) -> Any:
            return self._pass(run, inputs, Clock(horizon, len(inputs[0]), phase, carry, heard), bad)

        return outputs.joined(schedules.run(self.method, steps, one_pass, piece=piece), steps)

    def _largest(self, plan: Plan, inputs: Sequence[Tensor]) -> int:
        """The neurons of the largest layer: one sample is run for one step."""
        found = [1]
        self._passes(plan, [x[:1] for x in inputs], 1, None, lambda _, spikes: found.append(spikes[0, 0].numel()))
        return max(found)

    def _pass(self, run: Callable[..., Any], inputs: Sequence[Tensor], clock: Clock, bad: Tensor | None = None) -> Any:
        """What the model returns at each step of the clock, ``[T, B, …]``; ``bad``, if any, is added to each sample."""
        with clock.ticking():
            given = [clock.fold(clock.hold(x)) for x in inputs] if self.repeat_input else list(inputs)
            return outputs.over_time(attempt(run, given), self._rows, clock, bad)

    def _run(self, *inputs: Tensor) -> Any:
        """The model itself, layer by layer."""
        kind = inputs[0].device.type
        with torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.model(*(x.clone() for x in inputs))  # it may change its input in place

    def _unplanned(self) -> Precision:
        """What the model itself computes in: TF32 would round its weights, and has nothing to round in fixed point."""
        rounded = self.precision == "tf32" and not in_fixed_point(self.model)
        return "exact32" if rounded else self.precision

    def prepared(self) -> tuple[Plan | None, Replays, Portions]:
        """The plan for the network as it is now; None where it has none, or where hooks want to see the layers."""
        if any(module._forward_hooks or module._forward_pre_hooks for module in self.model.modules()):
            return None, Replays(), Portions()
        key = self._state()
        if self._ready is None or self._ready[0] != key:
            self._ready = (key, self._make_plan(), Replays(), Portions())
        return self._ready[1:]

    def _state(self) -> Any:
        """What the network is now: equal as long as no layer, tensor or option has changed."""
        tensors = [_Same(x) for x in (*self.model.parameters(), *self.model.buffers())]
        state = [(x, x.it.device, x.it.dtype, None if x.it.is_inference() else x.it._version) for x in tensors]
        layers = [
            (layer.levels, layer.steady, layer.policy, layer.neuron, layer.start is None)
            for layer in self.layers.values()
        ]
        modules = [_Same(module) for module in self.model.modules()]
        return modules, state, layers, self.method, self.precision, self.repeat_input

    def _shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """The shapes of the inputs, if they are known."""
        return known_shapes(self.model) if self.input_shape is None else (tuple(self.input_shape),)

    def _capture(self) -> Graph:
        shapes = self._shapes()
        return capture(stand_in(self.model), None if shapes is None else blanks(self.model, shapes))

    def _read_rows(self) -> Any:
        """Of each value that the model returns, whether it has a row for each sample; True: of them all."""
        try:
            graph = self.model.graph if isinstance(self.model, GraphNetwork) else self._capture()
        except ValueError:  # its code cannot be followed: convert has warned of that
            return True
        return outputs.rows(graph, self.model)

    def _make_plan(self) -> Plan | None:
        try:
            graph = self._capture()
        except ValueError:  # as above
            if self.precision == "int8":
                raise
            return None
        layerwise = self.method.schedule == "layerwise"
        return Plan(
            graph, self.model, self.precision,
            repeat_input=self.repeat_input, input_shape=self.input_shape, layerwise=layerwise,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its own plan."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_ready", "_covered")}

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

    def _check_apart(self, inputs: Sequence[Tensor]) -> None:
        """Refuse a model that mixes samples of these shapes: time lies on their axis, and would be mixed with them."""
        shapes = tuple(tuple(x.shape[1:]) for x in inputs)
        if shapes in self._apart or torch.compiler.is_compiling():
            return
        with arithmetic("exact32"):
            refuse(attempt(lambda *given: mixed(self.model, shapes), inputs))
        self._apart |= {shapes}


def check_spiking(snn: Any, taker: str) -> None:
    """Whether this is a spiking network at all; ``taker`` is what was given it."""
    if not isinstance(snn, SpikingNetwork):
        what = "osp.convert(ann, osp.methods.exact(rho=4)) makes one"
        raise TypeError(f"{taker} takes a spiking network; {what}. Got {_kind(snn)}")


def check_reference(ann: Any) -> None:
    """Whether this can be the ANN that a spiking network was made from."""
    if not isinstance(ann, nn.Module) or isinstance(ann, SpikingNetwork):
        raise TypeError(f"the reference is the ANN that was converted, a torch.nn.Module; got {_kind(ann)}")


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


class _Same:
    """Equal to itself alone; kept alive, so that nothing new can be mistaken for it."""

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it

    __hash__ = None  # type: ignore[assignment]
