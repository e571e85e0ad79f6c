"""Augmentations of whole batches, on whatever device they lie, without a single host synchronisation.

Every function takes ``[N, C, H, W]`` (uint8; crop, flip and Cutout also floats) and a ``torch.Generator`` of that
device, and returns new images. :func:`pipeline` turns names into one function.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from offspike.datasets.autoaugment import autoaugment

__all__ = [
    "AUGMENTATIONS",
    "autoaugment",
    "cutout",
    "horizontal_flip",
    "pipeline",
    "random_crop",
    "random_resized_crop",
]

Fill = Sequence[float]
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random resized crop: its area, and its width to its height


def _uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(len(images), generator=generator, device=images.device)


def _integers(images: Tensor, high: int, generator: torch.Generator) -> Tensor:
    return torch.randint(high, (len(images), 1), generator=generator, device=images.device)


def random_crop(images: Tensor, generator: torch.Generator, *, padding: int | None = None) -> Tensor:
    """Shift by up to ``padding`` pixels each way (an eighth of the width if not given); what comes in is 0, black."""
    _, channels, height, width = images.shape
    padding = width // 8 if padding is None else padding
    padded = functional.pad(images, (padding,) * 4)
    top = _integers(images, 2 * padding + 1, generator)
    left = _integers(images, 2 * padding + 1, generator)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    index = (rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]).flatten(1)
    return padded.flatten(2).gather(2, index[:, None, :].expand(-1, channels, -1)).view_as(images)


def horizontal_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image with probability ½."""
    mirrored = _uniform(images, generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)


def cutout(images: Tensor, generator: torch.Generator, *, size: int | None = None, fill: Fill = (0.0,)) -> Tensor:
    """Fill one square of ``size`` pixels (half the width if not given) around a random pixel, cut at the borders.

    ``fill`` is one value or one per channel, on the scale of the images.
    """
    _, _, height, width = images.shape
    size = width // 2 if size is None else size
    top = _integers(images, height, generator) - size // 2
    left = _integers(images, width, generator) - size // 2
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    inside_rows = (rows >= top) & (rows < top + size)
    inside_columns = (columns >= left) & (columns < left + size)
    hole = inside_rows[:, None, :, None] & inside_columns[:, None, None, :]
    value = _constant(fill, images)
    return torch.where(hole, value, images)


def _constant(fill: Fill, images: Tensor) -> Tensor:
    """One value per channel as ``[C, 1, 1]``, built without a copy from the host."""
    values = [round(v) if images.dtype == torch.uint8 else float(v) for v in fill]
    return torch.stack([torch.full((1, 1), v, dtype=images.dtype, device=images.device) for v in values])


def random_resized_crop(
    images: Tensor,
    generator: torch.Generator,
    *,
    scale: tuple[float, float] = SCALE,
    ratio: tuple[float, float] = RATIO,
) -> Tensor:
    """A random part of each image (``scale``: of its area, ``ratio``: width to height), stretched to the whole size."""
    area = scale[0] + (scale[1] - scale[0]) * _uniform(images, generator)
    low, high = torch.tensor(ratio).log().tolist()
    aspect = (low + (high - low) * _uniform(images, generator)).exp()
    width = (area * aspect).sqrt().clamp(max=1)
    height = (area / aspect).sqrt().clamp(max=1)
    across = (2 * _uniform(images, generator) - 1) * (1 - width)
    down = (2 * _uniform(images, generator) - 1) * (1 - height)
    zero = torch.zeros_like(width)
    affine = torch.stack([torch.stack([width, zero, across], 1), torch.stack([zero, height, down], 1)], 1)
    grid = functional.affine_grid(affine, list(images.shape), align_corners=False)
    out = functional.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return out.round().clamp(0, 255).to(torch.uint8) if images.dtype == torch.uint8 else out.to(images.dtype)


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "crop": random_crop,
    "flip": horizontal_flip,
    "autoaugment": autoaugment,
    "cutout": cutout,
    "resized-crop": random_resized_crop,
}


def pipeline(names: Sequence[str], *, mean: Sequence[float] = (0.0,)) -> Callable[[Tensor, torch.Generator], Tensor]:
    """One function that applies these augmentations in order.

    ``mean`` (0 to 1, per channel) is the colour of Cutout's square, so that it is 0 once normalised.
    """
    unknown = [name for name in names if name not in AUGMENTATIONS]
    if unknown:
        raise ValueError(f"unknown augmentation {unknown[0]!r}; there are {', '.join(AUGMENTATIONS)}")
    fill = tuple(255 * value for value in mean)

    def apply(images: Tensor, generator: torch.Generator) -> Tensor:
        for name in names:
            if name == "cutout":
                images = cutout(images, generator, fill=fill)
            else:
                images = AUGMENTATIONS[name](images, generator)
        return images

    return apply
