"""NIR, the neuromorphic intermediate representation: spiking networks in files that other simulators read.

NIR's integrate-and-fire neuron documents a hard reset, fires *above* its threshold and starts at 0. Ours subtracts θ,
fires at θ or above and starts at v(0). A constant v(0) has an exact static equivalent, ``u = v − v(0)``::

    start at u = 0;   fire at u ≥ θ − v(0);   subtract θ

which is what a file says, with the subtraction and the rule "at or above" in the node's metadata.
A file is written only if it has been read back and its spikes are those of the network.
"""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offspike.atomic import whole
from offspike.clock import active_clock
from offspike.exchange import hdf5
from offspike.exchange.assemble import assemble
from offspike.exchange.dialects import DIALECTS
from offspike.exchange.nodes import part_of, read_graph
from offspike.exchange.parts import Part
from offspike.exchange.wiring import wire
from offspike.hooks import after
from offspike.network import SpikingNetwork, check_spiking
from offspike.neurons import IF

__all__ = ["check_static", "differing", "from_nir", "front", "spikes", "to_nir", "version"]


def to_nir(
    snn: SpikingNetwork, x: Tensor, path: str | Path, *, variant: str = "nir", steps: int = 8, check: bool = True
) -> None:
    """Write ``snn`` as a NIR file, read it back, and run both on ``x``: if a spike differs, no file is left.

    v(0) must be the same for every image: ``methods.qcfs()``, or ``osp.freeze(snn, images)`` of a calibrated network.
    The input grid of a snapped network stays outside the file, which takes ``osp.exchange.nir.front(snn, x)``.
    ``variant`` is "nir", or the name of a simulator whose reader needs the same network in other words (docs/interop.md
    says how each is read): "norse", "sinabs", "snntorch", "spikingjelly".
    """
    check_spiking(snn, "to_nir")
    nir = _library()
    if variant not in DIALECTS:
        raise ValueError(f"variant must be one of {', '.join(DIALECTS)}; got {variant!r}")
    check_static(snn)
    wiring = wire(snn.model, x)
    front = wiring.front.to(x.device)(x)
    nodes, edges, facts = DIALECTS[variant](nir, wiring.parts, front)
    graph = nir.NIRGraph(nodes, edges, metadata={"offspike": version(), "variant": variant, **facts}, type_check=False)
    with whole(Path(path)) as beside:
        nir.write(beside, graph)
        if check:
            differing(spikes(snn, x, steps), spikes(from_nir(beside).to(x.device), front, steps))


def from_nir(path: str | Path) -> SpikingNetwork:
    """The spiking network in a file that ``to_nir`` wrote; nothing in the file is executed.

    A file of other origin is refused where its neurons reset to a value instead of subtracting the threshold, or leak.
    """
    _library()
    path = Path(path)
    try:
        parts = _ordered(read_graph(hdf5.read(path)))
        drawn: dict[str, Part] = {}
        for name, (fields, sources) in parts.items():
            drawn[name] = part_of(name, fields, tuple(sources), drawn)
        return assemble(list(drawn.values()))
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be loaded: {reason}") from error


def front(snn: SpikingNetwork, x: Tensor) -> Tensor:
    """What a file takes instead of ``x``: x itself, or what the input grid of a snapped network makes of it."""
    check_spiking(snn, "front")
    given: Tensor = wire(snn.model, x).front.to(x.device)(x)
    return given


def check_static(snn: SpikingNetwork) -> None:
    """Refuse what a file cannot say: a v(0) that differs between images, and neurons that take spikes back."""
    if snn.method.rho:
        raise ValueError(
            f"{snn.method.initial} chooses v(0) for each image, and a file holds one v(0) for all. Choose one: "
            "osp.convert(ann, osp.methods.qcfs()) starts every neuron at θ/2; osp.freeze(snn, images) takes the mean "
            "v(0) of some images (measure its accuracy first); ONNX can say it, osp.to_onnx(snn, x, path); and "
            "osp.save keeps everything for offspike"
        )
    for name, layer in snn.layers.items():
        if layer.neuron != IF():
            raise ValueError(f"{name}: {layer.neuron} sends negative spikes, which other simulators do not know")


@torch.no_grad()
def spikes(snn: SpikingNetwork, x: Tensor, steps: int) -> dict[str, Tensor]:
    """The spikes of each layer, ``[T, B, …]``, in the order in which the layers run."""
    found: dict[str, Tensor] = {}

    def keep(name: str, layer: Any, args: tuple[Tensor, ...], out: Tensor) -> None:
        found[name] = active_clock().unfold(out) > 0

    with after(snn.layers, keep):
        snn(x, steps=steps)
    return found


def differing(wanted: dict[str, Tensor], got: dict[str, Tensor]) -> None:
    """Refuse a file whose spikes are not those of the network; layers in the same order."""
    if len(wanted) != len(got):
        raise ValueError(f"the file has {len(got)} layers of neurons and the network {len(wanted)}")
    for (name, train), other in zip(wanted.items(), got.values(), strict=True):
        if not torch.equal(other, train):
            wrong = int((other != train).sum()) if other.shape == train.shape else train.numel()
            raise ValueError(
                f"the file would not say the same: {name} sends {wrong} of {train.numel()} spikes otherwise, by "
                "rounding. Convert a network whose BatchNorms are folded, osp.convert(osp.fold(ann), …), or one on a "
                "grid, osp.snap(ann, bits=8, example=x); check=False writes it all the same"
            )


def _ordered(parts: dict[str, tuple[Any, list[str]]]) -> dict[str, tuple[Any, list[str]]]:
    try:
        order = TopologicalSorter({name: sources for name, (_, sources) in parts.items()}).static_order()
        return {name: parts[name] for name in order}
    except CycleError as error:
        raise ValueError(f"its nodes feed each other in a circle: {' → '.join(error.args[1])}"[:300]) from error


def version() -> str:
    """Of offspike."""
    from offspike import __version__

    return __version__


def _library() -> Any:
    try:
        import h5py  # noqa: F401
        import nir
    except ImportError as error:
        raise RuntimeError(f"NIR files need nir and h5py: pip install 'offspike[export]' ({error})") from error
    return nir
