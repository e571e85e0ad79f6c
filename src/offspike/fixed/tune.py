"""``tune``: a few epochs for a network in fixed point, if rounding has cost too much.

Whole numbers are what is trained: a weight is ``⌊m⌉·2^-k``, and the gradient passes through the rounding to m as it
does through QCFS's floor. The teacher is the network in floating point, so no labels are needed.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from offspike.arithmetic.grids import finest, was_snapped
from offspike.arithmetic.roles import TRANSPOSED, role
from offspike.fixed.snap import check
from offspike.graph import GraphNetwork
from offspike.inspection.obstacles import check_model

__all__ = ["tune"]

SPREAD = 0.98


class _Round(torch.autograd.Function):
    """⌊m⌉ forward, identity backward."""

    @staticmethod
    def forward(ctx: object, m: Tensor) -> Tensor:
        return m.round()

    @staticmethod
    def backward(ctx: object, *grad: Tensor) -> Tensor:
        return grad[0]


class _OnGrid(nn.Module):
    """``m -> clip(⌊m⌉, lowest, highest)·unit``."""

    unit: Tensor

    def __init__(self, unit: Tensor, lowest: float, highest: float) -> None:
        super().__init__()
        self.register_buffer("unit", unit)
        self.limits = lowest, highest

    def forward(self, m: Tensor) -> Tensor:
        whole: Tensor = _Round.apply(m)  # type: ignore[no-untyped-call]
        return whole.clamp(*self.limits) * self.unit

    def right_inverse(self, value: Tensor) -> Tensor:
        return value / self.unit


def tune(
    snapped: GraphNetwork,
    loader: Iterable[Any],
    *,
    teacher: nn.Module,
    epochs: int = 1,
    lr: float = 0.005,
    progress: Callable[[float], None] | None = None,
) -> GraphNetwork:
    """A copy of a snapped network whose whole weights and biases were trained to answer as ``teacher`` does.

    ``loader`` gives batches of inputs, with labels (ignored) or without, and is gone through ``epochs`` times. ``lr``
    is Adam's, in units of the grids: about so many of them a step. Grids and bits stay; that sums are exact is checked
    again. ``progress(loss)`` hears of each batch.
    """
    check_model(snapped)
    check_model(teacher)
    if epochs < 1:
        raise ValueError(f"epochs must be >= 1, got {epochs}")
    if not was_snapped(snapped):
        raise ValueError("tune takes a network in fixed point: osp.snap(ann, …) makes one")
    network, teacher = deepcopy(snapped).eval(), deepcopy(teacher).eval()
    device = next(network.parameters()).device
    layers = _let_go(network)
    wholes = [p for name, p in network.named_parameters() if name.endswith(".original")]
    optimiser = torch.optim.Adam(wholes, lr=lr)
    shape: Tensor | None = None
    for _ in range(epochs):
        for batch in loader:
            x = (batch if isinstance(batch, Tensor) else batch[0]).to(device)
            shape = x[:1].detach().cpu()
            with torch.no_grad():
                wanted = teacher(x).softmax(1)
            loss = F.cross_entropy(network(x), wanted)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if progress is not None:
                progress(loss.item())
    for layer, name in layers:
        parametrize.remove_parametrizations(layer, name)
    if shape is None:
        raise ValueError("the data loader is empty: there is nothing to tune with")
    check(network, (shape,))
    return network


@torch.no_grad()
def _let_go(network: GraphNetwork) -> list[tuple[nn.Module, str]]:
    """Make whole numbers of every weight and bias, free to move on their grids."""
    found = []
    draw = torch.Generator().manual_seed(0)
    for node in network.graph.nodes:
        if role(node, network) != "synapse":
            continue
        layer: Any = network.get_submodule(node.target)
        for name in ("weight", "bias"):
            value = getattr(layer, name)
            if value is None:
                continue
            unit = _units(value, by_row=not isinstance(layer, TRANSPOSED)).to(value)
            most = float((value / unit).abs().max())
            limit = 2.0 ** torch.tensor(max(most, 1.0)).log2().ceil().item()
            bounds = (-limit, limit - 1) if name == "weight" else (-torch.inf, torch.inf)
            parametrize.register_parametrization(layer, name, _OnGrid(unit, *bounds))
            # Somewhere within the number's own interval: or all would leave it in the same step.
            original = layer.parametrizations[name].original
            original += (torch.rand(original.shape, generator=draw) - 0.5).to(original) * SPREAD
            found.append((layer, name))
    return found


def _units(values: Tensor, *, by_row: bool) -> Tensor:
    """The grid of each output channel, or one for all, to broadcast to the values."""
    grids = finest(values)
    rows = grids.reshape(len(grids), -1).amin(1).view(-1, *[1] * (values.ndim - 1)) if by_row else grids.min()
    return torch.where(rows.isfinite(), rows, grids[grids.isfinite()].min() if grids.isfinite().any() else 0.0).exp2()
