"""A target that follows a script and drafters that know it, or nothing, for tests of decoding."""
import torch
from torch import nn

from flashdrive_ros.core.stream import PromptStream


class ScriptedHead(nn.Module):
    """
    A head that prefers `script[slot]` in a slot, and else follows its random weights.

    States come with their slot as one more channel where it is known.
    """

    def __init__(self, linear, scale=1.0):
        super().__init__()
        self.linear, self.script, self.scale = linear, {}, scale

    @property
    def weight(self):
        return self.linear.weight

    def forward(self, states):
        hidden = states[..., :self.weight.shape[1]]
        logits = self.linear(hidden) * self.scale
        if states.shape[-1] > hidden.shape[-1]:
            rows, slots = logits.view(-1, logits.shape[-1]), states[..., -1].flatten().tolist()
            for row, slot in zip(rows, slots):
                if slot in self.script:
                    row[self.script[slot]] += 1000.0
        return logits


class SlotStream(PromptStream):
    """A stream whose hidden states name the slot that they predict."""

    def extend(self, token_ids, taps=None):
        first = self.length + 1
        return with_slots(super().extend(token_ids, taps), first)


def with_slots(hidden, first):
    slots = torch.arange(first, first + len(hidden), dtype=hidden.dtype)
    return torch.cat((hidden, slots[:, None]), 1)


class StandIn(nn.Module):
    """
    A drafter of random weights, with the interface of the real one.

    `knows`: it proposes what the script says; else whatever its weights say.
    """

    def __init__(self, hidden, window_context=True, knows=False, seed=0, layers=(0, 2)):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        class config:
            target_layer_ids, context_len, block_size = layers, 4, 16
        config.window_context = window_context
        self.config, self.knows, self.calls = config, knows, []
        self.fc = torch.randn(len(layers) * hidden, hidden, generator=generator) * 0.3
        self.mask = torch.randn(hidden, generator=generator)
        self.mix = torch.randn(hidden, hidden, generator=generator)

    def fuse(self, taps):
        return torch.tanh(torch.cat(list(taps), -1) @ self.fc)

    def block(self, anchors, length, kinds=None):
        return torch.cat((anchors[:, None], self.mask.expand(len(anchors), length - 1, -1)), 1)

    def forward(self, x, context, positions, mask=None):
        n, size = context.shape[1], x.shape[1]
        assert positions.shape == (1, n + size) and (positions.diff() == 1).all()
        self.calls.append((positions[0, 0].item(), n, size))
        turn = torch.sin(positions[0, n:, None] * torch.arange(1, x.shape[-1] + 1) * 0.37)
        states = torch.tanh((x[0] + context[0].mean(0) + turn) @ self.mix)
        if self.knows:
            states = torch.cat((states, positions[0, n:, None].to(states.dtype)), 1)
        return states[None]

