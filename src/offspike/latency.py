"""What T time-steps really cost: synaptic passes, membrane updates, ticks.

T alone says little: a calibrated layer has listened to ρ steps before it starts. With n neuron layers and i iterations:

============  =======================  ==================  ==========================
schedule      synaptic passes          membrane updates    ticks until output T
============  =======================  ==================  ==========================
uncalibrated  T                        T                   T
layerwise     max(T, ρ)                i·ρ + T             n·i·ρ + T
causal        ρ + T                    i·ρ + T             i·ρ + T
============  =======================  ==================  ==========================

A *synaptic pass* is one step's spikes sent through all weights once; *membrane updates* are per neuron; a *tick* is one
step of hardware on which all layers step together. The layerwise schedule stores ρ steps of spikes in each layer.
"""

from dataclasses import dataclass

from offspike.methods import Method

__all__ = ["Cost", "cost"]


@dataclass(frozen=True)
class Cost:
    """The true cost of T steps."""

    steps: int
    rho: int
    schedule: str
    synaptic_passes: int
    membrane_updates: int
    ticks: int


def cost(method: Method, *, layers: int, steps: int) -> Cost:
    """The cost of ``steps`` time-steps of a network with this many neuron layers."""
    if steps < 1 or layers < 1:
        raise ValueError(f"steps and layers must be >= 1, got {steps} and {layers}")
    rho = method.rho
    listening = rho * int(getattr(method.initial, "iterations", 1))
    if not rho:
        return Cost(steps, 0, "uncalibrated", steps, steps, steps)
    if method.schedule == "causal":
        return Cost(steps, rho, "causal", rho + steps, listening + steps, listening + steps)
    return Cost(steps, rho, "layerwise", max(steps, rho), listening + steps, layers * listening + steps)
