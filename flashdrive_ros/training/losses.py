"""What is minimised: cross entropy on what the model says, flow matching on what it drives."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.config import ActionConfig
from ..core.model import Alpamayo
from .forward import ActionAttention, Forward, Geometry, Keys, forward, slid, velocity
from .seeing import Seeing
from .store import Batch

IGNORE = -100
WIDTH_MULTIPLE = 8


@dataclass(frozen=True)
class LossConfig:
    """
    Weights and randomness of the losses.

    draws               noises (and times) per window; the expert is cheap beside the window
    flow_time           'beta': 0.999 (1 - Beta(1.5, 1)) as released, 'uniform': as in
                        streaming fine-tuning
    wrong_reason_share  windows whose reasoning is another window's (not learned as text): the
                        expert must look itself, since what it is told may be wrong
    """

    draws: int = 4
    flow_time: str = 'beta'
    action_weight: float = 1.0
    reason_weight: float = 0.5
    answer_weight: float = 0.5
    seeing_weight: float = 1.0
    wrong_reason_share: float = 0.15

    def __post_init__(self):
        """Refuse an unknown distribution of flow times."""
        if self.flow_time not in ('beta', 'uniform'):
            raise ValueError(f"flow_time must be 'beta' or 'uniform', got {self.flow_time!r}")


@dataclass(frozen=True)
class Joined:
    """Prompt and text in rows: `ids` [B, n], `labels` [B, n] of the next token, `length` [B]."""

    ids: Tensor
    labels: Tensor
    length: Tensor


def join(prompt: Tensor, prompt_length: Tensor, text: Tensor, text_length: Tensor,
         width: int) -> Joined:
    """Put the text behind the prompt of each row; `width` must hold the longest."""
    position = torch.arange(width, device=prompt.device)
    length = prompt_length + text_length
    inside = position - prompt_length[:, None]
    from_prompt = prompt.gather(1, position.clamp(max=prompt.shape[1] - 1).expand(len(prompt), -1))
    from_text = text.gather(1, inside.clamp(0, text.shape[1] - 1))
    ids = torch.where(inside < 0, from_prompt, from_text)
    ids = torch.where(position < length[:, None], ids, 0)
    following = torch.cat((ids[:, 1:], ids.new_zeros(len(ids), 1)), 1)
    learned = (inside >= -1) & (position < length[:, None] - 1)
    return Joined(ids, torch.where(learned, following, IGNORE), length)


@dataclass(frozen=True)
class Widths:
    """Columns of the plan's and the question's branch: the longest seen, rounded up."""

    plan: int
    question: int


def widths_of(longest: dict[str, int]) -> Widths:
    """Widths for the longest prompt, reason, question and answer seen."""
    def up(n):
        return -(-n // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    return Widths(up(longest['prompt'] + longest['reason']),
                  up(longest['question'] + longest['answer']))


def normalise(controls: Tensor, action: ActionConfig) -> Tensor:
    """Normalised actions of physical `controls` [..., 2]."""
    mean = controls.new_tensor((action.accel_mean, action.curvature_mean))
    return (controls - mean) / controls.new_tensor((action.accel_std, action.curvature_std))


class DrivingLoss(nn.Module):
    """Losses of a batch of windows, computed whole or on top of a rolled-out past."""

    def __init__(self, model: Alpamayo, geometry: Geometry, config: LossConfig):
        super().__init__()
        self.model, self.geometry, self.config = model, geometry, config
        side = model.config.vision.spatial_merge_size
        self.seeing = Seeing(model.config.text.hidden_size, side).to(
            model.device) if config.seeing_weight else None

    def forward(self, batch: Batch, widths: Widths, generator: torch.Generator,
                rolled: Sequence[Batch] = ()) -> dict[str, Tensor]:
        """
        Return the weighted 'loss' and its parts as scalars.

        `rolled` are the windows just before, oldest first: they are streamed
        through without gradient, and `batch` only adds what is new.  The
        `generator` lives on the batch's device.
        """
        plan, asked, truthful = self._texts(batch, widths, generator)
        past = self._roll_out(rolled) if rolled else None
        pictures = batch.images if past is None else batch.images[:, :, -1:]
        branches = (plan.ids, asked.ids) if self.config.answer_weight else (plan.ids,)
        window = forward(self.model, self.geometry, pictures, branches, past)
        said = self._said(window, plan, asked, truthful)
        action = self._action(window.keys, batch, plan, generator)
        config = self.config
        loss = (config.action_weight * action + config.reason_weight * said['reason']
                + config.answer_weight * said['answer'])
        if self.seeing is not None:
            seen = self.seeing(window.tokens, window.newest, batch.seen)
            loss = loss + config.seeing_weight * sum(seen.values())
            said |= seen
        return {'loss': loss, 'action': action.detach(),
                **{name: value.detach() for name, value in said.items()}}

    def _texts(self, batch: Batch, widths: Widths, generator):
        """Both branches, and which windows have their own reasoning."""
        n, device = len(batch), batch.speed.device
        truthful = torch.rand(n, generator=generator, device=device) \
            >= self.config.wrong_reason_share
        other = torch.where(truthful, torch.arange(n, device=device),
                            torch.randperm(n, generator=generator, device=device))
        plan = join(batch.prompt_ids, batch.prompt_length, batch.reason_ids[other],
                    batch.reason_length[other], widths.plan)
        asked = join(batch.question_ids, batch.question_length, batch.answer_ids,
                     batch.answer_length, widths.question)
        return plan, asked, truthful

    @torch.no_grad()
    def _roll_out(self, rolled: Sequence[Batch]) -> Keys:
        """Keys as streaming leaves them before the window to be learned from."""
        return roll_out(self.model, self.geometry, rolled)

    def _said(self, window: Forward, plan: Joined, asked: Joined,
              truthful: Tensor) -> dict[str, Tensor]:
        labels = torch.where(truthful[:, None], plan.labels, IGNORE)
        n = labels.shape[1]
        reason, reason_right = self._cross_entropy(window.hidden[:, :n], labels)
        wanted = asked.labels[:, :window.hidden.shape[1] - n]  # no column when not asked
        answer, answer_right = self._cross_entropy(window.hidden[:, n:], wanted)
        return {'reason': reason, 'answer': answer, 'reason_right': reason_right,
                'answer_right': answer_right}

    def _cross_entropy(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean over the learned tokens (0 of none), and the share that would be chosen."""
        learned = labels != IGNORE
        logits = self.model.lm_head(hidden[learned]).float()
        wanted = labels[learned].long()
        count = max(len(wanted), 1)
        right = (logits.argmax(-1) == wanted).sum() / count
        return F.cross_entropy(logits, wanted, reduction='sum') / count, right

    def _action(self, keys: Keys, batch: Batch, plan: Joined, generator) -> Tensor:
        action = self.model.config.action
        data = normalise(batch.controls, action)[:, None]
        shape = (len(batch), self.config.draws)
        device = data.device
        noise = torch.randn(*shape, *data.shape[2:], generator=generator, device=device)
        t = flow_times(shape, self.config.flow_time, generator, device)
        noisy = (1 - t[..., None, None]) * noise + t[..., None, None] * data
        attend = ActionAttention(self.geometry, keys, plan.length, plan.ids.shape[1],
                                 self.config.draws, data.shape[2])
        predicted = velocity(self.model, attend, noisy, t)
        return F.mse_loss(predicted, data - noise)


def flow_times(shape, kind: str, generator: torch.Generator, device) -> Tensor:
    """Times in [0, 1); Beta(1.5, 1) is the power 2/3 of a uniform number."""
    uniform = torch.rand(*shape, generator=generator, device=device)
    return uniform if kind == 'uniform' else 0.999 * (1 - uniform ** (2 / 3))


def roll_out(model: Alpamayo, geometry: Geometry, windows: Sequence[Batch]) -> Keys:
    """Stream through consecutive windows; keys ready for the one after them."""
    keys = forward(model, geometry, windows[0].images).keys
    for window in windows[1:]:
        keys = forward(model, geometry, window.images[:, :, -1:], past=slid(keys, geometry)).keys
    return slid(keys, geometry)
