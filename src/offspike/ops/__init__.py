"""The integrate-and-fire neuron over time, as ``torch.library`` operators.

``torch.library`` picks the kernel by device: numba on the CPU (`cpu.py`), Triton on a GPU (`gpu.py`), and the plain
PyTorch specification (`reference.py`) anywhere else. All of them return the same bits. Currents may be float64,
float32, bfloat16 or float16; potentials are float64 for float64 currents and float32 otherwise.
"""

import math
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from offspike.ops import reference

__all__ = [
    "LONGEST",
    "Flat",
    "backend",
    "carry",
    "check_listening",
    "fire",
    "fire_signed",
    "flatten",
    "probe",
    "state_dtype",
]

CURRENT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LONGEST = 8  # steps that a product and its neurons keep on chip at once (`conv.py`): sums of more do not fit registers


def fire(current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor]:
    """Run IF neurons with soft reset over ``current [T, …]`` from ``v0``: spikes ``[T, …]`` and v(T) ``[…]``.

    ``theta`` and ``v0`` are numbers or broadcast to one step of the current. ``θ·Σs = ΣI + v(0) − v(T)`` holds exactly
    up to the rounding of sums.
    """
    flat = flatten(current, theta, v0)
    spikes, v_end = _fire(flat.current, flat.theta, flat.v0)
    return flat.restore(spikes), flat.restore(v_end)


def probe(current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run as ``fire`` does and say what happened: ``(count, v_end, low, high)``, each like one step of the current.

    ``low = min{v(t) | s(t) = 1}`` (+∞ if it never fired) and ``high = max{v(t) | s(t) = 0}`` (−∞ if it always did) say
    how narrowly.
    """
    flat = flatten(current, theta, v0)
    count, v_end, low, high = _probe(flat.current, flat.theta, flat.v0)
    return flat.restore(count), flat.restore(v_end), flat.restore(low), flat.restore(high)


def fire_signed(current: Tensor, theta: Tensor | float, v0: Tensor | float) -> tuple[Tensor, Tensor]:
    """Run as ``fire`` does, with spikes in {−1, 0, 1}: below −θ a neuron takes back a spike that it has sent."""
    flat = flatten(current, theta, v0)
    spikes, v_end = _fire_signed(flat.current, flat.theta, flat.v0)
    return flat.restore(spikes), flat.restore(v_end)


def carry(current: Tensor, theta: Tensor | float, phase: Tensor, eps: float) -> Tensor:
    """v(0) ``[B, C, …]`` of neurons that fire as often as the ANN says, for the ρ currents ``[ρ, B, C, …]`` of maps.

    Each spreads its spikes evenly; what rounding leaves over goes on to the next neuron of the map, so that the map as
    a whole has fired about ``t/ρ·Σk`` times by each step t (``reference.carry``). ``phase`` broadcasts to one step of
    the current and is that of the first sample for all.
    """
    shape, state = current.shape[1:], state_dtype(current)
    theta = _value(theta, state, current.device)

    def laid(x: Tensor) -> Tensor:  # channels innermost, as they are where this comes from
        return x.flatten(-len(shape) + 2).transpose(-1, -2).contiguous()

    thetas = theta.detach().reshape(1) if theta.numel() == 1 else laid(theta.detach().expand(shape)).flatten()
    u = laid(phase.expand(shape)[0].to(state))
    v0: Tensor = _carry(laid(current.detach()), thetas, u, eps)
    return v0.transpose(1, 2).reshape(shape)


def backend(device: torch.device | str) -> str:
    """Which implementation runs on a device: ``"numba"``, ``"triton"`` or ``"reference"``."""
    kind = torch.device(device).type
    if kind == "cpu" and find_spec("numba"):
        return "numba"
    if kind == "cuda" and find_spec("triton"):
        return "triton"
    return "reference"


def state_dtype(current: Tensor) -> torch.dtype:
    """The dtype of membrane potentials for this current."""
    return torch.float64 if current.dtype == torch.float64 else torch.float32


def check_listening(rho: int, steps: int) -> None:
    """Refuse a policy that wants to hear more than there is."""
    if steps < rho:
        raise ValueError(f"this policy listens to rho={rho} steps and was given {steps}")


class Flat(NamedTuple):
    """Operands as kernels take them: ``current [T, N]`` contiguous, ``theta`` and ``v0`` ``[N]`` or ``[1]``."""

    current: Tensor
    theta: Tensor
    v0: Tensor
    sizes: tuple[int, ...]  # of one step, in memory order
    inverse: tuple[int, ...]  # from memory order back to the caller's axes

    def lay(self, x: Tensor) -> Tensor:
        """``x [T, …]`` like the current, flat in the same order."""
        order = sorted(range(len(self.inverse)), key=lambda axis: self.inverse[axis])
        return x.permute(0, *(axis + 1 for axis in order)).reshape(len(x), math.prod(self.sizes))

    def channels(self, x: Tensor) -> tuple[Tensor, int]:
        """Values that vary along one axis of a sample, flat, and how many neurons in a row share one of them."""
        axis = next((axis for axis in range(1, x.ndim + 1) if x.shape[-axis] > 1), 1)
        place = self.inverse[len(self.inverse) - axis]
        return x.flatten(), math.prod(self.sizes[place + 1 :])

    def restore(self, x: Tensor, *, halved: bool = False) -> Tensor:
        """``[N]`` or ``[T, N]`` in the caller's axes and memory layout; ``halved`` in the last two (pooled by 2)."""
        steps, last = x.ndim - 1, {self.inverse[axis] for axis in (-2, -1)} if halved else set()
        sizes = [size // 2 if axis in last else size for axis, size in enumerate(self.sizes)]
        x = x.reshape((*x.shape[:-1], *sizes))
        return x.permute((*range(steps), *(steps + axis for axis in self.inverse)))


def flatten(current: Tensor, theta: Tensor | float, v0: Tensor | float | None = None) -> Flat:
    """Check the operands and lay them out flat, in the order in which the current lies in memory (no copy if dense)."""
    if current.dtype not in CURRENT_DTYPES:
        raise TypeError(f"currents must be float64, float32, bfloat16 or float16, got {current.dtype}")
    if current.ndim < 1 or current.shape[0] < 1:
        raise ValueError(f"current must be [T, …] with T >= 1, got shape {tuple(current.shape)}")
    shape, state = current.shape[1:], state_dtype(current)
    theta = _value(theta, state, current.device)
    # Only where looking at values neither stalls a queue nor breaks a graph.
    looked_at = theta.numel() and theta.device.type == "cpu" and not torch.compiler.is_compiling()
    if looked_at and not (least := theta.min().item()) > 0:
        raise ValueError(f"thresholds must be positive, got {least:g}")
    order = sorted(range(len(shape)), key=lambda axis: -current.stride(axis + 1))
    inverse = tuple(order.index(axis) for axis in range(len(shape)))

    def lay(name: str, x: Tensor) -> Tensor:
        if x.numel() == 1:
            return x.detach().reshape(1)
        try:
            full = x.expand(shape)
        except RuntimeError as error:
            raise ValueError(f"{name} {tuple(x.shape)} does not broadcast to one step {tuple(shape)}") from error
        return full.detach().permute(order).reshape(math.prod(shape))

    thetas = lay("theta", theta)
    flat = current.detach().permute(0, *(axis + 1 for axis in order)).reshape(len(current), math.prod(shape))
    return Flat(
        flat.contiguous(),
        thetas,
        thetas if v0 is None else lay("v0", _value(v0, state, current.device)),  # who gives no v(0) does not read it
        tuple(shape[axis] for axis in order),
        inverse,
    )


def _value(x: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Filled in on the device: a copy from the host could not be recorded in a CUDA graph.
    return x.to(device, dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=device)


@torch.library.custom_op("offspike::fire", mutates_args=())
def _fire(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    return reference.fire(current, theta, v0)


@_fire.register_fake
def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(current), current.new_empty(current.shape[1], dtype=theta.dtype)


@torch.library.custom_op("offspike::fire_signed", mutates_args=())
def _fire_signed(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    return reference.fire_signed(current, theta, v0)


@_fire_signed.register_fake
def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(current), current.new_empty(current.shape[1], dtype=theta.dtype)


@torch.library.custom_op("offspike::probe", mutates_args=())
def _probe(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return reference.probe(current, theta, v0)


@_probe.register_fake
def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    one = current.new_empty(current.shape[1], dtype=theta.dtype)
    return one, torch.empty_like(one), torch.empty_like(one), torch.empty_like(one)


@torch.library.custom_op("offspike::carry", mutates_args=())
def _carry(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
    return reference.carry(current, theta, phase, eps)


@_carry.register_fake
def _(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
    return current.new_empty(current.shape[1:], dtype=theta.dtype)


# Imported where they run: neither numba nor Triton is loaded before the first spike. Without them PyTorch runs.
if backend("cpu") == "numba":

    @_fire.register_kernel("cpu")
    def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
        from offspike.ops import cpu

        return cpu.fire(current, theta, v0)

    @_fire_signed.register_kernel("cpu")
    def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
        from offspike.ops import cpu

        return cpu.fire_signed(current, theta, v0)

    @_probe.register_kernel("cpu")
    def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from offspike.ops import cpu

        return cpu.probe(current, theta, v0)

    @_carry.register_kernel("cpu")
    def _(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
        from offspike.ops import cpu

        return cpu.carry(current, theta, phase, eps)


if backend("cuda") == "triton":

    @_fire.register_kernel("cuda")
    def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
        from offspike.ops import gpu

        return gpu.fire(current, theta, v0)

    @_probe.register_kernel("cuda")
    def _(current: Tensor, theta: Tensor, v0: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from offspike.ops import gpu

        return gpu.probe(current, theta, v0)

    @_carry.register_kernel("cuda")
    def _(current: Tensor, theta: Tensor, phase: Tensor, eps: float) -> Tensor:
        from offspike.ops import gpu

        if len(current) > gpu.LONGEST_TABLE:
            return reference.carry(current, theta, phase, eps)
        return gpu.carry(current, theta, phase, eps)
