"""
Make the small model's tokenizer: a byte-level BPE trained on what it has to read and say.

    python -m flashdrive_ros.training.small_tokenizer flashdrive_ros/models/small/tokenizer.json

The rules (NFC, split pattern, byte-level) and the 26 tokens after the base are
those of the Qwen3 tokenizer that Alpamayo builds on, so one code path serves both.
"""
from __future__ import annotations

import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from ..core.prompt import DISPLAY_NAMES, REQUEST, SYSTEM
from .causes import sentences
from .questions import LABELS, PLAIN_ANSWERS, vocabulary_questions

BASE_TOKENS = 672
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
QWEN_TOKENS = (
    '<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|object_ref_start|>', '<|object_ref_end|>',
    '<|box_start|>', '<|box_end|>', '<|quad_start|>', '<|quad_end|>', '<|vision_start|>',
    '<|vision_end|>', '<|vision_pad|>', '<|image_pad|>', '<|video_pad|>', '<tool_call>',
    '</tool_call>', '<|fim_prefix|>', '<|fim_middle|>', '<|fim_suffix|>', '<|fim_pad|>',
    '<|repo_name|>', '<|file_sep|>', '<tool_response>', '</tool_response>', '<think>', '</think>')


PHRASES = (
    'Nudge to the left', 'Nudge to the right', 'Change to the left lane', 'Yield', 'Turn left',
    'Change to the right lane', 'Overtake', 'Give way', 'Stop at the line', 'Merge', 'Creep',
    'the intersection is occupied', 'oncoming traffic has priority', 'a cyclist is ahead',
    'a truck is ahead', 'the route turns left here', 'the route turns right here',
    'the traffic light is green', 'a pedestrian waits at the crosswalk', 'the speed limit drops',
    'the lane ends', 'a parked car blocks the lane', 'the road is narrow', 'traffic is dense')
"""What people say about driving beyond the grammar of the world."""


def corpus() -> list[str]:
    """Sentences that the vocabulary should cover well."""
    prompt = [SYSTEM, REQUEST, 'system\n', 'user\n', 'assistant\n']
    labels = [f'{name}: frame {k} ' for name in DISPLAY_NAMES.values() for k in range(6)]
    asked = [question for camera in DISPLAY_NAMES for question in vocabulary_questions(camera)]
    routes = [f'Limit {v} km/h. {what}' for v in range(30, 73, 3) for what in (
        'Turn left in 40 m.', 'Turn right in 80 m.', 'Go straight for 90 m.')]
    return (1000 * (prompt + labels) + 4 * sentences() + 100 * asked + 30 * routes
            + 50 * list(PHRASES) + 100 * [*LABELS.values(), *PLAIN_ANSWERS])


def make_tokenizer() -> Tokenizer:
    """Train the base vocabulary and append the Qwen tokens; deterministic."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), BpeTrainer(
        vocab_size=BASE_TOKENS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    if tokenizer.get_vocab_size() != BASE_TOKENS:
        raise RuntimeError(f'the corpus gave {tokenizer.get_vocab_size()} tokens, '
                           f'expected {BASE_TOKENS}')
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in QWEN_TOKENS])
    return tokenizer


if __name__ == '__main__':
    make_tokenizer().save(sys.argv[1])
