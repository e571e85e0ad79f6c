"""``freeze``: a calibrated network with one v(0) for all images, which hardware and exchange formats can hold.

Calibration chooses v(0) for each image. Its mean over some images is what is left where a neuron can only have one
starting point. That costs accuracy, how much depends on the network: measure it, ``osp.evaluate(frozen, …)``.
"""

from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor

from offspike.clock import active_clock
from offspike.hooks import after
from offspike.initial import Constant
from offspike.methods import Method
from offspike.network import SpikingNetwork, check_spiking

__all__ = ["freeze"]


@torch.no_grad()
def freeze(snn: SpikingNetwork, images: Tensor, *, per: Literal["channel", "neuron"] = "channel") -> SpikingNetwork:
    """A copy of ``snn`` that starts each neuron at its mean v(0) over ``images`` (``per="channel"``: its channel's).

    Layer by layer, as the network calibrates: each layer hears the frozen spikes of the one before. ``images`` are one
    batch of inputs, a few hundred.
    """
    check_spiking(snn, "freeze")
    if per not in ("channel", "neuron"):
        raise ValueError(f"per must be channel or neuron, got {per!r}")
    if not snn.method.rho:
        raise ValueError(f"{snn.method.initial} is the same for all images already: there is nothing to freeze")
    frozen = deepcopy(snn)
    starts: dict[str, Tensor] = {}

    def listen(name: str, layer: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        clock = active_clock()
        causal = frozen.method.schedule == "causal"
        if clock.phase.final == causal:  # the causal schedule listens in a pass of its own
            return None
        current = layer.unfold(args[0])
        starts[name] = _mean(name, layer.begin(current), per)
        if causal:
            return None
        spikes, _ = layer.neuron(current, layer.theta, starts[name].expand(current.shape[1:]))
        return clock.fold(spikes * layer.theta.to(spikes.dtype))

    with after(frozen.layers, listen):
        frozen(images, steps=snn.method.rho)
    method = Method(f"{snn.method.name}_frozen", Constant(0.0), snn.method.neuron)
    frozen.method = method
    for name, layer in frozen.layers.items():
        layer.policy, layer.start = method.initial, starts[name]
    return frozen


def _mean(name: str, v0: Tensor, per: str) -> Tensor:
    if not bool(v0.isfinite().all()):
        raise ValueError(f"{name}: this method starts some neurons at infinity, which has no mean: take cos or exact")
    axes = [0] if per == "neuron" else [axis for axis in range(v0.ndim) if axis != 1]
    mean: Tensor = v0.mean(axes, keepdim=True)[0]
    return mean
