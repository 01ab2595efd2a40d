"""Camera images to patch rows: the resize rule, the resampling and the order of patches."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import image

from flashdrive_ros.core import images
from flashdrive_ros.core.config import PromptConfig, VisionConfig
from flashdrive_ros.core.types import InputError

VISION, PROMPT = VisionConfig(), PromptConfig()


@pytest.mark.parametrize('size, grid', [
    ((1080, 1920), (20, 36)), ((720, 1280), (20, 36)), ((1208, 1920), (20, 34)),
    ((480, 640), (24, 32)), ((180, 320), (20, 34)), ((1920, 1080), (36, 20))])
def test_patch_grids_of_common_cameras(size, grid):
    assert images.patch_grid(*size, VISION, PROMPT) == grid


@settings(max_examples=200, deadline=None)
@given(st.integers(16, 4000), st.integers(16, 4000))
def test_resized_area_lies_within_the_limits(height, width):
    if max(height, width) / min(height, width) > 200:
        with pytest.raises(InputError, match='aspect ratio'):
            images.patch_grid(height, width, VISION, PROMPT)
        return
    rows, columns = images.patch_grid(height, width, VISION, PROMPT)
    assert rows % 2 == columns % 2 == 0
    if max(height, width) / min(height, width) < 3:  # one row more or less weighs little
        assert 0.8 * PROMPT.min_pixels <= rows * columns * 256 <= PROMPT.max_pixels


@pytest.mark.parametrize('size, target', [
    ((1080, 1920), (320, 576)), ((90, 160), (320, 544)), ((96, 130), (64, 96)),
    ((33, 400), (32, 992)), ((320, 576), (320, 576)), ((320, 700), (320, 576))])
def test_resizing_on_a_device_equals_the_cpu_kernel(size, target):
    raw = torch.from_numpy(image(size, size)).permute(2, 0, 1)[None]
    on_cpu = images.resize(raw, *target)
    assert on_cpu.dtype == torch.uint8 and on_cpu.shape == (1, 3, *target)
    assert torch.equal(images.resize_by_products(raw, *target), on_cpu)


def test_extreme_brightness_survives_overshoot_of_the_filter():
    steps = np.zeros((64, 64, 3), np.uint8)
    steps[:, 32:] = 255
    raw = torch.from_numpy(steps).permute(2, 0, 1)[None]
    resized = images.resize_by_products(raw, 96, 96)
    assert torch.equal(resized, images.resize(raw, 96, 96))
    assert resized.min() == 0 and resized.max() == 255


def test_patches_come_in_groups_that_merge():
    """Every pixel is found again at its patch, in both time slots, as (value - 127.5) / 127.5."""
    h, w = 64, 96
    raw = torch.from_numpy(image(1, (h, w))).permute(2, 0, 1)[None]
    rows = images.to_patches(raw, VISION)
    assert rows.shape == (1, 24, 1536)
    patches = rows[0].view(2, 3, 2, 2, 3, 2, 16, 16)  # groups, then rows and columns in a group
    for y, x in ((0, 0), (17, 40), (63, 95), (32, 31)):
        group, inside = (y // 32, x // 32), (y % 32 // 16, x % 32 // 16)
        found = patches[(*group, *inside)][:, :, y % 16, x % 16]
        wanted = (raw[0, :, y, x].float() - 127.5) / 127.5
        assert torch.equal(found, wanted[:, None].expand(3, 2))
