"""Any network on a GPU's 8-bit tensor cores: weights as three digits of 8 bits, spikes as they are, sums exact.

A weight becomes a whole number of up to 23 bits times a power of two, one a filter, and no sum of a filter exceeds 32
bits. So nothing is rounded but the weights, to 21 bits of the filter's largest or more (``synapses``), and the current,
once, to float32. Three products of 8 bits take less time than one of TF32, of which `parts.py` needs two, and no
current is written to memory.
"""

from typing import Any

import torch
from torch import Tensor, nn

from offspike.capture import network
from offspike.fast.joins import Join, Joins
from offspike.fast.reading import Reading
from offspike.fused import LISTENING, Synapses
from offspike.graph import Graph, Node, fill
from offspike.initial import Exact
from offspike.layers import SpikingLayer
from offspike.neurons import IF
from offspike.ops import LONGEST
from offspike.ops.reference import BASE

__all__ = ["DIGITS", "Digits", "digits", "sizes"]

DIGITS = 3
LARGEST = 127 * sum(BASE**digit for digit in range(DIGITS))  # digits are −128 … 127
LONGEST_SUM = 2**31 - 1


class Digits(Joins):
    """Joins of a network whose spikes leave as 1: θ, and the quarter of an average over 2x2, go into the weights."""

    share = 0.25

    def __init__(self, reading: Reading, sizes: dict[str, tuple[int, ...]]) -> None:
        self.sizes = sizes
        super().__init__(reading)

    def synapses(self, join: Join, worth: Tensor | None) -> Synapses:
        """The weights of a product as whole numbers of three digits, each row as fine as its sums allow."""
        module = self.reading.module(join.product)
        assert isinstance(module, nn.Conv2d | nn.Linear)
        weight = module.weight.detach().double()
        weight = weight if worth is None else weight * worth.to(weight)
        rows = weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight[:, None, None, :]
        stride = module.stride[0] if isinstance(module, nn.Conv2d) else 1
        return Synapses(*digits(rows, self._most(join.product.refs[0])), stride)

    def _takes(self, node: Node, layer: SpikingLayer) -> bool:
        policy, plain = layer.policy, layer.neuron == IF() and layer.shift is None and layer.start is None
        if not (plain and self.reading.unit(node) and isinstance(policy, LISTENING) and policy.rho <= LONGEST):
            return False
        return not (isinstance(policy, Exact) and policy.place == "carry")

    def _small(self, name: str) -> bool:
        """Spikes that leave as 1, or counts of them over windows of 2x2."""
        node = self.reading.nodes[name]
        if self.reading.neuron(node) is not None:
            return self.reading.unit(node)
        return self.keeps(node) and self._small(node.refs[0])

    def _most(self, name: str) -> int:
        """The largest of such numbers."""
        node = self.reading.nodes[name]
        if self.reading.neuron(node) is not None:
            return 1
        return 4 if name in self.pools else self._most(node.refs[0])

    def _size(self, name: str) -> tuple[int, ...]:
        return self.sizes.get(name, ())

    def _pool(self, node: Node) -> Node | None:
        pool = self.reading.pool(node)
        return pool if pool is not None and all(size % 2 == 0 for size in self._size(node.name)[2:]) else None


def digits(rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Weights ``[O, k, k, C]`` as digits ``[3, O, k, k, C]``, int8, and scales ``[O]``, powers of two.

    ``w ≈ scale·(65536·a + 256·b + c)``, to the nearest, where the scale is the least such that all digits are in
    −128 … 127 and no sum of a row with inputs from 0 to ``most`` is more than 31 bits and a sign.
    """
    flat = rows.flatten(1)
    sums = torch.maximum(flat.clamp_min(0).sum(1), -flat.clamp_max(0).sum(1)) * most
    room = LONGEST_SUM - flat.shape[1] * most / 2  # rounding a weight adds at most a half
    least = torch.maximum(flat.abs().amax(1) / LARGEST, sums / room)
    scale = torch.where(least > 0, least, 1.0).log2().ceil().exp2()
    whole = (rows / scale[:, None, None, None]).round().to(torch.int32)
    found: list[Tensor] = []
    for _ in range(DIGITS):
        found.insert(0, (whole + BASE // 2) % BASE - BASE // 2)
        whole = (whole - found[0]) // BASE
    return torch.stack(found).to(torch.int8), scale.float()


def sizes(graph: Graph, model: nn.Module, input_shape: tuple[int, ...] | None) -> dict[str, tuple[int, ...]]:
    """The shape of each value of a network, for one sample; none if that of its one input is not known."""
    if input_shape is None or len(graph.inputs) != 1:
        return {}
    like, values = next(model.parameters()), dict[str, Any]()
    run = network(graph, model)
    with torch.no_grad():
        for node in graph.nodes:
            args, kwargs = fill(node.args, values), fill(node.kwargs, values)
            spiking = node.kind == "module" and isinstance(model.get_submodule(node.target), SpikingLayer)
            if node.kind == "input":
                values[node.name] = torch.zeros(1, *input_shape, dtype=like.dtype, device=like.device)
            else:
                values[node.name] = args[0] if spiking else run.call(node, args, kwargs)
    return {name: tuple(value.shape) for name, value in values.items() if isinstance(value, Tensor)}
