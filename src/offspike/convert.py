"""``convert``: an ANN in, a spiking network out. The ANN is not touched."""

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import QCFS, Activation
from offspike.capture import capture
from offspike.corrections import Progress
from offspike.fast.precision import Precision
from offspike.folding import fold, known_inputs, known_shape, plain, remember_shapes, stand_in
from offspike.initial import Uniform
from offspike.inspection.obstacles import check
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

    ``example`` is one input batch, used to check the model more closely and to remember its input shape; without one
    whether samples stay apart is looked at in the network's first run.
    ``calibration`` is input data, one batch or several (labels are ignored), for methods whose thresholds or
    corrections come from data; it is gone through once. ``precision`` is what the network computes in
    (`SpikingNetwork`). Weights that are computed (weight_norm, pruning) become plain ones, and batch norms part of the
    layers before them (`folding.py`).
    ``progress(what, done, total)`` hears of each corrected layer.
    """
    if not isinstance(method, Method):
        raise TypeError(f"the second argument is a Method, such as osp.methods.cos(rho=4); got {method!r}")
    check(ann, example)
    ann = plain(ann)
    inputs = known_inputs(ann, example)
    refuse(audit(stand_in(ann), inputs))
    theta, images = _look_at_data(ann, method, calibration)
    steady = _steady_layers(ann, inputs)

    place = next((x.device for x in (*ann.parameters(), *ann.buffers())), torch.device("cpu"))
    names = _first_names(ann)

    @cache  # one layer, whatever names it has
    def layer(name: str) -> SpikingLayer:
        module = ann.get_submodule(name)
        levels = module.levels if isinstance(module, QCFS) else None
        alone = steady is not None and name in steady
        seed = method.initial.seed_of(name) if isinstance(method.initial, Uniform) else None
        return SpikingLayer(theta[name].to(place), method, levels=levels, steady=alone, seed=seed)

    model = replace(_folded(ann, inputs), Activation, lambda path, module: layer(names[path]))
    if inputs is not None:
        remember_shapes(model, inputs)
    snn = SpikingNetwork(
        model, method, input_shape=known_shape(model), repeat_input=steady is None, precision=precision
    )
    for correction in method.corrections:
        correction(snn, ann, images[: correction.images], progress)
    if precision == "int8":
        snn.prepared()  # says at once what is in its way
    return snn


def _first_names(ann: nn.Module) -> dict[str, str]:
    """By each name of a module the first of its names, by which thresholds and graphs know it."""
    first = {module: name for name, module in ann.named_modules()}
    return {path: first[module] for path, module in ann.named_modules(remove_duplicate=False)}


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


def _folded(ann: nn.Module, inputs: tuple[Tensor, ...] | None) -> nn.Module:
    try:
        return fold(ann, example=inputs)
    except ValueError as error:
        warnings.warn(
            "the batch norms stay layers of their own, computed at every time-step: the answers are the same, but take "
            f"longer. {error}. Without casts such as x.float() in its code it would",
            stacklevel=3,
        )
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


def _steady_layers(ann: nn.Module, inputs: tuple[Tensor, ...] | None) -> frozenset[str] | None:
    """The activations that see a current which does not change over time; None where the input must be repeated."""
    try:
        graph = capture(stand_in(ann), inputs)
    except ValueError as error:
        warnings.warn(
            f"the input is repeated at every step, so the first layers are computed T times: {error}", stacklevel=3
        )
        return None
    return graph.steady(ann, neuron=lambda module: isinstance(module, Activation))
