"""A model as a graph in which some calls are layers of their own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from offspike.capture import Step
from offspike.graph import Graph, GraphNetwork, Node, Ref, map_values
from offspike.inspection import sites

__all__ = ["free_path", "rewrite"]


def rewrite(model: nn.Module, steps: list[Step], new: Mapping[str, nn.Module]) -> GraphNetwork:
    """The network of ``steps`` with the layers of ``model``, in which the step named k calls the layer ``new[k]``.

    A new layer is named after its place: the name of the layer that was there, or the name of the function in the
    module that called it; then with ``_1``, ``_2`` …. A call that worked in place becomes one that does not,
    and what used the changed tensor afterwards uses its result.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = {step.target for step in steps if step.name not in new and step.kind in ("module", "attribute")}
    leaves: dict[str, nn.Module] = {}
    taken = set(kept)
    follow = _Follow()
    nodes = []
    for step in steps:
        step = replace(step, args=follow.now(step.args), kwargs=follow.now(step.kwargs))
        module = model.get_submodule(step.target) if step.kind == "module" else None
        follow.watch(step, module)
        if step.name in new:
            place = step.target if module is not None else f"{step.owner}.{sites.bare(step)}".lstrip(".")
            path = free_path(place, taken)
            leaves[path] = new[step.name]
            site = sites.relu(step, module) or sites.pool(step, module)
            nodes.append(Node(step.name, "module", path, (site.x,) if site else step.args, {} if site else step.kwargs))
        else:
            nodes.append(step.node())
    parts = {name: tensors[name] if name in tensors else model.get_submodule(name) for name in kept}
    network = GraphNetwork(Graph(tuple(nodes)), {**parts, **leaves}, input_shape=getattr(model, "input_shape", None))
    network.training = model.training
    return network


def free_path(path: str, taken: set[str]) -> str:
    """``path``, or the first of ``path_1``, ``path_2`` … that nothing has; it is taken from then on."""
    paths = [path] + [f"{path}_{k}" for k in range(1, len(taken) + 2)]
    found = next(one for one in paths if not any(t == one or t.startswith(f"{one}.") for t in taken))
    taken.add(found)
    return found


class _Follow:
    """Which step now holds a tensor that has been changed in place."""

    def __init__(self) -> None:
        self.origin: dict[str, str] = {}
        self.holder: dict[str, str] = {}

    def now(self, value: Any) -> Any:
        """Arguments with every tensor as it is now."""

        def lookup(leaf: object) -> object:
            if not isinstance(leaf, Ref):
                return leaf
            origin = self.origin.get(leaf.name, leaf.name)
            return Ref(self.holder.get(origin, leaf.name))

        return map_values(value, lookup)

    def watch(self, step: Step, module: nn.Module | None) -> None:
        """Take note of a step that hands its first argument on, changed or not."""
        changes, args = sites.in_place(step, module), step.call[0]
        if (changes or isinstance(module, nn.Identity)) and args and isinstance(args[0], Ref):
            first = args[0].name
            origin = self.origin.get(first, first)
            self.origin[step.name] = origin
            if changes:
                self.holder[origin] = step.name
