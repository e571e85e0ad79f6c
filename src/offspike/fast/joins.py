"""Which layers of a network are made in whole numbers: a convolution or linear layer, and the neurons that it drives.

Both are then one kernel on a GPU (`fused.Product`), and two on a CPU (`ops.onednn`, then the neurons as ever). What is
a small whole number, and what the weights become, differs: `whole.py` has networks in fixed point, `digits.py` others.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offspike.fast.reading import Reading
from offspike.fused import Synapses
from offspike.graph import Node
from offspike.layers import SpikingLayer

__all__ = ["Join", "Joins", "fuses", "pairs_of"]

_SHAPES = ("flatten", "reshape", "view", "contiguous")  # keep the dtype, whatever it is


def fuses(device: torch.device) -> bool:
    """Whether a product and its neurons are one kernel there."""
    return device.type == "cuda"


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


class Joins(ABC):
    """By spiking node what joins it (``joins``), and what therefore is no step of its own (``inside``).

    ``pools`` are the pools among them: what they take is counted already, over windows of 2x2, and a spike in such a
    count is worth ``share`` of one. ``fused``: it is all one kernel.
    """

    share = 1.0

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.fused = fuses(next(reading.model.parameters()).device)
        self.joins: dict[str, Join] = {}
        self.pools: set[str] = set()
        for node in reading.nodes.values():
            join = self._join(node)
            if join is not None:
                self.joins[node.name] = join
                self.pools |= set() if join.pool is None else {join.pool.name}
        self.products = {join.product.name for join in self.joins.values()}
        self.inside = self.products | {join.scale.name for join in self.joins.values() if join.scale is not None}

    @abstractmethod
    def synapses(self, join: Join, worth: Tensor | None) -> Synapses:
        """The weights of a product as whole numbers; ``worth`` is what a 1 of its input stands for (None: 1)."""

    @abstractmethod
    def _takes(self, node: Node, layer: SpikingLayer) -> bool:
        """Whether these neurons can be driven so, and may send 1 for a spike."""

    @abstractmethod
    def _small(self, name: str) -> bool:
        """Whether a value is whole numbers from 0 to 127, as kernels want them."""

    @abstractmethod
    def _size(self, name: str) -> tuple[int, ...]:
        """The shape of a value of one sample, ``[1, …]``; empty if it is not known."""

    @abstractmethod
    def _pool(self, node: Node) -> Node | None:
        """The pool of 2x2 that alone takes a layer's spikes, if there is one that counts can stand for."""

    def _scale(self, name: str) -> Node | None:
        """The shortcut's `Scale`, if the neurons can multiply with it themselves."""
        return None

    def narrow(self, name: str) -> bool:
        """Whether a value goes as int8: one who takes it wants that, and the others do not mind."""
        return self._wanted(name) and self._taken(name)

    def _join(self, node: Node) -> Join | None:
        layer = self.reading.neuron(node)
        # Joined products are made later than they stand: nothing may change their input meanwhile.
        if layer is None or layer.steady or self.reading.in_place or not self._takes(node, layer):
            return None
        own, other = self.reading.parts(node)
        product = self.reading.nodes[own]
        if not (self.reading.bare(product) and self._fits(product)):
            return None
        image = isinstance(self.reading.module(product), nn.Conv2d)
        if other is None:
            return Join(product, image, pool=self._pool(node))
        if self._size(other) != self._size(own):  # a sum that repeats one of its parts
            return None
        scale = self._scale(other)
        beside = other if scale is None else self.reading.source(scale.refs[0])
        return Join(product, image, beside, scale, self._pool(node))

    def _fits(self, node: Node) -> bool:
        """Whether the kernels know this product, and its input."""
        module, name = self.reading.module(node), node.refs[0]
        if isinstance(module, nn.Linear):
            return len(self._size(name)) in (2, 3) and self._small(name)
        if not isinstance(module, nn.Conv2d) or module.padding_mode != "zeros":
            return False
        k, stride = module.kernel_size[0], module.stride[0]
        padding = (k // 2, k // 2) if module.padding == "same" and stride == 1 else module.padding
        plain = (module.kernel_size, module.stride, padding) == ((k, k), (stride, stride), (k // 2, k // 2))
        plain = plain and k % 2 == 1 and module.groups == 1 and module.dilation == (1, 1)
        return plain and len(self._size(name)) == 4 and self._small(name)

    def _wanted(self, name: str) -> bool:
        users = self.reading.users[name]
        return any(user.name in self.products or (self.keeps(user) and self._wanted(user.name)) for user in users)

    def _taken(self, name: str) -> bool:
        for user in self.reading.users[name]:
            known = self.reading.linear(user) or user.name in self.reading.sums or user.name in self.inside
            if not known and not (self.keeps(user) and self._taken(user.name)):
                return False
        return True

    def keeps(self, node: Node) -> bool:
        """Whether a node only hands a value on, in its dtype."""
        module = self.reading.module(node)
        if module is not None:
            idle = self.reading.source(node.name) != node.name
            return idle or node.name in self.pools or isinstance(module, nn.Flatten)
        return node.kind in ("function", "method") and node.target.rpartition(".")[2] in _SHAPES


def pairs_of(pool: nn.AvgPool2d) -> bool:
    """Whether a pool's windows are 2x2, side by side."""
    sizes = [
        size if isinstance(size, tuple) else (size, size) for size in (pool.kernel_size, pool.stride, pool.padding)
    ]
    return sizes == [(2, 2), (2, 2), (0, 0)] and not pool.ceil_mode
