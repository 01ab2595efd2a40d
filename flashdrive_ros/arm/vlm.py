"""
The arm's small VLM: sizes, vocabulary, what it is asked and what it answers.

One architecture with the driving models at smaller sizes; camera 0 is the main, 1 the wrist.
"""
from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from ..core.primitives.coordinates import EXTRA_TOKENS
from ..core.primitives.grammar import write
from ..core.prompt import question_text
from ..training.small_tokenizer import QWEN_TOKENS, SPLIT
from .scene import COLOURS
from .timing import WAYPOINTS

SYSTEM = 'You guide a robot arm. Image 0 to 1000; metres x, y -5 to 5, z 0 to 10.'
CAMERA_NAMES = ('Main camera', 'Wrist camera')
FORMS = {'text': 'Sub-task.', '3d': 'Sub-task and path in metres.',
         '2d3d': 'Sub-task and path in image and metres.'}
"""Form of the answer -> how it is asked for, behind the instruction."""
KINDS = {'3d': 'arm_3d', '2d3d': 'arm_2d_3d'}
BASE_TOKENS = 360


def sentences() -> list[str]:
    """All that is told to the arm and that it says, without coordinates."""
    said = ['Open the drawer.', 'Close the drawer.', 'Reach the handle.', 'Grasp the handle.',
            'Pull the drawer.', 'Push the drawer.', 'Move away.']
    for name in COLOURS:
        said += [text.format(f'the {name} can') for text in (
            'Pick up {}.', 'Put {} on the tray.', 'Reach {}.', 'Grasp {}.', 'Lift {}.',
            'Carry {} to the tray.', 'Set down {}.', 'Let go of {}.')]
    return said


def question(instruction: str, form: str) -> str:
    """Words of the question; `form` is a key of `FORMS`."""
    return f'{instruction} {FORMS[form]}'


def answer(subtask: str, form: str, uv, metres) -> str:
    """Answer with plan `uv` [10, 2] (shares) and `metres` [10, 3] (optical frame)."""
    if form == 'text':
        return f'{subtask}<|answer_end|>'
    rows = metres if form == '3d' else [[*a, *b] for a, b in zip(uv, metres)]
    return f'{subtask}{write(KINDS[form], rows)}<|answer_end|>'


def asked(instruction: str, form: str) -> str:
    """Prompt text behind the last image."""
    return question_text(question(instruction, form))


def make_tokenizer() -> Tokenizer:
    """Train the base vocabulary and append the Qwen tokens; deterministic."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    calls = [f'{kind} {WAYPOINTS}' for kind in KINDS.values()]
    corpus = 100 * [SYSTEM, *CAMERA_NAMES, *FORMS.values(), *sentences(), *calls, 'frame',
                    'system\n', 'user\n', 'assistant\n']
    tokenizer.train_from_iterator(corpus, BpeTrainer(
        vocab_size=BASE_TOKENS, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in QWEN_TOKENS])
    return tokenizer


def write_shape(directory: Path) -> Path:
    """Write config, vocabulary and no weights into `directory`; returns it."""
    (directory / 'vlm').mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    base = tokenizer.get_vocab_size()
    tokenizer.save(str(directory / 'tokenizer.json'))
    heads = {'num_attention_heads': 3, 'num_key_value_heads': 3, 'head_dim': 32}
    config = {
        'architectures': ['Alpamayo1_5'], 'model_type': 'alpamayo1_5', 'dtype': 'bfloat16',
        'vlm_name_or_path': 'vlm', 'vocab_size': base + 28 + 1001 + len(EXTRA_TOKENS) - 1,
        'traj_token_start_idx': base, 'traj_vocab_size': 0, 'tokens_per_history_traj': 1,
        'min_pixels': 9216, 'max_pixels': 9216, 'include_camera_ids': True,
        'include_frame_nums': False, 'traj_tokenizer_cfg': {'num_bins': 0},
        'hist_traj_tokenizer_cfg': {'num_bins': 1},
        'expert_cfg': {'num_hidden_layers': 1, 'hidden_size': 32, 'intermediate_size': 32,
                       **heads},
        'action_in_proj_cfg': {'hidden_size': 32, 'num_enc_layers': 1, 'num_fourier_feats': 4,
                               'max_freq': 1.0},
        'flashdrive': {'name': 'arm', 'trained': False, 'frames_per_camera': 1,
                       'system': SYSTEM, 'camera_names': list(CAMERA_NAMES),
                       'camera_ids': [0, 1], 'extra_tokens': list(EXTRA_TOKENS)}}
    vlm = {'model_type': 'qwen3_vl', 'text_config': {
        'num_hidden_layers': 3, 'hidden_size': 96, 'intermediate_size': 256, **heads,
        'rms_norm_eps': 1e-6, 'rope_theta': 10000,
        'rope_scaling': {'mrope_section': [6, 5, 5], 'mrope_interleaved': True}},
        'vision_config': {
        'depth': 2, 'hidden_size': 64, 'num_heads': 2, 'intermediate_size': 256,
        'out_hidden_size': 96, 'num_position_embeddings': 64, 'deepstack_visual_indexes': [0],
        'patch_size': 12, 'temporal_patch_size': 1, 'spatial_merge_size': 2}}
    (directory / 'config.json').write_text(json.dumps(config, indent=1) + '\n')
    (directory / 'vlm' / 'config.json').write_text(json.dumps(vlm, indent=1) + '\n')
    return directory


def pictures(main, wrist) -> torch.Tensor:
    """Images [B, 96, 96, 3] of both cameras as the model takes them, [B, 2, 1, 3, 96, 96]."""
    both = torch.stack([torch.as_tensor(a) for a in (main, wrist)], 1)
    return both.permute(0, 1, 4, 2, 3)[:, :, None].contiguous()
