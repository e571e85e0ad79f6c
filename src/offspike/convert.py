"""``convert``: an ANN in, a spiking network out. The ANN is not touched."""

import warnings

from torch import Tensor, nn

from offspike.activations import QCFS, Activation
from offspike.capture import capture
from offspike.layers import SpikingLayer
from offspike.methods import Method
from offspike.network import SpikingNetwork
from offspike.surgery import audit, refuse, replace

__all__ = ["convert"]


def convert(ann: nn.Module, method: Method, *, example: Tensor | None = None) -> SpikingNetwork:
    """The spiking network of ``ann`` under ``method``: every activation becomes a spiking layer with θ = λ.

    ``example`` is one input batch, used to check the model more closely and to remember its input shape.
    """
    if not isinstance(method, Method):
        raise TypeError(f"the second argument is a Method, such as osp.methods.cos(rho=4); got {method!r}")
    refuse(audit(ann, example))
    steady = _steady_layers(ann)

    def build(name: str, module: nn.Module) -> nn.Module:
        assert isinstance(module, Activation)
        levels = module.levels if isinstance(module, QCFS) else None
        return SpikingLayer(module.lam, method, levels=levels, steady=steady is not None and name in steady)

    shape = getattr(ann, "input_shape", None) if example is None else tuple(example.shape[1:])
    model = replace(ann, Activation, build)
    return SpikingNetwork(model, method, input_shape=shape, repeat_input=steady is None)


def _steady_layers(ann: nn.Module) -> frozenset[str] | None:
    """The activations that see a current which does not change over time; None where the input must be repeated."""
    try:
        graph = capture(ann)
    except ValueError as error:
        warnings.warn(
            f"the input is repeated at every step, so the first layers are computed T times: {error}", stacklevel=3
        )
        return None
    return graph.steady(ann, neuron=lambda module: isinstance(module, Activation))
