"""A fixed-point network as hardware sees it: whole weights, whole thresholds, and how wide a potential can become."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from offspike.arithmetic.bounds import survey
from offspike.arithmetic.grids import finest, significant_bits, was_snapped
from offspike.arithmetic.reach import UNKNOWN, Reach, bits_for
from offspike.arithmetic.roles import TRANSPOSED, role
from offspike.graph import GraphNetwork
from offspike.layers import SpikingLayer

__all__ = ["NeuronBound", "integer_view", "neuron_bound", "potential_grid", "potential_reach"]


@dataclass(frozen=True)
class NeuronBound:
    """One neuron layer in whole numbers: potentials are multiples of ``2^exponent``, and θ is ``threshold`` of them.

    ``current`` is the largest input of one step in the same unit; ``sum_bits`` are those of its sum over ρ steps, and
    ``membrane_bits`` those of the potential with its sign, whatever the input. Of channels with different grids the
    widest is meant.
    """

    exponent: int
    threshold: int
    current: int
    sum_bits: int
    membrane_bits: int


def potential_grid(current: Reach, theta: Tensor) -> Tensor:
    """g of each neuron: currents, θ and θ/2 are whole multiples of ``2^g``."""
    return torch.minimum(current.grid, theta.log2() - 1)


def potential_reach(current: Reach, theta: Tensor, rho: int) -> Tensor:
    """At most ``|v(t)|``: v(0) lies in an interval of which one end is ``kθ − C_t``, or near θ/2; then come ρ steps."""
    return 2 * rho * (current.bound + theta) + 2 * theta


def neuron_bound(current: Reach, theta: Tensor, rho: int) -> NeuronBound:
    """The largest numbers of a neuron layer that is given ``current`` at each of ρ steps."""
    grid = potential_grid(current, theta)
    unit = grid.exp2()
    return NeuronBound(
        exponent=int(grid.min()),
        threshold=math.ceil(float((theta / unit).max())),
        current=math.ceil(float((current.bound / unit).max())),
        sum_bits=Reach(grid, rho * (current.bound + theta)).bits,
        membrane_bits=bits_for(float((potential_reach(current, theta, rho) / unit).max())) + 1,
    )


@torch.no_grad()
def integer_view(network: GraphNetwork) -> dict[str, Any] | None:
    """Whole numbers for each layer, as JSON values; None for a network that is not in fixed point.

    A weight of output channel c is a whole number of ``bits`` bits (without sign) times ``2^weight_exponent[c]``; a
    bias is one times ``2^bias_exponent[c]``; None where all are 0.
    """
    fixed = was_snapped(network)
    if not fixed or network.input_shape is None or len(network.graph.inputs) != 1:
        return None
    found = survey(network, (torch.zeros(1, *network.input_shape),), spikes=True)
    layers: dict[str, Any] = {}
    for node in network.graph.nodes:
        layer: Any = network.get_submodule(node.target) if node.kind == "module" else None
        if role(node, network) == "synapse" and found.sums[node.target].bits < UNKNOWN:
            layers[node.target] = _weights(layer)
        elif role(node, network) == "neuron" and found.currents[node.target].bits < UNKNOWN:
            current = found.currents[node.target]
            theta = (layer.theta if isinstance(layer, SpikingLayer) else layer.lam).double().cpu()
            bound = neuron_bound(current, theta.expand(current.bound.shape), layer.levels)
            layers[node.target] = {"levels": layer.levels, **asdict(bound)}
    return layers


def _weights(layer: Any) -> dict[str, Any]:
    weight = layer.weight.movedim(1, 0) if isinstance(layer, TRANSPOSED) else layer.weight
    fields = {"bits": significant_bits(weight), "weight_exponent": _exponents(weight)}
    return fields if layer.bias is None else {**fields, "bias_exponent": _exponents(layer.bias)}


def _exponents(values: Tensor) -> list[int | None]:
    rows = finest(values).cpu().reshape(len(values), -1).amin(1)
    return [int(g) if math.isfinite(g) else None for g in rows.tolist()]
