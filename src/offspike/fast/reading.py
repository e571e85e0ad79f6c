"""What a graph allows its plan to do: which sums, biases, thresholds and poolings may move into the neurons."""

import math

from torch import nn

from offspike.arithmetic.averages import NAMES as POOL
from offspike.arithmetic.reach import OPERANDS
from offspike.graph import Graph, Node, Ref
from offspike.layers import SpikingLayer

__all__ = ["Reading"]

_LINEAR = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_SAME = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)  # in eval mode
# f(c·x) = c·f(x) for any number c, with x as the first argument.
_HOMOGENEOUS = (
    nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad2d, *_SAME,
)  # fmt: skip
_HOMOGENEOUS_CALLS = {
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "flatten", "unflatten", "reshape", "view", "permute", "transpose", "movedim", "swapaxes", "squeeze", "unsqueeze",
    "getitem", "narrow", "select", "mean", "sum", "flip", "roll", "contiguous", "clone", "detach",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
}  # fmt: skip
_SIZES = {"shape", "ndim", "size", "dim", "numel"}
_SUMS = {"operator.add", "operator.iadd", "torch.add", "add", "add_"}


class Reading:
    """A graph and its layers, as far as running them fast is concerned."""

    def __init__(self, graph: Graph, model: nn.Module, *, fast: bool, moving_input: bool) -> None:
        self.model, self.fast = model, fast
        self.nodes = {node.name: node for node in graph.nodes}
        self.users: dict[str, list[Node]] = {name: [] for name in self.nodes}
        for node in graph.nodes:
            for name in dict.fromkeys(node.refs):
                self.users[name].append(node)
        self.moving: set[str] = set()  # changes over time
        for node in graph.nodes:
            starts = moving_input if node.kind == "input" else self.neuron(node) is not None
            if starts or self.moving.intersection(node.refs):
                self.moving.add(node.name)
        self.early: set[str] = set()  # reaches a neuron
        for node in reversed(graph.nodes):
            if any(self.neuron(user) or user.name in self.early for user in self.users[node.name]):
                self.early.add(node.name)
        self.sums = {node.name: parts for node in graph.nodes if (parts := self._sum(node))}
        self.in_place = any(self._changes(node) and node.name not in self.sums for node in graph.nodes)

    def module(self, node: Node) -> nn.Module | None:
        """The layer that a node calls, if it calls one."""
        return self.model.get_submodule(node.target) if node.kind == "module" else None

    def neuron(self, node: Node) -> SpikingLayer | None:
        """The spiking layer that a node calls, if it calls one."""
        module = self.module(node)
        return module if isinstance(module, SpikingLayer) else None

    def linear(self, node: Node) -> bool:
        """Whether a node is a convolution or linear layer, called on a value."""
        return type(self.module(node)) in _LINEAR and len(node.args) == 1 and isinstance(node.args[0], Ref)

    def source(self, name: str) -> str:
        """Where a value comes from, before modules that do nothing."""
        while type(self.module(self.nodes[name])) in _SAME:
            name = self.nodes[name].refs[0]
        return name

    def sinks(self, name: str) -> list[Node]:
        """Who takes a value, behind modules that do nothing."""
        found: list[Node] = []
        for user in self.users[name]:
            found += self.sinks(user.name) if type(self.module(user)) in _SAME else [user]
        return found

    def parts(self, node: Node) -> tuple[str, str | None]:
        """Where a spiking layer's current comes from, and what the layer itself adds to it, if anything."""
        source = self.source(node.refs[0])
        return self.sums.get(source, (source, None))

    def bare(self, node: Node) -> bool:
        """Whether a linear layer's bias is added by the neurons: they alone take its output."""
        if not self.fast or not self.linear(node):
            return False
        match self.sinks(node.name):
            case [sink] if sink.name in self.sums:
                return True
            case [sink]:
                return self._adds(self.neuron(sink))
        return False

    def unit(self, node: Node) -> bool:
        """Whether a spiking layer may write 1 for a spike: all who take it know what θ to put in."""
        layer = self.neuron(node)
        return self.fast and not self.in_place and layer is not None and layer.theta.numel() == 1 and self._knows(node)

    def passes(self, node: Node) -> bool:
        """Whether a node's output has the factor that its input has."""
        if not node.args or not isinstance(node.args[0], Ref) or len(node.refs) != 1:
            return False
        module = self.module(node)
        if module is not None:
            return type(module) in _HOMOGENEOUS
        return node.kind in ("function", "method") and node.target.rpartition(".")[2] in _HOMOGENEOUS_CALLS

    def pool(self, node: Node) -> Node | None:
        """The 2x2 average pooling that alone takes a spiking layer's spikes, if there is one."""
        users = self.users[node.name]
        found = self.module(users[0]) if len(users) == 1 else None
        if type(found) is not nn.AvgPool2d or not self.unit(node):
            return None
        sizes = [found.kernel_size, found.stride, found.padding]
        plain = [value if isinstance(value, int) else value[0] if len({*value}) == 1 else 0 for value in sizes]
        fits = plain == [2, 2, 0] and not found.ceil_mode and found.divisor_override is None
        return users[0] if fits else None

    def pooled(self, node: Node) -> bool:
        """Whether a node is such a pooling."""
        before = self.nodes[node.refs[0]] if len(node.refs) == 1 else None
        return before is not None and self.neuron(before) is not None and self.pool(before) is node

    def short(self, name: str) -> bool:
        """Whether a value is spikes of 1, or counts of them over a power of two: few bits, exact in TF32."""
        return self._averaged(self.nodes[name]) < 1 << OPERANDS["tf32"]

    def _averaged(self, node: Node) -> float:
        """How many spikes a value is the average of; ∞ where it is none, or not of a power of two."""
        if self.neuron(node) is not None:
            return 1 if self.unit(node) else math.inf
        if not self.passes(node):
            return math.inf
        return self._averaged(self.nodes[node.args[0].name]) * self._window(node)

    def _window(self, node: Node) -> float:
        """Over how many numbers a node that passes factors on averages: 1, a power of two, or ∞ for anything else."""
        module = self.module(node)
        name = (node.target.rpartition(".")[2] if module is None else type(module).__name__).replace("_", "").lower()
        if not name.startswith("avgpool"):
            return math.inf if name.startswith("adaptive") or name in ("mean", "sum") else 1
        given = dict(zip(POOL, node.args[1:], strict=False)) | node.kwargs if module is None else vars(module)
        size, axes = given["kernel_size"], int(name[-2])
        sides = [*size] if isinstance(size, tuple | list) else [size] * axes
        edges = given.get("ceil_mode") or given.get("padding") not in (None, 0, (0,) * axes)
        if edges or given.get("divisor_override") or not all(isinstance(side, int) for side in sides):
            return math.inf
        window = math.prod(sides) if len(sides) == axes else sides[0] ** axes
        return window if window & (window - 1) == 0 else math.inf

    def _knows(self, node: Node) -> bool:
        for user in self.users[node.name]:
            sized = user.kind in ("function", "method") and user.target.rpartition(".")[2] in _SIZES
            if self.linear(user) or user.name in self.sums or sized:
                continue
            if not (self.passes(user) and self._knows(user)):
                return False
        return True

    def _sum(self, node: Node) -> tuple[str, str] | None:
        """The two parts of a sum that neurons make themselves, the one from a linear layer first."""
        plain = len(node.args) == 2 and all(isinstance(arg, Ref) for arg in node.args) and not node.kwargs
        sinks = self.sinks(node.name)
        if node.kind not in ("function", "method") or node.target not in _SUMS or not plain or len(sinks) != 1:
            return None
        names = [self.source(arg.name) for arg in node.args]
        moving = all(name in self.moving for name in names) and self._adds(self.neuron(sinks[0]))
        own = [name for name in names if self.linear(self.nodes[name]) and len(self.sinks(name)) == 1]
        if not moving or not own or names[0] == names[1] or (_in_place(node) and names[0] not in own):
            return None
        largest = max(own, key=lambda name: self._size(self.nodes[name]))
        return largest, names[1 - names.index(largest)]

    def _changes(self, node: Node) -> bool:
        """Whether a node may change its first argument; so does an in-place ReLU of the image, which stays a ReLU."""
        module = self.module(node)
        layer = module is not None and type(module) not in _SAME and bool(getattr(module, "inplace", False))
        relu = node.kind == "function" and node.target in ("F.relu", "F.relu6", "F.leaky_relu", "F.hardtanh")
        return layer or _in_place(node) or (relu and (node.args[-1:] == (True,) or node.kwargs.get("inplace") is True))

    def _size(self, node: Node) -> int:
        """How many weights the layer of a node has."""
        module = self.module(node)
        return 0 if module is None else sum(weight.numel() for weight in module.parameters())

    def _adds(self, layer: SpikingLayer | None) -> bool:
        """Whether a spiking layer can add something to its current: it then has at most one shift a channel."""
        if layer is None:
            return False
        return layer.shift is None or sum(size > 1 for size in layer.shift.shape) <= 1


def _in_place(node: Node) -> bool:
    name = node.target.rpartition(".")[2]
    inside = name in ("iadd", "isub", "imul", "itruediv") or (name.endswith("_") and not name.startswith("_"))
    return node.kind in ("function", "method") and inside
