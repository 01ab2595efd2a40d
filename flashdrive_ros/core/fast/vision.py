"""Camera images to features, one stage for so many images of a size."""
from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..graphs import GraphPool, Stages
from ..model import Alpamayo
from ..rotary import vision_rotary
from ..vision import ImageFeatures, merge_order


class FastVision:
    """Encodes raw images; see `memory.Encoder`."""

    def __init__(self, model: Alpamayo, operations: ModuleType, pool: GraphPool):
        self.model, self.ops = model, operations
        self.stages = Stages(pool, 'vision')
        self.raw: dict[tuple, Tensor] = {}
        self.tables: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
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
        patches, grid = self.ops.prepare_images(self.raw[key], model.config.vision,
                                                model.config.prompt, model.dtype)
        tokens, deepstack = self._tower(patches, grid)
        if key not in self.encoded:
            self.encoded[key] = ImageFeatures(tokens.clone(), deepstack.clone())
        self.encoded[key].tokens.copy_(tokens)
        self.encoded[key].deepstack.copy_(deepstack)

    def _tower(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """As `VisionTower.encode`, a block's last sum being made with the next block's norm."""
        tower, ops = self.model.visual, self.ops
        positions, cos, sin = self._tables(grid)
        n, p, _ = patches.shape
        x = (tower.patch_embed.proj(patches) + positions).flatten(0, 1)
        product = bias = None
        taps: dict[int, Tensor] = {}
        for index, block in enumerate(tower.blocks):
            attention, mlp = block.attn, block.mlp
            x, normed = ops.add_layer_norm(x, product, bias, block.norm1)
            self._tap(taps, index - 1, x, n)
            qkv = attention.qkv(normed).view(n, p, 3, attention.num_heads, -1)
            heads = ops.patch_attention(*ops.rotate_patches(qkv, cos, sin))
            product = F.linear(heads, attention.proj.weight)
            x, normed = ops.add_layer_norm(x, product, attention.proj.bias, block.norm2)
            product = F.linear(ops.linear_gelu(normed, mlp.linear_fc1), mlp.linear_fc2.weight)
            bias = mlp.linear_fc2.bias
        x, normed = ops.add_layer_norm(x, product, bias, tower.merger.norm)
        self._tap(taps, len(tower.blocks) - 1, x, n)
        merger = tower.merger
        hidden = F.gelu(merger.linear_fc1(normed.view(n, -1, merger.merged)))
        tokens = merger.linear_fc2(hidden)
        deepstack = [taps[index] for index in tower.config.deepstack_visual_indexes]
        return tokens, torch.stack(deepstack) if taps else tokens.new_zeros(0, *tokens.shape)

    def _tap(self, taps: dict[int, Tensor], index: int, x: Tensor, images: int) -> None:
        """Merge what block `index` gave, if that is one of the tapped ones."""
        tower = self.model.visual
        wanted = tower.config.deepstack_visual_indexes
        if index in wanted:
            merger = tower.deepstack_merger_list[wanted.index(index)]
            taps[index] = merger(x.unflatten(0, (images, -1)))

    def _tables(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Position embedding and rotary tables of a grid, made once."""
        if grid not in self.tables:
            tower = self.model.visual
            config = tower.config
            rows, columns = merge_order(grid, config.spatial_merge_size, self.model.device)
            self.tables[grid] = (tower.position_embedding(grid), *vision_rotary(
                rows, columns, config.hidden_size // config.num_heads))
        return self.tables[grid]
