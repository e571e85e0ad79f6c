"""How large and how fine the numbers in a network can be, from its weights alone: are its sums exact?

Every value is followed as two facts, for any input: it is a whole multiple of ``2^grid``, and at most ``bound`` in
absolute value. A sum of multiples of ``2^grid`` whose terms add up to at most ``bound`` (for a filter: its L1 norm times
the largest input) needs ``log2(bound) − grid`` bits, whatever the order of its terms. While that is at most 24, float32
makes no rounding error at all; products on tensor cores ask for weights and inputs that fit their formats as well.

The bounds themselves are computed in float64, where the same argument makes them exact up to 53 bits.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from offspike.activations import QCFS
from offspike.graph import GraphNetwork, Node, Ref, map_values
from offspike.grids import InputGrid, Scale, finest, significant_bits
from offspike.kinds import TRANSPOSED, bare, sort

__all__ = ["ACCUMULATORS", "OPERANDS", "UNKNOWN", "Reach", "Sum", "Survey", "bits_for", "survey"]

ACCUMULATORS = {"float32": 24, "tf32": 24, "bf16": 24, "int32": 31}  # bits of an exact sum
OPERANDS = {"float32": 24, "tf32": 11, "bf16": 8, "int32": 31}  # bits of an exact weight or input


UNKNOWN = 10_000  # bits of a value of which nothing is known


def bits_for(units: float) -> int:
    """The least b with ``units <= 2^b``: whole numbers up to units fit into b bits and a sign."""
    if not math.isfinite(units):
        return UNKNOWN
    mantissa, exponent = math.frexp(units)
    return max(0, exponent - 1 if mantissa == 0.5 else exponent)


class Reach(NamedTuple):
    """What is known of one sample's value, element by element (``[1, …]``, float64)."""

    grid: Tensor
    bound: Tensor

    @property
    def units(self) -> float:
        """The largest value as a multiple of its own grid; ∞ where nothing is known."""
        units = torch.where(self.bound > 0, self.bound * (-self.grid).exp2(), 0.0)
        return float(units.nan_to_num(nan=torch.inf, posinf=torch.inf).max())

    @property
    def bits(self) -> int:
        """Bits that the largest value needs on its grid, without its sign."""
        return bits_for(self.units)


@dataclass(frozen=True)
class Sum:
    """The sums of one layer with weights: how many bits they, the weights and the inputs need (without sign)."""

    bound: float  # the largest sum, in units of the finest grid of its channel
    bits: int
    weight_bits: int
    input_bits: int

    def excess(self, arithmetic: str) -> int:
        """By how many bits a sum, a weight or an input is too long; 0 or less: it is exact."""
        longest = max(self.weight_bits, self.input_bits)
        return max(self.bits - ACCUMULATORS[arithmetic], longest - OPERANDS[arithmetic])

    @property
    def exact_in(self) -> tuple[str, ...]:
        """The arithmetics that make no rounding error here."""
        return tuple(name for name in ACCUMULATORS if self.excess(name) <= 0)


@dataclass
class Survey:
    """``sums`` by layer with weights, ``currents`` by neuron layer, ``doubts`` about what cannot be followed.

    ``others`` are the bits of sums without weights (shortcuts, pools), by the name of their node.
    """

    sums: dict[str, Sum] = field(default_factory=dict)
    currents: dict[str, Reach] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)


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
        self.values: dict[str, Any] = {}
        self.result = Survey()

    def visit(self, node: Node, waiting: list[Tensor]) -> None:
        kind = sort(node, self.network)
        if kind == "input":
            x = waiting.pop(0)
            self.values[node.name] = Reach(torch.full_like(x, -torch.inf), torch.full_like(x, torch.inf))
        elif kind == "constant":
            value = self.network.call(node, (), {}).cpu()
            self.values[node.name] = Reach(finest(value), value.double().abs())
        elif kind != "output":
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
        bound = _absolute(layer)(x.bound.nan_to_num(posinf=1e300))
        grid = _grid_of_sums(layer, x.grid).expand(bound.shape)
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
        ones = self._run(node, torch.ones_like(x.bound))
        total = self._override(node)
        number = 1.0 if total == 1 else self._window(node, x.bound)
        powers = math.log2(number) if number else -math.inf
        if powers != round(powers) if math.isfinite(powers) else True:
            self.result.doubts.append(f"{node.target}: it divides by {number or 'different numbers'}, no power of two")
            powers = math.inf
        grid = torch.full_like(ones, float(x.grid.min()) - powers)
        return Reach(grid, bound)

    def _override(self, node: Node) -> Any:
        layer = self.network.get_submodule(node.target) if node.kind == "module" else None
        return getattr(layer, "divisor_override", None) if layer else node.kwargs.get("divisor_override")

    def _window(self, node: Node, x: Tensor) -> float | None:
        """The number of values in each window; None where windows differ."""
        probe = torch.zeros_like(x)
        places = [size // 2 for size in x.shape[2:]]
        probe[(0, 0, *places)] = 1.0
        shares = self._run(node, probe)
        nonzero = shares[shares > 0]
        whole = self._run(node, torch.ones_like(x))
        same = bool((whole == whole.max()).all()) or self._includes_padding(node)
        if not len(nonzero) or not same or not bool((nonzero == nonzero[0]).all()):
            return None
        number = 1 / float(nonzero[0])
        return float(round(number)) if abs(number - round(number)) < 1e-6 * number else None

    def _includes_padding(self, node: Node) -> bool:
        layer: Any = self.network.get_submodule(node.target) if node.kind == "module" else None
        names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
        options = dict(zip(names, node.args[1:], strict=False)) | node.kwargs if layer is None else vars(layer)
        return bool(options.get("count_include_pad", True)) and not options.get("ceil_mode", False)

    def _maximum(self, node: Node) -> Reach:
        x = self._of(node.args[0])
        bound = self._run(node, x.bound)
        return Reach(torch.full_like(bound, float(x.grid.min())), bound)

    def _mean(self, node: Node) -> Reach:
        x = self._of(node.args[0])
        bound = self._run(node, x.bound)
        number = x.bound.numel() / bound.numel()
        powers = math.log2(number)
        if powers != round(powers):
            self.result.doubts.append(f"{node.target}: it divides by {number:g}, which is no power of two")
            powers = math.inf
        return Reach(torch.full_like(bound, float(x.grid.min()) - powers), bound)

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


def _absolute(layer: Any) -> nn.Module:
    """The layer with the absolute values of its weights, in float64: what it makes of bounds is a bound."""
    copy: nn.Module = deepcopy(layer).cpu().double()
    for parameter in copy.parameters():
        parameter.data = parameter.abs()
    if isinstance(copy, Scale):
        return _Plain(copy)
    return copy


class _Plain(nn.Module):
    """A `Scale` in float64."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        bias = 0 if self.scale.bias is None else self.scale.bias
        return x * self.scale.weight + bias


def _grid_of_sums(layer: Any, grid: Tensor) -> Tensor:
    """The grid of each output channel: the finest product, or the bias. Shaped to broadcast to the output."""
    weight = finest(layer.weight.cpu())
    bias = None if layer.bias is None else finest(layer.bias.cpu())
    if isinstance(layer, Scale):
        out = (weight + grid).nan_to_num(nan=torch.inf)
        return out if bias is None else torch.minimum(out, bias)
    linear = isinstance(layer, nn.Linear)
    inputs = (grid.flatten(0, -2) if linear else grid.movedim(1, -1).flatten(0, -2)).amin(0)
    groups = getattr(layer, "groups", 1)
    if isinstance(layer, TRANSPOSED):
        weight = weight.unflatten(0, (groups, -1)).movedim(2, 1).flatten(0, 1)
    per_pair = weight.flatten(2).amin(2) if weight.ndim > 2 else weight
    sums = per_pair.unflatten(0, (groups, -1)) + inputs.view(groups, 1, -1)
    out = sums.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).amin(2).flatten()
    out = out if bias is None else torch.minimum(out, bias)
    return out if linear else out.view(-1, *[1] * (grid.ndim - 2))
