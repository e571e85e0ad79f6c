"""AutoAugment's CIFAR-10 policy (Cubuk et al., 2019) on whole batches of uint8 images, as Pillow would do it.

Each primitive takes ``uint8 [N, C, H, W]`` and a magnitude per image (``[N]``) or one for all.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["POLICY", "autoaugment"]

# 25 sub-policies of two operations: name, probability, magnitude on the scale 0 … 9.
Operation = tuple[str, float, int]
POLICY: tuple[tuple[Operation, Operation], ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)
GREY = 128


def affine(images: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
    """Pillow's AFFINE with the nearest pixel: (x, y) comes from ``(ax + by + c, dx + ey + f)``, grey outside."""
    _, channels, height, width = images.shape
    y = torch.arange(height, device=images.device, dtype=torch.float32).view(1, -1, 1) + 0.5
    x = torch.arange(width, device=images.device, dtype=torch.float32).view(1, 1, -1) + 0.5
    a, b, c, d, e, f = (v.view(-1, 1, 1) for v in (a, b, c, d, e, f))
    column = (a * x + b * y + c).floor()
    row = (d * x + e * y + f).floor()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).to(torch.int64).flatten(1)
    moved = images.flatten(2).gather(2, index[:, None, :].expand(-1, channels, -1)).view_as(images)
    return moved.masked_fill(~inside[:, None], GREY)


def shear_y(images: Tensor, slope: Tensor) -> Tensor:
    """Row y takes its pixel from row ``y + slope·x``."""
    one, zero = torch.ones_like(slope), torch.zeros_like(slope)
    return affine(images, one, zero, zero, slope, one, zero)


def translate_x(images: Tensor, fraction: Tensor) -> Tensor:
    """Column x takes its pixel from column ``x + fraction·width``."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return affine(images, one, zero, fraction * images.shape[3], zero, one, zero)


def translate_y(images: Tensor, fraction: Tensor) -> Tensor:
    """Row y takes its pixel from row ``y + fraction·height``."""
    one, zero = torch.ones_like(fraction), torch.zeros_like(fraction)
    return affine(images, one, zero, zero, zero, one, fraction * images.shape[2])


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Counter-clockwise around the middle."""
    _, _, height, width = images.shape
    angle = -degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    middle_x, middle_y = width / 2, height / 2
    c = middle_x - cos * middle_x - sin * middle_y
    f = middle_y + sin * middle_x - cos * middle_y
    return affine(images, cos, sin, c, -sin, cos, f)


def blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """``base + factor·(images − base)``, cut off to 0 … 255."""
    base = base.float()
    return (base + factor.view(-1, 1, 1, 1) * (images.float() - base)).clamp(0, 255).to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """Luminance ``[N, 1, H, W]`` with Pillow's integer weights; one channel is its own."""
    if images.shape[1] != 3:
        return images[:, :1]
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).unsqueeze(1)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Towards (factor < 1) or away from grey."""
    return blend(grey(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from the mean luminance."""
    mean = (grey(images).float().mean((1, 2, 3), keepdim=True) + 0.5).floor()
    return blend(mean, images, factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from black."""
    return blend(torch.zeros_like(images[:1]), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Towards or away from a smoothed image (3x3, weight 5 in the middle of 1; the border stays)."""
    x = images.float()
    box = functional.avg_pool2d(x, 3, stride=1, divisor_override=1)
    inner = ((box + 4 * x[..., 1:-1, 1:-1]) / 13 + 0.5).floor()
    smooth = x.clone()
    smooth[..., 1:-1, 1:-1] = inner
    return blend(smooth, images, factor)


def autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel of each image to 0 … 255."""
    x = images.float()
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretched = ((x - low) * (255 / (high - low).clamp(min=1)) + 1e-3).floor().clamp(0, 255)
    return torch.where(high > low, stretched.to(torch.uint8), images)


def equalize(images: Tensor, _: Tensor) -> Tensor:
    """Flatten each channel's histogram."""
    flat = images.flatten(0, 1).flatten(1).to(torch.int64)
    histogram = torch.zeros(len(flat), 256, dtype=torch.int32, device=images.device)
    histogram.scatter_add_(1, flat, torch.ones((), dtype=torch.int32, device=images.device).expand_as(flat))
    last = histogram.gather(1, flat.amax(1, keepdim=True))
    step = (flat.shape[1] - last).div(255, rounding_mode="floor")
    safe = step.clamp(min=1)
    before = histogram.cumsum(1, dtype=torch.int32) - histogram
    table = (before + safe.div(2, rounding_mode="floor")).div(safe, rounding_mode="floor").clamp(0, 255)
    out = table.gather(1, flat).to(torch.uint8)
    return torch.where(step > 0, out, flat.to(torch.uint8)).view_as(images)


def invert(images: Tensor, _: Tensor) -> Tensor:
    """The negative."""
    return 255 - images


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """The negative from a threshold upwards."""
    return torch.where(images >= threshold.view(-1, 1, 1, 1), 255 - images, images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits."""
    step = (8 - bits).exp2().to(torch.uint8).view(-1, 1, 1, 1)
    return images - images % step


# What a magnitude of 9 means, and whether the sign is drawn at random.
OPERATIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[float], float], bool]] = {
    "shear_y": (shear_y, lambda m: 0.3 * m, True),
    "translate_x": (translate_x, lambda m: 150 / 331 * m, True),
    "translate_y": (translate_y, lambda m: 150 / 331 * m, True),
    "rotate": (rotate, lambda m: 30 * m, True),
    "color": (color, lambda m: 0.9 * m, True),
    "contrast": (contrast, lambda m: 0.9 * m, True),
    "brightness": (brightness, lambda m: 0.9 * m, True),
    "sharpness": (sharpness, lambda m: 0.9 * m, True),
    "posterize": (posterize, lambda m: round(8 - 4 * m), False),
    "solarize": (solarize, lambda m: 256 - 256 * m, False),
    "autocontrast": (autocontrast, lambda m: 0.0, False),
    "equalize": (equalize, lambda m: 0.0, False),
    "invert": (invert, lambda m: 0.0, False),
}
ENHANCEMENTS = {"color", "contrast", "brightness", "sharpness"}


def _apply(images: Tensor, operation: Operation, generator: torch.Generator) -> Tensor:
    name, probability, level = operation
    function, scale, signed = OPERATIONS[name]
    draw = torch.rand(2, len(images), generator=generator, device=images.device)
    magnitude = torch.full_like(draw[0], scale(level / 9))
    if signed:
        magnitude = torch.where(draw[1] < 0.5, magnitude, -magnitude)
    if name in ENHANCEMENTS:
        magnitude = 1 + magnitude
    return torch.where((draw[0] < probability).view(-1, 1, 1, 1), function(images, magnitude), images)


def autoaugment(images: Tensor, generator: torch.Generator) -> Tensor:
    """One of the 25 sub-policies for each image.

    The draw is a random partition into 25 equal parts: no size depends on it, so nothing waits for the device. (Images
    are repeated up to a multiple of 25 and the copies dropped, so that each image meets each sub-policy equally often.)
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"AutoAugment works on uint8 images, got {images.dtype}")
    parts = len(POLICY)
    total = -(-len(images) // parts) * parts
    order = torch.randperm(total, generator=generator, device=images.device)
    out = images.new_empty((total, *images.shape[1:]))
    for pair, index in zip(POLICY, order.view(parts, -1), strict=True):
        part = images[index % len(images)]
        for operation in pair:
            part = _apply(part, operation, generator)
        out[index] = part
    return out[: len(images)]
