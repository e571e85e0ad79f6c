"""Networks in fixed point: spikes and 8-bit weights are multiplied as whole numbers, and spikes travel as int8.

A survey of the network (`arithmetic.bounds`) says which values are small whole numbers, and that all sums are exact:
so they are the same in whole numbers, in TF32 and in float32. What the kernels do not know (the image, odd
convolutions, logits) runs as in ``"tf32"``.
"""

import torch
from torch import Tensor, nn

from offspike.arithmetic.bounds import Survey, survey
from offspike.arithmetic.grids import Scale, finest, was_snapped
from offspike.arithmetic.reach import ACCUMULATORS, Reach
from offspike.capture import network
from offspike.fast import joins
from offspike.fast.joins import Join, Joins, pairs_of
from offspike.fast.reading import Reading
from offspike.fused import LISTENING, Synapses
from offspike.graph import Graph, Node
from offspike.initial import Exact
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.neurons import IF
from offspike.ops import LONGEST

__all__ = ["Whole", "check_run", "surveyed"]

SMALL = torch.iinfo(torch.int8)
SNAP = "snap it first: osp.snap(ann, bits=8, example=x)"


class Whole(Joins):
    """Joins of a network in fixed point: θ is 1, shortcuts have a `Scale`, and pools are sums."""

    def __init__(self, reading: Reading, found: Survey) -> None:
        self.values = found.values
        super().__init__(reading)

    def synapses(self, join: Join, worth: Tensor | None) -> Synapses:
        """The weights of a product as whole numbers of 8 bits, whatever makes its rows whole."""
        module = self.reading.module(join.product)
        assert isinstance(module, nn.Conv2d | nn.Linear)
        weight = module.weight.detach().double()
        rows = weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight[:, None, None, :]
        unit = finest(weight.flatten(1)).amin(1)
        scale = torch.where(unit.isfinite(), unit, 0.0).exp2()
        rows = rows / scale[:, None, None, None]
        if not bool(((SMALL.min <= rows) & (rows <= SMALL.max)).all()):
            raise ValueError(
                f'{join.product.target}: its weights have more than 8 bits, and precision="int8" multiplies 8; {SNAP}'
            )
        stride = module.stride[0] if isinstance(module, nn.Conv2d) else 1
        return Synapses(rows.to(torch.int8).contiguous()[None], scale.float(), stride)

    def _takes(self, node: Node, layer: SpikingLayer) -> bool:
        return True  # ``surveyed`` has refused all others

    def _small(self, name: str) -> bool:
        """Of a CPU's kernels none takes numbers below 0."""
        x = self.values[name]
        small = isinstance(x, Reach) and bool((x.grid >= 0).all() and (x.bound <= SMALL.max).all())
        return small and (self.fused or self._counts(name))

    def _size(self, name: str) -> tuple[int, ...]:
        x = self.values[name]
        return tuple(x.bound.shape) if isinstance(x, Reach) else ()

    def _counts(self, name: str) -> bool:
        """Whether a value is spikes, or sums of them."""
        node = self.reading.nodes[name]
        return self.reading.neuron(node) is not None or (self.reading.passes(node) and self._counts(node.refs[0]))

    def _scale(self, name: str) -> Node | None:
        node = self.reading.nodes[name]
        scale = self.reading.module(node)
        if not isinstance(scale, Scale) or scale.weight.numel() > 1 or scale.bias is not None:
            return None
        return node if len(self.reading.sinks(name)) == 1 else None

    def _pool(self, node: Node) -> Node | None:
        """The sum over windows of 2x2."""
        users = self.reading.users[node.name]
        pool = self.reading.module(users[0]) if len(users) == 1 else None
        if type(pool) is not nn.AvgPool2d or pool.divisor_override != 1 or not pairs_of(pool):
            return None
        return users[0] if all(size % 2 == 0 for size in self._size(node.name)[2:]) else None


def surveyed(graph: Graph, model: nn.Module, input_shape: tuple[int, ...] | None) -> Survey:
    """What is known of the network's numbers; a ValueError says why they are not in fixed point, or too long."""
    if not was_snapped(model):
        raise ValueError(f'precision="int8" is for networks in fixed point, and this one is not; {SNAP}')
    if input_shape is None or len(graph.inputs) != 1:
        raise ValueError('precision="int8" has to know the shape of the one input: convert with example=x')
    for name, layer in model.named_modules():
        if isinstance(layer, SpikingLayer):
            _check_layer(name, layer)
            if joins.fuses(layer.theta.device):
                _check_policy(name, layer)
    found = survey(network(graph, model), (torch.zeros(1, *input_shape),), spikes=True)
    limit = ACCUMULATORS["tf32"]
    reasons = [*found.doubts]
    for name, made in found.sums.items():
        if made.excess("float32" if isinstance(model.get_submodule(name), Scale) else "tf32") > 0:
            reasons.append(f"{name}: its weights, inputs or sums are too long for TF32")
    bits = found.others | {name: reach.bits for name, reach in found.currents.items()}
    reasons += [f"{name}: its sums need {n} bits and {limit} are exact" for name, n in bits.items() if n > limit]
    if reasons:
        raise ValueError(f'precision="int8" needs exact sums, but {"; ".join(reasons[:3])}. {SNAP.capitalize()}')
    return found


def _check_layer(name: str, layer: SpikingLayer) -> None:
    if layer.neuron != IF():
        raise ValueError(f'precision="int8" knows neurons that send 0 and 1; {name} has {layer.neuron}')
    if layer.shift is not None or layer.start is not None:
        raise ValueError(f'precision="int8": {name} is corrected, so it is not in fixed point')
    if not bool((layer.theta == 1).all()):
        raise ValueError(f'precision="int8": the threshold of {name} is not 1, so it is not in fixed point; {SNAP}')


def _check_policy(name: str, layer: SpikingLayer) -> None:
    """Refuse what the one kernel does not know."""
    if not isinstance(layer.policy, LISTENING):
        raise ValueError(f'precision="int8" knows osp.methods.cos_light, cos and exact; {name} has {layer.policy}')
    if isinstance(layer.policy, Exact) and layer.policy.place == "carry":
        raise ValueError(
            f'precision="int8" keeps sums on chip, a few pixels at a time, and {name} hands on along whole maps: take '
            'place="even", or precision="tf32", which is as exact'
        )


def check_run(method: Method, device: torch.device) -> None:
    """Refuse a run that the one kernel cannot do."""
    if not joins.fuses(device):
        return
    if method.schedule != "layerwise":
        raise ValueError('precision="int8" calibrates layer by layer: the causal schedule needs another precision')
    if method.rho > LONGEST:
        raise ValueError(
            f'precision="int8" keeps the steps that are heard on chip, at most {LONGEST}: got rho = {method.rho}; '
            'take precision="tf32", which is as exact'
        )
