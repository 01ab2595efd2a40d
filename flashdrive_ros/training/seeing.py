"""
What the cameras show, patch by patch: a dense lesson beside the few words of a text.

The world knows for every pixel which thing it shows.  Two linear heads, one on
the vision tower's tokens and one on the language model's states of the newest
images, learn from it what is where, how far away and how fast.  They exist in
training only and are not part of the checkpoint.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from ..world.boxes import label_of
from .questions import LABELS

CLASSES = tuple(LABELS)
CHANNELS = len(CLASSES) + 2
"""Presence of each class, distance, speed along the ego's axis."""
FAR_M, NEAR_M = 120.0, 5.0
SLOWEST, FASTEST = -10.0, 30.0
PRESENT = 4.0
"""A patch counts as showing a class in full when a quarter of it does."""
LEAST = 1 / 16
"""Share of a patch that things must cover for distance and speed to be learned there."""


def code_of_distance(metres) -> np.ndarray:
    """Distances as 0 to 1, near ones finer."""
    near = np.log1p(np.minimum(metres, FAR_M) / NEAR_M)
    return near / np.log1p(FAR_M / NEAR_M)


def code_of_speed(speed) -> np.ndarray:
    """Speeds in m/s as 0 to 1."""
    return (np.clip(speed, SLOWEST, FASTEST) - SLOWEST) / (FASTEST - SLOWEST)


def seen_in(ids: Mapping[int, np.ndarray], camera_ids: Sequence[int], grid: tuple[int, int],
            pose, things: Sequence, before: Sequence) -> np.ndarray:
    """
    Truth [views, rows, columns, CHANNELS] uint8 (255 is 1) on a grid of patches.

    `ids` are id images by camera, `things` those at that moment (the ego at
    `pose`) and `before` 0.1 s earlier.
    """
    largest = max((thing.id for thing in things), default=0)
    table = np.zeros((largest + 1, 3), np.uint8)  # class + 1, distance, speed
    x, y, yaw = pose
    ahead = np.array([np.cos(yaw), np.sin(yaw)])
    earlier = {thing.id: thing for thing in before}
    for thing in things:
        label = label_of(thing)
        if thing.id < 1 or label not in LABELS:
            continue
        then = earlier.get(thing.id, thing)
        moved = np.array([thing.x - then.x, thing.y - then.y]) / 0.1
        distance = np.hypot(thing.x - x, thing.y - y)
        measured = float(code_of_distance(distance)), float(code_of_speed(moved @ ahead))
        table[thing.id] = CLASSES.index(label) + 1, *(round(255 * code) for code in measured)
    rows, columns = grid
    truth = np.zeros((len(camera_ids), rows, columns, CHANNELS), np.uint8)
    for view, camera in enumerate(camera_ids):
        marks = ids[camera]
        if marks.any():
            truth[view] = _patches(table[marks], rows, columns)
    return truth


def _patches(pixels: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Truth [rows, columns, CHANNELS] of pixels [h, w, 3] (class + 1, distance, speed)."""
    kinds = pixels[..., 0]
    there = kinds > 0
    layers = [255.0 * (kinds == k + 1) for k in range(len(CLASSES))]
    layers += [pixels[..., 1] * there, pixels[..., 2] * there, 255.0 * there]
    shares = np.stack([cv2.resize(layer.astype(np.float32), (columns, rows),
                                  interpolation=cv2.INTER_AREA) for layer in layers], -1)
    covered = shares[..., -1:] / 255
    n = len(CLASSES)
    shares[..., n:n + 2] = np.where(covered > LEAST, shares[..., n:n + 2]
                                    / np.maximum(covered, LEAST), 0)
    shares[..., :n] = np.minimum(shares[..., :n] * PRESENT, 255)
    return np.round(shares[..., :CHANNELS]).astype(np.uint8)


class Seeing(nn.Module):
    """Heads on language-model sized vectors of merged image tokens, `side` patches a side."""

    def __init__(self, hidden_size: int, side: int):
        super().__init__()
        self.side = side
        outputs = side * side * CHANNELS
        self.of_vision = nn.Linear(hidden_size, outputs)
        self.of_language = nn.Linear(hidden_size, outputs)
        for head in (self.of_vision, self.of_language):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
            head.bias.data.view(-1, CHANNELS)[:, :len(CLASSES)] = -4.0  # nearly everywhere absent

    def forward(self, tokens: Tensor, hidden: Tensor, truth: Tensor) -> dict[str, Tensor]:
        """
        Losses of the newest images' `tokens` and `hidden` states [B, views, t, hidden_size].

        `truth` is uint8 [B, views, rows, columns, CHANNELS]; t tokens cover it row by row.
        """
        batch, views, rows, columns, _ = truth.shape
        side, n = self.side, len(CLASSES)
        wanted = truth.view(batch, views, rows // side, side, columns // side, side, CHANNELS)
        wanted = wanted.transpose(3, 4).reshape(batch, views, -1, side * side, CHANNELS)
        wanted = wanted.float() / 255
        anything = (wanted[..., :n].amax(-1) > PRESENT * LEAST).float()
        count = anything.sum().clamp(min=1)
        losses = {}
        for name, head, x in (('seen_vision', self.of_vision, tokens),
                              ('seen_language', self.of_language, hidden)):
            said = head(x).float().view_as(wanted)
            present = F.binary_cross_entropy_with_logits(
                said[..., :n], wanted[..., :n], reduction='sum') / anything.numel()
            off = F.smooth_l1_loss(said[..., n:].sigmoid(), wanted[..., n:], reduction='none',
                                   beta=0.05)
            measured = off if name == 'seen_language' else off[..., :1]  # one image shows no speed
            losses[name] = present + (measured.sum(-1) * anything).sum() / count
        return losses
