"""What a benchmark drives through: the embedded world, or noise for models that see nothing."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ..core.ego import HISTORY_POSES, EgoHistory
from ..core.types import GRID_NS, NANOSECONDS, CameraFrame, FrameSet

SPEED_MPS = 8.0
WORLD_WARM_UP_S = 2.0


def world_drive(seed: int) -> Iterator[tuple[FrameSet, EgoHistory]]:
    """Frames and ego history of the expert's drive through the world, a pair every 0.1 s."""
    from ..world import World
    world = World(seed)
    for _ in range(round(WORLD_WARM_UP_S / 0.1)):
        world.step(0.1)
    t0 = 0
    while True:
        world.step(0.1)
        t0 += GRID_NS
        seen = world.observe(boxes=False)
        times = seen.time + 0.1 * np.arange(1 - HISTORY_POSES, 1)
        x, y, yaw = np.array([world.pose_at(t) for t in times]).T
        zero = np.zeros_like(yaw)
        ego = EgoHistory.from_odometry(
            t0 + np.round((times - seen.time) * NANOSECONDS).astype(np.int64),
            np.stack((x, y, zero), 1),
            np.stack((zero, zero, np.sin(yaw / 2), np.cos(yaw / 2)), 1), t0)
        yield FrameSet(t0, {c: CameraFrame(i, t0) for c, i in seen.images.items()}), ego


def noise_drive(seed: int, cameras: tuple[int, ...], size: tuple[int, int],
                device: torch.device) -> Iterator[tuple[FrameSet, EgoHistory]]:
    """Random uint8 images of (height, width) that lie on `device`, driving straight on."""
    generator = torch.Generator(device).manual_seed(seed)
    xyz = np.zeros((HISTORY_POSES, 3))
    xyz[:, 0] = SPEED_MPS * 0.1 * np.arange(1 - HISTORY_POSES, 1)
    t0 = 0
    while True:
        t0 += GRID_NS
        images = torch.randint(256, (len(cameras), *size, 3), generator=generator, device=device,
                               dtype=torch.uint8)
        yield (FrameSet(t0, {c: CameraFrame(i, t0) for c, i in zip(cameras, images)}),
               EgoHistory(t0, xyz, np.tile(np.eye(3), (HISTORY_POSES, 1, 1))))
