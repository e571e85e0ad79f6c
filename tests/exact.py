"""Exact arithmetic for tests: numbers on a grid of 2⁻⁵ with thresholds that are powers of two never round."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

GRID = 32

thresholds = st.sampled_from([0.25, 0.5, 1.0, 2.0])


@st.composite
def currents(draw: st.DrawFn, *, min_steps: int = 1, max_steps: int = 8, neurons: int = 6) -> Tensor:
    """``[T, N]`` with values in [−3, 3] on the grid."""
    steps = draw(st.integers(min_steps, max_steps))
    width = draw(st.integers(1, neurons))
    values = st.integers(-3 * GRID, 3 * GRID)
    flat = draw(st.lists(values, min_size=steps * width, max_size=steps * width))
    return torch.tensor(flat, dtype=torch.float64).reshape(steps, width) / GRID


@dataclass
class Run:
    """One neuron, transcribed from Eq. 2 and 4 into plain Python."""

    spikes: list[int]
    potentials: list[float]  # v(t) after the reset

    @property
    def count(self) -> int:
        return sum(self.spikes)


def simulate(current: list[float], theta: float, v0: float) -> Run:
    spikes, potentials, v = [], [], v0
    for i in current:
        v += i
        s = int(v >= theta)
        v -= s * theta
        spikes.append(s)
        potentials.append(v)
    return Run(spikes, potentials)


def ann_count(current: list[float], theta: float) -> int:
    """Eq. 7 with L = T on the mean input, as a number of spikes: clip(⌊ΣI/θ + ½⌋, 0, T)."""
    return min(max(int((sum(current) / theta + 0.5) // 1), 0), len(current))


@torch.no_grad()
def dyadic(model: torch.nn.Module, *, seed: int = 0) -> torch.nn.Module:
    """Put every weight, threshold and statistic of a model on a power-of-two grid, in eval mode: its sums are exact."""
    draw = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eps = 0.0
            module.running_var.fill_(1.0)
            module.running_mean.copy_(_grid(module.running_mean, 2, 4, draw))
            if not module.affine:
                continue
            module.weight.copy_(torch.tensor([0.5, 1.0])[torch.randint(0, 2, module.weight.shape, generator=draw)])
            module.bias.copy_(_grid(module.bias, 4, 8, draw))
        elif isinstance(module, torch.nn.modules.conv._ConvNd | torch.nn.Linear):
            module.weight.copy_(_grid(module.weight, 3, 4, draw))
            if module.bias is not None:
                module.bias.copy_(_grid(module.bias, 3, 8, draw))
    for k, module in enumerate(m for m in model.modules() if hasattr(m, "set_threshold")):
        module.set_threshold([1.0, 0.5][k % 2])
    return model.eval()


def dyadic_images(*shape: int, seed: int = 0) -> Tensor:
    """Images with values in [−1, 1] on a grid of 1/8."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)) / 8


def _grid(like: Tensor, top: int, fraction: int, draw: torch.Generator) -> Tensor:
    return torch.randint(-top, top + 1, like.shape, generator=draw) / fraction
