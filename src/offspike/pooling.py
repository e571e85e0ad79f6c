"""Max-pooling that is right for spikes: the pooled count is the maximum of the counts."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offspike.clock import active_clock
from offspike.leaves import register_leaf

__all__ = ["GatedMaxPool", "average"]


class GatedMaxPool(nn.Module):
    """In the ANN max-pooling; in the spiking network it sends what the largest sum of its window has grown by.

    ``out(t) = max_i S_i(t) − max_i S_i(t−1)``, ``S_i(t) = Σ_{s≤t} x_i(s)``, ``max_i S_i(0) = 0``: all T steps together
    are exactly ``max_i S_i(T)``. Where x is spikes, so is the result: no sum grows by more than one spike a step.
    (The maximum of each step's spikes would be too much: ``Σ_t max_i x_i(t) ≥ max_i Σ_t x_i(t)``.)

    ``axes`` is 1, 2 or 3; ``options`` are those of ``F.max_pool2d``, or ``output_size`` for adaptive pooling.
    ``steady`` says that it pools the input itself, before any spike.
    """

    def __init__(self, axes: int, *, steady: bool = False, **options: Any) -> None:
        super().__init__()
        if axes not in (1, 2, 3) or options.pop("return_indices", False):
            raise ValueError("max-pooling works on 1, 2 or 3 axes, and without indices")
        self.axes = axes
        self.steady = bool(steady)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        """``[B, …]`` in the ANN, ``[T·B, …]`` in the spiking network."""
        try:
            clock = None if self.steady else active_clock()
        except RuntimeError:  # this is the ANN
            clock = None
        if clock is None:
            return self.windows_max(x)
        total = clock.unfold(x).double().cumsum(0)  # a multiple of a float32 threshold is exact in float64
        before = total.new_zeros(())
        if clock.carry is not None:
            if self in clock.carry:  # the sums of the piece of time before
                total, before = total + clock.carry[self], self.windows_max(clock.carry[self])
            clock.carry[self] = total[-1]
        most = clock.unfold(self.windows_max(clock.fold(total)))
        grown = torch.cat([most[:1] - before, most.diff(dim=0)])
        return clock.fold(grown.to(x.dtype))

    def windows_max(self, x: Tensor) -> Tensor:
        """The maximum of each window, as in the ANN."""
        kind = "adaptive_max_pool" if "output_size" in self.options else "max_pool"
        pooled: Tensor = getattr(F, f"{kind}{self.axes}d")(x, **self.options)
        return pooled

    def extra_repr(self) -> str:
        """The arguments."""
        return ", ".join(f"{key}={value}" for key, value in _describe(self).items())


def average(axes: int, options: dict[str, Any]) -> nn.Module:
    """The average pool of the same windows as a max-pool with these options."""
    if "output_size" in options:
        return (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[axes - 1](options["output_size"])
    given = {name: value for name, value in options.items() if value is not None}
    dilation = given.pop("dilation", 1)
    if dilation not in (1, (1,), (1, 1), (1, 1, 1)) or given.pop("return_indices", False):
        raise ValueError(
            'a max-pool with dilation or indices has no average pool of the same shape; pool="gate" takes dilation'
        )
    return (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[axes - 1](**given)


def _describe(module: GatedMaxPool) -> dict[str, Any]:
    options = {name: list(value) if isinstance(value, tuple) else value for name, value in module.options.items()}
    return {"axes": module.axes, "steady": module.steady, **options}


def _build(fields: dict[str, Any]) -> GatedMaxPool:
    values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
    return GatedMaxPool(**values)


register_leaf(GatedMaxPool, _describe, _build)
