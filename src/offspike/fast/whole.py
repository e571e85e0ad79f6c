"""Networks in fixed point: spikes and 8-bit weights are multiplied as whole numbers, and spikes travel as int8.

A survey of the network (`arithmetic.bounds`) says which values are small whole numbers, and that all sums are exact:
so they are the same in whole numbers, in TF32 and in float32. Where a convolution or linear layer takes such values
and only neurons take its result, a GPU does both in one kernel (`fused.Product`), a CPU in two (`ops.onednn`, then the
neurons as ever). What they do not know (the image, odd convolutions, logits) runs as in ``"tf32"``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offspike.arithmetic.bounds import Survey, survey
from offspike.arithmetic.grids import Scale, finest, was_snapped
from offspike.arithmetic.reach import ACCUMULATORS, Reach
from offspike.capture import network
from offspike.fast.reading import Reading
from offspike.fused import LISTENING, Synapses
from offspike.graph import Graph, Node
from offspike.initial import Exact
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.neurons import IF
from offspike.ops import LONGEST

__all__ = ["Join", "Whole", "check_run", "surveyed"]

SMALL = torch.iinfo(torch.int8)
SNAP = "snap it first: osp.snap(ann, bits=8, example=x)"
_SHAPES = ("flatten", "reshape", "view", "contiguous")  # keep the dtype, whatever it is


@dataclass(frozen=True)
class Join:
    """What a spiking layer does besides: a product (of an image?), a shortcut (and its `Scale`), a pool of 2x2."""

    product: Node
    image: bool
    beside: str | None = None
    scale: Node | None = None
    pool: Node | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The values that it reads."""
        return self.product.refs if self.beside is None else (*self.product.refs, self.beside)


class Whole:
    """By spiking node what joins it (``joins``), and what therefore is no step of its own (``inside``).

    ``pools`` are the pools among them: what they take is pooled already. ``fused``: it is all one kernel.
    """

    def __init__(self, reading: Reading, found: Survey) -> None:
        self.reading, self.values = reading, found.values
        self.fused = fuses(next(reading.model.parameters()).device)
        self.joins = {node.name: join for node in reading.nodes.values() if (join := self._join(node))}
        self.products = {join.product.name for join in self.joins.values()}
        self.pools = {join.pool.name for join in self.joins.values() if join.pool is not None}
        self.inside = self.products | {join.scale.name for join in self.joins.values() if join.scale is not None}

    def narrow(self, name: str) -> bool:
        """Whether a value goes as int8: one who takes it wants that, and the others do not mind."""
        return self._wanted(name) and self._taken(name)

    def gain(self, join: Join) -> Tensor:
        """What a spike of the shortcut is worth."""
        scale = None if join.scale is None else self.reading.module(join.scale)
        return scale.weight.detach().clone() if isinstance(scale, Scale) else torch.ones(1)

    def synapses(self, join: Join) -> Synapses:
        """The weights of a product as whole numbers."""
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
        return Synapses(rows.to(torch.int8).contiguous(), scale.float(), stride)

    def _join(self, node: Node) -> Join | None:
        layer = self.reading.neuron(node)
        # Joined products are made later than they stand: nothing may change their input meanwhile.
        if layer is None or layer.steady or self.reading.in_place:
            return None
        own, other = self.reading.parts(node)
        product = self.reading.nodes[own]
        if not (self.reading.bare(product) and self._fits(product)):
            return None
        image = isinstance(self.reading.module(product), nn.Conv2d)
        if other is None:
            return Join(product, image, pool=self._pool(node))
        if self.values[other].bound.shape != self.values[own].bound.shape:  # a sum that repeats one of its parts
            return None
        scale = self._scale(other)
        beside = other if scale is None else self.reading.source(scale.refs[0])
        return Join(product, image, beside, scale, self._pool(node))

    def _fits(self, node: Node) -> bool:
        """Whether the kernels know this product, and its input is small whole numbers (a CPU's: none below 0)."""
        module, x = self.reading.module(node), self.values[node.refs[0]]
        small = isinstance(x, Reach) and bool((x.grid >= 0).all() and (x.bound <= SMALL.max).all())
        small = small and (self.fused or self._counts(node.refs[0]))
        if isinstance(module, nn.Linear):
            return small and x.bound.ndim in (2, 3)
        if not isinstance(module, nn.Conv2d) or module.padding_mode != "zeros":
            return False
        k, stride = module.kernel_size[0], module.stride[0]
        padding = (k // 2, k // 2) if module.padding == "same" and stride == 1 else module.padding
        plain = (module.kernel_size, module.stride, padding) == ((k, k), (stride, stride), (k // 2, k // 2))
        return small and plain and k % 2 == 1 and module.groups == 1 and module.dilation == (1, 1)

    def _counts(self, name: str) -> bool:
        """Whether a value is spikes, or sums of them."""
        node = self.reading.nodes[name]
        return self.reading.neuron(node) is not None or (self.reading.passes(node) and self._counts(node.refs[0]))

    def _scale(self, name: str) -> Node | None:
        """The shortcut's `Scale`, if it is one number that the neurons can multiply with themselves."""
        node = self.reading.nodes[name]
        scale = self.reading.module(node)
        if not isinstance(scale, Scale) or scale.weight.numel() > 1 or scale.bias is not None:
            return None
        return node if len(self.reading.sinks(name)) == 1 else None

    def _pool(self, node: Node) -> Node | None:
        """The sum over windows of 2x2 that alone takes a layer's spikes, if there is one."""
        users = self.reading.users[node.name]
        pool = self.reading.module(users[0]) if len(users) == 1 else None
        if type(pool) is not nn.AvgPool2d or pool.divisor_override != 1 or pool.ceil_mode:
            return None
        sizes = [pool.kernel_size, pool.stride, pool.padding]
        even = all(size % 2 == 0 for size in self.values[node.name].bound.shape[2:])
        plain = [size if isinstance(size, tuple) else (size, size) for size in sizes]
        return users[0] if even and plain == [(2, 2), (2, 2), (0, 0)] else None

    def _wanted(self, name: str) -> bool:
        users = self.reading.users[name]
        return any(user.name in self.products or (self._keeps(user) and self._wanted(user.name)) for user in users)

    def _taken(self, name: str) -> bool:
        for user in self.reading.users[name]:
            known = self.reading.linear(user) or user.name in self.reading.sums or user.name in self.inside
            if not known and not (self._keeps(user) and self._taken(user.name)):
                return False
        return True

    def _keeps(self, node: Node) -> bool:
        """Whether a node only hands a value on, in its dtype."""
        module = self.reading.module(node)
        if module is not None:
            idle = self.reading.source(node.name) != node.name
            return idle or node.name in self.pools or isinstance(module, nn.Flatten)
        return node.kind in ("function", "method") and node.target.rpartition(".")[2] in _SHAPES


def surveyed(graph: Graph, model: nn.Module, input_shape: tuple[int, ...] | None) -> Survey:
    """What is known of the network's numbers; a ValueError says why they are not in fixed point, or too long."""
    if not was_snapped(model):
        raise ValueError(f'precision="int8" is for networks in fixed point, and this one is not; {SNAP}')
    if input_shape is None or len(graph.inputs) != 1:
        raise ValueError('precision="int8" has to know the shape of the one input: convert with example=x')
    for name, layer in model.named_modules():
        if isinstance(layer, SpikingLayer):
            _check_layer(name, layer)
            if fuses(layer.theta.device):
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


def fuses(device: torch.device) -> bool:
    """Whether a product and its neurons are one kernel there."""
    return device.type == "cuda"


def check_run(method: Method, device: torch.device) -> None:
    """Refuse a run that the one kernel cannot do."""
    if not fuses(device):
        return
    if method.schedule != "layerwise":
        raise ValueError('precision="int8" calibrates layer by layer: the causal schedule needs another precision')
    if method.rho > LONGEST:
        raise ValueError(
            f'precision="int8" keeps the steps that are heard on chip, at most {LONGEST}: got rho = {method.rho}; '
            'take precision="tf32", which is as exact'
        )
