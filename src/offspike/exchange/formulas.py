"""Neurons and their calibration written as ONNX operations, element by element; the formulas are those of `ops`,
`equations` and `initial`, and a test compares the outcome bit by bit.

An ``Expression`` is the name of a tensor in the file; arithmetic on expressions adds nodes to it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from offspike.initial import Constant, Exact, Policy, Residual, Shift, Silence, Uniform, phases
from offspike.neurons import IF, Neuron

__all__ = ["Expression", "Page", "fire", "start"]


class Page:
    """The nodes and constants of a file that is being written."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def add(self, operation: str, *inputs: "Expression", name: str | None = None, **attributes: Any) -> "Expression":
        """A new node; the tensor that it makes is called ``name``."""
        output = name or f"t{len(self.nodes)}"
        names = [x.name for x in inputs]
        self.nodes.append(self.onnx.helper.make_node(operation, names, [output], **attributes))
        return Expression(self, output)

    def constant(self, value: Any, dtype: Any = np.float32) -> "Expression":
        """A number or an array, stored once."""
        array = np.asarray(value, dtype=dtype)
        key = f"c{array.dtype.char}{array.shape}{array.tobytes().hex() if array.size < 64 else len(self.constants)}"
        self.constants.setdefault(key, array)
        return Expression(self, key)


class Expression:
    """A tensor of the file."""

    def __init__(self, page: Page, name: str) -> None:
        self.page = page
        self.name = name

    def _with(self, operation: str, other: "Expression | float") -> "Expression":
        other = other if isinstance(other, Expression) else self.page.constant(other)
        return self.page.add(operation, self, other)

    def __add__(self, other: "Expression | float") -> "Expression":
        return self._with("Add", other)

    def __sub__(self, other: "Expression | float") -> "Expression":
        return self._with("Sub", other)

    def __mul__(self, other: "Expression | float") -> "Expression":
        return self._with("Mul", other)

    def __truediv__(self, other: "Expression | float") -> "Expression":
        return self._with("Div", other)

    def __ge__(self, other: "Expression | float") -> "Expression":
        return self._with("GreaterOrEqual", other)

    def __gt__(self, other: "Expression | float") -> "Expression":
        return self._with("Greater", other)

    def __lt__(self, other: "Expression | float") -> "Expression":
        return self._with("Less", other)

    def __neg__(self) -> "Expression":
        return self.page.add("Neg", self)

    def floor(self) -> "Expression":
        """⌊x⌋."""
        return self.page.add("Floor", self)

    def clip(self, low: float, high: float) -> "Expression":
        """Between ``low`` and ``high``."""
        return self.page.add("Clip", self, self.page.constant(low), self.page.constant(high))

    def number(self) -> "Expression":
        """1 for true, 0 for false."""
        return self.page.add("Cast", self, to=1)


def where(condition: Expression, yes: Expression, no: Expression) -> Expression:
    """``yes`` where the condition holds."""
    return condition.page.add("Where", condition, yes, no)


def least(a: Expression, b: Expression) -> Expression:
    """The smaller one."""
    return a.page.add("Min", a, b)


def most(a: Expression, b: Expression) -> Expression:
    """The larger one."""
    return a.page.add("Max", a, b)


def fire(neuron: Neuron, currents: Sequence[Expression], theta: Expression, v: Expression) -> list[Expression]:
    """The spikes of each step, as true and false."""
    if neuron != IF():
        raise ValueError(f"{neuron} sends negative spikes, which cannot be exported")
    spikes = []
    for current in currents:
        m = v + current
        spikes.append(m >= theta)
        v = where(spikes[-1], m - theta, m)
    return spikes


def start(policy: Policy, currents: Sequence[Expression], theta: Expression, shape: tuple[int, ...]) -> Expression:
    """v(0) of a policy that listens to ``currents``; ``shape`` is that of one sample."""
    page = theta.page
    match policy:
        case Constant(fraction):
            return theta * fraction
        case Uniform():
            draw = policy(torch.zeros(1, 1, *shape), 1.0)[0]
            return theta * page.constant(draw.flatten().numpy())
        case Residual(rho):
            return _probe(currents[:rho], theta, theta / 2.0)[1]
        case Silence(rho, eps):
            v_end = _probe(currents[:rho], theta, theta / 2.0)[1]
            return where(v_end > theta * eps, theta / 2.0, page.constant(-np.inf))
        case Shift():
            return _shift(policy, currents[: policy.rho], theta)
        case Exact(place="carry") if len(shape) >= 3:
            raise ValueError(
                f"{policy} cannot be written as ONNX: its neurons hand on what is left over, one after the other "
                "along a map. Convert with osp.methods.exact(rho), whose neurons start each for itself"
            )
        case Exact():
            return _exact(policy, currents[: policy.rho], theta, shape)
    raise ValueError(f"{policy} cannot be written as ONNX")


def _probe(
    currents: Sequence[Expression], theta: Expression, v: Expression
) -> tuple[Expression, Expression, Expression, Expression]:
    """count, v(ρ), min{v(t)|s(t)=1}, max{v(t)|s(t)=0}."""
    page = theta.page
    count, low, high = page.constant(0.0), page.constant(np.inf), page.constant(-np.inf)
    for current in currents:
        m = v + current
        s = m >= theta
        v = where(s, m - theta, m)
        count = count + s.number()
        low = where(s, least(low, v), low)
        high = where(s, high, most(high, v))
    return count, v, low, high


def _shift(policy: Shift, currents: Sequence[Expression], theta: Expression) -> Expression:
    """Theorems 1 to 3, ``iterations`` times."""
    zero = theta.page.constant(0.0)
    v0, margin = theta / 2.0, theta * policy.eps
    for _ in range(policy.iterations):
        count, v_end, low, high = _probe(currents, theta, v0)
        top = policy.rho if policy.saturated == "keep" else policy.rho + 1
        psi = (count + ((v_end - v0) / theta + 0.5).floor()).clip(0.0, top) - count
        down, up = -most(theta, low + margin), most(theta, theta + margin - high)
        v0 = v0 + where(psi < zero, down, where(psi > zero, up, zero))
    return v0


def _exact(policy: Exact, currents: Sequence[Expression], theta: Expression, shape: tuple[int, ...]) -> Expression:
    """A place inside ``[D[k], D[k+1])``."""
    page, rho = theta.page, policy.rho
    total = page.constant(0.0)
    table = [page.constant(-np.inf), *(page.constant(np.inf) for _ in range(rho + 1))]
    for current in currents:
        total = total + current
        for k in range(rho, 0, -1):
            table[k] = least(table[k], most(table[k - 1], theta * float(k) - total))
    count = (total / theta + 0.5).floor().clip(0.0, rho)
    low, high = _pick(table, count, rho)
    if policy.place == "middle":
        bottom = where(count > 0.0, low, high - theta)
        top = where(count < float(rho), high, low + theta)
        return (bottom + top) / 2.0
    margin = theta * policy.eps
    low, high = low + margin, high - margin
    if policy.place in ("even", "carry"):
        u = page.constant(phases(torch.zeros(1, *shape)).flatten().numpy())
        return _spread(currents, count, low, high, theta, u, margin)
    wish = theta / 2.0
    if policy.place == "first":
        wish = wish + count * theta * (1 / rho) - currents[0]
    return least(most(wish, low), high)


def _spread(
    currents: Sequence[Expression], count: Expression, low: Expression, high: Expression, theta: Expression,
    u: Expression, margin: Expression,
) -> Expression:  # fmt: skip
    """The cuts of ``initial.Exact``: what is left has fired n times, and one edge a step divides it."""
    total = n = theta.page.constant(0.0)
    for t, current in enumerate(currents[:-1], start=1):
        total, more = total + current, n + 1.0
        edge = more * theta - total
        wanted, fires = count * float(t) * (1 / len(currents)) + u >= more, low >= edge
        rises = where(edge < high, where(wanted, most(low, edge), low), low)
        falls = where(wanted, high, where(fires, high, least(high, edge)))
        n = where(fires, more, where(edge < high, where(wanted, more, n), n))
        low, high = rises, falls
    margin = least(margin, (high - low) / 2.0)
    return least(most(u * theta, low + margin), high - margin)


def _pick(table: list[Expression], index: Expression, last: int) -> tuple[Expression, Expression]:
    """``table[index]`` and ``table[index + 1]``, neuron by neuron, for an index of at most ``last``."""
    low, high = table[0], table[1]
    for k in range(1, last + 1):
        here = index >= float(k)
        low, high = where(here, table[k], low), where(here, table[k + 1], high)
    return low, high
