"""Small functions on text and token rows that the released code fixes the meaning of."""
from __future__ import annotations

import re

from .types import InputError

MAX_FREE_TEXT = 512
"""Characters of a navigation text or a question: every one of them costs time in every step."""
_MARKERS = re.compile(r'<\|(?:[^<>|]*\|>)?|<[^\s<>]+>')
_SIDES = re.compile(r'\b(left|right)\b', re.IGNORECASE)


def between(text: str, name: str) -> str:
    """
    Text between the markers `name`_start and `name`_end.

    Up to the first end marker, from the last start marker before it or else
    from the beginning; empty without an end marker.
    """
    body, found, _ = text.partition(f'<|{name}_end|>')
    return body.rpartition(f'<|{name}_start|>')[2].strip() if found else ''


def refuse_free_text(kind: str, text: str) -> None:
    """Raise `InputError` when `text` is too long for a prompt, or holds what may be a token."""
    if len(text) > MAX_FREE_TEXT:
        raise InputError(f'{kind} has {len(text)} characters, at most {MAX_FREE_TEXT} are allowed')
    if found := _MARKERS.search(text):
        raise InputError(f'{kind} must not hold marker tokens: {found.group()!r} in {text!r}')


def without_markers(text: str) -> str:
    """`text` as a person reads it: markers and trajectory or coordinate tokens taken out."""
    return ' '.join(_MARKERS.sub(' ', text).split()) if _MARKERS.search(text) else text


def swap_sides(nav_text: str) -> str:
    """
    Navigation text with left and right exchanged, for counterfactual questions.

    Every left becomes a small 'right'; right keeps the case of its first letter.
    """
    def other(match: re.Match) -> str:
        word = match.group()
        if word.lower() == 'left':
            return 'right'
        return 'left' if word[0].islower() else 'Left'
    return _SIDES.sub(other, nav_text)


def pad_after(ids: list[int], end: int, pad: int) -> list[int]:
    """`ids` with everything after the first `end` replaced by `pad`."""
    kept = ids.index(end) + 1 if end in ids else len(ids)
    return ids[:kept] + [pad] * (len(ids) - kept)


def steps_until_all_ended(rows: list[list[int]], end: int) -> int | None:
    """
    Steps after which a batch of token rows stops: one after each row has had `end`.

    None when the rows are over before that.
    """
    if any(end not in row for row in rows):
        return None
    last = max(row.index(end) for row in rows) + 1
    return last + 1 if last < min(map(len, rows)) else None
