"""Where a training begins: a network by its name, and weights that another network has learnt."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from offspike import checkpoint
from offspike.activations import QCFS, ClippedReLU
from offspike.datasets.data import Dataset
from offspike.datasets.imagefolder import FolderStream
from offspike.network import SpikingNetwork
from offspike.training import snapshot
from offspike.training.recipe import TrainingError
from offspike.zoo import NETWORKS

__all__ = ["begin_from", "check_teacher", "network", "weights_of"]


def network(
    name: str, levels: str, *, shape: tuple[int, int, int], classes: int, seed: int = 0, dropout: float = 0.0
) -> nn.Module:
    """A network of the zoo for images of this shape (channels, height, width), its weights drawn from ``seed``.

    ``levels`` is L of QCFS, or "relu", or "clip" for a clipped ReLU; ``dropout`` is that of VGG-16's linear layers.
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(NETWORKS)}")
    if not (levels.isdigit() and int(levels)) and levels not in ("relu", "clip"):
        raise ValueError(f'levels must be a number from 1, "relu" or "clip", got {levels!r}')
    if dropout and name != "vgg16":
        raise ValueError(f"{name} has no dropout layers, vgg16 has: leave dropout at 0")
    channels, height, width = shape
    if height != width:
        raise ValueError(f"the networks take square images, these are {height}x{width}")
    plain: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "clip": ClippedReLU}
    activation = plain[levels]() if levels in plain else QCFS(int(levels))
    extra = {"dropout": dropout} if name == "vgg16" else {}
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model: nn.Module = NETWORKS[name](
            classes=classes, activation=activation, channels=channels, size=height, **extra
        )
    return model


def weights_of(origin: str | Path) -> Mapping[str, Tensor]:
    """The weights in a file or of a packaged network; of a training's own checkpoint those it had when it was saved."""
    if snapshot.is_snapshot(Path(origin)):
        return snapshot.weights(snapshot.read(Path(origin)))
    return checkpoint.load(origin).state_dict()


def begin_from(model: nn.Module, origin: nn.Module | Mapping[str, Tensor]) -> bool:
    """Give ``model`` the weights of ``origin``, layer by layer; True if λ came along too.

    The two may differ in L and in their activations: from a ReLU network there is no λ to take, so set it from data.
    """
    own, given = model.state_dict(), origin.state_dict() if isinstance(origin, nn.Module) else origin
    thresholds = {name for name in own if name.endswith("log2_lam")}
    taken = {name: value for name, value in given.items() if not name.endswith("log2_lam") or name in thresholds}
    differing = sorted((own.keys() - thresholds) ^ (taken.keys() - thresholds))
    differing += [name for name in taken if name in own and own[name].shape != taken[name].shape]
    if differing:
        raise TrainingError(f"these weights belong to another network: {differing[0]} does not fit")
    model.load_state_dict(taken, strict=False)
    return thresholds <= taken.keys()


def check_teacher(teacher: nn.Module, data: Dataset | FolderStream, device: torch.device) -> None:
    """Refuse a teacher of other images or other classes before the work begins."""
    if isinstance(teacher, SpikingNetwork):
        raise TrainingError("the teacher is a spiking network: give the ANN that it was converted from")
    shape = "x".join(map(str, data.shape))
    try:
        with torch.no_grad():
            answers = teacher(torch.zeros(1, *data.shape, device=device))
    except (RuntimeError, ValueError):
        raise TrainingError(f"the teacher does not take images of {shape}: give one trained on such images") from None
    if answers.shape != (1, len(data.classes)):
        told = "x".join(map(str, answers.shape[1:]))
        raise TrainingError(f"the teacher gives {told} answers an image, the data set has {len(data.classes)} classes")
