"""
The checkpoint's tokenizer: a base BPE plus trajectory and marker tokens.

Ids are laid out as base | `<i0>`… | markers (spec `alpamayo.md` section 2) | extra
tokens that a checkpoint's `config.json` lists, such as coordinates.
"""
from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from .config import CheckpointError, ModelConfig

_SHARED = ('prompt_start', 'prompt_end', 'image_start', '{}', 'image_end', 'traj_history_start',
           '{}', 'traj_history_end', 'cot_start', 'cot_end', '{}', '{}', 'traj_future_start',
           '{}', 'traj_future_end', 'traj_history', 'traj_future', '{}', '{}', '{}', '{}',
           'route_start', 'route_pad', 'route_end', 'question_start', 'question_end',
           'answer_start', 'answer_end')
_R1_NAMES = ('image_pre_tkn', 'traj_history_pre_tkn', 'meta_action_start', 'meta_action_end',
             'traj_future_pre_tkn', 'vectorized_wm', 'vectorized_wm_start', 'vectorized_wm_end',
             'vectorized_wm_pre_tkn')


def marker_tokens(is_r1: bool) -> list[str]:
    """Return the 28 marker tokens in id order; Alpamayo 1.5 left nine of R1's unused."""
    spare = iter(_R1_NAMES if is_r1 else [f'_padding_{i}' for i in range(len(_R1_NAMES))])
    return [f'<|{next(spare) if name == "{}" else name}|>' for name in _SHARED]


def expand_tokens(listed) -> list[str]:
    """Write out ranges: `<0>..<1000>` becomes 1,001 tokens; anything else stays as it is."""
    tokens = []
    for entry in listed:
        ends = re.fullmatch(r'(\D*)(\d+)(\D*)\.\.\1(\d+)\3', entry)
        if ends is None:
            tokens.append(entry)
        else:
            before, first, after, last = ends.groups()
            tokens += [f'{before}{i}{after}' for i in range(int(first), int(last) + 1)]
    return tokens


def _next_id(vocabulary: dict[str, int]) -> int:
    """Size of a vocabulary, gaps included (`alpamayo-1.5-shape` has some)."""
    return max(vocabulary.values(), default=-1) + 1


class Tokenizer:
    """Text to ids and back, and the ids of the markers by name (`tokenizer.id('cot_end')`)."""

    def __init__(self, backend: Backend, config: ModelConfig):
        prompt = config.prompt
        known = backend.get_vocab(True)
        base = _next_id(known)
        if base != prompt.traj_token_start_idx and '<i0>' not in known:
            raise CheckpointError(f'the tokenizer has {base} tokens, config.json puts the first '
                                  f'trajectory token at {prompt.traj_token_start_idx}')
        if base == prompt.traj_token_start_idx:
            backend.add_tokens([f'<i{i}>' for i in range(prompt.traj_vocab_size)])
            backend.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                        for t in marker_tokens(config.is_r1)])
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                    for t in expand_tokens(prompt.extra_tokens)])
        self.backend = backend
        self.added = frozenset(backend.get_added_tokens_decoder())
        self.vocab_size = _next_id(backend.get_vocab(True))
        if self.vocab_size > config.vocab_size:
            raise CheckpointError(f'the tokenizer has {self.vocab_size} tokens, config.json '
                                  f'allows {config.vocab_size}')

    @classmethod
    def from_file(cls, path: Path, config: ModelConfig) -> Tokenizer:
        """Load `tokenizer.json`; raises `CheckpointError` naming the file."""
        if not path.is_file():
            raise CheckpointError(f'{path} does not exist')
        try:
            text = path.read_text(encoding='utf-8')
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f'{path} is not a tokenizer: {error}') from None
        return cls.from_text(text, config, str(path))

    @classmethod
    def from_text(cls, text: str, config: ModelConfig, name: str) -> Tokenizer:
        """Build from the content of a `tokenizer.json`; `name` is for errors."""
        try:
            backend = Backend.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f'{name} is not a tokenizer: {error}') from None
        return cls(backend, config)

    def lacks(self, listed) -> list[str]:
        """Tokens of `listed` (ranges as in `expand_tokens`) that are not in the vocabulary."""
        return [t for t in expand_tokens(listed) if self.backend.token_to_id(t) is None]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, in which markers may be written out."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def holds_added(self, text: str) -> bool:
        """Say whether part of `text` would become a marker, trajectory or other added token."""
        return not self.added.isdisjoint(self.encode(text))

    def decode(self, ids) -> str:
        """Text of `ids`, markers written out."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def id(self, name: str) -> int:
        """Id of the marker `<|name|>`, or of the token `<name>` for a number."""
        token = f'<{name}>' if name.isdecimal() else f'<|{name}|>'
        found = self.backend.token_to_id(token)
        if found is None:
            raise CheckpointError(f'the tokenizer has no token {token}')
        return found
