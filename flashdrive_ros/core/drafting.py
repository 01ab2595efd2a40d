"""When to draft: while a round brings more tokens than plain steps in the same time."""
from __future__ import annotations

from collections.abc import Sequence

from .types import Reasoning

ASSUMED_COST = 1.5
"""Time of a round, draft and verification, over that of a plain step, until it is measured."""
PROBE_PERIOD = 50
"""Windows between two drafted ones while drafting does not pay."""
RETURN_GAIN = 1.1
"""Drafting comes back when a probe brings that many times its cost."""
NEWEST_SHARE = 0.2
"""Weight of the newest window in the running gain."""


class DraftingPolicy:
    """
    Says for each window whether to draft, from the tokens that rounds have brought.

    Counts alone decide, so that a run repeats exactly; only `cost` is a measured
    time, once for an engine.  `gain` is the running number of tokens per round.
    """

    def __init__(self, cost: float = ASSUMED_COST):
        self.cost = cost
        self.reset()

    def reset(self) -> None:
        """Forget the counts, not the cost."""
        self.pays, self.gain, self.skipped = True, None, 0

    def due(self, drafting: str) -> bool:
        """Say whether the next window is to be drafted; `drafting` is the engine's setting."""
        worth = self.pays or self.skipped >= PROBE_PERIOD
        return drafting == 'on' or (drafting == 'auto' and worth)

    def state(self, drafting: str) -> str:
        """Say whether windows are drafted, and why not; `drafting` is the engine's setting."""
        if drafting == 'off':
            return 'off: as set'
        gain = '' if self.gain is None else f'{self.gain:.1f} tokens a round'
        if drafting == 'on' or self.pays:
            return f'on, {gain}' if gain else 'on'
        return f'off: {gain} do not pay for {self.cost:.1f} plain steps'

    def note(self, texts: Sequence[Reasoning]) -> None:
        """Take in the texts of a window, all decoded as one batch."""
        if not any(text.drafted for text in texts):
            self.skipped += 1
            return
        self.skipped = 0
        gain = max(len(t.token_ids) for t in texts) / max(t.rounds for t in texts)
        if not self.pays:
            self.pays, self.gain = gain >= RETURN_GAIN * self.cost, gain
            return
        old = gain if self.gain is None else self.gain
        self.gain = old + NEWEST_SHARE * (gain - old)
        self.pays = self.gain >= self.cost
