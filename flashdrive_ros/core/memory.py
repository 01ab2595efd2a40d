"""What the engine remembers of the frames: their features, and the window they fill."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import images
from .model import Alpamayo
from .streaming import Window, fill_window, shift_between, time_reason
from .types import GRID_NS, CameraFrame, FrameSet
from .vision import ImageFeatures

Encoder = Callable[[Sequence[np.ndarray | Tensor]], list[ImageFeatures]]
"""RGB uint8 images [H, W, 3] of one size, in the host's memory or a device's -> features."""


def plain_encoder(model: Alpamayo) -> Encoder:
    """Encode with the model as it stands."""
    def encode(raw: Sequence[np.ndarray | Tensor]) -> list[ImageFeatures]:
        stacked = torch.stack([torch.as_tensor(image).to(model.device) for image in raw])
        patches, grid = images.prepare(stacked.permute(0, 3, 1, 2), model.config.vision,
                                       model.config.prompt)
        return model.visual(patches.to(model.dtype), grid)
    return encode


@dataclass(frozen=True)
class EncodedSet:
    """Features of one frame set, by camera, with the raw image sizes (height, width)."""

    features: dict[int, ImageFeatures]
    sizes: dict[int, tuple[int, int]]


class FrameMemory:
    """
    The last few frame sets, encoded, and the window of the last successful step.

    `choose` says how many places of the next window are new; nothing changes
    until `commit`.
    """

    def __init__(self, model: Alpamayo, frames_per_camera: int):
        self.encoder, self.frames = plain_encoder(model), frames_per_camera
        self.forget('start')

    def forget(self, reason: str) -> None:
        """Drop everything; `reason` is why the next window has to be computed whole."""
        self.encoded: dict[int, EncodedSet] = {}
        self.early: dict[int, tuple[CameraFrame, ImageFeatures]] = {}
        self.last_t0_ns: int | None = None
        self.invalidate(reason)

    def invalidate(self, reason: str) -> None:
        """Keep the frames, but have the next window computed whole."""
        self.window: Window | None = None
        self.reason = reason
        self.last_prefill_ns = 0

    def prepare(self, camera: int, frame: CameraFrame) -> bool:
        """Encode a camera's newest frame before its set is complete; False when it is known."""
        if self._prepared(camera, frame) is not None:
            return False
        (features,) = self.encoder([frame.image])
        self.early[camera] = frame, features
        return True

    def _prepared(self, camera: int, frame: CameraFrame) -> ImageFeatures | None:
        """Features of this very frame, if it was encoded early."""
        known, features = self.early.get(camera, (None, None))
        return features if known is frame else None

    def encode(self, sets: Sequence[FrameSet]) -> int:
        """Encode what is not known yet of the frame sets; returns the number of images."""
        newest = max(s.t0_ns for s in sets)
        fresh = [s for s in sets if s.t0_ns not in self.encoded
                 and s.t0_ns > newest - self.frames * GRID_NS]
        by_size: dict[tuple[int, int], list[tuple[EncodedSet, int, np.ndarray]]] = {}
        for frame_set in fresh:
            entry = self.encoded[frame_set.t0_ns] = EncodedSet({}, {})
            for camera, frame in frame_set.frames.items():
                size, prepared = frame.image.shape[:2], self._prepared(camera, frame)
                if prepared is None:
                    by_size.setdefault(size, []).append((entry, camera, frame.image))
                else:
                    entry.features[camera], entry.sizes[camera] = prepared, size
        for size, members in by_size.items():
            encoded = self.encoder([image for _, _, image in members])
            for (entry, camera, _), features in zip(members, encoded):
                entry.features[camera], entry.sizes[camera] = features, size
        return sum(map(len, by_size.values()))

    def choose(self, t0_ns: int, tolerance_ns: int) -> tuple[Window, int, str]:
        """Window for the frames at `t0_ns`, how many of its places are new, and why if all are."""
        sizes = self.encoded[t0_ns].sizes
        usable = [t for t, e in self.encoded.items() if e.sizes == sizes]
        window = fill_window(t0_ns, usable, self.frames, tolerance_ns)
        if self.window is None:
            return window, self.frames, self.reason
        changed = _size_change(self.encoded[self.last_t0_ns].sizes, sizes)
        if changed:
            return window, self.frames, changed
        shift = shift_between(self.window, window)
        why = '' if shift < self.frames else time_reason(
            self.last_t0_ns, t0_ns, tolerance_ns) or 'the frames before these changed'
        return window, shift, why

    def features(self, window: Window) -> list[list[ImageFeatures]]:
        """Features [views][frames] of a window, cameras in ascending order."""
        cameras = sorted(self.encoded[window.sources[-1]].features)
        return [[self.encoded[t].features[c] for t in window.sources] for c in cameras]

    def commit(self, t0_ns: int, window: Window, prefilled: bool) -> None:
        """The step succeeded: remember its window, drop frames that no window needs any more."""
        self.window, self.last_t0_ns = window, t0_ns
        if prefilled:
            self.last_prefill_ns = t0_ns
        oldest = t0_ns - self.frames * GRID_NS
        self.encoded = {t: e for t, e in self.encoded.items()
                        if oldest <= t <= t0_ns or t in window.sources}


def _size_change(old: dict, new: dict) -> str:
    if sorted(old) != sorted(new):
        return f'cameras changed from {sorted(old)} to {sorted(new)}'
    for camera, (height, width) in new.items():
        if old[camera] != (height, width):
            return (f'image size of camera {camera} changed from {old[camera][1]}x'
                    f'{old[camera][0]} to {width}x{height}')
    return ''
