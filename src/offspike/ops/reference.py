"""The specification: an integrate-and-fire neuron with soft reset (Eq. 2 and 4), one plain PyTorch step at a time.

``current`` is ``[T, N]``; ``theta`` and ``v0`` are ``[N]`` or ``[1]``, in the state's dtype. Kernels must return the
same bits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["convolve", "fire", "fire_signed", "probe"]


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


def convolve(spikes: Tensor, weight: Tensor, scale: Tensor, *, stride: int = 1) -> Tensor:
    """``spikes [T, B, H, W, C]``, ``weight [O, k, k, C]`` -> currents ``[T, B, H', W', O]``, padded by k // 2.

    Sums are exact where they fit 53 bits, and rounded once, to float32; then each channel is multiplied with its scale.
    """
    x = spikes.flatten(0, 1).permute(0, 3, 1, 2).double()
    y = F.conv2d(x, weight.permute(0, 3, 1, 2).double(), stride=stride, padding=weight.shape[1] // 2)
    # cuDNN returns float64 channels-first, whatever it was given.
    y = y.permute(0, 2, 3, 1).float().contiguous()
    return y.view(*spikes.shape[:2], *y.shape[1:]) * scale
