"""Every value of a network in units of the threshold that it is compared with, so that all thresholds are 1.

``QCFS(z; λ) = λ·QCFS(z/λ; 1)``: a threshold can be moved out of an activation into the weights before and after it. In
the network that results a spike is the number 1, and a layer's input is a whole number of spikes. What an average
divides by goes into the next weights too: pools become sums. Where no weights lie in between (a shortcut), a
`arithmetic.grids.Scale` is put there. In exact arithmetic the network is the same function as before.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import QCFS
from offspike.arithmetic.averages import divisor, sum_pool
from offspike.arithmetic.grids import InputGrid, Scale
from offspike.arithmetic.roles import bare, role
from offspike.fixed import known
from offspike.fixed.assembly import Assembly
from offspike.fixed.units import along, filled_up, reduced, rescale, smallest
from offspike.graph import GraphNetwork, Node, Ref, fill, map_values

__all__ = ["absorb"]

REMEDY = "whose activations are all QCFS: osp.prepare(model, osp.QCFS(levels=4), example=x), then train"
CONSTANT_GRID = 2.0**-12  # of numbers and tensors that a model adds: fractions of a threshold


@torch.no_grad()
def absorb(network: GraphNetwork, inputs: tuple[Tensor, ...], grids: list[tuple[InputGrid, Tensor]]) -> GraphNetwork:
    """A copy of ``network`` whose thresholds are 1; ``inputs`` show the shapes.

    ``grids`` are the layer that each input goes through first, and the unit of what that layer returns: the input is
    unit times that.
    """
    return _Absorb(network, tuple(x[:1].float() for x in inputs), list(grids)).run()


class _Absorb:
    def __init__(
        self, network: GraphNetwork, inputs: tuple[Tensor, ...], grids: list[tuple[InputGrid, Tensor]]
    ) -> None:
        self.old = network
        self.grids = grids
        self.values = known.values(network, inputs)  # of one sample, for their shapes
        self.constants = known.constants(network, self.values)
        self.wishes = self._wishes()
        self.units: dict[str, Any] = {}
        self.refs: dict[str, Ref] = {}  # who now holds the value of an old node
        self.new = Assembly(network.graph.nodes)

    def run(self) -> GraphNetwork:
        for node in self.old.graph.nodes:
            handle = self._constant if node.name in self.constants else getattr(self, f"_{role(node, self.old)}")
            self.refs[node.name] = Ref(node.name)
            handle(node)
        made = self.new.network(self.old.input_shape)
        if hasattr(self.old, "preprocess"):
            made.preprocess = self.old.preprocess
        return made.eval()

    def _wishes(self) -> dict[str, Tensor]:
        """By node the unit that the next activation would like it to have; for what is returned, 1."""
        wishes: dict[str, Tensor] = {}
        for node in reversed(self.old.graph.nodes):
            kind = role(node, self.old)
            wish = torch.ones(()) if kind == "output" else wishes.get(node.name)
            if kind == "neuron":
                wish = self._activation(node).lam.double()
            elif kind in ("synapse", "norm") or wish is None:
                continue
            elif kind in ("average", "mean"):
                wish = wish.mean() * (self._divisor(node) or 1.0)
            for name in node.refs:
                value = self.values[name]
                if isinstance(value, Tensor):
                    fits = kind in ("neuron", "sum", "product", "sign", "output") or wish.numel() == 1
                    wishes[name] = wish if fits else wish.log().mean().exp()
        return wishes

    # One method for each role of a node.

    def _input(self, node: Node) -> None:
        grid, unit = self.grids.pop(0)
        self.new.add(node)
        self.refs[node.name] = self.new.put(f"{node.target}_grid", grid, Ref(node.name))
        self.units[node.name] = unit.double().expand(self.values[node.name].shape)

    def _constant(self, node: Node) -> None:
        self.units[node.name] = None

    def _grid(self, node: Node) -> None:
        raise ValueError(f"{node.target} is an input grid already: this network has been snapped")

    def _unknown(self, node: Node) -> None:
        layer = self._module(node)
        what = node.target if layer is None else f"{node.target} ({type(layer).__name__})"
        raise ValueError(
            f"snap cannot put {what} on a grid: say it with layers, sums, slices or pools, in a network {REMEDY}. What "
            "is done to the image alone can be done before the network"
        )

    def _norm(self, node: Node) -> None:
        raise ValueError(f"{node.target} is a BatchNorm that is used more than once: give each use its own")

    def _neuron(self, node: Node) -> None:
        activation = deepcopy(self._activation(node))
        lam = activation.lam.double().expand(self.values[node.name].shape)
        source = self._in_unit(node.args[0].name, lam, node)
        self.new.call(replace(node, args=(source,)), activation.set_threshold(1.0))
        self.units[node.name] = lam

    def _synapse(self, node: Node) -> None:
        layer = deepcopy(self.old.get_submodule(node.target))
        x = node.args[0].name
        out = self.wishes.get(node.name, torch.ones(())).expand(self.values[node.name].shape)
        source = self.refs[x]
        if isinstance(layer, Scale):
            layer.weight.data = smallest(layer.weight.double() * (self.units[x] / out)[0])
            layer.bias = None if layer.bias is None else nn.Parameter(smallest(layer.bias.double() / out[0]))
        else:
            axis = -1 if isinstance(layer, nn.Linear) else 1
            unit, wanted = along(self.units[x], axis), along(out, axis)
            if unit is None:  # thresholds differ within a channel
                one = self.units[x].log().mean().exp()
                unit, source = one.expand(self.units[x].shape[axis]), self._in_unit(x, one, node)
            if wanted is None:
                out = out.log().mean().exp().expand(out.shape)
                wanted = out.flatten()[:1].expand(out.shape[axis])
            rescale(layer, unit, wanted)
        self.new.call(replace(node, args=(source,)), layer)
        self.units[node.name] = out

    def _average(self, node: Node) -> None:
        """A sum in its place; the number that it divided by goes into the unit."""
        number = self._divisor(node)
        x = node.args[0].name
        if number is None or along(self.units[x], 1) is None:
            raise ValueError(f"{node.target} averages over windows of different sizes: pool without padding")
        new = sum_pool(self.old, self._renamed(node), self.values[x], self.values[node.name], self.refs[x])
        if new is None:
            return self._shape(node)
        if isinstance(new, nn.Module):
            self.new.call(self._renamed(node), new)
        else:
            self._emit(new, node)
        self.units[node.name] = self.old.call(node, *self._filled(node, self.units)) / number
        return None

    def _mean(self, node: Node) -> None:
        number = self._divisor(node)
        unit = self.old.call(node, *self._filled(node, self.units))
        self._emit(replace(self._renamed(node), target=node.target.replace("mean", "sum")), node)
        self.units[node.name] = unit / (number or 1.0)

    def _total(self, node: Node) -> None:
        self._emit(self._renamed(node), node)
        averaged = self.old.call(replace(node, target=node.target.replace("sum", "mean")),
                                 *self._filled(node, self.units))  # fmt: skip
        self.units[node.name] = averaged

    def _maximum(self, node: Node) -> None:
        self._shape(node)

    def _sign(self, node: Node) -> None:
        if self._unit_of(node.args[0]) is None:
            return self._shape(node)
        self.units[node.name] = self.units[node.args[0].name]
        self._emit(self._renamed(node), node)
        return None

    def _sum(self, node: Node) -> None:
        if not isinstance(self.values[node.name], Tensor):
            return self._shape(node)  # of sizes
        left, right = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs["other"]
        shape = self.values[node.name].shape
        in_place = node.target.startswith("operator.i") or node.target.endswith("_")
        first = self._unit_of(left)
        target = self.wishes.get(node.name, torch.ones(())).expand(shape)
        if in_place and first is not None:
            target = first.expand(shape)  # it is changed under its own name
        parts = [self._operand(side, target, node) for side in (left, right)]
        kwargs = {key: value for key, value in node.kwargs.items() if key != "other"}
        self._emit(Node(node.name, node.kind, node.target, tuple(parts), fill(kwargs, self.refs)), node)
        self.units[node.name] = target
        return None

    def _product(self, node: Node) -> None:
        """A number goes into the unit; a tensor becomes a layer."""
        args = [*node.args, *([node.kwargs["other"]] if "other" in node.kwargs else [])]
        sides = [side for side in args[:2] if self._unit_of(side) is not None]
        others = [side for side in args[:2] if self._unit_of(side) is None]
        if len(sides) != 1 or len(others) != 1 or (bare(node) != "mul" and sides[0] is not args[0]):
            if not sides:
                return self._shape(node)
            raise ValueError(f"{node.target} multiplies two values of the network: spikes cannot follow")
        number = self._number(others[0])
        number = 1 / number if bare(node) != "mul" else number
        x = sides[0].name
        if not isinstance(number, Tensor) and number > 0:
            self.refs[node.name], self.units[node.name] = self.refs[x], self.units[x] * number
            return None
        weight = torch.as_tensor(number, dtype=torch.float64)
        out = self.wishes.get(node.name, torch.ones(())).expand(self.values[node.name].shape)
        scale = Scale(smallest((weight * self.units[x] / out)[0]))
        self.new.put(f"{node.name}_scale", scale, self.refs[x], name=node.name)
        self.units[node.name] = out
        return None

    def _shape(self, node: Node) -> None:
        known.refuse(node, self.constants)
        unit = self.old.call(node, *self._filled(node, self.units))
        self.units[node.name] = map_values(unit, filled_up)
        if node.kind == "module":
            self.new.call(self._renamed(node), deepcopy(self.old.get_submodule(node.target)))
        else:
            self._emit(self._renamed(node), node)

    def _output(self, node: Node) -> None:
        known.refuse(node, self.constants)

        def finish(leaf: Any) -> Any:
            unit = self._unit_of(leaf)
            return leaf if unit is None else self._in_unit(leaf.name, torch.ones_like(unit), node)

        self.new.add(replace(node, args=(map_values(node.args[0], finish),)))

    # What they share.

    def _activation(self, node: Node) -> QCFS:
        activation = self.old.get_submodule(node.target)
        if not isinstance(activation, QCFS):
            kind = type(activation).__name__
            raise ValueError(f"{node.target} is a {kind}: snap takes networks {REMEDY}")
        if activation.levels & (activation.levels - 1):
            raise ValueError(
                f"{node.target} has L = {activation.levels} levels: 1/L has to be exact in binary, so L must be a "
                "power of two; train with QCFS(levels=4) or QCFS(levels=8)"
            )
        return activation

    def _unit_of(self, value: Any) -> Tensor | None:
        """The unit of an operand; None for what is no value of the network."""
        unit = self.units.get(value.name) if isinstance(value, Ref) else None
        return unit if isinstance(unit, Tensor) else None

    def _number(self, value: Any) -> Any:
        """A number, or the tensor of a constant."""
        found = self.values[value.name] if isinstance(value, Ref) else value
        return found.detach().double() if isinstance(found, Tensor) else found

    def _operand(self, value: Any, target: Tensor, node: Node) -> Any:
        """A side of a sum in the unit of the sum."""
        unit = self._unit_of(value)
        if unit is not None:
            wanted = target if unit.shape == target.shape else reduced(target, unit, node)
            return self._in_unit(value.name, wanted, node)
        scaled = torch.as_tensor(self._number(value), dtype=torch.float64) / target[0]
        scaled = smallest((scaled / CONSTANT_GRID).round() * CONSTANT_GRID)
        if scaled.numel() == 1:
            return float(scaled)
        return self.new.put(f"{node.name}_constant", scaled)

    def _in_unit(self, name: str, wanted: Tensor, node: Node) -> Ref:
        """Where the value of ``name`` is found in the unit ``wanted``: itself, or a new layer that rescales it."""
        unit, wanted = self.units[name], wanted.expand(self.units[name].shape)
        if torch.equal(unit, wanted):
            return self.refs[name]
        owner = node.target if node.kind == "module" else self.refs[name].name
        return self.new.put(f"{owner}_scale", Scale(smallest((unit / wanted)[0])), self.refs[name])

    def _module(self, node: Node) -> nn.Module | None:
        return self.old.get_submodule(node.target) if node.kind == "module" else None

    def _divisor(self, node: Node) -> float | None:
        before, after = self.values[node.args[0].name], self.values[node.name]
        return divisor(self.old, node, before, after, self.values.__getitem__)

    def _filled(self, node: Node, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = {name: self._value(name, values) for name in node.refs}
        return fill(node.args, found), fill(node.kwargs, found)

    def _value(self, name: str, values: dict[str, Any]) -> Any:
        value = values[name]
        return self.values[name] if value is None else value

    def _renamed(self, node: Node) -> Node:
        return replace(node, args=fill(node.args, self.refs), kwargs=fill(node.kwargs, self.refs))

    def _emit(self, node: Node, old: Node) -> None:
        self.new.add(node)
        self.refs[old.name] = Ref(node.name)
