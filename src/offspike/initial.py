"""Where the membrane starts: policies for v(0). The paper lives here.

A policy is a small frozen value, called with the currents of a layer ``[T, …]`` and its threshold:
``policy(current, theta) -> v0``. It listens to the first ``rho`` steps only (0: it does not listen at all). Calibration
is per sample: the same neuron starts elsewhere for another image.
"""

import functools
import math
import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from offspike import ops
from offspike.clock import keep_whole, whole
from offspike.equations import heard_count, interval, offset_spikes, shift_for_one_spike, spread, within

__all__ = [
    "POLICIES",
    "Constant",
    "Exact",
    "Policy",
    "Residual",
    "Shift",
    "Silence",
    "Uniform",
    "phases",
]


@runtime_checkable
class Policy(Protocol):
    """How v(0) is chosen. ``rho`` is how many steps of its input a neuron listens to before it starts."""

    @property
    def rho(self) -> int:
        """Steps listened to."""
        ...

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """v(0) for currents ``[T, …]``, T >= ρ."""
        ...


@dataclass(frozen=True)
class Constant:
    """``v(0) = fraction · θ``; θ/2 is the best constant (QCFS)."""

    fraction: float = 0.5
    rho: ClassVar[int] = 0

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """The same everywhere."""
        return (_theta(current, theta) * self.fraction).expand(current.shape[1:])


@dataclass(frozen=True)
class Uniform:
    """``v(0) ~ U[0, θ)``, drawn once for each neuron from ``seed``: the same for every sample, call and device.

    ``current`` is ``[T, B, …]``, or ``[T, N]`` for N neurons without a batch. Layers of one shape would draw the same
    numbers: ``convert`` gives each a seed of its own.
    """

    seed: int = 0
    rho: ClassVar[int] = 0

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """One draw a neuron, shared by the batch."""
        neurons = current.shape[2:] if current.ndim > 2 else current.shape[1:]
        draw = _draw(self.seed, tuple(neurons), current.device).to(ops.state_dtype(current))
        return (_theta(current, theta) * draw).expand(current.shape[1:])

    def seed_of(self, layer: str) -> int:
        """The seed of the layer with this name, from 1 to 2³¹ − 1."""
        return zlib.crc32(f"{self.seed} {layer}".encode()) % (2**31 - 1) + 1


@dataclass(frozen=True)
class Residual:
    """The paper's lightweight scheme (appendix A.5): run ρ steps from θ/2, start again from where they ended.

    ``v(0) ← v(ρ)`` makes ``v(T) − v(0)``, the error term of Eq. 5, small.
    """

    rho: int

    def __post_init__(self) -> None:
        _set_rho(self)

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """v(ρ)."""
        theta = _theta(current, theta)
        _, v_end, _, _ = ops.probe(_first(current, self.rho), theta, theta / 2)
        return v_end


@dataclass(frozen=True)
class Shift:
    """The paper's calibration (Section 4.3): judge the offset spikes, shift v(0) so that one spike comes or goes.

    Each iteration changes the count by one, so k iterations mend |ψ| <= k. A neuron that fired in all ρ steps and is
    still above θ cannot fire more often: Theorem 1 (ii) leaves it alone (``saturated="keep"``); the authors' released
    code makes it fire for ever (``"pin"``: v(0) = +∞).
    """

    rho: int
    iterations: int = 1
    eps: float = 1e-3
    saturated: Literal["keep", "pin"] = "keep"

    def __post_init__(self) -> None:
        _set_rho(self)
        keep_whole(self, "iterations")
        _check_eps(self.eps, below=1.0)
        _check_choice("saturated", self.saturated, ("keep", "pin"))

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """θ/2 and the shifts of Theorem 2."""
        current, theta = _first(current, self.rho), _theta(current, theta)
        v0 = (theta / 2).expand(current.shape[1:])
        for _ in range(self.iterations):
            count, v_end, low, high = ops.probe(current, theta, v0)
            # Without the upper clip at ρ a saturated neuron still asks for spikes; its ``high`` is −∞, its shift +∞.
            most = self.rho if self.saturated == "keep" else self.rho + 1
            psi = offset_spikes(count, v_end, v0, theta, most)
            v0 = v0 + shift_for_one_spike(psi, low, high, theta, self.eps)
        return v0


@dataclass(frozen=True)
class Exact:
    """One pass, no iteration: start inside the interval from which the neuron fires exactly as often as the ANN says.

    The interval ``[D[k], D[k+1])`` (see ``equations.interval``) is at least θ wide, so there is room to choose; the
    choice decides how good every T ≠ ρ is (docs/theory.md). ``eps·θ`` keeps clear of its edges, where rounding could
    tip a spike. ``place``:

    - ``"even"``: the k spikes spread evenly over the ρ steps, each neuron with a phase u of its own (:func:`phases`):
      ``⌊t·k/ρ + u⌋`` spikes by step t, for t = 1, 2, … in turn as near as the currents allow;
    - ``"carry"``: the same, but the neurons of a map ``[C, H, W]`` hand on what rounding left over: u is that of the
      map, plus what the neurons before it in the map owe by step t (:func:`offspike.ops.carry`). Whoever adds them up,
      as a pooling layer does, gets nearly the ANN's sum at every t. Layers without maps are as with ``"even"``;
    - ``"first"``: ``θ/2 + kθ/ρ − I(1)``, as near as the interval allows: the first step fires iff the rate is >= ½;
    - ``"near"``: as near to θ/2 as the interval allows;
    - ``"middle"``: the middle of the interval (of its θ next to the finite end where the other is infinite).
    """

    rho: int
    place: Literal["even", "carry", "first", "middle", "near"] = "even"
    eps: float = 2.0**-10

    def __post_init__(self) -> None:
        _set_rho(self)
        _check_eps(self.eps, below=0.5)
        _check_choice("place", self.place, ("even", "carry", "first", "middle", "near"))

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """A potential inside ``[D[k], D[k+1])``."""
        return self.start(current, theta, phases(current[0]))

    def start(self, current: Tensor, theta: Tensor | float, u: Tensor) -> Tensor:
        """The same for neurons with these phases."""
        current, theta = _first(current, self.rho).to(ops.state_dtype(current)), _theta(current, theta)
        if self.place == "carry" and self.in_maps(current):
            return ops.carry(current, theta, u, self.eps)
        count = heard_count(current, theta)
        low, high = interval(current, theta, count)
        if self.place == "middle":
            low, high = torch.where(count > 0, low, high - theta), torch.where(count < self.rho, high, low + theta)
            return (low + high) / 2
        margin = theta * self.eps
        low, high = low + margin, high - margin
        if self.place in ("even", "carry"):
            u = u.to(count.dtype)
            low, high, _ = spread(current, theta, count, low, high, [u] * (self.rho - 1))
            return within(u * theta, low, high, margin)  # an edge that has cut is kept clear of, too
        wish = theta / 2
        if self.place == "first":
            # Times 1/ρ: dividing by a Python number is rounded differently on a GPU.
            wish = wish + count * theta * (1 / self.rho) - current[0]
        return torch.minimum(torch.maximum(wish, low), high)

    @staticmethod
    def in_maps(current: Tensor) -> bool:
        """Whether currents ``[T, B, C, H, W]`` (or more axes) come from maps, whose neurons are added up alike."""
        return current.ndim >= 5


def phases(step: Tensor) -> Tensor:
    """A number in [0, 1) for each neuron of a step ``[B, …]`` (or ``[N]``), the same for all samples and devices.

    Neuron n has ``frac(½ + n/φ)``, φ the golden ratio: consecutive neurons, and any run of them, are spread as evenly
    as can be. In 32-bit integers n/φ is n·2654435769 (Knuth), of which 24 bits are exact in float32.
    """
    neurons = step.shape[1:] if step.ndim > 1 else step.shape
    n = torch.arange(math.prod(neurons), device=step.device)
    fraction = (n * 2654435769 + 2**31) % 2**32 // 2**8
    return (fraction.float() * 2.0**-24).reshape(neurons).expand(step.shape)


@dataclass(frozen=True)
class Silence:
    """SRP: run ρ steps from θ/2; who is left with nothing, ``v(ρ) <= eps·θ``, stays silent (v(0) = −∞); others at θ/2.

    A neuron whose currents come to less than 0 should not fire at all; one that did so early shows it by a potential
    below 0. It is meant for the causal schedule, where it costs ρ ticks in all.
    """

    rho: int
    eps: float = 1e-3

    def __post_init__(self) -> None:
        _set_rho(self)
        _check_eps(self.eps, below=1.0)

    def __call__(self, current: Tensor, theta: Tensor | float) -> Tensor:
        """θ/2 or −∞."""
        theta = _theta(current, theta)
        _, v_end, _, _ = ops.probe(_first(current, self.rho), theta, theta / 2)
        return torch.where(v_end > theta * self.eps, theta / 2, -torch.inf)


POLICIES = (Constant, Uniform, Residual, Shift, Exact, Silence)


@functools.lru_cache(maxsize=64)
def _draw(seed: int, neurons: tuple[int, ...], device: torch.device) -> Tensor:
    """Drawn on the host, and kept on the device: bringing it there would stall a queue."""
    with torch.inference_mode(False):
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(neurons, generator=generator, dtype=torch.float64).to(device)


def _theta(current: Tensor, theta: Tensor | float) -> Tensor:
    return torch.as_tensor(theta, dtype=ops.state_dtype(current), device=current.device)


def _first(current: Tensor, rho: int) -> Tensor:
    if len(current) < rho:
        raise ValueError(f"this policy listens to rho={rho} steps and was given {len(current)}")
    return current[:rho]


def _set_rho(policy: Policy) -> None:
    """A plain ``int``, whatever kind of whole number it was: it is written into reports and checkpoints."""
    why = " (it is how many steps a layer listens to before it starts)"
    object.__setattr__(policy, "rho", whole("rho", policy.rho, why=why))


def _check_eps(eps: float, *, below: float) -> None:
    if not 0 < eps < below:
        raise ValueError(f"eps is a fraction of the threshold and must lie in (0, {below:g}), got {eps}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
