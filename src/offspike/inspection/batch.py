"""Steps that mix samples, found by running the model on small batches, and which steps are made of what."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.capture import CaptureError, Step, network, trace, weight
from offspike.folding import blanks, put, stand_in
from offspike.graph import Graph, refs_in
from offspike.inspection import sites
from offspike.inspection.aliases import reused
from offspike.inspection.axes import ensembles
from offspike.inspection.calls import advise
from offspike.inspection.mixing import Places, alike, mixers, random_inputs
from offspike.inspection.obstacles import Finding
from offspike.inspection.rewrite import rewrite
from offspike.layers import SpikingLayer
from offspike.pooling import GatedMaxPool

__all__ = ["TRACED", "apart", "flow", "layer", "mixed"]

TRACED = "check the example; if the model itself takes it, its code must not ask isinstance(x, Tensor)"


def layer(step: Step, model: nn.Module) -> nn.Module | None:
    """The layer that a step calls, if it calls one."""
    return model.get_submodule(step.target) if step.kind == "module" else None


def flow(steps: list[Step], model: nn.Module) -> dict[str, str]:
    """By name of step what it holds: ``moving`` (spikes, or made of them), ``steady`` (made of the input alone) or
    ``size`` (numbers made of sizes, and constants).
    """
    states: dict[str, str] = {}
    for step in steps:
        module = layer(step, model)
        used = step.args[:1] if step.kind == "method" and step.target in sites.SHAPED else (step.args, step.kwargs)
        meets = {states[name] for name in refs_in(used)}
        if step.kind == "input":
            states[step.name] = "steady"
        elif step.constant:
            states[step.name] = "size"
        elif isinstance(module, Activation | SpikingLayer) or sites.relu(step, module):
            states[step.name] = "moving"
        else:
            states[step.name] = "moving" if "moving" in meets else "steady"
    return states


def apart(steps: list[Step], model: nn.Module, shapes: list[tuple[int, ...]]) -> list[tuple[Step | None, Finding]]:
    """Steps that mix samples of these shapes, or work in place on what has another name, found by running ``model``.

    Raises whatever the layers and operations of the model raise.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(x.is_meta for x in tensors):
        return []
    copy = _timeless(model)
    if any(x.dtype in (torch.float16, torch.bfloat16) for x in tensors):  # their rounding would hide what is looked for
        copy = copy.float()
    like = weight(copy)
    runner = rewrite(copy, steps, {step.name: plain for step in steps if (plain := _plain(step, copy))}).eval()
    if not alike(copy, runner, random_inputs(shapes, like=like)):
        changed = _changed(steps, copy, random_inputs(shapes, like=like))
        otherwise = Finding("the model", "as it was traced, it answers otherwise", TRACED, True)
        return [(step, _blame(step, model, "alias")) for step in changed] or [(None, otherwise)]
    named = mixers(runner, shapes, like=like, places=_places(steps, model))
    return [(step, _blame(step, model, named[step.name])) for step in steps if step.name in named]


def mixed(model: nn.Module, shapes: tuple[tuple[int, ...], ...]) -> list[Finding]:
    """What `apart` finds in a model, spiking or not, that takes inputs of these shapes; nothing in one that does not.

    Nothing either where its code cannot be followed, of which ``convert`` warns.
    """
    still = stand_in(model)
    for module in still.modules():  # who listens to the network is not to hear of this
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    try:
        steps = trace(still, blanks(still, shapes))
    except CaptureError:
        return []
    if sum(step.kind == "input" for step in steps) != len(shapes):
        return []
    return [finding for _, finding in apart(steps, still, [*shapes])]


def _timeless(model: nn.Module) -> nn.Module:
    """A copy in eval mode that runs without a clock: whether samples mix is no matter of the neuron."""
    copy = deepcopy(model).eval()
    for neuron in [module for module in copy.modules() if isinstance(module, SpikingLayer)]:
        put(copy, neuron, nn.ReLU())
    return copy


def _plain(step: Step, model: nn.Module) -> nn.Module | None:
    """The layer that a ReLU is, not in place."""
    relu = sites.relu(step, layer(step, model))
    return None if relu is None else nn.ReLU() if relu.cap is None else nn.Hardtanh(0.0, relu.cap)


def _changed(steps: list[Step], model: nn.Module, inputs: list[Tensor]) -> list[Step]:
    """The in-place ReLUs without which the model answers otherwise; none where it was not traced as it runs."""
    in_place = [step for step in steps if (relu := sites.relu(step, layer(step, model))) and relu.in_place]
    try:
        faithful = alike(model, network(Graph(tuple(step.node() for step in steps)), model), inputs)
    except ValueError:  # a ReLU that only its layer can be written down for: F.leaky_relu_(x, 0.0)
        faithful = True
    return (reused(steps, model) or in_place) if faithful else []


def _places(steps: list[Step], model: nn.Module) -> Places:
    """What is known of each step's rows."""
    neurons, states = set(), flow(steps, model)
    for step in steps:
        module = layer(step, model)
        neuron = isinstance(module, Activation | SpikingLayer) or sites.relu(step, module)
        pool = isinstance(module, GatedMaxPool) or sites.pool(step, module)
        if neuron or (pool and states[step.name] == "moving"):
            neurons.add(step.name)
    constants = {step.name for step in steps if step.constant}
    return Places(constants=constants, aside=ensembles(steps), neurons=neurons)


def _blame(step: Step, model: nn.Module, kind: str) -> Finding:
    """The finding that a step is an obstacle of this kind."""
    module = layer(step, model)
    if module is None:
        return advise(step.owner or "the model", step.target, kind, step.source)
    return advise(step.target, type(module).__name__, kind, step.source)
