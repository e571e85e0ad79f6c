"""The arguments of a node: values, and references to other nodes, nested in tuples, lists, dictionaries and slices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Ref", "decode", "encode", "fill", "map_values", "refs_in", "values_in"]

V = TypeVar("V")


@dataclass(frozen=True)
class Ref:
    """The value of an earlier node, as an argument."""

    name: str


def map_values(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """``leaf`` of every value in nested arguments."""
    if isinstance(value, tuple):
        return tuple(map_values(item, leaf) for item in value)
    if isinstance(value, list):
        return [map_values(item, leaf) for item in value]
    if isinstance(value, dict):
        return {key: map_values(item, leaf) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(map_values(value.start, leaf), map_values(value.stop, leaf), map_values(value.step, leaf))
    return leaf(value)


def values_in(value: Any, kind: type[V]) -> list[V]:
    """Every value of type ``kind`` in nested arguments, in order."""
    found: list[V] = []
    map_values(value, lambda leaf: found.append(leaf) if isinstance(leaf, kind) else None)
    return found


def refs_in(value: Any) -> tuple[str, ...]:
    """The names of the nodes whose values stand in nested arguments."""
    return tuple(ref.name for ref in values_in(value, Ref))


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Nested arguments with the values of nodes in the place of their names."""
    return map_values(value, lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf)


def encode(value: Any) -> Any:
    """Nested arguments as JSON has them: lists, dictionaries, strings and numbers."""
    if isinstance(value, Ref):
        return {"node": value.name}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, slice):
        return {"slice": [encode(item) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, dict):
        return {"dict": [[key, encode(item)] for key, item in value.items()]}
    return {"ellipsis": None} if value is ... else value


def decode(value: Any) -> Any:
    """The inverse of ``encode``; anything else is refused with a ValueError."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match [*value.items()]:
        case [("node", str(name))]:
            return Ref(name)
        case [("tuple", list(items))]:
            return tuple(decode(item) for item in items)
        case [("slice", [start, stop, step])]:
            return slice(decode(start), decode(stop), decode(step))
        case [("dict", list(items))]:
            return {key: decode(item) for key, item in items}
        case [("ellipsis", None)]:
            return ...
    raise ValueError(f"{value!r} is not an argument")
