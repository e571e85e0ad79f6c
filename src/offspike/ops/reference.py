"""The specification: an integrate-and-fire neuron with soft reset (Eq. 2 and 4), one plain PyTorch step at a time.

``current`` is ``[T, N]``; ``theta`` and ``v0`` are ``[N]`` or ``[1]``, in the state's dtype. Kernels must return the
same bits. And where neurons start that hand on, along a map, what rounding left over (``carry``).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from offspike.equations import heard_count, interval, spread, within

__all__ = ["BASE", "carry", "convolve", "fire", "fire_signed", "probe"]

BASE = 256  # of the digits of whole weights


def fire(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``m = v + I;  s = [m ≥ θ];  v = m − s·θ``  ->  spikes ``[T, N]`` in the current's dtype, v(T) ``[N]``."""
    v = v0.expand(current.shape[1:]).clone()
    spikes = torch.empty_like(current)
    for t, step in enumerate(current):
        m = v + step.to(v.dtype)
        s = m >= theta
        v = torch.where(s, m - theta, m)
        spikes[t] = s
    return spikes, v


def fire_signed(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``s = [m ≥ θ] − [m ≤ −θ and Σs > 0];  v = m − s·θ``: a spike too many is taken back by a negative one."""
    v = v0.expand(current.shape[1:]).clone()
    sent = torch.zeros_like(v)
    spikes = torch.empty_like(current)
    for t, step in enumerate(current):
        m = v + step.to(v.dtype)
        up, down = m >= theta, (m <= -theta) & (sent > 0)
        v = torch.where(up, m - theta, torch.where(down, m + theta, m))
        s = up.to(v.dtype) - down.to(v.dtype)
        sent = sent + s
        spikes[t] = s
    return spikes, v


def probe(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fire, and keep what Theorem 2 asks for: count, v(T), ``min{v(t)|s(t)=1}``, ``max{v(t)|s(t)=0}``, each ``[N]``."""
    v = v0.expand(current.shape[1:]).clone()
    count = torch.zeros_like(v)
    low, high = torch.full_like(v, torch.inf), torch.full_like(v, -torch.inf)
    for step in current:
        m = v + step.to(v.dtype)
        s = m >= theta
        v = torch.where(s, m - theta, m)
        count = count + s
        low = torch.where(s, torch.minimum(low, v), low)
        high = torch.where(s, high, torch.maximum(high, v))
    return count, v, low, high


def carry(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
    """v(0) ``[B, P, C]`` for currents ``[ρ, B, P, C]``: B samples, maps of P neurons, one map for each of C channels.

    Neuron p wants ``⌊t·k/ρ + u + owed(t)/ρ⌋`` spikes by step t, where u is the phase of the map (of its first neuron)
    and owed(t) the sum of ``t·k − ρ·n(t)`` over the neurons before it: what those fire too little or too much. It gets
    the nearest that its currents allow (:func:`offspike.equations.spread`). ``phase`` is ``[P, C]``, ``theta`` ``[1]``
    or one for each neuron.
    """
    rho, current = len(current), current.to(theta.dtype)
    each = theta if len(theta) == 1 else theta.view(current.shape[1:])
    theta, u = each.expand(current.shape[1:]), phase.expand(current.shape[1:])
    count = heard_count(current, theta)
    low, high = interval(current, theta, count)
    margin, share = theta * eps, 1 / rho
    low, high = low + margin, high - margin
    owed = [torch.zeros_like(count[:, 0]) for _ in range(rho - 1)]
    v0 = torch.empty_like(count)
    for p in range(count.shape[1]):
        k, each = count[:, p], theta[:, p]
        wishes = [u[:, 0] + late * share for late in owed]
        left, right, fired = spread(current[:, :, p], each, k, low[:, p], high[:, p], wishes)
        owed = [late + (k * t - n * rho) for t, (late, n) in enumerate(zip(owed, fired, strict=True), start=1)]
        v0[:, p] = within(u[:, p] * each, left, right, margin[:, p])
    return v0


def convolve(spikes: Tensor, weight: Tensor, scale: Tensor, *, stride: int = 1) -> Tensor:
    """``spikes [T, B, H, W, C]``, ``weight [digits, O, k, k, C]`` -> currents ``[T, B, H', W', O]``, padded by k // 2.

    Weights are whole numbers to the base BASE, highest digit first. Sums are exact where they fit 53 bits, and rounded
    once, to float32; then each channel is multiplied with its scale.
    """
    whole = torch.zeros_like(weight[0], dtype=torch.float64)
    for digit in weight:
        whole = whole * BASE + digit
    x = spikes.flatten(0, 1).permute(0, 3, 1, 2).double()
    y = F.conv2d(x, whole.permute(0, 3, 1, 2), stride=stride, padding=weight.shape[2] // 2)
    # cuDNN returns float64 channels-first, whatever it was given.
    y = y.permute(0, 2, 3, 1).float().contiguous()
    return y.view(*spikes.shape[:2], *y.shape[1:]) * scale
