"""
What a block may hold: a layout in the ids of a tokenizer, and how much of a draft is taken.

Symbols of coordinates are bins 0 to 1000, and -1 for out of view or absent.
Everything here acts on logits that are there already (spec `vflash.md` 1.3 and 2).
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..tokenizer import Tokenizer, expand_tokens
from .coordinates import BINS, NONE
from .layouts import NUMBERS, Layout


@dataclass(frozen=True)
class Confidence:
    """
    Spatial check of a box's coordinates (spec section 2).

    A coordinate is uncertain when the drafter's probability of the best one is below
    `sure` and the `top` likeliest ones lie more than `spread` bins apart.  That a class is
    absent is uncertain below `absent`.  Probabilities are those over the whole vocabulary,
    before any mask, and rivals are sought among coordinates alone, so that a draft that knows
    nothing is never sure.
    """

    sure: float = 0.9
    spread: int = 60
    top: int = 4
    absent: float = 0.2

    def uncertain(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """Say of each row of `logits` [m, vocabulary] whether its coordinate is uncertain."""
        best = logits.float().softmax(-1)[:, numbers].topk(self.top)
        spread = best.indices.amax(-1) - best.indices.amin(-1)
        return (best.values[:, 0] < self.sure) & (spread > self.spread)


class Schema:
    """A layout with the ids of one tokenizer."""

    def __init__(self, layout: Layout, tokenizer: Tokenizer, device='cpu'):
        self.layout, self.tokenizer = layout, tokenizer
        texts = expand_tokens([NUMBERS, NONE])
        self.ids = [tokenizer.id(t.strip('<|>')) for t in texts]
        """Ids of the symbols 0 to 1000 and, last, -1."""
        self.choices = torch.tensor(self.ids, device=device)
        self.kinds = torch.from_numpy(layout.kinds).to(device)
        self.symbols = {i: s if s <= BINS else -1 for s, i in enumerate(self.ids)}
        slots = [s for s in layout.slots if s.role == 'coordinate']
        own = {allowed: set(expand_tokens(allowed)) for allowed in {s.allowed for s in slots}}
        open_ = {allowed: [t in found for t in texts] for allowed, found in own.items()}
        self.open = np.array([open_[s.allowed] for s in slots])
        """Symbols [M, 1002] that each coordinate's own vocabulary holds."""
        self.template = [-1 if s.role == 'coordinate' else tokenizer.id(s.allowed[0].strip('<|>'))
                         for s in layout.slots]
        groups = layout.groups
        self.first = np.array([int(np.flatnonzero(groups == g)[0]) for g in groups])
        """Index [M] of the first coordinate of the same point."""

    @property
    def start(self) -> int:
        """Id of the token that opens the block."""
        return self.template[0]

    def token_ids(self, symbols) -> list[int]:
        """Ids of the block with coordinates `symbols` [M], start token included."""
        ids = [self.ids[int(s)] for s in symbols]
        if self.layout.is_box and symbols[0] < 0:
            return [self.start, ids[0], self.template[-1]]
        numbers = iter(ids)
        return [next(numbers) if t < 0 else t for t in self.template]

    def read(self, ids) -> tuple[np.ndarray, int] | None:
        """
        Symbols [M] of the block that `ids` begin with, and its number of tokens.

        None unless it is whole and legal.
        """
        ids = list(ids[:len(self.template)])
        if self.layout.is_box and ids[:3] == self.token_ids([-1]):
            return np.full(len(self.first), -1), 3
        marks = [self.symbols.get(i) if t < 0 else None for i, t in zip(ids, self.template)]
        symbols = [m for m in marks if m is not None]
        if len(symbols) < len(self.first) or self.token_ids(symbols) != ids:
            return None
        if self.first_violation(symbols) < len(symbols):
            return None
        return np.array(symbols), len(ids)

    def problem(self, ids) -> str:
        """Say why `read` finds no such block at the beginning of `ids`."""
        for at, wanted in enumerate(self.template):
            if at == len(ids):
                return f'is cut short after {at} tokens'
            if ids[at] != wanted and not (wanted < 0 and ids[at] in self.symbols):
                wanted = 'a coordinate' if wanted < 0 else self.tokenizer.decode([wanted])
                return f'has {self.tokenizer.decode([ids[at]])} as token {at}, expected {wanted}'
        return 'has coordinates that are not legal together'

    def before(self, m: int) -> list[int]:
        """Ids of the markers between the coordinates m - 1 and m (0 to M), the first excluded."""
        places = self.layout.coordinates
        first = places[m - 1] + 1 if m else 1
        return self.template[first:places[m] if m < len(places) else len(self.template)]

    def fill(self, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """
        Likeliest legal symbols [M] and their probabilities, from `logits` [M, vocabulary].

        Each coordinate takes its own vocabulary only; a point is out of view when that is
        likelier for its coordinates together (those that know `NONE`).  Probabilities are
        those over the whole vocabulary.
        """
        chances = logits.float().log_softmax(-1)[:, self.choices].cpu().numpy()
        legal = np.where(self.open, chances, -np.inf)
        symbols = legal[:, :-1].argmax(-1)
        rows = np.arange(len(symbols))
        gain = np.where(self.open[:, -1], chances[:, -1] - chances[rows, symbols], 0.0)
        totals = np.bincount(self.first, gain, minlength=len(symbols))
        absent = (totals > 0)[self.first] & self.open[self.first, -1]
        symbols = np.where(absent, -1, symbols)
        if self.layout.is_box and absent[0]:  # one token says it for all
            chances[1:] = chances[0]
        return symbols, np.exp(chances[rows, symbols])

    def first_violation(self, symbols) -> np.ndarray:
        """Index [...] of the first illegal coordinate of `symbols` [..., M], or M."""
        symbols = np.asarray(symbols)
        known = (symbols >= -1) & (symbols <= BINS)
        absent = symbols < 0
        own = np.where(absent, self.open[self.first, -1],
                       self.open[np.arange(len(self.first)), np.where(known, symbols, 0)])
        right = known & own & (absent == absent[..., self.first])
        if self.layout.is_box:
            right[..., 2:] &= absent[..., 2:] | (symbols[..., 2:] > symbols[..., :2])
        return np.where(right.all(-1), symbols.shape[-1], (~right).argmax(-1))

    def legal(self, written) -> np.ndarray:
        """Symbols [1002] that may follow the coordinates `written` [m], m < M."""
        m = len(written)
        first = self.first[m]
        legal = self.open[m].copy()
        if first < m:  # its point is decided already
            legal[:-1] &= written[first] >= 0
            legal[-1] = written[first] < 0
        if self.layout.is_box and m >= 2 and written[0] >= 0:
            legal[:written[m - 2] + 1] = False
        return legal

    def accept(self, logits: Tensor, confidence: Confidence | None,
               ) -> tuple[np.ndarray, np.ndarray, int]:
        """
        Symbols [M] of a draft, their probabilities, and how many of them are taken.

        `logits` [L - 1, vocabulary] of the positions after the start token.  A box keeps what
        stands before its first illegal or, with `confidence`, uncertain coordinate; anything
        else is taken whole or not at all.
        """
        rows = torch.from_numpy(self.layout.coordinates - 1).to(logits.device)
        logits = logits[rows]
        symbols, chances = self.fill(logits)
        doubtful = ~logits.isfinite().all(-1)
        if confidence is not None and self.layout.is_box:
            doubtful |= (confidence.uncertain(logits, self.choices[:-1]) if symbols[0] >= 0
                         else torch.tensor(chances[0] < confidence.absent))
        taken = int(self.first_violation(symbols))
        doubts = doubtful.nonzero()
        if len(doubts):
            taken = min(taken, int(doubts[0]))
        if not self.layout.is_box and taken < len(symbols):
            taken = 0
        return symbols, chances, taken
