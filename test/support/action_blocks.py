"""Small blocks with the conditioning interfaces of three action models, in plain torch."""
import torch
import torch.nn.functional as F
from torch import nn


class CosmosBlock(nn.Module):
    """Projection of the context with GELU, then cross-attention that knows no mask."""

    def __init__(self, context, width=16, heads=2):
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(context, width), nn.GELU())
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x, t5_text_embeddings):
        context = self.proj(t5_text_embeddings)
        return x + self.attend(x, context, context)[0]


class LayerwiseBlocks(nn.Module):
    """Block i cross-attends to layer i, behind a norm and a projection of its own, masked."""

    def __init__(self, layers, hidden, width=16, heads=2):
        super().__init__()
        self.proj = nn.ModuleList(nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, width))
                                  for _ in range(layers))
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, heads, batch_first=True)
                                    for _ in range(layers))

    def forward(self, x, states, encoder_attention_mask):
        assert len(states) == len(self.proj)
        for proj, attend, layer in zip(self.proj, self.attend, states):
            context = proj(layer)
            x = x + attend(x, context, context, key_padding_mask=~encoder_attention_mask)[0]
        return x


class RecogBlock(nn.Module):
    """Tokens of history, pooled states and action, then cross-attention without a key mask."""

    def __init__(self, hidden, width=16, heads=2):
        super().__init__()
        self.proj, self.join = nn.Linear(hidden, width), nn.Linear(3 * width, width)
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, history, action, states):
        context = self.proj(states)
        pooled = context.mean(1, keepdim=True).expand_as(action)
        x = self.join(torch.cat((history.expand_as(action), pooled, action), -1))
        return F.silu(x + self.attend(x, context, context)[0])
