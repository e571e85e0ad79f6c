"""Looking into a model and exchanging its parts, always on a copy."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.capture import CaptureError, Step, trace
from offspike.folding import known_shapes
from offspike.graph import Ref, map_values, refs_in
from offspike.inspection.axes import ensembles
from offspike.inspection.batch import TRACED, apart, flow, layer
from offspike.inspection.calls import advise, function_obstacle, module_finding
from offspike.inspection.fates import Audit, fate
from offspike.inspection.obstacles import ADVICE, MENDED, PREPARE, Finding, check, refuse
from offspike.layers import SpikingLayer

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
        found += _batch(steps, model, x)
    blame = {step.name: finding for step, finding in found if step is not None}
    notes = _modes(steps, model, x)
    operations = [fate(step, layer(step, model), states, blame.get(step.name)) for step in steps]
    return Audit([*findings, *(finding for _, finding in found), *notes], operations)


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
        # What osp.prepare mends has one result: what comes of it is looked at for itself.
        named = bool(findings) and findings[-1][0] is step and MENDED not in findings[-1][1].fix
        blamed |= {step.name} if named else set()
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
    steps: list[Step], model: nn.Module, x: Tensor | tuple[Tensor, ...] | None
) -> list[tuple[Step | None, Finding]]:
    """Steps that mix samples, where the shapes of the inputs are known."""
    inputs = x if isinstance(x, tuple) else () if x is None else (x,)
    shapes = [tuple(value.shape[1:]) for value in inputs] or [*(known_shapes(model) or ())]
    try:
        return apart(steps, model, shapes) if shapes else []
    except Exception as error:  # whatever the layers and operations of the model raise
        what = f"as it was traced, it does not run on inputs of these shapes ({str(error).partition(chr(10))[0]})"
        return [(None, Finding("the model", what, TRACED, True))]
