"""
Make the small model's tokenizer: a byte-level BPE trained on what it has to read and say.

    python -m flashdrive_ros.training.small_tokenizer flashdrive_ros/models/small/tokenizer.json

The rules (NFC, split pattern, byte-level) and the 26 tokens after the base are
those of the Qwen3 tokenizer that Alpamayo builds on, so one code path serves both.
"""
from __future__ import annotations

import sys
from itertools import product

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from flashdrive_ros.core.prompt import DISPLAY_NAMES, REQUEST, SYSTEM

BASE_TOKENS = 512
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')
QWEN_TOKENS = (
    '<|endoftext|>', '<|im_start|>', '<|im_end|>', '<|object_ref_start|>', '<|object_ref_end|>',
    '<|box_start|>', '<|box_end|>', '<|quad_start|>', '<|quad_end|>', '<|vision_start|>',
    '<|vision_end|>', '<|vision_pad|>', '<|image_pad|>', '<|video_pad|>', '<tool_call>',
    '</tool_call>', '<|fim_prefix|>', '<|fim_middle|>', '<|fim_suffix|>', '<|fim_pad|>',
    '<|repo_name|>', '<|file_sep|>', '<tool_response>', '</tool_response>', '<think>', '</think>')

ACTIONS = ('keep the speed', 'slow down', 'stop', 'accelerate', 'brake hard', 'start moving',
           'keep waiting', 'approach slowly', 'nudge left', 'nudge right',
           'change to the left lane', 'change to the right lane', 'turn left', 'turn right',
           'keep the lane', 'yield')
CAUSES = ('the road ahead is clear', 'the lead vehicle is braking', 'the lead vehicle is slower',
          'the lead vehicle has stopped', 'the lead vehicle is pulling away',
          'the traffic light is red', 'the traffic light is yellow', 'the traffic light is green',
          'a pedestrian is crossing', 'a pedestrian waits at the crosswalk',
          'a cyclist is ahead', 'a truck is ahead', 'a car cuts in from the left',
          'a car cuts in from the right', 'the road curves to the left',
          'the road curves to the right', 'the speed limit is reached',
          'the intersection is occupied', 'the route turns left here',
          'the route turns right here')
ROUTES = ('Continue straight', 'Turn left in 40m', 'Turn right in 80m', 'Keep left', 'Keep right',
          'Turn left onto the main street in 120m', 'Stop at the end of the route')
DETAILS = ('', '; gap {n} m', '; speed {n} m/s', '; keep {n} m distance', ' and {n} m away')


def corpus() -> list[str]:
    """Sentences that the vocabulary should cover well."""
    prompt = [SYSTEM, REQUEST, 'system\n', 'user\n', 'assistant\n']
    labels = [f'{name}: frame {k} ' for name in DISPLAY_NAMES.values() for k in range(6)]
    said = [f'{a} because {c}{d.format(n=n)}.' for (a, c, d), n in zip(
        product(ACTIONS, CAUSES, DETAILS), (i % 120 for i in range(10 ** 9)))]
    return 40 * (prompt + labels) + said + 20 * list(ROUTES)


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
