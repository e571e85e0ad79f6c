"""Which network is it? A hash of everything that its answers depend on."""

import hashlib
import json
from typing import Any

import torch
from torch import Tensor, nn

from offspike.capture import captured
from offspike.graph import GraphNetwork
from offspike.leaves import LEAVES
from offspike.network import SpikingNetwork

__all__ = ["as_bytes", "fingerprint", "options"]


def fingerprint(model: SpikingNetwork | GraphNetwork) -> str:
    """A hash of the graph, the layers, weights and thresholds of a network, the same on every device."""
    device = next(iter(model.state_dict().values())).device
    shape, inner = model.input_shape, model.model if isinstance(model, SpikingNetwork) else model
    network = captured(inner, None if shape is None else torch.zeros(1, *shape, device=device))
    nodes = network.graph.nodes
    layers = {node.target: options(network.get_submodule(node.target)) for node in nodes if node.kind == "module"}
    made = hashlib.sha256(json.dumps([network.graph.to_json(), layers], sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        made.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        made.update(as_bytes(tensor + 0))  # -0 is 0
    return made.hexdigest()


def options(layer: nn.Module) -> Any:
    """What a layer is besides its tensors (its type, stride, padding …), as JSON values."""
    kind = type(layer)
    return [kind.__name__, LEAVES[kind].describe(layer) if kind in LEAVES else repr(layer)]


def as_bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
