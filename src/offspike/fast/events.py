"""A linear layer of spikes on a CPU: a matrix product, or a sum over events where these are few."""

import torch
from torch import Tensor, nn

from offspike import ops

__all__ = ["Linear", "possible"]

SMALLEST = 256  # inputs and outputs: below, a product takes no time anyway


def possible(module: nn.Module) -> bool:
    """Whether a layer could be run event by event."""
    if type(module) is not nn.Linear or ops.backend("cpu") != "numba":
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and min(weight.shape) >= SMALLEST


class Linear:
    """Chooses for each input. Both ways give the same sums, in another order."""

    def __init__(self, module: nn.Module) -> None:
        assert isinstance(module, nn.Linear)
        self.module = module
        self.columns = module.weight.detach().t().contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """``[rows, inputs]`` to ``[rows, outputs]``."""
        from offspike.ops import events

        x = x.to(self.columns.dtype)
        if x.ndim == 2 and events.worth(x):
            return events.linear(x, self.columns, self.module.bias)
        return self.module(x)  # type: ignore[no-any-return]
