"""Nodes of a NIR file and parts of a wiring diagram, each made from the other. What is read is checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offspike.exchange.hdf5 import Tree
from offspike.exchange.parts import Kind, Part

__all__ = ["metadata", "node_of", "part_of", "read_graph"]

LARGEST = 2**31  # elements of one sample
NEURONS = ("IF", "LIF", "CubaLIF")
RULE = {"reset": "subtract theta", "fires": "at or above"}


def metadata(part: Part, **more: Any) -> dict[str, Any]:
    """What NIR cannot say about neurons: soft reset, the rule ≥, θ and v(0)."""
    values = part.values
    said = {**RULE, "theta": values["theta"].numpy(), "v0": values["v0"].numpy(), "label": values["label"], **more}
    return said if values["levels"] is None else {**said, "levels": values["levels"]}


def node_of(nir: Any, part: Part, shape: tuple[int, ...]) -> Any:
    """The NIR node of any part but neurons, which simulators read in their own ways; ``shape`` is what it gets."""
    values = part.values
    if part.kind in ("input", "output"):
        kind = nir.Input if part.kind == "input" else nir.Output
        return kind({part.kind: np.array(part.shape)})
    if part.kind == "affine":
        return nir.Affine(values["weight"].numpy(), values["bias"].numpy())
    if part.kind == "scale":
        return nir.Scale(values["scale"].numpy())
    if part.kind == "flatten":  # counted from the end: readers do not agree on whether the batch is an axis
        return nir.Flatten({"input": np.array(shape)}, start_dim=-values["axes"], end_dim=-1)
    if part.kind == "pool":
        return nir.AvgPool2d(*(np.array(values[name]) for name in ("kernel", "stride", "padding")))
    sizes: dict[str, Any] = {name: tuple(values[name]) for name in ("stride", "padding", "dilation")}
    places: Any = shape[1:]
    kind = nir.Conv2d
    if values["weight"].ndim == 3:
        sizes, kind, places = {name: size[0] for name, size in sizes.items()}, nir.Conv1d, shape[1]
    return kind(places, values["weight"].numpy(), **sizes, groups=values["groups"], bias=values["bias"].numpy())


def read_graph(tree: Tree) -> dict[str, tuple[Tree, list[str]]]:
    """The nodes of a NIR file by name, each with the names of its sources."""
    graph = _get(tree, "node", dict)
    nodes = _get(graph, "nodes", dict)
    edges = graph.get("edges")
    if not isinstance(edges, np.ndarray) or edges.dtype != object or edges.ndim != 2 or edges.shape[1] != 2:
        raise ValueError("it has no list of edges")
    found: dict[str, tuple[Tree, list[str]]] = {}
    for name, fields in nodes.items():
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            raise ValueError(f"{name!r} is not a node")
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of a node")
        found[name] = (fields, [])
    for source, target in edges:
        if source not in found or target not in found or source in found[target][1]:
            raise ValueError(f"the edge from {source!r} to {target!r} is there twice, or joins nodes that are not")
        found[target][1].append(source)
    kinds = [fields["type"] for fields, _ in found.values()]
    if kinds.count("Input") != 1 or kinds.count("Output") != 1:
        raise ValueError("it should have one input and one output")
    return found


def part_of(name: str, fields: Tree, sources: tuple[str, ...], before: Mapping[str, Part]) -> Part:
    """A checked part: its sources have been read and agree on a shape that it takes."""
    kind = fields["type"]
    if kind == "Input":
        if sources:
            raise ValueError(f"{name}: an input has no sources")
        return Part(name, "input", (), _shape(name, fields.get("shape")))
    shapes = {before[source].shape for source in sources}
    if len(shapes) != 1 or any(before[source].kind == "output" for source in sources):
        raise ValueError(f"{name} adds up shapes {sorted(shapes)}")
    shape = shapes.pop()
    if kind in NEURONS:
        return Part(name, "neurons", sources, shape, _neurons(name, fields, shape))
    if kind not in READERS:
        raise ValueError(f"{name} is a {kind}, which has no counterpart here")
    part_kind, values, out = READERS[kind](name, fields, shape)
    if not all(1 <= size < LARGEST for size in out) or np.prod(out, dtype=object) >= LARGEST:
        raise ValueError(f"{name} would make {list(out)} of {list(shape)}")
    return Part(name, part_kind, sources, out, values)


def _neurons(name: str, fields: Tree, shape: tuple[int, ...]) -> dict[str, Any]:
    said = fields.get("metadata")
    if not isinstance(said, dict) or any(said.get(key) != rule for key, rule in RULE.items()):
        raise ValueError(
            f"{name} is a {fields['type']} that resets to v_reset, as NIR has it; offspike's neurons subtract the "
            "threshold, and a file of offspike says so in the node's metadata"
        )
    values: dict[str, Any] = {key: _floats(f"{name}.{key}", said.get(key), shape) for key in ("theta", "v0")}
    if not bool((values["theta"] > 0).all()):
        raise ValueError(f"{name} has a threshold that is not positive")
    if "offset" in said:
        values["offset"] = _floats(f"{name}.offset", said["offset"], shape)
    levels = said.get("levels")
    values["levels"] = None if levels is None else _whole(f"{name}.levels", levels, 1)[0]
    return values


def _affine(name: str, fields: Tree, shape: tuple[int, ...]) -> tuple[Kind, dict[str, Any], tuple[int, ...]]:
    weight = _floats(name, fields.get("weight"))
    if weight.ndim != 2 or shape != (weight.shape[1],):
        raise ValueError(f"{name}: a matrix {list(weight.shape)} does not take {list(shape)}")
    zero = np.zeros(len(weight), dtype=np.float32)
    bias = _floats(name, fields.get("bias", zero), (len(weight),))
    return "affine", {"weight": weight, "bias": bias}, (len(weight),)


def _conv(name: str, fields: Tree, shape: tuple[int, ...]) -> tuple[Kind, dict[str, Any], tuple[int, ...]]:
    weight, axes = _floats(name, fields.get("weight")), len(shape) - 1
    values: dict[str, Any] = {"weight": weight, "bias": _floats(name, fields.get("bias"), (len(weight),))}
    for key, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
        values[key] = _whole(f"{name}.{key}", fields.get(key), least, axes)
    values["groups"] = groups = _whole(f"{name}.groups", fields.get("groups"), 1)[0]
    if weight.ndim != 2 + axes or axes not in (1, 2) or shape[0] != weight.shape[1] * groups or len(weight) % groups:
        raise ValueError(f"{name}: weights {list(weight.shape)} in {groups} groups do not take {list(shape)}")
    reach = [d * (k - 1) + 1 for d, k in zip(values["dilation"], weight.shape[2:], strict=True)]
    return "conv", values, (len(weight), *_windows(name, shape, reach, values["stride"], values["padding"]))


def _pool(name: str, fields: Tree, shape: tuple[int, ...]) -> tuple[Kind, dict[str, Any], tuple[int, ...]]:
    kernel, stride = (_whole(f"{name}.{key}", fields.get(key), 1, 2) for key in ("kernel_size", "stride"))
    padding = _whole(f"{name}.padding", fields.get("padding"), 0, 2)
    if len(shape) != 3 or any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ValueError(f"{name}: windows of {kernel}, padded by {padding}, do not fit {list(shape)}")
    values = {"kernel": kernel, "stride": stride, "padding": padding}
    return "pool", values, (shape[0], *_windows(name, shape, list(kernel), stride, padding))


def _flatten(name: str, fields: Tree, shape: tuple[int, ...]) -> tuple[Kind, dict[str, Any], tuple[int, ...]]:
    start, end = (int(_numbers(f"{name}.{key}", fields.get(key)).item()) for key in ("start_dim", "end_dim"))
    if start not in (0, -len(shape)) or end not in (-1, len(shape) - 1):
        raise ValueError(f"{name} flattens axes {start} to {end} of {list(shape)}: only all of them can be")
    return "flatten", {"axes": len(shape)}, (int(np.prod(shape, dtype=object)),)


def _scale(name: str, fields: Tree, shape: tuple[int, ...]) -> tuple[Kind, dict[str, Any], tuple[int, ...]]:
    return "scale", {"scale": _floats(name, fields.get("scale"), shape)}, shape


def _output(name: str, fields: Tree, shape: tuple[int, ...]) -> tuple[Kind, dict[str, Any], tuple[int, ...]]:
    return "output", {}, shape


READERS = {
    "Affine": _affine, "Linear": _affine, "Conv1d": _conv, "Conv2d": _conv, "AvgPool2d": _pool, "Flatten": _flatten,
    "Scale": _scale, "Output": _output,
}  # fmt: skip


def _windows(name: str, shape: tuple[int, ...], reach: list[int], stride: Any, padding: Any) -> list[int]:
    if any(p >= 2**15 for p in padding):
        raise ValueError(f"{name}: padding by {padding} makes no sense")
    return [(n + 2 * p - r) // s + 1 for n, r, s, p in zip(shape[1:], reach, stride, padding, strict=True)]


def _get(tree: Tree, name: str, kind: type) -> Any:
    if not isinstance(tree.get(name), kind):
        raise ValueError(f"it has no {name!r}: this is not a NIR file")
    return tree[name]


def _numbers(name: str, value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype == object or value.size < 1:
        raise ValueError(f"{name} is not a number, or missing")
    return value


def _whole(name: str, value: Any, least: int, count: int = 1) -> tuple[int, ...]:
    numbers = _numbers(name, value)
    if numbers.size not in (1, count) or numbers.dtype.kind not in "iu":
        raise ValueError(f"{name} should be {count} whole numbers")
    whole = tuple(int(number) for number in numbers.ravel())
    if not all(least <= number < 2**31 for number in whole):
        raise ValueError(f"{name} = {whole} makes no sense")
    return whole * count if len(whole) < count else whole


def _shape(name: str, value: Any) -> tuple[int, ...]:
    numbers = _numbers(name, value)
    shape = _whole(name, numbers, 1, numbers.size)
    if len(shape) > 3 or np.prod(shape, dtype=object) >= LARGEST:
        raise ValueError(f"{name}: an input of {list(shape)} makes no sense")
    return shape


def _floats(name: str, value: Any, shape: tuple[int, ...] | None = None) -> Tensor:
    numbers = _numbers(name, value)
    if numbers.dtype.kind != "f" or (shape is not None and numbers.shape != shape):
        raise ValueError(f"{name} is {list(numbers.shape)} {numbers.dtype} and should be {list(shape or ())} floats")
    tensor = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinite values")
    return tensor
