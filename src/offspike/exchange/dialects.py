"""The same network in the words that each simulator's NIR reader understands (docs/interop.md: how each reads).

"nir" keeps to NIR's own nodes: AvgPool2d, Scale for θ, grouped convolutions. The others know few of them, so there θ,
pooling and groups become weights of plain convolutions and matrices: exact if the network lies on a power-of-two grid.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offspike.exchange.nodes import metadata, node_of
from offspike.exchange.parts import Part, diagonal

__all__ = ["DIALECTS", "plain"]

Drawing = tuple[dict[str, Any], list[tuple[str, str]], dict[str, Any]]  # nodes, edges, facts about the graph
Parts = dict[str, Part]
ENDLESS = 2.0**60  # a time constant so long that float32 sees no leak
SNNTORCH_STEP = 1e-4  # seconds, fixed in its reader


def plain(nir: Any, parts: tuple[Part, ...], x: Tensor) -> Drawing:
    """Start at 0, fire at θ − v(0), subtract θ."""

    def neurons(part: Part) -> Any:
        theta, v0 = part.values["theta"].numpy(), part.values["v0"].numpy()
        return nir.IF(np.ones_like(theta), theta - v0, -v0, metadata=metadata(part))

    return _draw(nir, parts, neurons)


def threshold(nir: Any, parts: tuple[Part, ...], x: Tensor) -> Drawing:
    """sinabs and SpikingJelly: fire at θ; v(0) is set by the user, from the metadata."""

    def neurons(part: Part) -> Any:
        theta = part.values["theta"].numpy()
        return nir.IF(np.ones_like(theta), theta, np.zeros_like(theta), metadata=metadata(part))

    return _draw(nir, tuple(_simplified(parts).values()), neurons)


def snntorch(nir: Any, parts: tuple[Part, ...], x: Tensor) -> Drawing:
    """snnTorch: an LIF without a leak, as its IF leaks; it fires above θ, so ``start`` is a little more than v(0)."""
    simple = _simplified(parts)
    starts = _starts(simple, x)

    def neurons(part: Part) -> Any:
        theta = part.values["theta"].numpy()
        tau = np.full_like(theta, 1e6)
        said = metadata(part, start=starts[part.name].numpy())
        zero = np.zeros_like(theta)
        return nir.LIF(tau, tau / np.float32(SNNTORCH_STEP), zero, theta, zero, metadata=said)

    return _draw(nir, tuple(simple.values()), neurons)


def norse(nir: Any, parts: tuple[Part, ...], x: Tensor) -> Drawing:
    """norse: a CubaLIF starts at v_leak, and its synapse adds v_leak at each step, which a bias takes away again.

    Read it with ``from_nir(graph, dt=1.0, reset_method=reset_subtract)``.
    """
    simple = _simplified(parts)
    starts = _starts(simple, x)
    for name, start in starts.items():
        _subtract(simple, name, start)

    def neurons(part: Part) -> Any:
        theta = part.values["theta"].numpy()
        one, start = np.ones_like(theta), starts[part.name].numpy()
        endless = one * np.float32(ENDLESS)
        return nir.CubaLIF(
            tau_syn=one, tau_mem=endless, r=endless, v_leak=start, v_threshold=theta, w_in=one,
            v_reset=np.zeros_like(theta), metadata=metadata(part, offset=start),
        )  # fmt: skip

    nodes, edges, facts = _draw(nir, tuple(simple.values()), neurons)
    return nodes, edges, {**facts, "time_step": 1.0}


DIALECTS: dict[str, Callable[[Any, tuple[Part, ...], Tensor], Drawing]] = {
    "nir": plain, "norse": norse, "sinabs": threshold, "snntorch": snntorch, "spikingjelly": threshold,
}  # fmt: skip


def _draw(nir: Any, parts: tuple[Part, ...], neurons: Callable[[Part], Any]) -> Drawing:
    shapes = {part.name: part.shape for part in parts}
    nodes = {}
    for part in parts:
        takes = shapes[part.sources[0]] if part.sources else part.shape
        nodes[part.name] = neurons(part) if part.kind == "neurons" else node_of(nir, part, takes)
    return nodes, [(source, part.name) for part in parts for source in part.sources], {}


def _simplified(parts: tuple[Part, ...]) -> Parts:
    """Without scales, pools and groups."""
    simple = {part.name: _plain_weights(part) for part in parts}
    while scale := next((part for part in simple.values() if part.kind == "scale"), None):
        users = [part for part in simple.values() if scale.name in part.sources]
        factor = _per_channel(scale)
        if all(user.kind in ("conv", "affine") and user.sources == (scale.name,) for user in users):
            for user in users:
                weight = user.values["weight"] * factor.view(1, -1, *[1] * (user.values["weight"].ndim - 2))
                simple[user.name] = replace(user, sources=scale.sources, values={**user.values, "weight": weight})
            del simple[scale.name]
        elif len(users) == 1 and users[0].kind == "flatten" and len(users[0].sources) == 1:
            _swap(simple, scale, users[0])
        else:
            simple[scale.name] = _pointwise(scale, factor, torch.zeros(len(factor)))
    return _in_order(simple)


def _plain_weights(part: Part) -> Part:
    """Average pooling as a convolution; a grouped convolution as one with zeros."""
    values, channels = part.values, part.shape[0] if part.shape else 0
    if part.kind == "pool":
        height, width = values["kernel"]
        weight = diagonal(torch.full((channels,), 1 / (height * width)), 2).repeat(1, 1, height, width)
        options = {"stride": values["stride"], "padding": values["padding"], "dilation": (1, 1), "groups": 1}
        return replace(part, kind="conv", values={"weight": weight, "bias": torch.zeros(channels), **options})
    if part.kind == "conv" and values["groups"] > 1:
        blocks = values["weight"].chunk(values["groups"])
        inner = values["weight"].shape[1]
        weight = torch.zeros(len(values["weight"]), inner * len(blocks), *values["weight"].shape[2:])
        for k, block in enumerate(blocks):
            weight[k * len(block) : (k + 1) * len(block), k * inner : (k + 1) * inner] = block
        return replace(part, values={**values, "weight": weight, "groups": 1})
    return part


def _per_channel(scale: Part) -> Tensor:
    values = scale.values["scale"].reshape(scale.shape[0], -1)
    if not bool((values == values[:, :1]).all()):
        raise ValueError(f"{scale.name}: thresholds that differ inside a channel can only be written as variant 'nir'")
    column: Tensor = values[:, 0]
    return column


def _pointwise(part: Part, scale: Tensor, bias: Tensor) -> Part:
    axes = len(part.shape) - 1
    values: dict[str, Any] = {"weight": diagonal(scale, axes), "bias": bias}
    if axes:
        values |= {"stride": (1,) * axes, "padding": (0,) * axes, "dilation": (1,) * axes, "groups": 1}
    return replace(part, kind="conv" if axes else "affine", values=values)


def _swap(simple: Parts, scale: Part, flat: Part) -> None:
    """Flatten first, then scale."""
    simple[flat.name] = replace(flat, sources=scale.sources)
    values = {"scale": scale.values["scale"].flatten()}
    moved = replace(scale, sources=(flat.name,), shape=flat.shape, values=values)
    for part in list(simple.values()):
        if flat.name in part.sources:
            sources = tuple(scale.name if source == flat.name else source for source in part.sources)
            simple[part.name] = replace(part, sources=sources)
    simple[scale.name] = moved


def _in_order(simple: Parts) -> Parts:
    done: Parts = {}
    waiting = list(simple.values())
    while waiting:
        ready = [part for part in waiting if all(source in done for source in part.sources)]
        done |= {part.name: part for part in ready}
        waiting = [part for part in waiting if part.name not in done]
    return done


def _subtract(simple: Parts, name: str, start: Tensor) -> None:
    """Take ``start`` from the current of neurons at each step, in a bias."""
    neurons = simple[name]
    columns = start.reshape(start.shape[0], -1)
    if not bool((columns == columns[:, :1]).all()):
        raise ValueError(f"{name}: for norse v(0) must be the same within a channel: osp.freeze(…, per='channel')")
    users = [source for part in simple.values() for source in part.sources]
    alone = [s for s in neurons.sources if users.count(s) == 1 and simple[s].kind in ("conv", "affine")]
    if not alone:
        between = replace(neurons, name=f"{name}_start", kind="scale", values={})
        simple[between.name] = _pointwise(between, torch.ones(len(columns)), torch.zeros(len(columns)))
        simple[name] = replace(neurons, sources=(between.name,))
        alone = [between.name]
        simple.update(_in_order({key: simple.pop(key) for key in list(simple)}))
    layer = simple[alone[0]]
    simple[layer.name] = replace(layer, values={**layer.values, "bias": layer.values["bias"] - columns[:, 0]})


def _starts(simple: Parts, x: Tensor) -> dict[str, Tensor]:
    """v(0) for readers that fire *above* θ: half a grid step more, where potentials lie on a grid."""
    grids: dict[str, float | None] = {}
    starts = {}
    for part in simple.values():
        meet = [grids[source] for source in part.sources]
        grid = _grid(x) if part.kind == "input" else None if None in meet else min(g for g in meet if g is not None)
        if part.kind in ("conv", "affine") and grid is not None:
            steps = (_grid(part.values["weight"], grid), _grid(part.values["bias"]))
            grid = None if None in steps else min(s for s in steps if s is not None)
        if part.kind == "neurons":
            own = (grid, _grid(part.values["theta"]), _grid(part.values["v0"]))
            step = 0.0 if None in own else min(g for g in own if g is not None)
            starts[part.name] = part.values["v0"] + step / 2
            grid = 1.0
        grids[part.name] = grid
    return starts


def _grid(values: Tensor, unit: float = 1.0) -> float | None:
    """The largest power of two of which all values times ``unit`` are multiples; None if it is below 2⁻²⁰."""
    step, scaled = 2.0**20, values.double() * unit
    while step >= 2.0**-20:
        if bool((scaled / step == (scaled / step).round()).all()):
            return step
        step /= 2
    return None
