"""SpikingJelly: the user's own model with ``IFNode`` where neurons are, for a pipeline that is already there."""

from typing import Any

from torch import Tensor, nn

from offspike.exchange.nir import check_static
from offspike.initial import Constant
from offspike.layers import SpikingLayer
from offspike.network import SpikingNetwork, check_spiking
from offspike.pooling import GatedMaxPool
from offspike.surgery import replace

__all__ = ["Neurons", "to_spikingjelly"]


class Neurons(nn.Module):
    """A SpikingJelly neuron in the place of a spiking layer: one step of current in, ``θ·s`` out."""

    theta: Tensor
    shift: Tensor | None

    def __init__(self, node: nn.Module, theta: Tensor, shift: Tensor | None) -> None:
        super().__init__()
        self.node = node
        self.register_buffer("theta", theta)
        self.register_buffer("shift", shift)

    def forward(self, current: Tensor) -> Tensor:
        """One step."""
        if self.shift is not None:
            current = current + self.shift
        out: Tensor = self.node(current) * self.theta
        return out


def to_spikingjelly(snn: SpikingNetwork) -> nn.Module:
    """A copy of the model in which each spiking layer is an ``IFNode`` with soft reset that starts at v(0).

    Single-step mode: ``functional.reset_net(net)``, then ``net(x)`` once for each step; the mean of what it returns is
    the readout, and the spikes are those of ``snn``, bit for bit. A v(0) that depends on the image is refused.
    """
    check_spiking(snn, "to_spikingjelly")
    try:
        from spikingjelly.activation_based import neuron
    except ImportError as error:
        raise RuntimeError(f"this needs SpikingJelly 2: pip install spikingjelly ({error})") from error
    check_static(snn)
    for name, module in snn.model.named_modules():
        if isinstance(module, GatedMaxPool) and not module.steady:
            raise ValueError(f"{name}: max-pooling by counts has no layer in SpikingJelly: use pool='average'")

    def build(name: str, layer: Any) -> nn.Module:
        assert isinstance(layer, SpikingLayer)
        theta = layer.theta.detach().clone()
        if theta.numel() != 1 or layer.start is not None or not isinstance(layer.policy, Constant):
            raise ValueError(
                f"{name}: an IFNode has one threshold and one v(0) for all its neurons; here they differ between "
                "channels or neurons. osp.to_nir(snn, x, path, variant='spikingjelly') can say so"
            )
        node = neuron.IFNode(v_threshold=float(theta), v_reset=None)
        node.set_reset_value("v", float(theta * layer.policy.fraction))
        node.reset()
        return Neurons(node, theta.reshape(()), None if layer.shift is None else layer.shift.clone())

    return replace(snn.model, SpikingLayer, build).eval()
