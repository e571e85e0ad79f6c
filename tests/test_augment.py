"""Augmentations against Pillow, or against what is written by hand."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from offspike.datasets import augment, autoaugment


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(count=6, channels=3, size=32, seed=0):
    """Noise, gradients and flat patches: histograms of every kind."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    images[1] = np.linspace(40, 200, size, dtype=np.uint8)
    images[2] //= 4
    images[3, :, : size // 2] = 77
    images[4] = 255
    return torch.from_numpy(images)


def with_pillow(images, function):
    return torch.stack(
        [
            torch.from_numpy(np.array(function(Image.fromarray(image.permute(1, 2, 0).numpy())))).permute(2, 0, 1)
            for image in images
        ]
    )


def largest_difference(ours, pillow):
    assert ours.dtype == torch.uint8
    return (ours.int() - pillow.int()).abs().max().item()


@pytest.mark.parametrize("factor", [0.1, 0.7, 1.0, 1.3, 1.9])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_enhancements_equal_pillow_to_one_step(name, factor):
    images = random_images()
    enhance = getattr(ImageEnhance, name.capitalize())
    ours = getattr(autoaugment, name)(images, torch.full((len(images),), factor))
    assert largest_difference(ours, with_pillow(images, lambda image: enhance(image).enhance(factor))) <= 1


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "invert"])
def test_operations_without_magnitude_equal_pillow(name):
    images = random_images()
    ours = getattr(autoaugment, name)(images, torch.zeros(len(images)))
    allowed = 1 if name == "autocontrast" else 0
    assert largest_difference(ours, with_pillow(images, getattr(ImageOps, name))) <= allowed


@pytest.mark.parametrize("threshold", [0.0, 28.4, 128.0, 256.0])
def test_solarize_equals_pillow(threshold):
    images = random_images()
    ours = autoaugment.solarize(images, torch.full((len(images),), threshold))
    assert torch.equal(ours, with_pillow(images, lambda image: ImageOps.solarize(image, threshold)))


@pytest.mark.parametrize("bits", [4, 5, 7, 8])
def test_posterize_equals_pillow(bits):
    images = random_images()
    ours = autoaugment.posterize(images, torch.full((len(images),), float(bits)))
    assert torch.equal(ours, with_pillow(images, lambda image: ImageOps.posterize(image, bits)))


@pytest.mark.parametrize(
    ("name", "value", "matrix"),
    [
        ("shear_y", 0.26, (1, 0, 0, 0.26, 1, 0)),
        ("shear_y", -0.23, (1, 0, 0, -0.23, 1, 0)),
        ("translate_x", 0.4, (1, 0, 0.4 * 32, 0, 1, 0)),
        ("translate_y", -0.45, (1, 0, 0, 0, 1, -0.45 * 32)),
    ],
)
def test_geometry_equals_pillow(name, value, matrix):
    images = random_images()
    ours = getattr(autoaugment, name)(images, torch.full((len(images),), value))

    def transform(image):
        return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=(128, 128, 128))

    assert torch.equal(ours, with_pillow(images, transform))


@pytest.mark.parametrize("degrees", [6.7, -20.0, 90.0])
def test_rotation_equals_pillow(degrees):
    images = random_images()
    ours = autoaugment.rotate(images, torch.full((len(images),), degrees))
    pillow = with_pillow(images, lambda image: image.rotate(degrees, fillcolor=(128, 128, 128)))
    assert (ours != pillow).float().mean() < 0.01  # rounding at pixel borders


def test_each_image_has_its_own_magnitude():
    images = random_images()[:2].clone()
    both = autoaugment.brightness(images, torch.tensor([0.5, 1.5]))
    for number, factor in enumerate((0.5, 1.5)):
        assert torch.equal(both[number], autoaugment.brightness(images[number : number + 1], torch.tensor([factor]))[0])


def test_autoaugment_policy_is_the_published_size():
    assert len(autoaugment.POLICY) == 25
    assert all(name in autoaugment.OPERATIONS for pair in autoaugment.POLICY for name, _, _ in pair)


def test_autoaugment_is_reproducible_and_changes_most_images():
    images = random_images(count=200, seed=3)
    first = augment.autoaugment(images, generator(1))
    assert torch.equal(first, augment.autoaugment(images, generator(1)))
    assert not torch.equal(first, augment.autoaugment(images, generator(2)))
    changed = (first != images).flatten(1).any(1).float().mean()
    assert 0.6 < changed < 1
    assert first.shape == images.shape


@pytest.mark.parametrize("count", [1, 7, 26])
def test_autoaugment_takes_any_number_of_images(count):
    images = random_images(count=30)[:count]
    assert augment.autoaugment(images, generator()).shape == images.shape


def test_a_single_image_meets_different_sub_policies():
    image = random_images()[:1]
    seen = {augment.autoaugment(image, generator(seed)).sum().item() for seed in range(40)}
    assert len(seen) > 10


def test_autoaugment_refuses_floats():
    with pytest.raises(TypeError, match="uint8"):
        augment.autoaugment(torch.zeros(2, 3, 8, 8), generator())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_shows_a_shifted_window_of_the_padded_image(dtype):
    images = random_images(count=40).to(dtype)
    cropped = augment.random_crop(images, generator(), padding=4)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    windows = [(dy, dx) for dy in range(9) for dx in range(9)]
    found = set()
    for before, after in zip(padded, cropped, strict=True):
        matches = [w for w in windows if torch.equal(before[:, w[0] : w[0] + 32, w[1] : w[1] + 32], after)]
        assert matches
        found.add(matches[0])
    assert len(found) > 20


def test_flip_mirrors_about_half():
    images = random_images(count=400)
    flipped = augment.horizontal_flip(images, generator())
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    same = (flipped == images).flatten(1).all(1)
    assert bool((mirrored | same).all())
    assert 0.4 < mirrored.float().mean() < 0.6


def test_cutout_fills_one_square_cut_at_the_border():
    images = torch.full((500, 3, 32, 32), 200, dtype=torch.uint8)
    holes = augment.cutout(images, generator(), size=16, fill=(1.0, 2.0, 3.0))
    cut = holes[:, 0] == 1
    area = cut.sum((1, 2))
    assert area.max() == 256
    assert area.min() >= 64
    assert torch.equal(cut.any(1).sum(1) * cut.any(2).sum(1), area)  # a rectangle
    assert torch.equal(holes[:, 1] == 2, cut)
    assert torch.equal(holes[:, 2] == 3, cut)
    assert bool((holes[:, 0][~cut] == 200).all())


def test_resized_crop_of_everything_is_the_image_and_parts_stay_inside():
    images = random_images()
    whole = augment.random_resized_crop(images, generator(), scale=(1.0, 1.0), ratio=(1.0, 1.0))
    assert largest_difference(whole, images) <= 1
    part = augment.random_resized_crop(images[4:5], generator())
    assert bool((part == 255).all())  # a white image stays white: nothing from outside comes into view
    assert not torch.equal(augment.random_resized_crop(images, generator()), images)


def test_pipeline_applies_in_order_and_fills_with_the_mean():
    images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
    out = augment.pipeline(("crop", "flip", "autoaugment", "cutout"), mean=(0.5, 0.5, 0.5))(images, generator())
    assert out.dtype == torch.uint8
    assert bool((out == 128).flatten(1).any(1).all())
    with pytest.raises(ValueError, match="unknown augmentation 'blur'; there are crop"):
        augment.pipeline(("blur",))


def test_one_channel_is_augmented_too():
    images = random_images(channels=1, count=50)
    out = augment.pipeline(tuple(augment.AUGMENTATIONS))(images, generator())
    assert out.shape == images.shape
