"""Looking into a model and exchanging its parts, always on a copy."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.capture import CaptureError, Step, network, trace, weight
from offspike.folding import known_shapes
from offspike.graph import Graph, Ref, map_values, refs_in
from offspike.inspection import sites
from offspike.inspection.aliases import reused
from offspike.inspection.axes import ensembles
from offspike.inspection.calls import advise, function_obstacle, module_finding
from offspike.inspection.fates import Audit, fate
from offspike.inspection.mixing import Places, alike, mixers, random_inputs
from offspike.inspection.obstacles import ADVICE, MENDED, PREPARE, Finding, check, refuse
from offspike.inspection.rewrite import rewrite
from offspike.layers import SpikingLayer
from offspike.pooling import GatedMaxPool

__all__ = ["Finding", "audit", "flow", "layer", "refuse", "replace"]

Kind = type[nn.Module] | tuple[type[nn.Module], ...]


def replace(model: nn.Module, kind: Kind, build: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """A copy of ``model`` in which every module of type ``kind`` is ``build(name, module)``."""
    model = deepcopy(model)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, kind):
            if not path:
                return build(path, module)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, build(path, module))
    return model


def audit(model: nn.Module, x: Tensor | tuple[Tensor, ...] | None = None) -> Audit:
    """What stands in the way of converting ``model``, call by call in the order of its forward pass.

    ``x`` is an example input (a tuple of them for several); with it, or where the model knows its ``input_shape``, the
    model is run once on a small batch to see whether samples stay apart. The result is a list of findings; its
    ``operations`` say of every operation, in order, what becomes of it.
    """
    check(model, x)
    findings = []
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.is_meta and not bool(tensor.isfinite().all()):
            findings.append(Finding(name, "it holds NaN or infinite values", "train or load the model again", True))
    if not any(isinstance(module, Activation | SpikingLayer) for module in model.modules()):
        what = "there is nothing to convert: no QCFS or ClippedReLU in it"
        findings.append(Finding("the model", what, PREPARE, True))
    try:
        steps = trace(model, x)
        if not any(step.kind == "input" for step in steps):
            raise CaptureError("its forward names no inputs", "write forward(self, x), not forward(self, *inputs)")
    except CaptureError as error:
        named = [module_finding(name, module) for name, module in model.named_modules()]
        return Audit([*findings, *(f for f in named if f), Finding("the model", error.what, error.fix, True)])
    states = flow(steps, model)
    found = _obstacles(steps, model, states)
    if all(MENDED in finding.fix for _, finding in found):
        found += _batch(steps, model, x, states)
    blame = {step.name: finding for step, finding in found if step is not None}
    notes = _modes(steps, model, x)
    operations = [fate(step, layer(step, model), states, blame.get(step.name)) for step in steps]
    return Audit([*findings, *(finding for _, finding in found), *notes], operations)


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
        meets = {states[name] for name in refs_in((step.args, step.kwargs))}
        if step.kind == "input":
            states[step.name] = "steady"
        elif step.constant:
            states[step.name] = "size"
        elif isinstance(module, Activation | SpikingLayer) or sites.relu(step, module):
            states[step.name] = "moving"
        else:
            states[step.name] = "moving" if "moving" in meets else "steady"
    return states


def _obstacles(steps: list[Step], model: nn.Module, states: dict[str, str]) -> list[tuple[Step | None, Finding]]:
    """What is wrong with each step, as far as it can be read."""
    uses = Counter(step.target for step in steps if isinstance(layer(step, model), Activation | SpikingLayer))
    findings: list[tuple[Step | None, Finding]] = []
    aside = ensembles(steps)
    blamed: set[str] = set()
    for step in steps:
        module = layer(step, model)
        if _part(step) and blamed.intersection(refs_in(step.args[0])):
            blamed.add(step.name)  # one of several results of what has been named already
        elif module is not None:
            finding = module_finding(step.target, module, step.source, steps=steps, step=step)
            findings += [(step, finding)] if finding else []
            if uses.pop(step.target, 0) > 1:
                count = sum(other.target == step.target for other in steps)
                fix = "give each use an activation of its own; osp.prepare does"
                findings.append((step, Finding(step.target, f"it is used {count} times", fix, True, step.source)))
        elif step.kind in ("function", "method") and (kind := function_obstacle(step, states, steps, aside)):
            findings.append((step, advise(step.owner or "the model", step.target, kind, step.source)))
        blamed |= {step.name} if findings and findings[-1][0] is step else set()
    return findings


def _part(step: Step) -> bool:
    return step.target == "operator.getitem" or step.target.startswith("Tensor.")


def _modes(steps: list[Step], model: nn.Module, x: Tensor | tuple[Tensor, ...] | None) -> list[Finding]:
    """Notes on what the model's code does otherwise while it is trained: ``F.dropout(…, training=self.training)``."""
    try:
        with torch.random.fork_rng([]):
            others = trace(model, x, training=True)
    except ValueError:  # only eval mode is converted
        return []
    pairs = [(a, b) for a, b in zip(steps, others, strict=False) if _call(a) != _call(b)]
    same = len(steps) == len(others) and [a.kind for a in steps] == [b.kind for b in others]
    what, fix = ADVICE["mode"]
    return [
        Finding(a.owner or "the model", f"{b.target or b.kind} is {what}", fix, False, b.source or a.source)
        for a, b in (pairs if same else pairs[:1])
    ]


def _call(step: Step) -> tuple[Any, ...]:
    """What is called, with what besides the values of other steps."""
    return (step.kind, step.target, *(map_values(part, _constant) for part in (step.args, step.kwargs)))


def _constant(leaf: Any) -> Any:
    return None if isinstance(leaf, Ref) else leaf


def _batch(
    steps: list[Step], model: nn.Module, x: Tensor | tuple[Tensor, ...] | None, states: dict[str, str]
) -> list[tuple[Step | None, Finding]]:
    """Steps that mix samples or work in place on what has another name, found by running the model."""
    inputs = x if isinstance(x, tuple) else () if x is None else (x,)
    shapes = [tuple(value.shape[1:]) for value in inputs] or [*(known_shapes(model) or ())]
    half = (torch.float16, torch.bfloat16)
    if not shapes or any(t.is_meta or t.dtype in half for t in (*model.parameters(), *model.buffers())):
        return []
    like, copy = weight(model), deepcopy(model).eval()
    runner = rewrite(copy, steps, {step.name: plain for step in steps if (plain := _plain(step, copy))}).eval()
    fix = "check the example; if the model itself takes it, its code must not ask isinstance(x, Tensor)"
    try:
        if not alike(copy, runner, random_inputs(shapes, like=like)):
            changed = _changed(steps, copy, random_inputs(shapes, like=like))
            otherwise = Finding("the model", "as it was traced, it answers otherwise", fix, True)
            return [(step, _blame(step, model, "alias")) for step in changed] or [(None, otherwise)]
        named = mixers(runner, shapes, like=like, places=_places(steps, model, states))
    except Exception as error:  # whatever the layers and operations of the model raise
        what = f"as it was traced, it does not run on inputs of these shapes ({str(error).partition(chr(10))[0]})"
        return [(None, Finding("the model", what, fix, True))]
    return [(step, _blame(step, model, named[step.name])) for step in steps if step.name in named]


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


def _places(steps: list[Step], model: nn.Module, states: dict[str, str]) -> Places:
    """What is known of each step's rows."""
    neurons = set()
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
