"""
Cut the Qwen3 tokenizer down to what the prompt of Alpamayo needs, every id kept.

    python -m flashdrive_ros.benchmark.shape_tokenizer qwen3/tokenizer.json SMALL.json

Byte-pair encoding merges the pair of lowest rank first.  With the merges that the words of
the prompt go through, and no others, each of these words is merged in the same order to the
same token; any other text falls to smaller tokens.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from ..core.config import ModelConfig, PromptConfig
from ..core.prompt import DISPLAY_NAMES, prompt_text

BYTES = 256


def cut(full: dict) -> dict:
    """Content of a `tokenizer.json` with only the merges of the prompt (see the module)."""
    vocabulary = full['model']['vocab']
    pairs = [tuple(m.split(' ')) if isinstance(m, str) else tuple(m)
             for m in full['model']['merges']]
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    used: set[int] = set()
    for word in _words(Tokenizer.from_str(json.dumps(full))):
        used |= _merges_of(word, ranks)
    merges = [pairs[rank] for rank in sorted(used)]
    tokens = [token for token, i in vocabulary.items() if i < BYTES] + [a + b for a, b in merges]
    special = {entry['content']: entry['id'] for entry in full['added_tokens']}
    model = full['model'] | {'vocab': {t: vocabulary[t] for t in tokens} | special,
                             'merges': [' '.join(pair) for pair in merges]}
    return full | {'model': model}


def _words(tokenizer: Tokenizer) -> set[str]:
    """What the prompt with every camera, and a question, splits into before merging."""
    config = ModelConfig(prompt=PromptConfig())
    texts = (prompt_text(config, DISPLAY_NAMES), prompt_text(config, DISPLAY_NAMES, question='?'))
    return {word for text in texts
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)}


def _merges_of(word: str, ranks: dict[tuple[str, str], int]) -> set[int]:
    """Ranks of the merges that `word` goes through."""
    parts, used = list(word), set()
    while found := [(ranks[pair], i) for i, pair in enumerate(zip(parts, parts[1:]))
                    if pair in ranks]:
        rank, i = min(found)
        used.add(rank)
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return used


if __name__ == '__main__':
    source, target = map(Path, sys.argv[1:])
    target.write_text(json.dumps(cut(json.loads(source.read_text(encoding='utf-8'))),
                                 indent=0, ensure_ascii=False) + '\n', encoding='utf-8')
