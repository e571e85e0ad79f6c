"""The proof that a spiking network equals its ANN bit for bit at T = ρ = L: its premises, checked one by one.

If every sum is exact, layer l of the ANN computes ``z = W·a + b`` and the spiking one ``I(1) + … + I(ρ) = ρ·z`` from
neurons that fire ``k = ρ·a/θ`` times; `initial.Exact` makes each neuron fire ``clip(⌊Σ I/θ + ½⌋, 0, ρ)`` times, which
is the ANN's own answer at L = ρ; and so on, layer by layer, to the logits (docs/theory.md). What has to be checked is
that sums are exact, and that nothing in the two networks is different.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offspike.activations import QCFS
from offspike.arithmetic.bounds import Survey, survey
from offspike.arithmetic.grids import finest
from offspike.arithmetic.integers import NeuronBound, neuron_bound, potential_grid, potential_reach
from offspike.arithmetic.reach import UNKNOWN, Reach, Sum
from offspike.capture import captured
from offspike.fixed.fingerprint import options
from offspike.graph import GraphNetwork
from offspike.initial import Exact
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork
from offspike.neurons import IF

__all__ = ["Proof", "prove"]

PRECISION = {torch.float32: 24, torch.float64: 53}
PLACES = ("first", "near", "middle")  # of v(0): whole multiples of known numbers


@dataclass(frozen=True)
class Proof:
    """``reasons`` are the premises that do not hold; without any the equality is proved."""

    reasons: tuple[str, ...]
    layers: dict[str, NeuronBound]
    sums: dict[str, Sum]


def prove(ann: nn.Module, snn: SpikingNetwork, *, steps: int, inputs: tuple[Tensor, ...]) -> Proof:
    """Look for a premise that does not hold; ``inputs`` show the shapes."""
    inputs = tuple(x[:1].detach().cpu() for x in inputs)
    here = tuple(x.to(next(ann.parameters()).device) for x in inputs)
    example = here if len(here) > 1 else here[0]
    try:
        network = captured(ann, example)
        spiking = captured(snn.model, example)
    except ValueError as error:
        return Proof((f"the network cannot be followed: {error}",), {}, {})
    numbers, spikes = survey(network, inputs, spikes=False), survey(spiking, inputs, spikes=True)
    reasons = [*_method(snn, steps), *_same(network, spiking)]
    limit = PRECISION.get(next(iter(snn.state_dict().values())).dtype, 0)
    reasons += dict.fromkeys([*numbers.doubts, *spikes.doubts])
    reasons += _too_long(numbers, spikes, limit)
    reasons += _rounded(snn, numbers.sums)
    reasons += _readout(spikes, steps, limit)
    layers = {}
    for name, layer in snn.layers.items():
        if name not in spikes.currents or name not in numbers.currents:
            continue
        bound, why = _neuron(name, layer, numbers.currents[name], spikes.currents[name], limit)
        reasons += why
        if bound is not None:
            layers[name] = bound
    return Proof(tuple(dict.fromkeys(reasons)), layers, numbers.sums)


def _method(snn: SpikingNetwork, steps: int) -> list[str]:
    """T = ρ = L, exact calibration of plain neurons, layer by layer, and nothing corrected."""
    method, reasons = snn.method, []
    if not isinstance(method.initial, Exact):
        reasons.append(f"v(0) is not calibrated exactly: the method is {method.name} ({method.initial})")
    if method.neuron != IF():
        reasons.append(f"the neuron is not the integrate-and-fire neuron: {method.neuron}")
    if method.schedule != "layerwise":
        reasons.append("the schedule is causal: a layer is not calibrated on the input that it gets")
    for name, layer in snn.layers.items():
        if not layer.levels == method.rho == steps:
            reasons.append(f"{name}: T = {steps}, ρ = {method.rho} and L = {layer.levels} are not the same")
        if layer.policy != method.initial or layer.neuron != method.neuron:
            reasons.append(f"{name}: its policy or neuron is not that of the network")
        if layer.shift is not None or layer.start is not None:
            reasons.append(f"{name}: its current or potential is corrected, which the ANN's is not")
    return reasons


def _same(network: GraphNetwork, spiking: GraphNetwork) -> list[str]:
    """The same graph with the same weights and thresholds."""
    if network.graph.to_json() != spiking.graph.to_json():
        return ["the spiking network is not a conversion of this ANN: it runs other operations"]
    reasons = []
    for node in network.graph.nodes:
        if node.kind != "module":
            continue
        mine, other = network.get_submodule(node.target), spiking.get_submodule(node.target)
        if isinstance(mine, QCFS) and isinstance(other, SpikingLayer):
            if other.levels != mine.levels or not torch.equal(mine.lam.cpu(), other.theta.cpu()):
                reasons.append(f"{node.target}: θ and L are not those of the ANN")
        elif options(mine) != options(other):
            reasons.append(f"{node.target}: its stride, padding or other options are not those of the ANN")
        elif not _equal_states(mine.state_dict(), other.state_dict()):
            reasons.append(f"{node.target}: its weights are not those of the ANN")
    names = [node.target for node in network.graph.nodes if node.kind == "attribute"]
    tensors = [network.state_dict(), spiking.state_dict()]
    if any(not torch.equal(*(state[name].cpu() for state in tensors)) for name in names):
        reasons.append("the spiking network has other constants than the ANN")
    return reasons


def _equal_states(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key].cpu(), b[key].cpu()) for key in a)


def _too_long(numbers: Survey, spikes: Survey, limit: int) -> list[str]:
    """Sums that float32 cannot hold; of the ANN's and the spiking network's the longer one."""
    reasons = []
    for name, other in numbers.sums.items():
        made = max(other, spikes.sums.get(name, other), key=lambda made: made.bits)
        if made.bits > limit and made.bits < UNKNOWN:
            fewer = made.weight_bits + 1 - (made.bits - limit)
            advice = f"{fewer} can be summed" if fewer > 1 else "take fewer in the layers before it"
            reasons.append(
                f"{name}: its sums need {made.bits} bits and {limit} are exact; its weights have "
                f"{made.weight_bits + 1} bits, {advice}"
            )
    others = {name: max(bits, spikes.others.get(name, 0)) for name, bits in numbers.others.items()}
    long = {name: bits for name, bits in others.items() if limit < bits < UNKNOWN}
    return reasons + [f"{name}: its sums need {bits} bits, {limit} are exact" for name, bits in long.items()]


def _readout(spikes: Survey, steps: int, limit: int) -> list[str]:
    """The logits of T steps are summed, too."""
    bits = max((Reach(out.grid, steps * out.bound).bits for out in spikes.outputs), default=0)
    if bits <= limit or bits >= UNKNOWN:
        return []
    return [f"the readout sums the logits of {steps} steps, which needs {bits} bits, and {limit} are exact"]


def _rounded(snn: SpikingNetwork, sums: dict[str, Sum]) -> list[str]:
    """Numbers that the network's precision rounds before, or after, it multiplies."""
    if snn.precision == "bf16":
        return ['precision="bf16" rounds sums to 8 bits as it writes them: convert with precision="tf32" or "exact32"']
    if snn.precision == "exact32":
        return []
    long = {name: made.excess("tf32") for name, made in sums.items()}
    return [
        f"{name}: its weights or inputs are {over} bits too long for tf32"
        for name, over in long.items()
        if 0 < over < UNKNOWN // 2
    ]


def _neuron(
    name: str, layer: SpikingLayer, numbers: Reach, spikes: Reach, limit: int
) -> tuple[NeuronBound | None, list[str]]:
    """Whether sums over time, the ANN's count and the potential are exact."""
    theta, levels = layer.theta.double().cpu().expand(spikes.bound.shape), layer.levels or 1
    rho, reasons = layer.policy.rho or levels, []
    if not math.isfinite(spikes.units) or not math.isfinite(numbers.units):
        return None, []
    grid = potential_grid(spikes, theta)
    total = Reach(grid, rho * (spikes.bound + theta))
    if total.bits > limit:
        reasons.append(
            f"{name}: currents summed over {rho} steps need {total.bits} bits and {limit} are exact; "
            f"{total.bits - limit} bits less in the layer before it would do"
        )
    count = Reach(torch.minimum(numbers.grid, (theta / (2 * levels)).log2()), numbers.bound + theta / levels)
    if count.bits > limit:
        reasons.append(f"{name}: the ANN's pre-activations need {count.bits} bits, {limit} are exact")
    if isinstance(layer.policy, Exact) and not _potential(layer.policy, spikes, theta, limit):
        reach = float((potential_reach(spikes, theta, rho) / theta).max())
        reasons.append(
            f"{name}: potentials reach {reach:.0f} θ, where rounding could tip a spike; "
            'convert with osp.methods.exact(rho, place="first"), or with a larger eps'
        )
    return neuron_bound(spikes, theta, rho), reasons


def _potential(policy: Exact, current: Reach, theta: Tensor, limit: int) -> bool:
    """Whether the potential never leaves the interval of its count: it is exact, or its errors stay below eps·θ.

    One rounding is at most ``2^-limit`` of its result. Two are made for v(0), then a sum and a reset at each step t, of
    potentials up to ``|v(0)| + t·(|I| + θ)``.
    """
    rho, step = policy.rho, current.bound + theta
    start = rho * step + 2 * theta
    rounding = 2.0**-limit * ((2 + 2 * rho) * start + rho * (rho + 1) * step)
    if bool((rounding < policy.eps * theta).all()):
        return True
    parts = finest(torch.tensor([policy.eps, 1 / (2 * rho)])).amin() + theta.log2()
    fine = Reach(torch.minimum(potential_grid(current, theta) - 1, parts), potential_reach(current, theta, rho))
    return policy.place in PLACES and rho & (rho - 1) == 0 and fine.bits <= limit
