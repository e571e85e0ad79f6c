"""``convert``: an ANN in, a spiking network out. The ANN is not touched."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import QCFS, Activation
from offspike.capture import capture
from offspike.corrections import Progress
from offspike.fast.precision import Precision
from offspike.folding import fold
from offspike.layers import SpikingLayer
from offspike.methods import LEARNED, Method
from offspike.network import SpikingNetwork
from offspike.surgery import audit, refuse, replace
from offspike.thresholds import measure

__all__ = ["Calibration", "convert"]

Calibration = Tensor | Iterable[Tensor] | Iterable[tuple[Tensor, Any]]  # one batch, batches, or batches with labels


def convert(
    ann: nn.Module,
    method: Method,
    *,
    example: Tensor | tuple[Tensor, ...] | None = None,
    calibration: Calibration | None = None,
    precision: Precision = "exact32",
    progress: Progress | None = None,
) -> SpikingNetwork:
    """The spiking network of ``ann`` under ``method``: every activation becomes a spiking layer.

    ``example`` is one input batch, used to check the model more closely and to remember its input shape.
    ``calibration`` is input data, one batch or several (labels are ignored), for methods whose thresholds or
    corrections come from data; it is gone through once. ``precision`` is what the network computes in
    (`SpikingNetwork`). Batch norms become part of the layers before them (`folding.py`).
    ``progress(what, done, total)`` hears of each corrected layer.
    """
    if not isinstance(method, Method):
        raise TypeError(f"the second argument is a Method, such as osp.methods.cos(rho=4); got {method!r}")
    refuse(audit(ann, example))
    theta, images = _look_at_data(ann, method, calibration)
    steady = _steady_layers(ann, example)

    place = next((x.device for x in (*ann.parameters(), *ann.buffers())), torch.device("cpu"))

    def build(name: str, module: nn.Module) -> nn.Module:
        assert isinstance(module, Activation)
        levels = module.levels if isinstance(module, QCFS) else None
        return SpikingLayer(theta[name].to(place), method, levels=levels, steady=steady is not None and name in steady)

    shape = tuple(example.shape[1:]) if isinstance(example, Tensor) else getattr(ann, "input_shape", None)
    model = replace(_folded(ann, example), Activation, build)
    snn = SpikingNetwork(model, method, input_shape=shape, repeat_input=steady is None, precision=precision)
    for correction in method.corrections:
        correction(snn, ann, images[: correction.images], progress)
    if precision == "int8":
        snn.prepared()  # says at once what is in its way
    return snn


def _look_at_data(ann: nn.Module, method: Method, calibration: Calibration | None) -> tuple[dict[str, Tensor], Tensor]:
    """The thresholds by name, and the images that corrections look at."""
    learned = {name: module.lam for name, module in ann.named_modules() if isinstance(module, Activation)}
    wanted = max((correction.images for correction in method.corrections), default=0)
    if method.threshold == LEARNED:
        for name, lam in learned.items():
            if not bool(lam.isfinite().all()):
                raise ValueError(
                    f"{name} is a ReLU and has no threshold of its own. Take one from data: "
                    "osp.methods.exact(rho=16, threshold=osp.thresholds.LeastError(16)) and calibration=images"
                )
    if not method.needs_data:
        return learned, torch.empty(0)
    if calibration is None:
        raise ValueError(f"{method.name} takes thresholds or corrections from data: pass calibration=images")
    kept: list[Tensor] = []
    batches = _kept(_batches(calibration, next(ann.parameters())), kept, wanted)
    if method.threshold == LEARNED:
        for _ in batches:
            if sum(map(len, kept)) >= wanted:
                break
    theta = learned if method.threshold == LEARNED else measure(ann, method.threshold, batches)
    if wanted and not kept:
        raise ValueError("the calibration data is empty: there is nothing to correct with")
    return theta, torch.cat(kept) if kept else torch.empty(0)


def _folded(ann: nn.Module, example: Tensor | tuple[Tensor, ...] | None) -> nn.Module:
    try:
        return fold(ann, example=example)
    except ValueError:  # a model whose code cannot be followed keeps its batch norms
        return ann


def _batches(calibration: Calibration, like: Tensor) -> Iterator[Tensor]:
    for batch in [calibration] if isinstance(calibration, Tensor) else calibration:
        x = batch if isinstance(batch, Tensor) else batch[0]
        if not isinstance(x, Tensor):
            raise TypeError(
                f"calibration is a tensor of inputs, or batches x or (x, labels) of them; got {type(x).__name__}. A "
                "network of several inputs cannot take thresholds or corrections from data"
            )
        yield x.to(like.device)


def _kept(batches: Iterable[Tensor], kept: list[Tensor], wanted: int) -> Iterator[Tensor]:
    """The batches; the first ``wanted`` samples of them are kept aside."""
    for x in batches:
        room = wanted - sum(map(len, kept))
        if room > 0:
            kept.append(x[:room])
        yield x


def _steady_layers(ann: nn.Module, example: Tensor | tuple[Tensor, ...] | None) -> frozenset[str] | None:
    """The activations that see a current which does not change over time; None where the input must be repeated."""
    try:
        graph = capture(ann, example)
    except ValueError as error:
        warnings.warn(
            f"the input is repeated at every step, so the first layers are computed T times: {error}", stacklevel=3
        )
        return None
    return graph.steady(ann, neuron=lambda module: isinstance(module, Activation))
