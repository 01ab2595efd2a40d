"""Camera images to features, one stage for so many images of a size."""
from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from .. import images
from ..graphs import GraphPool, Stages
from ..model import Alpamayo
from ..vision import ImageFeatures


class FastVision:
    """Encodes raw images; see `memory.Encoder`."""

    def __init__(self, model: Alpamayo, operations: ModuleType, pool: GraphPool):
        self.model, self.ops = model, operations
        self.stages = Stages(pool, 'vision')
        self.raw: dict[tuple, Tensor] = {}
        self.encoded: dict[tuple, ImageFeatures] = {}

    def __call__(self, raw: Sequence[np.ndarray | Tensor]) -> list[ImageFeatures]:
        """Features of equally sized RGB uint8 images [H, W, 3], in the host's memory or not."""
        key = (len(raw), *raw[0].shape)
        if key not in self.raw:
            self.raw[key] = torch.zeros(key, dtype=torch.uint8, device=self.model.device)
        for place, image in zip(self.raw[key], raw):
            place.copy_(torch.as_tensor(image), non_blocking=True)
        self.stages.run(('encode', *key), lambda: self._encode(key))
        tokens, deepstack = self.encoded[key].tokens.clone(), self.encoded[key].deepstack.clone()
        return [ImageFeatures(tokens[i], deepstack[:, i]) for i in range(len(raw))]

    def _encode(self, key: tuple) -> None:
        """Stage: prepare and encode the images in the buffer `key`."""
        model = self.model
        raw = self.raw[key].permute(0, 3, 1, 2)
        patches, grid = images.prepare(raw, model.config.vision, model.config.prompt)
        tokens, deepstack = model.visual.encode(patches.to(model.dtype), grid)
        if key not in self.encoded:
            self.encoded[key] = ImageFeatures(tokens.clone(), deepstack.clone())
        self.encoded[key].tokens.copy_(tokens)
        self.encoded[key].deepstack.copy_(deepstack)
