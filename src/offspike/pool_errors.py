"""What each way to treat max-pooling costs, layer by layer, measured on data.

An ANN's max-pool gives ``max_i r_i`` of the rates r in a window. What a spiking network makes of the same spikes
``x_i(t)``, ``r_i = 1/T Σ_t x_i(t)``, depends on the choice:

- *gate* (``prepare(…, pool="gate")``): ``max_i r_i`` itself, in the layer-wise schedule;
- *average* (``pool="average"``): the mean of the window, never more than ``max_i r_i``: to be trained with;
- *naive* (the max-pool left as it is): ``1/T Σ_t max_i x_i(t)``, never less than ``max_i r_i``. ``convert`` refuses it.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from offspike.activations import QCFS, Activation
from offspike.clock import active_clock
from offspike.convert import convert
from offspike.hooks import after
from offspike.inspection.obstacles import check
from offspike.methods import exact
from offspike.pooling import GatedMaxPool, average
from offspike.prepare import init_thresholds, prepare

__all__ = ["PoolError", "pool_errors"]


@dataclass(frozen=True)
class PoolError:
    """The error of one choice at one max-pool against ``max_i r_i``, as a fraction of its root mean square.

    ``mean`` is signed: above 0 too much is sent on, below 0 too little.
    """

    where: str
    choice: str
    rms: float
    mean: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@torch.no_grad()
def pool_errors(model: nn.Module, x: Tensor | tuple[Tensor, ...], *, steps: int = 8) -> list[PoolError]:
    """The error of each choice at each max-pool of ``model``, in order, for T = ``steps`` and the images ``x``.

    The spikes are those of the network that ``prepare`` (QCFS with T levels, thresholds from ``x``) and ``convert``
    (exact calibration) make of it; where the model has activations of its own, their λ stay as they are.
    """
    check(model, x)
    trained = any(isinstance(module, Activation) for module in model.modules())
    ann = prepare(model, QCFS(steps), example=x, pool="gate").eval()
    if not trained:
        init_thresholds(ann, x)
    snn = convert(ann, exact(steps), example=x)
    errors: list[PoolError] = []

    def look(name: str, pool: GatedMaxPool, args: tuple[Tensor, ...], sent: Tensor) -> None:
        over_time = (lambda value: value[None]) if pool.steady else active_clock().unfold
        errors.extend(_errors(name, pool, over_time(args[0]), over_time(sent)))

    with after({name: m for name, m in snn.model.named_modules() if isinstance(m, GatedMaxPool)}, look):
        snn(*(x if isinstance(x, tuple) else (x,)), steps=steps)
    return errors


def _errors(name: str, pool: GatedMaxPool, seen: Tensor, sent: Tensor) -> list[PoolError]:
    """``seen [T, B, …]`` is what a gated max-pool got, ``sent [T, B, …]`` what it made of that."""
    rates = seen.double().mean(0)
    naive = torch.stack([pool.windows_max(step) for step in seen])
    made = {"gate": sent.double().mean(0), "naive": naive.double().mean(0)}
    with suppress(ValueError):  # a dilated window has no average pool
        made["average"] = average(pool.axes, pool.options)(rates)
    wanted = pool.windows_max(rates)
    scale = wanted.square().mean().sqrt().clamp(min=torch.finfo(wanted.dtype).tiny)
    errors = {choice: (value - wanted) / scale for choice, value in made.items()}
    return [
        PoolError(name, choice, float(error.square().mean().sqrt()), float(error.mean()))
        for choice, error in errors.items()
    ]
