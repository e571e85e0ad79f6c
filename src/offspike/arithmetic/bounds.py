"""How large and how fine the numbers in a network can be, from its weights alone: are its sums exact?

Every value is followed as two facts, for any input: it is a whole multiple of ``2^grid``, and at most ``bound`` in
absolute value. A sum of multiples of ``2^grid`` whose terms add up to at most ``bound`` (for a filter: its L1 norm
times the largest input) needs ``log2(bound) − grid`` bits, whatever the order of its terms. While that is at most 24,
float32 makes no rounding error at all; tensor cores ask for weights and inputs that fit their formats as well.

The bounds themselves are computed in float64, where the same argument makes them exact up to 53 bits.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from offspike.activations import QCFS
from offspike.arithmetic.averages import divisor
from offspike.arithmetic.grids import InputGrid, finest, significant_bits
from offspike.arithmetic.reach import UNKNOWN, Reach, Sum, absolute, grid_of_sums
from offspike.arithmetic.roles import bare, role
from offspike.graph import GraphNetwork, Node, Ref, map_values

__all__ = ["Survey", "survey"]


@dataclass
class Survey:
    """``sums`` by layer with weights, ``currents`` by neuron layer, ``doubts`` about what cannot be followed.

    ``outputs`` is what the network returns; ``others`` are the bits of sums without weights (shortcuts, pools), by the
    name of their node; ``values`` is what is known of each value of the network, by node.
    """

    sums: dict[str, Sum] = field(default_factory=dict)
    currents: dict[str, Reach] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)
    outputs: list[Reach] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


@torch.no_grad()
def survey(network: GraphNetwork, inputs: tuple[Tensor, ...], *, spikes: bool) -> Survey:
    """Follow grids and bounds through a network whose inputs have the shapes of ``inputs``.

    With ``spikes`` the numbers are those of one time-step of the spiking network (a neuron sends 0 or θ), without those
    of the ANN (0, θ/L, … θ).
    """
    walk = _Walk(network, spikes=spikes)
    waiting = [torch.zeros(1, *x.shape[1:], dtype=torch.float64) for x in inputs]
    for node in network.graph.nodes:
        walk.visit(node, waiting)
    return walk.result


class _Walk:
    def __init__(self, network: GraphNetwork, *, spikes: bool) -> None:
        self.network = network
        self.spikes = spikes
        self.result = Survey()
        self.values = self.result.values

    def visit(self, node: Node, waiting: list[Tensor]) -> None:
        kind = role(node, self.network)
        if kind == "input":
            x = waiting.pop(0)
            self.values[node.name] = Reach(torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf))
        elif kind == "constant":
            value = self.network.call(node, (), {}).cpu()
            self.values[node.name] = Reach(finest(value), value.double().abs())
        elif kind == "output":
            for value in (self.values[name] for name in node.refs):
                parts = value if type(value) in (tuple, list) else [value]  # a Reach is a tuple, too
                self.result.outputs += [part for part in parts if isinstance(part, Reach)]
        else:
            handle: Callable[[Node], Any] = getattr(self, f"_{kind}")
            self.values[node.name] = found = handle(node)
            if isinstance(found, Reach) and kind not in ("grid", "neuron", "synapse", "shape"):
                self.result.others[node.target if node.kind == "module" else node.name] = found.bits

    def _grid(self, node: Node) -> Reach:
        layer, x = self.network.get_submodule(node.target), self._of(node.args[0])
        assert isinstance(layer, InputGrid)
        bound = layer.bound.double().cpu().expand(x.bound.shape)
        whole = bool((layer.lowest == layer.lowest.round()).all() and (layer.highest == layer.highest.round()).all())
        power = float(layer.unit.log2())
        grid = power if whole and power == round(power) else -math.inf
        return Reach(torch.full_like(bound, grid), bound)

    def _neuron(self, node: Node) -> Reach:
        layer: Any = self.network.get_submodule(node.target)
        x = self._of(node.args[0])
        self.result.currents[node.target] = x
        theta = (layer.lam if isinstance(layer, QCFS) else layer.theta).double().cpu().expand(x.bound.shape)
        levels = getattr(layer, "levels", None)
        if levels is None or levels & (levels - 1):
            self.result.doubts.append(f"{node.target}: L = {levels} is not a power of two")
            return Reach(torch.full_like(theta, -torch.inf), theta)
        power = torch.where(torch.frexp(theta)[0] == 0.5, theta.log2(), -torch.inf)
        if not bool(power.isfinite().all()):
            self.result.doubts.append(f"{node.target}: its threshold is not a power of two")
        return Reach(power - (0 if self.spikes else math.log2(levels)), theta)

    def _synapse(self, node: Node) -> Reach:
        layer: Any = self.network.get_submodule(node.target)
        x = self._of(node.args[0])
        bound = absolute(layer)(x.bound.nan_to_num(posinf=1e300))
        grid = grid_of_sums(layer, x.grid).expand(bound.shape)
        out = Reach(grid, bound)
        made = Sum(out.units, out.bits, significant_bits(layer.weight), x.bits)
        before = self.result.sums.get(node.target)
        self.result.sums[node.target] = made if before is None or made.bits > before.bits else before
        if x.bits >= UNKNOWN:
            self.result.doubts.append(f"{node.target}: its input is not on a grid")
        return out

    def _average(self, node: Node) -> Reach:
        """A sum divided by the same number everywhere; exact if that is a power of two."""
        x = self._of(node.args[0])
        bound = self._run(node, x.bound)
        number = divisor(self.network, node, x.bound, bound, self.values.__getitem__)
        powers = math.log2(number) if number else math.inf
        if powers != round(powers) if number else True:
            what = f"{number:g}, which is no power of two" if number else "different numbers"
            self.result.doubts.append(f"{node.target}: it divides by {what}")
            powers = math.inf
        return Reach(torch.full_like(bound, float(x.grid.min()) - powers), bound)

    def _maximum(self, node: Node) -> Reach:
        x = self._of(node.args[0])
        bound = self._run(node, x.bound)
        return Reach(torch.full_like(bound, float(x.grid.min())), bound)

    def _mean(self, node: Node) -> Reach:
        return self._average(node)

    def _total(self, node: Node) -> Reach:
        x = self._of(node.args[0])
        bound = self._run(node, x.bound)
        return Reach(torch.full_like(bound, float(x.grid.min())), bound)

    def _sign(self, node: Node) -> Any:
        known = self._of(node.args[0])
        return known if isinstance(known, Reach) else self._plain(node)

    def _sum(self, node: Node) -> Any:
        left, right = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs["other"]
        if not any(isinstance(self._of(side), Reach) for side in (left, right)):
            return self._plain(node)
        a, b = self._number(left), self._number(right)
        alpha = torch.tensor(float(node.kwargs.get("alpha", 1)), dtype=torch.float64)
        grid = torch.minimum(a.grid, b.grid + finest(alpha))
        return Reach(grid, (a.bound + b.bound * alpha.abs()))

    def _product(self, node: Node) -> Any:
        args = [*node.args, *([node.kwargs["other"]] if "other" in node.kwargs else [])]
        known = [isinstance(self._of(side), Reach) for side in args[:2]]
        if not any(known):
            return self._plain(node)
        a, b = self._number(args[0]), self._number(args[1])
        if bare(node) != "mul":
            power = torch.frexp(b.bound)[0] == 0.5
            b = Reach(torch.where(power, -b.bound.log2(), -torch.inf), 1 / b.bound)
        return Reach((a.grid + b.grid).nan_to_num(nan=torch.inf), (a.bound * b.bound).nan_to_num(nan=0.0))

    def _shape(self, node: Node) -> Any:
        moving = [name for name in node.refs if _holds(self.values[name])]
        if not moving:
            return self._plain(node)
        grid, bound = (self._plain(node, part) for part in ("grid", "bound"))
        return _paired(grid, bound)

    def _norm(self, node: Node) -> Reach:
        return self._unknown(node)

    def _unknown(self, node: Node) -> Reach:
        self.result.doubts.append(f"{node.target}: its arithmetic is not known to be exact")
        ones = torch.ones_like(self._of(node.args[0]).bound)
        layer = self.network.get_submodule(node.target) if node.kind == "module" else None
        out = self._run(node, ones) if layer is None else deepcopy(layer).cpu().double()(ones)
        return Reach(torch.full_like(out, -torch.inf), torch.full_like(out, torch.inf))

    # What they share.

    def _of(self, value: Any) -> Any:
        return self.values[value.name] if isinstance(value, Ref) else value

    def _number(self, value: Any) -> Reach:
        known = self._of(value)
        if isinstance(known, Reach):
            return known
        tensor = torch.as_tensor(known, dtype=torch.float64)
        return Reach(finest(tensor), tensor.abs())

    def _run(self, node: Node, x: Tensor) -> Tensor:
        """The node itself, on other numbers."""
        fill = lambda leaf: self._part(leaf.name, "bound") if isinstance(leaf, Ref) else leaf  # noqa: E731
        args, kwargs = map_values(node.args, fill), map_values(node.kwargs, fill)
        out: Tensor = self.network.call(node, (x, *args[1:]), kwargs)
        return out

    def _plain(self, node: Node, part: str = "bound") -> Any:
        fill = lambda leaf: self._part(leaf.name, part) if isinstance(leaf, Ref) else leaf  # noqa: E731
        return self.network.call(node, map_values(node.args, fill), map_values(node.kwargs, fill))

    def _part(self, name: str, part: str) -> Any:
        def pick(value: Any) -> Any:
            if isinstance(value, Reach):
                return getattr(value, part)
            if isinstance(value, tuple | list):
                return type(value)(map(pick, value)) if type(value) in (tuple, list) else value
            return value

        return pick(self.values[name])


def _holds(value: Any) -> bool:
    if isinstance(value, Reach):
        return True
    return isinstance(value, tuple | list) and any(map(_holds, value))


def _paired(grid: Any, bound: Any) -> Any:
    if isinstance(bound, Tensor):
        return Reach(grid, bound)
    if isinstance(bound, tuple | list) and type(bound) in (tuple, list):
        return type(bound)(_paired(g, b) for g, b in zip(grid, bound, strict=True))
    return bound
