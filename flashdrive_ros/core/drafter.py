"""
DFlash drafter: one non-causal pass that fills a block of masked tokens.

A few Qwen3 layers.  Hidden states that the target already has (its taps) are
fused and injected as keys and values of every layer; embedding and head are
the target's (spec `alpamayo.md` sections 11 and 16, `vflash.md` section 3).
"""
from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checkpoint
from .config import CheckpointError, DecoderConfig, ModelConfig, read_json, take
from .decoder import DecoderLayer
from .model import Alpamayo
from .rotary import decoder_rotary, rotate

log = logging.getLogger(__name__)
MASK_FILE = 'mask_embedding.pt'
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [b, heads, L, d], k and v [b, kv_heads, n + L, d]) -> [b, heads, L, d]."""


@dataclass(frozen=True)
class DrafterConfig(DecoderConfig):
    """
    A drafter's sizes, and what it sees of its target.

    block_size        tokens of a text block: the anchor and block_size - 1 proposals
    context_len       a text block sees the last that many tokens of its target
    window_context    blocks of primitives see every token before them instead
    target_layer_ids  target layers whose outputs are fused
    mask_token_id     id of the mask token; its embedding is the drafter's own
    slot_kinds        kinds of slots of a primitive that its masks tell apart; 0: none

    Masks that say which coordinate they stand for are ours: rotary positions turn by 1 rad a
    token at most, and x and y alternate faster.
    """

    num_hidden_layers: int = 2
    rope_theta: float = 1_000_000.0
    block_size: int = 8
    context_len: int = 8
    window_context: bool = False
    target_layer_ids: tuple[int, ...] = (24, 30, 31, 32, 34)
    mask_token_id: int = 155697
    slot_kinds: int = 0

    def __post_init__(self):
        """Check the fields; positions have one axis."""
        object.__setattr__(self, 'mrope_section', (self.head_dim // 2, 0, 0))
        super().__post_init__()
        for name, least in (('num_hidden_layers', 1), ('block_size', 2), ('context_len', 1)):
            found = getattr(self, name)
            if found < least:
                raise CheckpointError(f'{name} is {found}, expected at least {least}')
        if not self.target_layer_ids:
            raise CheckpointError('target_layer_ids is empty')

    @classmethod
    def for_target(cls, target: ModelConfig, taps: int = 5, **changes) -> DrafterConfig:
        """Drafter of the target's width that reads `taps` evenly spread layers of it."""
        text = target.text
        fitting = {name: getattr(text, name) for name in (
            'hidden_size', 'intermediate_size', 'num_attention_heads', 'num_key_value_heads',
            'head_dim', 'rms_norm_eps', 'rope_theta')}
        return cls(**{**fitting, 'target_layer_ids': spread_layers(taps, text.num_hidden_layers),
                      'mask_token_id': target.vocab_size, **changes})

    @classmethod
    def from_directory(cls, directory: Path) -> DrafterConfig:
        """Read `config.json` of a `-DFlash` directory; raises `CheckpointError`."""
        path = directory / 'config.json'
        raw = read_json(path)
        try:
            for section in ('rope_scaling', 'rope_parameters', 'dflash_config', 'flashdrive'):
                raw |= raw.get(section) or {}
            raw.pop('mrope_section', None)
            missing = [n for n in ('target_layer_ids', 'mask_token_id') if n not in raw]
            if missing:
                raise CheckpointError(f'a drafter needs {missing}')
            return take(cls, raw)
        except (CheckpointError, TypeError, ValueError) as error:
            raise CheckpointError(f'{path}: {error}') from None


def spread_layers(count: int, layers: int) -> tuple[int, ...]:
    """Default taps: `count` layers evenly from the second to the fourth from the end."""
    if count == 1:
        return (layers // 2,)
    span = max(layers - 4, count - 1)
    return tuple(round(1 + i * span / (count - 1)) for i in range(count))


class Drafter(nn.Module):
    """
    Proposes the tokens of a block at once.

    Only differences of positions matter; callers give cache slots.
    """

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.mask_embedding = nn.Parameter(torch.zeros(hidden))
        self.slot_embedding = nn.Parameter(
            torch.zeros(config.slot_kinds, hidden)) if config.slot_kinds else None

    @classmethod
    def random(cls, config: DrafterConfig, seed: int) -> Drafter:
        """Seeded random weights, to train from or to test with."""
        drafter = cls(config)
        drafter.randomise(seed)
        return drafter.eval()

    @torch.no_grad()
    def randomise(self, seed: int) -> None:
        """Draw all weights anew, where they are."""
        generator = torch.Generator(self.fc.weight.device).manual_seed(seed)
        checkpoint.draw_weights(self, generator, lambda _, p: p.shape[-1] ** -0.5)
        self.mask_embedding.normal_(0.0, 0.02, generator=generator)
        if self.slot_embedding is not None:
            self.slot_embedding.normal_(0.0, 0.02, generator=generator)

    def fuse(self, taps: Sequence[Tensor]) -> Tensor:
        """Features [..., hidden] of the chosen taps, each [..., hidden] (see `Taps`)."""
        return self.hidden_norm(self.fc(torch.cat(list(taps), -1)))

    def block(self, anchors: Tensor, length: int, kinds: Tensor | None = None) -> Tensor:
        """
        Embeddings [b, length, hidden] of the `anchors` [b, hidden] and masks behind them.

        `kinds` [length] are those of a primitive's slots, None for text.
        """
        masks = self.masks(kinds[1:]) if kinds is not None else self.mask_embedding
        return torch.cat((anchors[:, None], masks.expand(len(anchors), length - 1, -1)), 1)

    def masks(self, kinds: Tensor) -> Tensor:
        """Embeddings [..., hidden] of masks in slots of `kinds` [...]; -1 for text."""
        if self.slot_embedding is None:
            return self.mask_embedding.expand(*kinds.shape, -1)
        last = len(self.slot_embedding) - 1
        own = F.embedding(kinds.clamp(0, last), self.slot_embedding)
        known = (kinds >= 0) & (kinds <= last)
        return self.mask_embedding + torch.where(known[..., None], own, 0)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor,
                mask: Tensor | None = None, attend: Attention | None = None) -> Tensor:
        """
        Normed states [b, L, hidden], to be multiplied with the target's head.

        `x` [b, L, hidden] are the block's embeddings, `context` [b, n, hidden]
        fused features, `positions` [b or 1, n + L] of both.  `mask` is additive
        [b or 1, 1, L, n + L]; None: all of a block sees all of it and its context.
        `attend` does the attention in its place (training).
        """
        attend = attend or partial(F.scaled_dot_product_attention, attn_mask=mask,
                                   enable_gqa=True)
        n = context.shape[1]
        cos, sin = self._tables(positions, x.dtype)
        for layer in self.layers:
            q, k, v = layer.before(x)
            seen_k, seen_v = layer.self_attn.keys_and_values(context)
            k = rotate(torch.cat((seen_k, k), 2), cos, sin)
            v = torch.cat((seen_v, v), 2)
            q = rotate(q, cos[:, :, n:], sin[:, :, n:])
            x = layer.after(x, attend(q, k, v))
        return self.norm(x)

    def _tables(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [b or 1, 1, n, d]."""
        tables = decoder_rotary(positions.flatten().expand(3, -1), self.config, dtype)
        cos, sin = (t.view(len(positions), 1, positions.shape[1], -1) for t in tables)
        return cos, sin


class Taps:
    """
    Collects from a pass of the target what a drafter reads of it.

    Given to `Decoder.forward` as its `taps`; keeps the chosen layers only, and of
    them the `last` tokens (None: all).
    """

    def __init__(self, config: DrafterConfig, last: int | None = None):
        self.wanted, self.last = config.target_layer_ids, last
        self.layer, self.kept = -1, {}

    def append(self, x: Tensor) -> None:
        """Take the input of the next layer, which is the output of the one before."""
        if self.layer in self.wanted:
            self.kept[self.layer] = x if self.last is None else x[:, -self.last:]
        self.layer += 1

    def chosen(self) -> list[Tensor]:
        """Outputs [b, n, hidden] of the chosen layers, in the drafter's order."""
        return [self.kept[layer] for layer in self.wanted]


def places(drafter: Drafter) -> Iterator[tuple[str, Tensor]]:
    """Public key -> the view of our parameter that it fills."""
    for name, parameter in drafter.named_parameters():
        yield from checkpoint.unfused(name, parameter, drafter.config)


def save(drafter: Drafter, directory: Path, **notes) -> None:
    """Write a `-DFlash` directory; `notes` go to config.json."""
    fields = asdict(drafter.config)
    del fields['mrope_section']
    directory.mkdir(parents=True, exist_ok=True)
    dtype = str(drafter.fc.weight.dtype).removeprefix('torch.')
    (directory / 'config.json').write_text(json.dumps(
        {'model_type': 'qwen3', 'dtype': dtype, **fields, **notes}, indent=1) + '\n')
    checkpoint.save_tensors(places(drafter), directory, shard_bytes=15 << 20)


def load(directory: Path, target: Alpamayo) -> Drafter:
    """
    Drafter in a `-DFlash` directory, on the target's device and in its dtype.

    Random weights are drawn there when its config.json says so.  Raises `CheckpointError`
    when it does not fit the target, naming both numbers.
    """
    config = DrafterConfig.from_directory(directory)
    check_fit(config, target.config, directory)
    with torch.device('meta'):
        drafter = Drafter(config)
    drafter = drafter.to(target.dtype).to_empty(device=target.device)
    drafter = drafter.eval().requires_grad_(False)
    seed = (read_json(directory / 'config.json').get('flashdrive') or {}).get(
        'random_weights_seed')
    if seed is not None:
        drafter.randomise(seed)
        return drafter
    missing = dict(places(drafter))
    checkpoint.fill_places(missing, directory, optional=('mask_embedding',))
    if missing:
        drafter.mask_embedding.copy_(_mask_embedding(directory, config, target))
    return drafter


def load_companion(name: str, target: Alpamayo, drafting: str) -> Drafter | None:
    """
    Drafter of the checkpoint `name` as `EngineConfig.drafting` asks for it; None without one.

    Raises `CheckpointError` when it does not fit, or when it is missing but 'on'.
    """
    if drafting == 'off':
        return None
    name = name.removesuffix(checkpoint.PARO_SUFFIX)  # the quantised model shares the drafter
    wanted = f'{name}{checkpoint.DRAFTER_SUFFIX}'
    try:
        directory = checkpoint.find_companion(name, checkpoint.DRAFTER_SUFFIX)
    except CheckpointError as error:
        if drafting == 'on':
            raise
        log.info('no drafter: %s', error)
        return None
    if directory is None and drafting == 'on':
        raise CheckpointError(f'drafting is on, but there is no drafter {wanted}')
    return load(directory, target) if directory else None


def check_fit(config: DrafterConfig, target: ModelConfig, directory: Path) -> None:
    """Refuse a drafter that was made for another target."""
    layers, highest = target.text.num_hidden_layers, max(config.target_layer_ids)
    if min(config.target_layer_ids) < 0 or highest >= layers:
        raise CheckpointError(f'{directory}: target_layer_ids has {highest}, the target '
                              f'{target.name} has {layers} layers')
    if config.hidden_size != target.text.hidden_size:
        raise CheckpointError(f'{directory}: hidden_size is {config.hidden_size}, that of the '
                              f'target {target.name} is {target.text.hidden_size}')


def _mask_embedding(directory: Path, config: DrafterConfig, target: Alpamayo) -> Tensor:
    """From its own file, else the target's embedding of the mask token."""
    path, shape = directory / MASK_FILE, [config.hidden_size]
    if not path.is_file():
        if not 0 <= config.mask_token_id < target.config.vocab_size:
            raise CheckpointError(
                f'{directory} has no {MASK_FILE}, and its mask_token_id {config.mask_token_id} is '
                f'not one of the {target.config.vocab_size} tokens of {target.config.name}')
        return target.embed_tokens.weight[config.mask_token_id]
    try:
        stored = torch.load(path, map_location='cpu', weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f'{path} can not be read: {error}') from None
    if isinstance(stored, dict) and len(stored) == 1:
        (stored,) = stored.values()
    if not isinstance(stored, Tensor) or not stored.is_floating_point() or (
            stored.numel() != config.hidden_size):
        found = list(stored.shape) if isinstance(stored, Tensor) else type(stored).__name__
        raise CheckpointError(f'{path} holds {found}, expected numbers {shape}')
    return stored.flatten()
