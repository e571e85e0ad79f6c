"""``save`` and ``load``: a whole network in one safetensors file, without its source code and without pickle.

The tensors are the state dictionary. The metadata holds one JSON header under "offspike": the graph, its layers as
constructor arguments, the method of a spiking network, preprocessing, provenance, and for a network in fixed point
its whole numbers (`arithmetic/integers.py`). Loading builds layers from a table of
types on the "meta" device, compares them with the tensors that the file really holds, and only then reads these; a file
can name nothing that is not in the tables, so it cannot run code.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from offspike import catalogue, leaves, storage
from offspike.activations import Bounded
from offspike.arithmetic.integers import integer_view
from offspike.capture import captured
from offspike.folding import known_inputs, known_shape, plain
from offspike.graph import Graph, GraphNetwork
from offspike.inspection.obstacles import check_model
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.preprocess import Preprocess

__all__ = ["load", "save"]

FORMAT = 1


def save(
    model: nn.Module,
    path: str | Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    preprocess: Preprocess | Mapping[str, Sequence[float]] | None = None,
    dtype: storage.Precision | Mapping[str, storage.Precision] = "float32",
) -> None:
    """Write an ANN or a spiking network to ``path``, whole or not at all.

    ``provenance`` is added to versions and date. ``preprocess`` is the mean and std of the images (kept from a loaded
    model). ``dtype`` is how the weights of layers are stored: float16 halves the file, int8 (one scale an output
    channel) quarters it, int4 takes an eighth; ``{"": "int8", "classifier": "int4"}`` chooses by the layer's name.
    Everything else stays float32, and loading gives float32. Of a network in fixed point nothing may be lost.
    Weights that are computed (weight_norm, pruning) are stored as they are in eval mode.
    """
    inner = model.model if isinstance(model, SpikingNetwork) else model
    check_model(inner)
    network = _captured(inner)
    network.input_shape = _input_shape(model)
    preprocess = getattr(model, "preprocess", None) if preprocess is None else preprocess
    header = {"format": FORMAT, **_describe(network), **_facts(model, preprocess, provenance or {})}
    header["integers"] = integer_view(network)
    weights = {f"{name}.weight" for name in header["layers"]} - set(header["attributes"])
    fixed = header["integers"] is not None
    tensors = storage.pack(network.state_dict(), weights=weights, precision=dtype, lossless=fixed)
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the header of {path} holds something that is not plain JSON: {error}") from error
    _assemble(json.loads(text), storage.stored(tensors))  # what could not be loaded is not written
    storage.write(Path(path), tensors, {"offspike": text})


def load(path: str | Path) -> GraphNetwork | SpikingNetwork:
    """The network in a file that ``save`` wrote, in eval mode; nothing in the file is executed.

    A name such as "resnet20-cifar10-l4" stands for a packaged checkpoint (:mod:`offspike.catalogue`).
    ``provenance`` is an attribute of the network, and ``preprocess`` where the file has one.
    """
    with storage.opened(catalogue.resolve(path)) as file:
        try:
            return _restore(file)
        except (ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{path} cannot be loaded: {reason}; save the network again with osp.save") from error


def _restore(file: storage.Reader) -> GraphNetwork | SpikingNetwork:
    text = file.text("offspike")
    if text is None:
        raise ValueError("it is a safetensors file without an offspike header")
    header = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else None
        raise ValueError(f"this offspike reads format {FORMAT}, the file has {found!r}")
    network, method = _assemble(header, file.stored())
    state = {key: file.unpack(key, tensor) for key, tensor in network.state_dict().items()}
    network.load_state_dict(state, assign=True)
    for name, module in network.named_modules():
        if isinstance(module, Bounded | SpikingLayer):
            theta = module.lam if isinstance(module, Bounded) else module.theta
            if not bool((theta.isfinite() & (theta > 0)).all()):
                raise ValueError(f"{name} has a threshold that is not positive and finite")
    if header.get("preprocess") is not None:
        network.preprocess = _preprocess(header["preprocess"])
    model: GraphNetwork | SpikingNetwork = network.eval()
    if method is not None:
        repeat = _field(header, "repeat_input", bool)
        model = SpikingNetwork(network, method, input_shape=network.input_shape, repeat_input=repeat)
    model.provenance = _field(header, "provenance", dict)
    return model


def _assemble(header: dict[str, Any], stored: storage.Stored) -> tuple[GraphNetwork, Method | None]:
    """The network that a header describes, its tensors on "meta", if they are exactly those in ``stored``."""
    if header.get("kind") not in ("ann", "snn"):
        raise ValueError(f"kind must be ann or snn, got {header.get('kind')!r}")
    method = Method.from_dict(_field(header, "method", dict)) if header["kind"] == "snn" else None
    graph = Graph.from_json(_field(header, "graph", list))
    parts: dict[str, nn.Module | Tensor] = {}
    for name, description in _field(header, "layers", dict).items():
        parts[name] = leaves.build(name, description, given={SpikingLayer: {"method": method}})
    for name, kind in _field(header, "attributes", dict).items():
        shape, dtype = stored.get(name, ((), torch.float32))
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        if kind not in ("parameter", "buffer") or (kind == "parameter" and not dtype.is_floating_point):
            raise ValueError(f"{name!r} cannot be a {kind} of type {dtype}")
        parts[name] = nn.Parameter(tensor) if kind == "parameter" else tensor
    wanted = {node.target for node in graph.nodes if node.kind in ("module", "attribute")}
    if wanted != set(parts):
        raise ValueError(f"the graph and the layers do not agree on {sorted(wanted ^ set(parts))[0]!r}")
    sizes = None if header.get("input_shape") is None else tuple(_field(header, "input_shape", list))
    if sizes is not None and not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise ValueError(f"the input shape {sizes} makes no sense")
    network = GraphNetwork(graph, parts, input_shape=sizes)
    for name in ("preprocess", "provenance"):
        if header.get(name) is not None and hasattr(network, name):
            raise ValueError(f"{name!r} cannot be the name of a layer, rename it")
    storage.compare(network.state_dict(), stored)
    return network, method


def _captured(model: nn.Module) -> GraphNetwork:
    """The network that does what ``model`` does; a copy of it is traced."""
    model = plain(model)
    return captured(model, known_inputs(model))


def _input_shape(model: nn.Module) -> tuple[int, ...] | None:
    """The shape of the input, where there is one input and its shape is known."""
    return model.input_shape if isinstance(model, SpikingNetwork) else known_shape(model)


def _describe(network: GraphNetwork) -> dict[str, Any]:
    layers, attributes = {}, {}
    for node in network.graph.nodes:
        if node.kind == "attribute":
            owner, _, name = node.target.rpartition(".")
            is_parameter = name in network.get_submodule(owner)._parameters
            attributes[node.target] = "parameter" if is_parameter else "buffer"
        elif node.kind == "module":
            layers[node.target] = leaves.describe(node.target, network.get_submodule(node.target))
    return {"graph": network.graph.to_json(), "layers": layers, "attributes": attributes}


def _facts(model: nn.Module, preprocess: Any, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What the header says about a network besides its graph."""
    facts: dict[str, Any] = {"kind": "ann"}
    if isinstance(model, SpikingNetwork):
        facts = {"kind": "snn", "method": model.method.to_dict(), "repeat_input": model.repeat_input}
    shape = _input_shape(model)
    facts["input_shape"] = None if shape is None else list(shape)
    if isinstance(preprocess, Mapping):
        preprocess = _preprocess(preprocess)
    facts["preprocess"] = asdict(preprocess) if isinstance(preprocess, Preprocess) else None
    from offspike import __version__

    date = datetime.now(UTC).isoformat(timespec="seconds")
    facts["provenance"] = {"offspike": __version__, "torch": torch.__version__, "date": date, **provenance}
    return facts


def _field(header: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(header.get(name), kind):
        raise ValueError(f"its header has no valid {name!r}")
    return header[name]


def _preprocess(data: Any) -> Preprocess:
    try:
        return Preprocess(**data)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"preprocess is not a mean and a std: {data!r:.200}") from error


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"its header holds {text}")
