"""A graph in the making: nodes and layers are added, names never collide."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, nn

from offspike.graph import Graph, GraphNetwork, Kind, Node, Ref
from offspike.inspection.rewrite import free_path

__all__ = ["Assembly"]


class Assembly:
    """Starts empty; names that ``old`` uses for nodes and layers are kept free for them."""

    def __init__(self, old: Iterable[Node]) -> None:
        self.nodes: list[Node] = []
        self.leaves: dict[str, nn.Module | Tensor] = {}
        self._paths = {node.target for node in old if node.kind in ("module", "attribute")}
        self._names = {node.name for node in old}
        self._uses: Counter[str] = Counter()

    def add(self, node: Node) -> None:
        """Append a node."""
        self.nodes.append(node)

    def call(self, node: Node, layer: nn.Module) -> None:
        """Append a node that calls ``layer``; a second use of a layer's name gets a name of its own."""
        self._uses[node.target] += 1
        path = node.target if self._uses[node.target] == 1 else free_path(f"{node.target}_use", self._paths)
        self.leaves[path] = layer
        self.nodes.append(replace(node, target=path))

    def put(self, path: str, leaf: nn.Module | Tensor, *args: Ref, name: str | None = None) -> Ref:
        """A new leaf named after ``path``, and the node that calls it (a layer) or holds it (a tensor)."""
        path = free_path(path, self._paths)
        self.leaves[path] = leaf
        kind: Kind = "module" if isinstance(leaf, nn.Module) else "attribute"
        name = name or free_path(path.replace(".", "_").replace("-", "_"), self._names)
        self.nodes.append(Node(name, kind, path, args))
        return Ref(name)

    def network(self, input_shape: tuple[int, ...] | None) -> GraphNetwork:
        """The network that has been assembled."""
        return GraphNetwork(Graph(tuple(self.nodes)), self.leaves, input_shape=input_shape)
