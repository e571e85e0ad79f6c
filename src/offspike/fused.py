"""Policy and neuron in one operator: a layer's currents are read once, its spikes written once, as they are needed.

The specification is the policy itself (`initial.py`), then the neuron (`ops/reference.py`); kernels return its bits.
On a GPU a product in whole numbers can be part of the kernel too (``Product``): no current is written at all.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from offspike import ops
from offspike.initial import Constant, Exact, Policy, Residual, Shift, phases

__all__ = ["LISTENING", "Drive", "Product", "Synapses", "alone", "calibrate_and_fire", "run"]

LISTENING = (Residual, Shift, Exact)  # the policies that the fused operators know


def alone(policy: Policy | None, current: Tensor) -> bool:
    """Whether each neuron listens for itself, as the fused operators do: v(0) is not what it hands on in a map."""
    carried = isinstance(policy, Exact) and policy.place == "carry" and policy.in_maps(current)
    return isinstance(policy, LISTENING) and not carried


@dataclass(frozen=True)
class Drive:
    """What drives the neurons of a layer, ``I(t) = current(t) + gain·beside(t) + bias``, and how spikes are written.

    ``current`` is ``[T, B, …]``, or ``[1, B, …]`` if it stays the same for ``steps`` steps. ``beside`` (a shortcut) has
    the shape of the current, ``bias`` varies along one axis of a sample. Spikes leave as ``θ·s``, or as ``s`` itself
    (``unit``: whoever takes them knows θ), in ``dtype`` (None: the current's). ``pool`` averages them over windows of
    2x2; the current's channels then lie innermost in memory.
    """

    current: Tensor
    steps: int
    beside: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    unit: bool = False
    dtype: torch.dtype | None = None
    pool: bool = False

    def total(self, steps: int | None = None) -> Tensor:
        """I(t), ``[T, B, …]``, where it cannot be made on the fly; of the first ``steps`` alone, if that is enough."""
        steps = self.steps if steps is None else min(steps, self.steps)
        total = self.current[:steps]
        if self.beside is not None or self.bias is not None:
            total = total.to(ops.state_dtype(total))
        if self.beside is not None:
            total = total + self.beside[:steps].to(total.dtype) * cast(Tensor, self.gain).to(total)
        if self.bias is not None:
            total = total + self.bias.to(total)
        return total.expand(steps, *total.shape[1:])

    def with_an_axis(self) -> "Drive":
        """The same for ``[T, B]``, as ``[T, B, 1]``."""
        beside = None if self.beside is None else self.beside.unsqueeze(-1)
        return replace(self, current=self.current.unsqueeze(-1), beside=beside)

    def write(self, spikes: Tensor, theta: Tensor) -> Tensor:
        """Spikes ``[T, B, …]`` of a neuron as they are wanted."""
        state = ops.state_dtype(spikes)  # θ is rounded once, when it is written
        out = spikes if self.unit else spikes.to(state) * theta.to(state)
        if self.pool:
            out = torch.nn.functional.avg_pool2d(out.flatten(0, 1), 2)
            out = out.view(len(spikes), -1, *out.shape[1:])
        return out.to(self.dtype or self.current.dtype)


@dataclass(frozen=True)
class Synapses:
    """A convolution or linear layer in whole numbers, each row times ``scale [O]``, powers of two.

    ``weight [digits, O, k, k, C]``, int8, holds their digits to the base 256, highest first.
    """

    weight: Tensor
    scale: Tensor
    stride: int = 1

    def __post_init__(self) -> None:
        if not bool((torch.frexp(self.scale)[0] == 0.5).all()):  # looked at when a plan is made, not when it runs
            raise ValueError("scales must be powers of two, so that multiplying a sum with them rounds nothing")


@dataclass(frozen=True)
class Product:
    """A drive in whole numbers that neurons make themselves: ``I(t) = scale·Σ w·s(t) + gain·beside(t) + bias``.

    ``spikes`` are whole numbers, int8: images ``[T, B, C, H, W]``, or ``[T, B, C]`` and ``[T, B, N, C]`` for a
    linear layer; what comes out is laid out alike, and so is ``beside``. ``bias`` is ``[O]``; θ and ``gain`` are one
    number each. Spikes leave as 0 and 1 in ``dtype``; ``pool`` counts them over windows of 2x2.
    """

    spikes: Tensor
    synapses: Synapses
    beside: Tensor | None = None
    gain: Tensor | None = None
    bias: Tensor | None = None
    dtype: torch.dtype = torch.int8
    pool: bool = False


def calibrate_and_fire(policy: Policy, current: Tensor, theta: Tensor | float) -> tuple[Tensor, Tensor]:
    """``fire(current, theta, policy(current, theta))``, in one kernel for the policies that listen."""
    if not alone(policy, current):
        return ops.fire(current, theta, policy(current, theta))
    out, v_end = run(Drive(current, len(current), unit=True), theta, policy=policy, keep=True)
    assert v_end is not None
    return out, v_end


def run(
    drive: Drive | Product,
    theta: Tensor | float,
    *,
    policy: Policy | None = None,
    v0: Tensor | None = None,
    keep: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The spikes of IF neurons that start where ``policy`` says, or at ``v0``; also v(T) if it is to be kept."""
    if isinstance(drive, Product):
        return _multiply_and_fire(drive, theta, policy=policy, v0=v0, keep=keep)
    if isinstance(policy, Constant):
        v0 = torch.as_tensor(theta, dtype=ops.state_dtype(drive.current), device=drive.current.device) * policy.fraction
    elif policy is not None and not alone(policy, drive.current):
        v0 = policy(drive.total(max(policy.rho, 1)), theta)
    flat = ops.flatten(drive.current, theta, v0)
    held = len(drive.current) == 1 and drive.steps > 1
    # A threshold, or what was made of one, may lie elsewhere or be narrower than the state.
    bias, inner = (None, 1) if drive.bias is None else flat.channels(drive.bias.to(flat.theta))
    if drive.pool and not drive.current[0].is_contiguous(memory_format=torch.channels_last):
        raise ValueError("spikes are pooled as they are written only where channels lie innermost in memory")
    sizes = drive.current.shape[2:] if drive.pool else (0, 0, 0)
    rule = _rule(policy) if v0 is None else _GIVEN
    out, v_end = _calibrate_and_fire(
        flat.current,
        flat.theta,
        **rule,
        v0=None if v0 is None else flat.v0,
        beside=None if drive.beside is None else flat.lay(drive.beside),
        gain=None if drive.gain is None else drive.gain.to(flat.theta).reshape(1),
        bias=bias,
        inner=inner,
        steps=drive.steps if held else 0,
        unit=drive.unit,
        dtype=drive.dtype,
        keep=keep,
        pool=sizes[0],
        width=sizes[2],
        phase=_phases(flat, drive.current) if rule["rule"] == "exact-even" else None,
    )
    return flat.restore(out, halved=drive.pool), flat.restore(v_end) if keep else None


def _multiply_and_fire(
    product: Product, theta: Tensor | float, *, policy: Policy | None, v0: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """``run`` for a product: one kernel, on a GPU."""
    from offspike.ops import conv

    spikes, synapses, outputs = product.spikes, product.synapses, product.synapses.weight.shape[1]
    image, seen = spikes.ndim == 5, _channels_last(spikes)
    rule, phase = _rule(policy) if v0 is None else _GIVEN, None
    if rule["rule"] == "exact-even":
        # A neuron's phase is that of its place in the caller's axes; the kernel reads pixels, then channels.
        size = [(length - 1) // synapses.stride + 1 for length in seen.shape[2:4]]
        shape, inverse = ((1, outputs, *size), (0, 3, 1, 2)) if image else ((1, *size, outputs), (0, 1, 2, 3))
        phase = _kept_phases(shape, inverse, spikes.device)
    out, v_end = conv.conv_and_fire(
        seen, synapses.weight, synapses.scale,
        torch.as_tensor(theta, dtype=torch.float32, device=spikes.device).flatten()[:1], **rule,
        stride=synapses.stride, v0=None if v0 is None else _channels_last(v0[None])[0],
        beside=None if product.beside is None else _channels_last(product.beside), gain=product.gain,
        bias=product.bias, phase=phase, dtype=product.dtype, pool=product.pool, keep=keep,
    )  # fmt: skip

    def laid(x: Tensor) -> Tensor:
        return x.movedim(-1, -3) if image else x.reshape(*x.shape[:-3], *spikes.shape[2:-1], outputs)

    return laid(out), None if v_end is None else laid(v_end)


def _channels_last(x: Tensor) -> Tensor:
    """``[T, B, C, H, W]``, ``[T, B, C]`` or ``[T, B, N, C]``, as ``[T, B, H, W, C]``."""
    if x.ndim == 5:
        return x.permute(0, 1, 3, 4, 2)
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:-1]), 1, x.shape[-1])


def _phases(flat: ops.Flat, current: Tensor) -> Tensor:
    """The neurons' phases in memory order: of one sample where samples lie one after the other, else of all."""
    shape, inverse = tuple(current.shape[1:]), flat.inverse
    if len(shape) > 1 and inverse[0] == 0:
        shape = (1, *shape[1:])
    make = _make_phases if torch.compiler.is_compiling() else _kept_phases
    return make(shape, inverse, current.device)


def _make_phases(shape: tuple[int, ...], inverse: tuple[int, ...], device: torch.device) -> Tensor:
    order = sorted(range(len(shape)), key=lambda axis: inverse[axis])
    return phases(torch.empty(shape, device=device)).permute(order).flatten().float()


@functools.lru_cache(maxsize=256)
def _kept_phases(shape: tuple[int, ...], inverse: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _make_phases(shape, inverse, device)


_GIVEN = {"rule": "given", "rho": 0, "iterations": 1, "eps": 0.0}


def _rule(policy: Policy | None) -> dict[str, Any]:
    """The policy as arguments of the fused operator, which takes plain values only."""
    match policy:
        case Residual(rho):
            return {"rule": "residual", "rho": rho, "iterations": 1, "eps": 0.0}
        case Shift(rho, iterations, eps, saturated):
            return {"rule": f"shift-{saturated}", "rho": rho, "iterations": iterations, "eps": eps}
        case Exact(rho, place, eps):
            place = "even" if place == "carry" else place  # where there are no maps
            return {"rule": f"exact-{place}", "rho": rho, "iterations": 1, "eps": eps}
    raise TypeError(f"{policy!r} is not a policy of the fused operator")


def _policy(rule: str, rho: int, iterations: int, eps: float) -> Policy:
    name, _, variant = rule.partition("-")
    if name == "residual":
        return Residual(rho)
    return Shift(rho, iterations, eps, cast(Any, variant)) if name == "shift" else Exact(rho, cast(Any, variant), eps)


def specification(
    current: Tensor,
    theta: Tensor,
    rule: str,
    rho: int,
    iterations: int,
    eps: float,
    v0: Tensor | None = None,
    beside: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    inner: int = 1,
    steps: int = 0,
    unit: bool = True,
    dtype: torch.dtype | None = None,
    keep: bool = True,
    pool: int = 0,
    width: int = 0,
    phase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the kernels compute, on flat operands: the policy (or a given v(0)), then the neuron.

    ``current`` is ``[T, N]``, or ``[1, N]`` held for ``steps``; neuron i has channel ``(i // inner) % C``; pooled
    neurons lie in memory as ``[rows, width, pool]``; neuron i has phase ``phase[i % len(phase)]``.
    Without ``keep`` v(T) comes back empty.
    """
    ops.check_listening(rho, steps or len(current))
    total = current.to(theta.dtype)
    if beside is not None:
        total = total + beside.to(theta.dtype) * cast(Tensor, gain)
    if bias is not None:
        total = total + bias[torch.arange(total.shape[1], device=bias.device) // inner % len(bias)]
    total = total.expand(steps or len(total), total.shape[1])
    if v0 is None:
        policy = _policy(rule, rho, iterations, eps)
        if isinstance(policy, Exact) and phase is not None:
            v0 = policy.start(total, theta, phase[torch.arange(total.shape[1], device=phase.device) % len(phase)])
        else:
            v0 = policy(total, theta)
    spikes, v_end = ops.fire(total, theta, v0)
    out = spikes if unit else spikes * theta
    if pool:
        out = out.view(len(out), -1, 2, width // 2, 2, pool).sum((2, 4)).flatten(1) * 0.25
    return out.to(dtype or current.dtype, copy=True), v_end if keep else v_end.new_empty(0)


_calibrate_and_fire = torch.library.custom_op("offspike::calibrate_and_fire", specification, mutates_args=())


@_calibrate_and_fire.register_fake
def _(
    current: Tensor, theta: Tensor, rule: str, rho: int, iterations: int, eps: float, v0: Tensor | None = None,
    beside: Tensor | None = None, gain: Tensor | None = None, bias: Tensor | None = None, inner: int = 1,
    steps: int = 0, unit: bool = True, dtype: torch.dtype | None = None, keep: bool = True, pool: int = 0,
    width: int = 0, phase: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    neurons = current.shape[1]
    out = current.new_empty((steps or current.shape[0], neurons // 4 if pool else neurons), dtype=dtype)
    return out, theta.new_empty(neurons if keep else 0)


if ops.backend("cpu") == "numba":

    @_calibrate_and_fire.register_kernel("cpu")
    def _on_cpu(current: Tensor, theta: Tensor, rule: str, rho: int, *others: Any, **options: Any) -> Any:
        from offspike.ops import cpu

        return cpu.calibrate_and_fire(current, theta, rule, rho, *others, **options)


if ops.backend("cuda") == "triton":

    @_calibrate_and_fire.register_kernel("cuda")
    def _on_gpu(current: Tensor, theta: Tensor, rule: str, rho: int, *others: Any, **options: Any) -> Any:
        from offspike.ops import gpu

        if rule.startswith("exact") and rho > gpu.LONGEST_TABLE:
            return specification(current, theta, rule, rho, *others, **options)
        return gpu.calibrate_and_fire(current, theta, rule, rho, *others, **options)
