"""
Held-out windows: how many tokens a round gives, and how right primitives are at once.

Texts are the model's own likeliest ones; a round is simulated as the decoder runs it.
Primitives are drafted where the annotation puts them, and filled as the decoder fills
them (`Schema.fill`).
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.primitives.layouts import Layout
from ..core.primitives.reading import Block, Reader
from .blocks import Blocks, anchor_weights, blocks_at, pack, room_for
from .drafting import PLAN, SAID, DraftLoss, Material
from .losses import IGNORE
from .store import Batch


@torch.no_grad()
def validate(loss: DraftLoss, held_out: Iterable[tuple[Batch, Material]],
             block_sizes: Sequence[int]) -> dict[str, float]:
    """
    Measure the drafter of `loss`.

    'tokens_per_round/…' of reasonings and answers; 'primitive_right' is the share of
    tokens, 'box_iou' the mean overlap of a drafted box with its annotation.  'ade_2d/…'
    (shares of the image) and 'ade_3d/…' (m) compare the way ahead: drafted with its
    annotation, the model's own answer with it ('model'), drafted with the model's own
    ('between').  What there is nothing of is left out.
    """
    tally = Tally()
    windows = 0
    for _, material in held_out:
        windows += len(material)
        for size in block_sizes:
            tally.add(f'tokens_per_round/reason_B{size}', *rounds(loss, material, PLAN, size))
        tally.add(f'tokens_per_round/answer_B{block_sizes[0]}',
                  *rounds(loss, material, SAID, block_sizes[0]))
        _primitives(loss, material, tally)
    return {**tally.means(), 'windows': windows}


class Tally:
    """Sums and counts by name."""

    def __init__(self):
        self.sums: dict[str, list[float]] = {}

    def add(self, name: str, value: float, count: float = 1) -> None:
        """Add to a sum and its count."""
        entry = self.sums.setdefault(name, [0.0, 0.0])
        entry[0] += value
        entry[1] += count

    def means(self) -> dict[str, float]:
        """Sums over counts, of what was counted."""
        return {name: total / count for name, (total, count) in self.sums.items() if count}


def proposals(loss: DraftLoss, material: Material, blocks: Blocks) -> Tensor:
    """Logits [W, K, size - 1, vocabulary] of blocks of one size."""
    size = int(blocks.size.max())
    packed = pack(blocks, room_for(blocks.size.shape[1], size, 0), material.branches,
                  loss.drafter.config)
    logits = loss.logits(material, packed)[:, :blocks.size.shape[1] * size]
    return logits.unflatten(1, (-1, size))[:, :, 1:]


def rounds(loss: DraftLoss, material: Material, number: int, size: int) -> tuple[int, int]:
    """Tokens after the first of the texts of a branch, and the rounds that they take."""
    branches = material.branches
    weights = anchor_weights(branches, number)
    longest = int(weights.sum(1).max())
    if longest == 0:
        return 0, 0
    anchor = branches.spoken[:, number, None] + torch.arange(longest, device=weights.device)
    anchor = anchor.clamp(max=weights.shape[1] - 1)
    blocks = blocks_at(branches, number, anchor, torch.full_like(anchor, size))
    drafted = proposals(loss, material, blocks).argmax(-1).tolist()
    tokens = count = 0
    for row, ids, first, end in zip(drafted, branches.branch(number).tolist(),
                                    branches.spoken[:, number].tolist(),
                                    branches.length[:, number].tolist()):
        text = ids[first:end]
        tokens += max(len(text) - 1, 0)
        count += simulated_rounds(text, row)
    return tokens, count


def simulated_rounds(text: Sequence[int], drafted: Sequence[Sequence[int]]) -> int:
    """Rounds from the first token of `text` to its last; `drafted[i]` stands behind token i."""
    at = count = 0
    while at < len(text) - 1:
        following = text[at + 1:]
        wrong = (i for i, (a, b) in enumerate(zip(drafted[at], following)) if a != b)
        at += next(wrong, min(len(drafted[at]), len(following))) + 1
        count += 1
    return count


def _primitives(loss: DraftLoss, material: Material, tally: Tally) -> None:
    blocks, target = material.primitives, loss.outside[0]
    room = room_for(1, int(blocks.size.sum(1).max()), 0)
    if not int(blocks.size.max()):
        return
    packed = pack(blocks, room, material.branches, loss.drafter.config)
    logits = loss.logits(material, packed)
    learned = packed.label != IGNORE
    tally.add('primitive_right', int(((logits.argmax(-1) == packed.label) & learned).sum()),
              int(learned.sum()))
    begins, sizes = (blocks.size.cumsum(1) - blocks.size).tolist(), blocks.size.tolist()
    for w in range(len(material)):
        said = _answer(material, target.reader, w, SAID)
        places = iter([(at, size) for at, size in zip(begins[w], sizes[w]) if size])
        for number in range(SAID + 1, len(material.branches.first)):
            annotated = _answer(material, target.reader, w, number)
            for block in annotated:
                at, size = next(places)
                _compare(block, _filled(target.reader, block.layout, logits[w, at:at + size]),
                         _same(said, annotated, block) if number == SAID + 1 else None, tally)


def _answer(material: Material, reader: Reader, w: int, number: int) -> tuple[Block, ...]:
    branches = material.branches
    first, end = (int(t[w, number]) for t in (branches.spoken, branches.length))
    return reader.read(branches.branch(number)[w, first:end].tolist())[0]


def _same(said: Sequence[Block], annotated: Sequence[Block], block: Block) -> np.ndarray | None:
    """Coordinates that the model said where the annotation has `block`, if it said alike."""
    if [b.layout for b in said] != [b.layout for b in annotated]:
        return None
    return said[annotated.index(block)].symbols


def _filled(reader: Reader, layout: Layout, logits: Tensor) -> np.ndarray:
    rows = torch.from_numpy(layout.coordinates).to(logits.device)
    schema = reader.schema(layout)
    return schema.fill(logits[rows].cpu())[0]


def _compare(block: Block, drafted: np.ndarray, said: np.ndarray | None, tally: Tally) -> None:
    layout = block.layout
    if layout.is_box:
        if not block.is_absent:
            tally.add('box_iou', _overlap(*(layout.read(s)[0][0]
                                            for s in (block.symbols, drafted))))
        return
    truth, ours = layout.read(block.symbols), layout.read(drafted)
    theirs = layout.read(said) if said is not None else None
    for part, true, mine, own in zip(layout.parts, truth, ours, theirs or truth):
        name = 'ade_2d' if part.in_image else 'ade_3d'
        _distance(f'{name}/draft', mine, true, tally)
        if theirs is not None:
            _distance(f'{name}/model', own, true, tally)
            _distance(f'{name}/between', mine, own, tally)


def _distance(name: str, a: np.ndarray, b: np.ndarray, tally: Tally) -> None:
    """Add the mean distance of the points that both have."""
    away = np.linalg.norm(a - b, axis=1)
    if np.isfinite(away).any():
        tally.add(name, float(np.nanmean(away)))


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of boxes x1, y1, x2, y2; 0 with an absent one."""
    if np.isnan(a).any() or np.isnan(b).any():
        return 0.0
    inner = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
    areas = sum(np.clip(box[2:] - box[:2], 0, None).prod() for box in (a, b))
    return float(inner / (areas - inner)) if areas > inner else 0.0
