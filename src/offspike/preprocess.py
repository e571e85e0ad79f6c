"""From images to a network's input, the same bits for data sets, checkpoints and training."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Preprocess", "normalise", "per_channel"]


@dataclass(frozen=True)
class Preprocess:
    """From images to the network's input: ``(x/255 − mean)/std`` for each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        finite = all(math.isfinite(value) for value in self.mean + self.std)
        if not finite or min(self.std, default=0.0) <= 0 or len(self.mean) != len(self.std):
            raise ValueError(f"preprocess needs a mean and a std > 0 for each channel, got {self.mean} and {self.std}")

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 ``[B, C, H, W]`` to float32 of the same shape."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != len(self.mean):
            wanted = f"uint8 images [B, {len(self.mean)}, H, W]"
            raise ValueError(f"preprocess takes {wanted}, got {images.dtype} {list(images.shape)}")
        return normalise(images, *(per_channel(values, images.device) for values in (self.mean, self.std)))


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """The formula itself; ``mean`` and ``std`` are ``[C, 1, 1]``, as ``per_channel`` makes them."""
    return (images.float() / 255 - mean) / std


def per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One number a channel, as float32 ``[C, 1, 1]``."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)
