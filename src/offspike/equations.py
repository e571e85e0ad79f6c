"""The paper's mathematics: pure, element-wise functions of tensors.

Letters are the paper's: θ ``theta`` threshold, v(0) ``v0`` initial potential, v(ρ) ``v_end`` residual potential,
ρ ``rho`` steps listened to, ψ ``psi`` offset spikes, λ ``lam`` and L ``levels`` of the ANN's activation.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = [
    "desired_count",
    "heard_count",
    "interval",
    "least_potentials",
    "offset_spikes",
    "pick",
    "qcfs",
    "shift_for_one_spike",
    "spread",
    "within",
]


class _Floor(torch.autograd.Function):
    """⌊x⌋ forward, identity backward (the straight-through estimator)."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.floor()

    @staticmethod
    def backward(ctx: object, *grad: Tensor) -> Tensor:
        return grad[0]


def qcfs(x: Tensor, lam: Tensor | float, levels: int) -> Tensor:
    """Eq. 7, the quantised activation: ``λ/L · clip(⌊x·L/λ + ½⌋, 0, L)``.

    Its gradient is that of ``clip(x, 0, λ)``, and λ also learns from the rounding: the floor passes gradients straight
    through. The clip comes before the floor too, which changes no value: behind it alone, gradients would pass half a
    level beyond both ends, for L = 1 over twice the range that the values have, and would grow from layer to layer.
    """
    lam = torch.as_tensor(lam, dtype=x.dtype, device=x.device)
    within = torch.minimum(x.clamp(min=0), lam)
    steps: Tensor = _Floor.apply(within * levels / lam + 0.5)  # type: ignore[no-untyped-call]
    return steps.clamp(0, levels) * (lam / levels)


def desired_count(total: Tensor, theta: Tensor, rho: int) -> Tensor:
    """How often the ANN would have a neuron fire: ``clip(⌊ΣI/θ + ½⌋, 0, ρ)`` for a total current ΣI over ρ steps."""
    return (total / theta + 0.5).floor().clamp(0, rho)


def heard_count(current: Tensor, theta: Tensor) -> Tensor:
    """:func:`desired_count` for currents ``[ρ, …]`` in the state's dtype, added up in the order in which they come."""
    total = torch.zeros_like(current[0])
    for step in current:
        total = total + step
    return desired_count(total, theta, len(current))


def offset_spikes(count: Tensor, v_end: Tensor, v0: Tensor, theta: Tensor, rho: int) -> Tensor:
    """Theorems 1 and 3 for any v(0): ``ψ = clip(n + ⌊(v(ρ) − v(0))/θ + ½⌋, 0, ρ) − n``.

    ψ is the number of spikes that a neuron which fired n times in ρ steps owes (ψ > 0) or fired too many (ψ < 0).
    """
    return (count + ((v_end - v0) / theta + 0.5).floor()).clamp(0, rho) - count


def shift_for_one_spike(psi: Tensor, low: Tensor, high: Tensor, theta: Tensor, eps: float) -> Tensor:
    """Theorem 2: what to add to v(0) so that the neuron fires once more (ψ > 0) or once less (ψ < 0).

    ``low`` is ``min{v(t) | s(t) = 1}`` (+∞ if it never fired), ``high`` is ``max{v(t) | s(t) = 0}`` (−∞ if it always
    did), and ε is ``eps·θ``::

        ψ < 0:  −max(θ, low + ε)         ψ > 0:  +max(θ, θ + ε − high)         ψ = 0:  0
    """
    margin = theta * eps
    down = -torch.maximum(theta, low + margin)
    up = torch.maximum(theta, theta + margin - high)
    return torch.where(psi < 0, down, torch.where(psi > 0, up, torch.zeros_like(up)))


def least_potentials(current: Tensor, theta: Tensor | float) -> Iterator[list[Tensor]]:
    """The tables D of a neuron: after each step t = 1 … ρ, ``D[k]`` is the least v(0) that has given k spikes by then.

    ``current`` is ``[ρ, …]``; a table is ``D[0] … D[ρ+1]``. The count grows with v(0), so one pass over the currents
    finds them (k descending at each step)::

        D[k] ← min(D[k], max(D[k−1], kθ − (I(1) + … + I(t)))),   D[0] = −∞, every other D = +∞ at the start
    """
    rho = len(current)
    state = torch.float64 if current.dtype == torch.float64 else torch.float32
    theta = torch.as_tensor(theta, dtype=state, device=current.device)
    total = torch.zeros_like(current[0], dtype=state)
    least = [torch.full_like(total, -torch.inf)] + [torch.full_like(total, torch.inf) for _ in range(rho + 1)]
    for step in current.to(state):
        total = total + step
        for k in range(rho, 0, -1):
            least[k] = torch.minimum(least[k], torch.maximum(least[k - 1], k * theta - total))
        yield list(least)


def interval(current: Tensor, theta: Tensor | float, count: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The half-open interval ``[low, high)`` of initial potentials from which a neuron fires exactly ``count`` times.

    ``current`` is ``[ρ, …]``; without ``count`` the ANN's own count is meant. The interval is ``[D[k], D[k+1])`` of the
    last table of :func:`least_potentials`: at least θ wide, open to −∞ for k = 0 and to +∞ for k = ρ.
    """
    *_, table = least_potentials(current, theta)
    if count is None:
        state, device = table[0].dtype, current.device
        count = heard_count(current.to(state), torch.as_tensor(theta, dtype=state, device=device))
    return pick(table, count), pick(table, count + 1)


def spread(
    current: Tensor, theta: Tensor, count: Tensor, low: Tensor, high: Tensor, phases: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The part of ``[low, high)``, from which a neuron fires k times, that spreads the k spikes evenly over ρ steps.

    For t = 1, 2, … ρ − 1 in turn it is cut down to the potentials whose count by step t is nearest to ⌊t·k/ρ + u⌋, u
    being ``phases[t − 1]``. What is left has fired n times before step t, so one edge divides it: from
    ``(n+1)θ − (I(1) + … + I(t))`` on, potentials fire at step t. Returns its two ends, and the count by each t.
    """
    total, n, counts = torch.zeros_like(count), torch.zeros_like(count), []
    for t, (step, u) in enumerate(zip(current, phases, strict=False), start=1):
        total = total + step
        edge = (n + 1) * theta - total
        wanted = count * t * (1 / len(current)) + u >= n + 1  # the floor of it is >= n + 1, too
        divided = (low < edge) & (edge < high)
        n = torch.where((edge <= low) | (divided & wanted), n + 1, n)
        low, high = torch.where(divided & wanted, edge, low), torch.where(divided & ~wanted, edge, high)
        counts.append(n)
    return low, high, counts


def within(wish: Tensor, low: Tensor, high: Tensor, margin: Tensor) -> Tensor:
    """The nearest to ``wish`` in ``[low, high)`` that is ``margin`` clear of both ends, or as clear as can be."""
    margin = torch.minimum(margin, (high - low) / 2)
    return torch.minimum(torch.maximum(wish, low + margin), high - margin)


def pick(table: list[Tensor], index: Tensor) -> Tensor:
    """``table[index]``, neuron by neuron."""
    return torch.stack(table).gather(0, index.to(torch.int64).unsqueeze(0))[0]
