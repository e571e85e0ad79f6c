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
