"""Looking into a model and exchanging its parts, always on a copy."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.capture import Step, network, trace
from offspike.graph import Graph, Ref, map_values, refs_in
from offspike.inspection import sites
from offspike.inspection.fates import Audit, fate
from offspike.inspection.mixing import alike, mixers, random_inputs
from offspike.inspection.obstacles import ADVICE, FUNCTIONS, LINEAR, MENDED, MODULES, PREPARE, Finding, check, refuse
from offspike.layers import SpikingLayer
from offspike.leaves import LEAVES

__all__ = ["Finding", "audit", "flow", "layer", "refuse", "replace"]

Kind = type[nn.Module] | tuple[type[nn.Module], ...]

_SIZES = ("shape", "ndim", "size", "dim", "numel")
_SEQUENCES = ("shape", "chunk", "split", "unbind")
_PRODUCTS = (
    "mul", "imul", "matmul", "bmm", "mm", "einsum", "linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d",
    "batch_norm",
)  # fmt: skip
# Layers of PyTorch that are linear in each sample, besides those in LEAVES.
_LINEAR_LAYERS = (
    nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Upsample, nn.UpsamplingNearest2d, nn.Unflatten,
    nn.UpsamplingBilinear2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.Fold, nn.Unfold, nn.AlphaDropout,
    nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad2d,
)  # fmt: skip


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
            raise ValueError("its forward names no inputs: write forward(self, x), not forward(self, *inputs)")
    except ValueError as error:
        named = [_module_finding(name, module) for name, module in model.named_modules()]
        fix = "say it without that, or take it out of the network"
        return Audit([*findings, *(f for f in named if f), Finding("the model", str(error), fix, True)])
    states = flow(steps, model)
    found = _obstacles(steps, model, states)
    if all(MENDED in finding.fix for _, finding in found):
        found += _batch(steps, model, x)
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
        elif isinstance(module, Activation | SpikingLayer) or sites.relu(step, module):
            states[step.name] = "moving"
        elif sites.bare(step) in _SIZES:
            states[step.name] = "size"
        else:
            states[step.name] = next((state for state in ("moving", "steady") if state in meets), "size")
    return states


def _obstacles(steps: list[Step], model: nn.Module, states: dict[str, str]) -> list[tuple[Step | None, Finding]]:
    """What is wrong with each step, as far as it can be read."""
    uses = Counter(step.target for step in steps if isinstance(layer(step, model), Activation | SpikingLayer))
    findings: list[tuple[Step | None, Finding]] = []
    blamed: set[str] = set()
    for step in steps:
        module = layer(step, model)
        if _part(step) and blamed.intersection(refs_in(step.args[0])):
            blamed.add(step.name)  # one of several results of what has been named already
        elif module is not None:
            finding = _module_finding(step.target, module, step.source, steps=steps, step=step)
            findings += [(step, finding)] if finding else []
            if uses.pop(step.target, 0) > 1:
                count = sum(other.target == step.target for other in steps)
                fix = "give each use an activation of its own; osp.prepare does"
                findings.append((step, Finding(step.target, f"it is used {count} times", fix, True, step.source)))
        elif step.kind in ("function", "method") and (kind := _function(step, states, steps)):
            findings.append((step, _advise(step.owner or "the model", step.target, kind, step.source)))
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


def _module_finding(
    name: str, module: nn.Module, source: str = "", *, steps: list[Step] | None = None, step: Step | None = None
) -> Finding | None:
    kind = MODULES.get(type(module))
    if kind == "smooth" and step is not None and sites.relu(step, module):  # LeakyReLU(0)
        kind = "relu"
    elif kind == "relu" and step is not None and not sites.relu(step, module):  # Hardtanh(-1, 1)
        kind = "smooth"
    elif kind == "pool" and getattr(module, "return_indices", False):
        kind = "indices"
    elif kind == "softmax" and steps is not None and step is not None and _is_attention(step, steps):
        kind = "attention"
    elif kind is None and steps is not None:
        # Also what is derived from one of these and computes the same, such as a parametrised layer.
        layers: tuple[Any, ...] = (*LEAVES, *_LINEAR_LAYERS)
        known = any(isinstance(module, base) and type(module).forward is base.forward for base in layers)
        kind = None if known or isinstance(module, Activation) else "unknown"
    return None if kind is None else _advise(name or "the model", type(module).__name__, kind, source)


def _advise(where: str, target: str, kind: str, source: str) -> Finding:
    what, fix = ADVICE[kind]
    return Finding(where, f"{target} is {what}", fix, True, source)


def _function(step: Step, states: dict[str, str], steps: list[Step]) -> str | None:
    """The obstacle that a function or method is, or None."""
    name = sites.bare(step)
    moving = [ref for ref in refs_in((step.args, step.kwargs)) if states[ref] == "moving"]
    sizes = states[step.name] == "size" or name in _SIZES
    if name in FUNCTIONS and (not sizes or FUNCTIONS[name] == "cast"):
        kind = "relu" if sites.relu(step) else FUNCTIONS[name]
        return "attention" if kind == "softmax" and _is_attention(step, steps) else kind
    try:
        step.node()
    except ValueError:
        return "unknown"
    if sizes:
        return None
    if name == "getitem" and isinstance(step.args[1], str):
        return "dictionary"
    if name.startswith("dropout") and _always_on(step):
        return "dropout"
    if name in _PRODUCTS and len(moving) > 1:
        return "product"
    beside = [ref for ref in refs_in((step.args[1:], step.kwargs)) if states[ref] == "moving"]
    if name not in LINEAR and name not in _PRODUCTS and beside and step.args:
        return "nonlinear"
    return "mixes" if _on_the_batch_axis(step, steps) else None


def _always_on(step: Step) -> bool:
    """Dropout that does not ask whether the network is being trained: it was traced in eval mode."""
    values = dict(zip(("x", "p", "training"), step.args, strict=False)) | step.kwargs
    return bool(values.get("training", True)) and values.get("p", 0.5) != 0


def _on_the_batch_axis(step: Step, steps: list[Step]) -> bool:
    """Whether a step names axis 0 outright; what is hidden in sizes shows when it is run (``inspection/mixing.py``)."""
    name, rest = sites.bare(step), step.args[1:]
    if name == "getitem":
        owner = next((other for other in steps if Ref(other.name) == step.args[0]), None)
        if owner is None or sites.bare(owner) in _SEQUENCES or owner.target == "size":
            return False
        index = rest[0][0] if isinstance(rest[0], tuple) and rest[0] else rest[0]
        return not (index is ... or index == slice(None) or isinstance(index, Ref))
    defaults: dict[str, Any] = {"cat": 0, "concat": 0, "stack": 0, "chunk": 0, "split": 0, "unbind": 0, "flatten": 0}
    position = {"chunk": 1, "split": 1, "cat": 0, "concat": 0, "stack": 0, "unbind": 0, "select": 0}.get(name, 0)
    if name in ("mean", "sum"):
        defaults[name] = 0  # no axis: all of them
    elif name not in (*defaults, "flip", "select", "narrow", "unsqueeze", "transpose", "swapaxes"):
        return False
    given = [step.kwargs[key] for key in ("dim", "axis", "dims", "start_dim", "dim0", "dim1") if key in step.kwargs]
    several = name in ("flip", "transpose", "swapaxes")
    axes = given or list(rest[position:] if several else rest[position : position + 1])
    axes = [*_flat(axes)] or [defaults.get(name, 1)]
    return 0 in axes


def _is_attention(step: Step, steps: list[Step]) -> bool:
    """Whether what a softmax gives is multiplied with something."""
    names = {step.name}
    for other in steps:
        if names & {*refs_in((other.args, other.kwargs))}:
            if sites.bare(other) in ("matmul", "bmm", "mul", "einsum"):
                return True
            names.add(other.name)
    return False


def _batch(
    steps: list[Step], model: nn.Module, x: Tensor | tuple[Tensor, ...] | None
) -> list[tuple[Step | None, Finding]]:
    """Steps that mix samples, found by running the model."""
    inputs = x if isinstance(x, tuple) else () if x is None else (x,)
    shapes = [tuple(value.shape[1:]) for value in inputs]
    if not shapes and getattr(model, "input_shape", None) is not None:
        shapes = [tuple(model.input_shape)]  # type: ignore[arg-type]
    tensors = [*model.parameters(), *model.buffers()]
    half = (torch.float16, torch.bfloat16)
    if not shapes or any(tensor.is_meta or tensor.dtype in half for tensor in tensors):
        return []
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(0))
    copy = deepcopy(model).eval()
    runner = network(Graph(tuple(step.node() for step in steps)), copy).eval()
    fix = "check the example; if the model itself takes it, its code must not ask isinstance(x, Tensor)"
    try:
        if not alike(copy, runner, random_inputs(shapes, like=like)):
            return [(None, Finding("the model", "as it was traced, it answers otherwise", fix, True))]
        named = set(mixers(runner, shapes, like=like))
    except Exception as error:  # whatever the layers and operations of the model raise
        what = f"as it was traced, it does not run on inputs of these shapes ({str(error).partition(chr(10))[0]})"
        return [(None, Finding("the model", what, fix, True))]
    findings: list[tuple[Step | None, Finding]] = []
    for step in steps:
        if step.name in named:
            module = layer(step, model)
            where = step.owner or "the model" if module is None else step.target
            what = step.target if module is None else type(module).__name__
            findings.append((step, _advise(where, what, "mixes", step.source)))
    return findings


def _flat(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in (_flat(value) if isinstance(value, list | tuple) else [value])]
