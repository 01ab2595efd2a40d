"""Augmented images: other light, the same for all images of a window, nothing out of range."""
import torch

from flashdrive_ros.training.augment import Light


def light(strength, seed=0, count=3):
    return Light.draw(count, 4, strength, torch.Generator().manual_seed(seed))


def test_no_strength_changes_nothing():
    images = torch.randint(256, (3, 4, 2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(light(0.0).on(images, torch.Generator().manual_seed(1)), images)


def test_windows_change_differently_and_frames_of_a_window_alike():
    images = torch.full((3, 4, 2, 3, 32, 32), 90, dtype=torch.uint8)
    means = light(1.0).on(images, torch.Generator().manual_seed(1)).float().mean((-1, -2))
    assert (means[:, :, 0] - means[:, :, 1]).abs().max() < 1.0
    assert (means[0] - means[1]).abs().max() > 1.0


def test_the_same_seed_gives_the_same_light():
    images = torch.randint(256, (3, 4, 2, 3, 8, 8), dtype=torch.uint8)
    first, again = (light(1.0).on(images, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, again) and first.dtype == torch.uint8
