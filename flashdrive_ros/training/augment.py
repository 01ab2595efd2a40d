"""
The same windows in other light: colours, contrast and grain drawn anew for every batch.

A clip is seen many times; without this its pixels are learned by heart.  All
images of a window, and of the windows streamed before it, change alike.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
CONTRAST, SATURATION, BRIGHTNESS, TINT, CAMERA = 0.2, 0.35, 18.0, 0.08, 0.06
GRAIN = 5.0


@dataclass(frozen=True)
class Light:
    """
    What happens to the images of B windows.

    Pixels are multiplied by `gain` [B, views, 3] around middle grey after
    `saturation` [B], then `brightness` [B] is added; `grain` [B] is the spread
    of the noise.
    """

    gain: Tensor
    saturation: Tensor
    brightness: Tensor
    grain: Tensor

    @classmethod
    def draw(cls, count: int, views: int, strength: float,
             generator: torch.Generator) -> Light:
        """Draw the light of `count` windows on the generator's device."""
        def uniform(*shape):
            drawn = torch.rand(*shape, generator=generator, device=generator.device)
            return strength * (2 * drawn - 1)
        gain = (1 + CONTRAST * uniform(count, 1, 1)) * (1 + TINT * uniform(count, 1, 3)) \
            * (1 + CAMERA * uniform(count, views, 1))
        return cls(gain, 1 + SATURATION * uniform(count), BRIGHTNESS * uniform(count),
                   GRAIN * uniform(count).clamp(min=0))

    def on(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images uint8 [B, views, frames, 3, h, w] in this light."""
        lit = torch.empty_like(images)
        weights = images.new_tensor(GREY, dtype=torch.float32)[:, None, None]
        for frame in range(images.shape[2]):
            x = images[:, :, frame].float()
            grey = (x * weights).sum(2, keepdim=True)
            x = grey + _wide(self.saturation) * (x - grey)
            x = 128 + self.gain[..., None, None] * (x - 128) + _wide(self.brightness)
            noise = torch.randn(x.shape, generator=generator, device=x.device)
            x = x + _wide(self.grain) * noise
            lit[:, :, frame] = x.round_().clamp_(0, 255).to(torch.uint8)
        return lit


def _wide(values: Tensor) -> Tensor:
    """[B] -> [B, 1, 1, 1, 1], to go with [B, views, 3, h, w]."""
    return values[:, None, None, None, None]
