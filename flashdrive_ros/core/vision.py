"""
Qwen3-VL vision tower: patches to language-model tokens, with deepstack taps.

Attention never crosses an image, so encoding one new image alone is exact
(spec `alpamayo.md` section 2).
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import VisionConfig
from .rotary import rotate, vision_rotary


@dataclass(frozen=True)
class ImageFeatures:
    """`tokens` [t, hidden] and `deepstack` [taps, t, hidden] of one image, or of several."""

    tokens: Tensor
    deepstack: Tensor

    @staticmethod
    def cat(parts: list[ImageFeatures]) -> ImageFeatures:
        """Put the tokens of several images one after the other."""
        return ImageFeatures(torch.cat([p.tokens for p in parts]),
                             torch.cat([p.deepstack for p in parts], 1))


class VisionAttention(nn.Module):
    """Full attention within each image."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`x` [images, patches, hidden]; `cos`, `sin` [patches, head_dim]."""
        n, p, _ = x.shape
        q, k, v = self.qkv(x).view(n, p, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q = rotate(q.float(), cos, sin).to(x.dtype)
        k = rotate(k.float(), cos, sin).to(x.dtype)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(n, p, -1))


class VisionMLP(nn.Module):
    """Two matrices with a tanh-approximated GELU between."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate='tanh'))


class VisionBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.attn = VisionAttention(config)
        self.mlp = VisionMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Keep the shape."""
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class PatchMerger(nn.Module):
    """Join each 2 x 2 group of patches into one language-model token."""

    def __init__(self, config: VisionConfig, norm_after_shuffle: bool):
        super().__init__()
        merged = config.hidden_size * config.spatial_merge_size ** 2
        self.norm_after_shuffle = norm_after_shuffle
        self.norm = nn.LayerNorm(merged if norm_after_shuffle else config.hidden_size, eps=1e-6)
        self.linear_fc1 = nn.Linear(merged, merged)
        self.linear_fc2 = nn.Linear(merged, config.out_hidden_size)
        self.merged = merged

    def forward(self, x: Tensor) -> Tensor:
        """[n, patches, hidden] -> [n, patches / 4, out_hidden]; groups are contiguous."""
        shuffled = (x.shape[0], -1, self.merged)
        x = self.norm(x.view(shuffled)) if self.norm_after_shuffle else self.norm(x).view(shuffled)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class VisionTower(nn.Module):
    """Patch rows of n equally sized images -> `ImageFeatures` of each."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.config = config
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Linear(config.patch_dim, config.hidden_size)
        self.pos_embed = nn.Embedding(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.merger = PatchMerger(config, norm_after_shuffle=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchMerger(config, norm_after_shuffle=True)
            for _ in config.deepstack_visual_indexes)

    def embed(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Patch and position embedding, the input of block 0; [n, patches, hidden]."""
        return self.patch_embed.proj(patches) + self.position_embedding(grid)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> list[ImageFeatures]:
        """Encode `patches` [n, patches, patch_dim] in merge order of a (rows, columns) `grid`."""
        tokens, deepstack = self.encode(patches, grid)
        return [ImageFeatures(tokens[i], deepstack[:, i]) for i in range(len(tokens))]

    def encode(self, patches: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Tokens [n, t, hidden] and deepstack features [taps, n, t, hidden] of n images."""
        x = self.embed(patches, grid)
        rows, columns = merge_order(grid, self.config.spatial_merge_size, patches.device)
        cos, sin = vision_rotary(rows, columns,
                                 self.config.hidden_size // self.config.num_heads)
        taps = []
        for index, block in enumerate(self.blocks):
            x = block(x, cos, sin)
            if index in self.config.deepstack_visual_indexes:
                tap = self.config.deepstack_visual_indexes.index(index)
                taps.append(self.deepstack_merger_list[tap](x))
        tokens = self.merger(x)
        return tokens, torch.stack(taps) if taps else tokens.new_zeros(0, *tokens.shape)

    def position_embedding(self, grid: tuple[int, int]) -> Tensor:
        """Bilinear resampling (corners aligned) of the learned square table, [patches, hidden]."""
        side = int(self.config.num_position_embeddings ** 0.5)
        weight = self.pos_embed.weight
        rows, columns = merge_order(grid, self.config.spatial_merge_size, weight.device)
        y = torch.linspace(0, side - 1, grid[0], device=weight.device)[rows]
        x = torch.linspace(0, side - 1, grid[1], device=weight.device)[columns]
        y0, x0 = y.int().long(), x.int().long()
        y1, x1 = (y0 + 1).clamp(max=side - 1), (x0 + 1).clamp(max=side - 1)
        dy, dx = y - y0, x - x0
        corners = ((y0, x0, (1 - dy) * (1 - dx)), (y0, x1, (1 - dy) * dx),
                   (y1, x0, dy * (1 - dx)), (y1, x1, dy * dx))
        return sum(weight[r * side + c] * w[:, None].to(weight.dtype) for r, c, w in corners)


def merge_order(grid: tuple[int, int], merge: int, device=None) -> tuple[Tensor, Tensor]:
    """Row and column [patches] of each patch; every merge x merge group is contiguous."""
    rows, columns = grid
    index = torch.arange(rows * columns, device=device).view(
        rows // merge, merge, columns // merge, merge).transpose(1, 2).reshape(-1)
    return index // columns, index % columns
