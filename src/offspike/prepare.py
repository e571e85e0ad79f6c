"""Getting a network ready for training with activations that a spiking neuron can follow."""

import inspect
from collections import Counter
from copy import deepcopy
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from offspike.activations import Activation, Bounded, ClippedReLU, Rectifier
from offspike.capture import Step, trace, weight
from offspike.folding import copy_of, put, remember_shapes, stand_in
from offspike.hooks import before
from offspike.inspection import sites
from offspike.inspection.mixing import alike, random_inputs
from offspike.inspection.obstacles import MENDED, check
from offspike.inspection.rewrite import rewrite
from offspike.pooling import GatedMaxPool, average
from offspike.surgery import audit, flow, layer, refuse
from offspike.thresholds import Rule, once

__all__ = ["init_thresholds", "prepare"]

SAMPLE = 1 << 20
Pooling = Literal["average", "gate", "keep"]


def prepare(
    model: nn.Module, activation: Activation, *, example: Tensor | tuple[Tensor, ...], pool: Pooling = "average"
) -> nn.Module:
    """A copy of ``model`` in which every use of a ReLU, however written, is a copy of ``activation`` of its own.

    ReLU, ReLU6, Hardtanh(0, c), LeakyReLU(0) as layers or functions, ``x.relu()``, ``x.clamp(0, c)``, in place or not.
    Where one is not a layer, or one layer is used several times, the copy is a ``GraphNetwork``: the same weights under
    the same names, run in the order that the model has in eval mode. λ starts at c where there is one.

    ``pool`` says what becomes of max-pooling: ``"average"`` pooling (train the network with it), ``"gate"``
    (max-pooling that counts spikes, exact layer by layer), or ``"keep"`` (``convert`` will refuse it). ``example`` is
    one input batch, a tuple for several inputs. Set the thresholds with ``init_thresholds`` or train them.
    """
    if not isinstance(activation, Activation):
        raise TypeError(f"the activation must be osp.QCFS(levels=…) or osp.ClippedReLU(), got {activation!r}")
    if pool not in get_args(Pooling):
        raise ValueError(f"pool must be one of {', '.join(get_args(Pooling))}; got {pool!r}")
    inputs = example if isinstance(example, tuple) else (example,)
    check(model, inputs)
    model = copy_of(model)
    _try(model, inputs)
    refuse([finding for finding in audit(stand_in(model), inputs) if MENDED not in finding.fix])
    steps = trace(stand_in(model), inputs)
    by_graph = _by_graph(model, steps, inputs, pool)
    if by_graph and not _faithful(model, steps, inputs, by_graph=True):
        raise ValueError(
            "an in-place ReLU changes a tensor that the model uses again under another name: take inplace=True out"
        )
    ann = _exchange(model, steps, activation, pool, by_graph=by_graph)
    if not any(isinstance(module, Activation) for module in ann.modules()):
        raise ValueError(
            "there is nothing to convert: this model has no ReLU behind a layer with weights. Put nn.ReLU() there"
        )
    remember_shapes(ann, inputs)
    return ann


@torch.no_grad()
def _try(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Whether the model takes its example."""
    try:
        deepcopy(model).eval()(*(x[:2].clone() for x in inputs))
    except Exception as error:  # the user's own code runs here and may raise anything
        raise ValueError(f"the model does not take this example: {str(error).partition(chr(10))[0]}") from error


def _by_graph(model: nn.Module, steps: list[Step], inputs: tuple[Tensor, ...], pool: Pooling) -> bool:
    """Whether it does not do to exchange layers: the copy has to be a graph."""
    if len(inputs) > _needed(model) or _needs_graph(steps, model, pool):
        return True
    tried = _exchange(model, steps, Rectifier(), pool, by_graph=False)
    try:
        left = [(step, layer(step, tried)) for step in trace(stand_in(tried), inputs)]
    except ValueError:  # the model also keeps a layer where it has no name, in a Python list
        return True
    hidden = any(sites.relu(*call) or (pool != "keep" and sites.pool(*call)) for call in left)
    return hidden or not _faithful(model, steps, inputs, by_graph=False)


def _needed(model: nn.Module) -> int:
    """How many inputs the model cannot do without; only a graph of it knows of others that it is to be given."""
    arguments = inspect.signature(model.forward).parameters.values()
    return sum(a.default is a.empty and a.kind is not a.VAR_KEYWORD for a in arguments)


def _needs_graph(steps: list[Step], model: nn.Module, pool: Pooling) -> bool:
    """Whether an activation or a max-pool is not a layer, or a layer used several times."""
    uses = Counter(layer(step, model) for step in steps)  # also those that stay: of the image itself
    for step in steps:
        module = layer(step, model)
        is_site = sites.relu(step, module) or (pool != "keep" and sites.pool(step, module))
        if is_site and (module is None or step.kwargs):  # relu(input=x): the new layer's argument has no such name
            return True
        if module is not None and (is_site or isinstance(module, Activation)) and uses[module] > 1:
            return True
    return False


def _exchange(
    model: nn.Module, steps: list[Step], activation: Activation, pool: Pooling, *, by_graph: bool
) -> nn.Module:
    """The copy of ``model`` with its activations and pools exchanged, as it is or as a graph."""
    model, like = deepcopy(model), weight(model)
    states = flow(steps, model)
    new: dict[str, nn.Module] = {}
    for step in steps:
        module = layer(step, model)
        if isinstance(module, Activation):
            new[step.name] = deepcopy(module)
        elif relu := sites.relu(step, module):
            # A threshold is as wide as the weights, and no less than float32.
            dtype = torch.promote_types(like.dtype, torch.float32)
            new[step.name] = _activation(activation, relu.cap).to(like.device, dtype)
        elif (found := sites.pool(step, module)) and pool != "keep":
            state = next((states[name] for name in [getattr(found.x, "name", "")] if name in states), "moving")
            new[step.name] = _pooling(step, found, pool, steady=state == "steady")
    if by_graph:
        return rewrite(model, steps, new)
    for step in steps:
        if step.name in new:
            put(model, model.get_submodule(step.target), new[step.name])
    return model


def _activation(activation: Activation, cap: float | None) -> Activation:
    """A copy that is bounded where the ReLU was."""
    if cap is not None and isinstance(activation, Rectifier):
        return ClippedReLU(float(cap))
    copy = deepcopy(activation)
    if cap is not None and isinstance(copy, Bounded):
        copy.set_threshold(torch.full_like(copy.lam, float(cap)))
        copy.cap = float(cap)
    return copy


def _pooling(step: Step, found: sites.Pool, pool: Pooling, *, steady: bool) -> nn.Module:
    if pool == "gate":
        return GatedMaxPool(found.axes, steady=steady, **found.options)
    try:
        return average(found.axes, found.options)
    except ValueError as error:
        where = step.target if step.kind == "module" else step.owner or "the model"
        source = f" ({step.source})" if step.source else ""
        raise ValueError(f"{where}{source}: {error}") from None


def _faithful(model: nn.Module, steps: list[Step], inputs: tuple[Tensor, ...], *, by_graph: bool) -> bool:
    """Whether the copy with plain ReLUs, not in place, still answers as the model does."""
    copy = _exchange(model, steps, Rectifier(), "keep", by_graph=by_graph).eval()
    tries = [[x[:2] for x in inputs]]
    if all(x.is_floating_point() for x in inputs):  # what goes wrong may not show on an example that is all zeros
        tries.append(random_inputs([tuple(x.shape[1:]) for x in inputs], like=inputs[0]))
    return all(alike(deepcopy(model).eval(), copy, given) for given in tries)


@torch.no_grad()
def init_thresholds(
    ann: nn.Module,
    batch: Tensor | tuple[Tensor, ...],
    *,
    quantile: float = 0.999,
    floor: float = 0.1,
    rule: Rule | None = None,
) -> nn.Module:
    """Set each λ to the ``quantile`` of what reaches its activation, and to no less than ``floor``; returns ``ann``.

    One forward pass (in the mode the network is in): an activation gets its λ just before it runs, so the layers
    behind it already see its clipped output. λ per channel keeps one value per channel. Where the activation stands for
    a bounded one (ReLU6), λ is no larger than that bound.

    With a ``rule`` of ``osp.thresholds`` λ follows from that instead: ``rule=LeastError(4)`` gives each channel the λ
    whose 4 levels represent its values best, a good start for a few epochs of fine-tuning.
    """
    check(ann, batch)
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile must be in (0, 1], got {quantile}")

    def measure(name: str, module: Bounded, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().float()
        if rule is not None:
            lam = once(rule, x.clamp(0, module.cap))
        elif module.log2_lam.numel() == 1:
            lam = _quantile(x.flatten().unsqueeze(0), quantile).reshape(module.log2_lam.shape)
        else:
            lam = _quantile(x.transpose(0, 1).flatten(1), quantile).reshape(module.log2_lam.shape)
        dtype = module.log2_lam.dtype
        module.set_threshold(lam.clamp(min=floor).clamp(max=module.cap)).to(dtype)

    with before({name: m for name, m in ann.named_modules() if isinstance(m, Bounded)}, measure):
        ann(*(batch if isinstance(batch, tuple) else (batch,)))
    return ann


def _quantile(rows: Tensor, quantile: float) -> Tensor:
    """The value of that rank in each row, of at most about a million evenly spaced entries of it."""
    rows = rows[:, :: max(1, rows.shape[1] // SAMPLE)]
    rank = min(rows.shape[1], max(1, round(quantile * rows.shape[1])))
    return rows.sort(1).values[:, rank - 1]
