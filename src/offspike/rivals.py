"""What a spiking network's speed is compared with: its ANN, SpikingJelly, and the plain PyTorch reference."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from offspike import fused, ops
from offspike.activations import Activation
from offspike.fast.precision import Precision, arithmetic
from offspike.folding import fold
from offspike.network import SpikingNetwork
from offspike.surgery import replace

__all__ = ["ann", "reference", "spikingjelly"]


def ann(model: nn.Module, x: Tensor, precision: Precision, *, folded: bool) -> Callable[[], Any]:
    """One pass of the ANN, channels last, its batch norms folded or as they are."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    copy = fold(model) if folded else deepcopy(model).eval()
    copy, given = _laid(copy.to(dtype)), _channels_last(copy, (x.to(dtype),))[0]

    def run() -> Any:
        with torch.inference_mode(), arithmetic(precision):
            return copy(given)

    return run


def spikingjelly(
    model: nn.Module, x: Tensor, steps: int, precision: Precision, *, once: bool = False, channels_last: bool = True
) -> Callable[[], Any] | None:
    """SpikingJelly 2: multi-step IF neurons, uncalibrated, in the same folded network; None: it is not installed.

    It picks its neurons' kernels by itself, or as ``SJ_IF_CUDA_IMPLEMENTATION`` says. The image is repeated for each
    step, as its examples do; ``once`` takes what lies before the first neurons only once (where nothing else sees the
    image). Its spikes are 1, not θ: what they are worth costs nothing.
    """
    if not find_spec("spikingjelly"):
        return None
    from spikingjelly.activation_based import functional, neuron

    batch, dtype = len(x), torch.bfloat16 if precision == "bf16" else torch.float32

    class Node(nn.Module):
        def __init__(self, theta: float) -> None:
            super().__init__()
            self.node = neuron.IFNode(v_threshold=theta, v_reset=None, step_mode="m")

        def forward(self, x: Tensor) -> Tensor:
            seen = x.expand(steps, *x.shape) if once and len(x) == batch else x.view(steps, -1, *x.shape[1:])
            return self.node(seen).flatten(0, 1)  # type: ignore[no-any-return]

    thetas = {name: m.lam.max().item() for name, m in model.named_modules() if isinstance(m, Activation)}
    net = replace(fold(model), Activation, lambda name, module: Node(thetas[name])).to(x.device, dtype)
    given = x.to(dtype)
    if channels_last:
        _laid(net)
        given = _channels_last(net, (given,))[0]

    def run() -> Any:
        with torch.inference_mode(), arithmetic(precision):
            functional.reset_net(net)
            return net(given if once else given.repeat(steps, *[1] * (x.ndim - 1)))

    return run


@contextmanager
def reference(snn: SpikingNetwork) -> Iterator[None]:
    """Inside the block ``snn`` runs layer by layer, its neurons in plain PyTorch: the specification of all kernels.

    Memory is laid out channels last, as in the network's plan: convolutions then sum in the same order.
    """
    kind = next(snn.model.parameters()).device.type
    with ExitStack() as stack:
        _laid(snn.model)
        stack.callback(lambda: _laid(snn.model, torch.contiguous_format))
        stack.callback(snn.model.register_forward_pre_hook(_channels_last).remove)
        for layer in snn.layers.values():
            stack.callback(layer.register_forward_hook(lambda module, args, out: None).remove)
        if ops.backend(kind) != "reference":
            signed = (ops._fire_signed,) if kind == "cpu" else ()  # has no other kernel
            for operator in (ops._fire, *signed, ops._probe, ops._carry, fused._calibrate_and_fire):
                stack.enter_context(operator.set_kernel_enabled(kind, False))
        yield


def _laid(model: Any, layout: torch.memory_format = torch.channels_last) -> nn.Module:
    """The model itself, its weights in this layout."""
    return model.to(memory_format=layout)  # type: ignore[no-any-return]


def _channels_last(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs)
