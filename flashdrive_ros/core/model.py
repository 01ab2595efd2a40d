"""The network: vision tower, language model, action expert and their small heads."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from .action import ActionInput, fourier_frequencies
from .config import ModelConfig
from .decoder import Decoder
from .vision import VisionTower

VOCABULARY_MULTIPLE = 64
"""155,697 rows are odd, which the fast matrix kernels refuse; padded to 155,712."""


def padded_vocabulary(vocab_size: int) -> int:
    """Rows of the padded embedding table and head."""
    return -(-vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


class Alpamayo(nn.Module):
    """
    Alpamayo 1 and 1.5 at any size, and our small model: one architecture.

    Parameters are named as in the public checkpoints, less the fused
    projections and the prefix `vlm.model.` (see `checkpoint.py`).
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        rows = padded_vocabulary(config.vocab_size)
        self.visual = VisionTower(config.vision)
        self.embed_tokens = nn.Embedding(rows, config.text.hidden_size)
        self.language_model = Decoder(config.text)
        self.lm_head = nn.Linear(config.text.hidden_size, rows, bias=False)
        self.expert = Decoder(config.expert)
        self.action_in_proj = ActionInput(config.action, config.expert.hidden_size)
        self.action_out_proj = nn.Linear(config.expert.hidden_size, 2)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights and of the activations."""
        return self.lm_head.weight.dtype

    def frequencies(self) -> Tensor:
        """
        Fourier frequencies of the action input, rounded as where the model was trained.

        That is to the dtype of the checkpoint, whatever dtype runs here.
        """
        dtype = getattr(torch, self.config.weights_dtype)
        return fourier_frequencies(self.config.action, dtype).to(self.device)

    def allowed_tokens(self, trajectory_tokens: bool) -> Tensor:
        """Mask [padded vocabulary]: no pad row ever, trajectory tokens only on request."""
        prompt = self.config.prompt
        allowed = torch.arange(self.lm_head.weight.shape[0], device=self.device) \
            < self.config.vocab_size
        if not trajectory_tokens:
            start = prompt.traj_token_start_idx
            allowed[start:start + prompt.traj_vocab_size] = False
        return allowed
