"""The full vocabulary: ids of every marker, and texts to ids and back."""
from __future__ import annotations

from .golden import GoldenDirectory, GoldenFile
from .report import Report


def verify_vocabulary(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Compare one file of `tokenizer/`."""
    if 'facts' in file:
        for model, facts in file['facts'].items():
            _check_facts(golden, model, facts, report)
    if 'encode' in file:
        _check_texts(golden, file['encode'], report)
    for left in file.left():
        report.unchecked(left)


def _check_facts(golden: GoldenDirectory, model: str, facts: dict, report: Report) -> None:
    config, tokenizer = golden.full_vocabulary(_is_r1(model))
    prompt, backend = config.prompt, tokenizer.backend
    found = {
        'vocab_size': tokenizer.vocab_size,
        'traj_token_start_idx': prompt.traj_token_start_idx,
        'history_token_start_idx_with_3000_future_bins': prompt.history_token_start,
        'traj_token_ids': {k: tokenizer.id(f'traj_{k}') for k in facts.get('traj_token_ids', {})},
        'special_token_ids': {k: backend.token_to_id(k)
                              for k in facts.get('special_token_ids', {})},
        'pad': tokenizer.id('endoftext'), 'eos': tokenizer.id('im_end'),
    }
    for name, expected in facts.items():
        if name in found:
            report.equal(f'{model}: {name}', _flat(found[name]), _flat(expected))
        elif backend.token_to_id(f'<{name}>') is not None:
            report.equal(f'{model}: <{name}>', backend.token_to_id(f'<{name}>'), expected)
        else:
            report.unchecked(f'{model}: {name}')


def _check_texts(golden: GoldenDirectory, groups: dict, report: Report) -> None:
    """Texts of each model to ids; and texts that ids decode to, where told."""
    for group, examples in groups.items():
        _, tokenizer = golden.full_vocabulary(_is_r1(group))
        for number, example in enumerate(examples):
            name = f'{group}: {number}'
            if 'decoded' in example:
                report.equal(f'{name} decoded', tokenizer.decode(example['ids']),
                             example['decoded'])
            elif group.startswith('decode'):
                report.equal(f'{name} decoded', tokenizer.decode(example['ids']),
                             example['text'])
            if not group.startswith('decode'):
                report.equal(f'{name} encoded', tokenizer.encode(example['text']),
                             example['ids'])


def _is_r1(name: str) -> bool:
    """Say whether a model's name means Alpamayo 1."""
    return name.startswith('alpamayo1') and not name.startswith('alpamayo1_5')


def _flat(value):
    return sorted(map(str, value.items())) if isinstance(value, dict) else value
