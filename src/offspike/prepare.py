"""Getting a network ready for training with activations that a spiking neuron can follow."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal

import torch
from torch import Tensor, nn

from offspike.activations import Activation
from offspike.surgery import audit, refuse, replace

__all__ = ["init_thresholds", "prepare"]

SAMPLE = 1 << 20
RELUS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


def prepare(
    model: nn.Module, activation: Activation, *, example: Tensor, pool: Literal["average", "keep"] = "average"
) -> nn.Module:
    """A copy of ``model`` whose ReLUs (also ReLU6, Hardtanh(0, c), LeakyReLU(0)) are copies of ``activation``.

    Max-pooling becomes average pooling unless ``pool="keep"`` (``convert`` will refuse it then). ``example`` is one
    input batch: the copy is run on it once, as a check. Set the thresholds with ``init_thresholds`` or train them.
    """
    if not isinstance(activation, Activation):
        raise TypeError(f"the activation must be osp.QCFS(levels=…) or osp.ClippedReLU(), got {activation!r}")
    ann = replace(model, RELUS + MAX_POOLS, lambda name, module: _replacement(name, module, activation, pool))
    findings = [finding for finding in audit(ann, example) if pool == "average" or "max-pooling" not in finding.what]
    refuse(findings)
    ann.input_shape = tuple(example.shape[1:])  # type: ignore[assignment]
    return ann


def _replacement(name: str, module: nn.Module, activation: Activation, pool: str) -> nn.Module:
    match module:
        case nn.ReLU() | nn.ReLU6() | nn.LeakyReLU(negative_slope=0.0) | nn.Hardtanh(min_val=0.0):
            return deepcopy(activation)
        case nn.MaxPool1d() | nn.MaxPool2d() | nn.MaxPool3d() if pool == "average":
            return _average(name, module)
    return module


def _average(name: str, module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d) -> nn.Module:
    """Average pooling over the same windows."""
    if module.dilation not in (1, (1,), (1, 1), (1, 1, 1)) or module.return_indices:
        raise ValueError(f"{name}: a max-pool with dilation or indices has no average pool of the same shape")
    kinds: dict[type[nn.Module], type[nn.Module]] = {
        nn.MaxPool1d: nn.AvgPool1d, nn.MaxPool2d: nn.AvgPool2d, nn.MaxPool3d: nn.AvgPool3d,
    }  # fmt: skip
    return kinds[type(module)](module.kernel_size, module.stride, module.padding, module.ceil_mode)


@torch.no_grad()
def init_thresholds(ann: nn.Module, batch: Tensor, *, quantile: float = 0.999, floor: float = 0.1) -> nn.Module:
    """Set each λ to the ``quantile`` of what reaches its activation, and to no less than ``floor``; returns ``ann``.

    One forward pass (in the mode the network is in): an activation gets its λ just before it runs, so the layers
    behind it already see its clipped output. λ per channel keeps one value per channel.
    """
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile must be in (0, 1], got {quantile}")

    def measure(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, Activation)
        x = inputs[0].detach().float()
        shape = module.log2_lam.shape
        rows = x.flatten().unsqueeze(0) if module.log2_lam.numel() == 1 else x.transpose(0, 1).flatten(1)
        module.set_threshold(_quantile(rows, quantile).clamp(min=floor).reshape(shape))

    with _before_each(ann, measure):
        ann(batch)
    return ann


def _quantile(rows: Tensor, quantile: float) -> Tensor:
    """The value of that rank in each row, of at most about a million evenly spaced entries of it."""
    rows = rows[:, :: max(1, rows.shape[1] // SAMPLE)]
    rank = min(rows.shape[1], max(1, round(quantile * rows.shape[1])))
    return rows.sort(1).values[:, rank - 1]


@contextmanager
def _before_each(ann: nn.Module, measure: object) -> Iterator[None]:
    hooks = [m.register_forward_pre_hook(measure) for m in ann.modules() if isinstance(m, Activation)]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
