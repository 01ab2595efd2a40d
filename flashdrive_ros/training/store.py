"""
The clips in the device's memory, and batches of windows drawn from them.

A ring: new clips take the place of the oldest.  Images are resized on the way in
by the engine's own preparation, on the device that trains.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import images
from ..core.config import ModelConfig
from .samples import QUESTIONS, WORDINGS, Field, SlotLayout

VARIANTS = {'reason': WORDINGS, 'question': QUESTIONS}
"""Texts of which a window has several."""


@dataclass(frozen=True)
class Batch:
    """
    B windows; everything is on the training device.

    images         uint8 [B, views, frames, 3, h, w], resized
    prompt, reason, question, answer   token ids [B, n] with lengths [B]
    controls       [B, 64, 2] m/s^2 and 1/m         speed  [B] m/s at t0
    future, history [B, 64 | 16, 3] x, y, yaw       cause  [B] index
    seen           uint8 [B, views, rows, columns, channels] of the newest images (`seeing.py`)
    """

    images: Tensor
    prompt_ids: Tensor
    prompt_length: Tensor
    reason_ids: Tensor
    reason_length: Tensor
    question_ids: Tensor
    question_length: Tensor
    answer_ids: Tensor
    answer_length: Tensor
    controls: Tensor
    speed: Tensor
    future: Tensor
    history: Tensor
    cause: Tensor
    seen: Tensor

    def __len__(self) -> int:
        return len(self.speed)

    def split(self, size: int) -> list[Batch]:
        """Parts of at most `size` windows."""
        parts = [getattr(self, name).split(size) for name in self.__dataclass_fields__]
        return [Batch(*part) for part in zip(*parts)]


@dataclass(frozen=True)
class Asked:
    """
    Questions about W windows and their answers: ids [W, m, n] with lengths [W, m].

    `answer_blocks` [W, m, K, 4] are the primitives in them (`samples.BLOCK`).
    """

    question_ids: Tensor
    question_length: Tensor
    answer_ids: Tensor
    answer_length: Tensor
    answer_blocks: Tensor


class Staging:
    """Page-locked buffers through which clips reach the device while it computes."""

    def __init__(self, layout: SlotLayout, device: torch.device, count: int = 24):
        self.layout, self.device = layout, device
        self.cuda = device.type == 'cuda'
        count = count if self.cuda else 1
        self.buffers = [torch.empty(layout.nbytes, dtype=torch.uint8, pin_memory=self.cuda)
                        for _ in range(count)]
        self.done = [torch.cuda.Event() if self.cuda else None for _ in range(count)]
        self.at = 0

    def send(self, clip: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Copy a clip's arrays to the device in one piece; they are views of it."""
        buffer, done = self.buffers[self.at], self.done[self.at]
        self.at = (self.at + 1) % len(self.buffers)
        if self.cuda:
            done.synchronize()  # the buffer's last journey
        for name, view in self.layout.views(buffer.numpy()).items():
            view[...] = clip[name]
        there = buffer.to(self.device, non_blocking=True)
        if self.cuda:
            done.record()
        found, at = {}, 0
        for name, f in self.layout.fields.items():
            piece = there[at:at + f.nbytes].view(_torch_type(f.dtype))
            found[name] = piece.view(f.shape)
            at += self.layout.room(f)
        return found


class ClipStore:
    """Room for `capacity` clips on `device`."""

    def __init__(self, fields: Mapping[str, Field], model: ModelConfig, capacity: int,
                 device: torch.device):
        self.model, self.capacity, self.device = model, capacity, device
        self.frames = model.prompt.frames_per_camera
        self.filled = self.at = 0
        length, views, height, width, _ = fields['images'].shape
        rows, columns = images.patch_grid(height, width, model.vision, model.prompt)
        patch = model.vision.patch_size
        self.size = rows * patch, columns * patch
        self.windows = length - self.frames + 1
        self.staging = Staging(SlotLayout(dict(fields)), device)
        self.images = torch.empty((capacity, length, views, 3, *self.size), dtype=torch.uint8,
                                  device=device)
        self.arrays = {name: torch.empty((capacity, *f.shape), dtype=_torch_type(f.dtype),
                                         device=device)
                       for name, f in fields.items() if name != 'images'}

    @property
    def nbytes(self) -> int:
        """Bytes of the store."""
        return self.images.nbytes + sum(a.nbytes for a in self.arrays.values())

    @staticmethod
    def clip_bytes(fields: Mapping[str, Field], model: ModelConfig) -> int:
        """Bytes that one clip takes."""
        length, views, height, width, _ = fields['images'].shape
        rows, columns = images.patch_grid(height, width, model.vision, model.prompt)
        pixels = rows * columns * model.vision.patch_size ** 2
        return length * views * 3 * pixels + sum(
            f.nbytes for name, f in fields.items() if name != 'images')

    def add(self, clip: Mapping[str, np.ndarray]) -> None:
        """Put a clip in the place of the oldest."""
        clip = self.staging.send(clip)
        flat = clip['images'].flatten(0, 1).permute(0, 3, 1, 2)
        self.images[self.at] = images.resize(flat, *self.size).view_as(self.images[self.at])
        for name, array in self.arrays.items():
            array[self.at] = clip[name]
        self.at = (self.at + 1) % self.capacity
        self.filled = min(self.filled + 1, self.capacity)

    def batch(self, clips: Tensor, windows: Tensor, texts: Mapping[str, Tensor] | None = None
              ) -> Batch:
        """
        Windows `windows` [B] of the clips in places `clips` [B].

        `texts`: which 'reason' (wording) and which 'question' [B] of each; the first without.
        """
        frames = windows[:, None] + torch.arange(self.frames, device=self.device)
        pictures = self.images[clips[:, None], frames].transpose(1, 2)
        names = [n for n in Batch.__dataclass_fields__ if n != 'images']
        texts = texts or dict.fromkeys(VARIANTS, torch.zeros_like(clips))
        chosen = {'reason': texts['reason'], 'question': texts['question'],
                  'answer': texts['question']}

        def place(name):
            variant = chosen.get(name.partition('_')[0])
            return (clips, windows) if variant is None else (clips, windows, variant)
        return Batch(pictures, *(self.arrays[name][place(name)] for name in names))

    def asked(self, clips: Tensor, windows: Tensor, chosen: Tensor) -> Asked:
        """Questions `chosen` [B, m] of the windows `windows` [B] of `clips` [B]."""
        places = clips[:, None], windows[:, None], chosen
        return Asked(*(self.arrays[name][places] for name in Asked.__dataclass_fields__))

    def places(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw `count` windows: clips [B] and windows [B]; `generator` lives on the CPU."""
        return tuple(torch.randint(n, (count,), generator=generator).to(self.device)
                     for n in (self.filled, self.windows))

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        """Draw `count` windows at random; `generator` lives on the CPU."""
        return self.batch(*self.places(count, generator), self._texts(count, generator))

    def rollouts(self, count: int, length: int, generator: torch.Generator) -> list[Batch]:
        """Draw `count` runs of `length` windows that follow each other, oldest window first."""
        clips = torch.randint(self.filled, (count,), generator=generator).to(self.device)
        first = torch.randint(self.windows - length + 1, (count,), generator=generator)
        texts = self._texts(count, generator)
        return [self.batch(clips, first.to(self.device) + step, texts)
                for step in range(length)]

    def _texts(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {name: torch.randint(n, (count,), generator=generator).to(self.device)
                for name, n in VARIANTS.items()}


def _torch_type(name: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, np.dtype(name))).dtype
