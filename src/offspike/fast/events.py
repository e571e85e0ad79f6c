"""Linear layers and convolutions of spikes on a CPU: a product, or a sum over events where these are few.

Each input chooses. Both ways give the same sums, in another order.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from offspike import ops

__all__ = ["by_event"]

SMALLEST = 256  # inputs and outputs of a linear layer: below, a product takes no time anyway
NARROWEST = 128  # filters of a convolution: with 64, events do not win at any rate (benchmarks/events.py)


def by_event(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The layer, run event by event where that is faster; None where it never is, or cannot be."""
    if ops.backend("cpu") != "numba":
        return None
    if type(module) is nn.Linear and _plain(module.weight) and min(module.weight.shape) >= SMALLEST:
        return _Linear(module)
    if type(module) is nn.Conv2d and _plain(module.weight) and len(module.weight) >= NARROWEST:
        ordinary = module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"
        return _Convolution(module) if ordinary and not isinstance(module.padding, str) else None
    return None


def _plain(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


class _Linear:
    def __init__(self, module: nn.Linear) -> None:
        self.module = module
        self.columns = module.weight.detach().t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, inputs]`` to ``[rows, outputs]``."""
        from offspike.ops import events

        x = x.to(self.columns.dtype)
        if x.ndim == 2 and events.worth(x):
            return events.linear(x, self.columns, self.module.bias)
        return self.module(x)  # type: ignore[no-any-return]


class _Convolution:
    def __init__(self, module: nn.Conv2d) -> None:
        self.module = module
        self.stride, self.padding = (cast(tuple[int, int], pair) for pair in (module.stride, module.padding))
        self.rows = module.weight.detach().permute(2, 3, 1, 0).contiguous()  # [kH, kW, C, O]: outputs side by side

    def __call__(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, O, H', W']``, both channels-last."""
        from offspike.ops import events

        x = x.to(self.rows.dtype)
        seen = x.permute(0, 2, 3, 1)
        if seen.is_contiguous() and events.worth(seen, self.rows.shape[3]):
            out = events.conv2d(seen, self.rows, self.module.bias, stride=self.stride, padding=self.padding)
            return out.permute(0, 3, 1, 2)
        return self.module(x)  # type: ignore[no-any-return]
