"""A graph in the making: nodes and layers are added, names never collide."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, nn

from offspike.graph import Graph, GraphNetwork, Kind, Node, Ref

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
        path = node.target if self._uses[node.target] == 1 else self.free(f"{node.target}_use")
        self.leaves[path] = layer
        self.nodes.append(replace(node, target=path))

    def put(self, path: str, leaf: nn.Module | Tensor, *args: Ref, name: str | None = None) -> Ref:
        """A new leaf named after ``path``, and the node that calls it (a layer) or holds it (a tensor)."""
        path = self.free(path)
        self.leaves[path] = leaf
        kind: Kind = "module" if isinstance(leaf, nn.Module) else "attribute"
        self.nodes.append(Node(name or self._free_name(path), kind, path, args))
        return Ref(self.nodes[-1].name)

    def free(self, path: str) -> str:
        """``path``, or the first of ``path_1``, ``path_2`` … that nothing has."""
        names = [path] + [f"{path}_{k}" for k in range(1, len(self._paths) + 2)]
        found = next(name for name in names if not any(t == name or t.startswith(f"{name}.") for t in self._paths))
        self._paths.add(found)
        return found

    def network(self, input_shape: tuple[int, ...] | None) -> GraphNetwork:
        """The network that has been assembled."""
        return GraphNetwork(Graph(tuple(self.nodes)), self.leaves, input_shape=input_shape)

    def _free_name(self, path: str) -> str:
        base = path.replace(".", "_").replace("-", "_")
        names = [base] + [f"{base}_{k}" for k in range(1, len(self._names) + 2)]
        found = next(name for name in names if name not in self._names)
        self._names.add(found)
        return found
