"""An end-to-end golden case: images and ego history in, every intermediate array compared."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ...core import images as image_preparation
from ...core.config import ModelConfig
from ...core.model import Alpamayo
from ...core.prompt import prompt_text
from ...core.tokenizer import Tokenizer
from ...core.trajectory_tokens import history_bins, history_token_ids
from . import tolerances
from .acting import check_action
from .compare import check_keys, padded
from .golden import GoldenDirectory, GoldenFile
from .reasoning import check_reasoning
from .report import Report
from .rollout import Row, prefill, raw_logits

ENTRY_POINTS = ('sample_trajectories_from_data_with_vlm_rollout',
                'sample_trajectories_from_data_with_vlm_rollout_cfg_nav', 'generate_text')
"""What of the released code a case may be a run of."""
INPUTS = ('images_u8', 'camera_indices', 'ego_history_xyz', 'ego_history_rot', 'noise_x0')


@dataclass
class Case:
    """A golden case with its model, and everything the stages need to know of it."""

    golden: GoldenFile
    model: Alpamayo
    tokenizer: Tokenizer
    config: ModelConfig

    @property
    def info(self) -> dict:
        """Fields of the case's JSON file."""
        return self.golden.info

    @property
    def batch(self) -> int:
        """Number of batch elements."""
        return self.info.get('batch_size', 1)

    @property
    def samples(self) -> int:
        """Trajectories (or answers) of each batch element."""
        return self.info.get('num_traj_samples', 1)

    @property
    def is_question(self) -> bool:
        """A question is answered; nothing is driven."""
        return self.info.get('question') is not None

    def of_row(self, key: str, row: int):
        """Field `key` of a batch element: given once for all, or as a list."""
        value = self.info.get(key)
        return value[row] if isinstance(value, list) else value


@torch.inference_mode()
def verify_case(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Compare every array of one case."""
    if file.info.get('entry_point', ENTRY_POINTS[0]) not in ENTRY_POINTS:
        report.unchecked('whole case', f"a run of {file.info['entry_point']}")
        return
    model, tokenizer = golden.model(file.info['model'])
    case = Case(file, model, tokenizer, _config_of(model.config, file))
    file.taken.update(n for n in INPUTS if n in file)
    features, grid = check_vision(case, report)
    rows = check_prompts(case, features, grid, report)
    check_prefill(case, rows, report)
    forced = check_reasoning(case, rows, report)
    if not case.is_question:
        check_action(case, rows, forced, report)
    for name in file.left():
        report.unchecked(name)


def _config_of(config: ModelConfig, file: GoldenFile) -> ModelConfig:
    labels = bool(file.info.get('camera_names_in_prompt', not config.is_r1))
    return replace(config, prompt=replace(
        config.prompt, frames_per_camera=file.info['frames_per_camera'],
        include_camera_ids=labels, include_frame_nums=labels))


def check_vision(case: Case, report: Report):
    """Images to patches to features; features [batch][view][frame] and the patch grid."""
    golden, config = case.golden, case.config
    raw = golden.tensor('images_u8')
    raw = raw if raw.dim() == 6 else raw[None]  # batch, camera, frame, 3, height, width
    patches, grid = image_preparation.prepare(raw.flatten(0, 2), config.vision, config.prompt)
    rows = patches.flatten(0, 1)
    levels = (rows * 127.5 + 127.5).round().to(torch.uint8)
    if 'pixel_values_u8' in golden:
        report.equal('pixel_values_u8', levels, golden['pixel_values_u8'])
    for name, row in (('pixel_values_first_row', rows[0]), ('pixel_values_last_row', rows[-1])):
        if name in golden:
            report.close(name, row, golden[name], tolerances.PIXEL)
    if 'image_grid_thw' in golden:
        report.equal('image_grid_thw', [[1, *grid]] * len(patches), golden['image_grid_thw'])
    if 'vision_block0_input_image0' in golden:
        report.close('vision_block0_input_image0', case.model.visual.embed(patches[:1], grid)[0],
                     golden['vision_block0_input_image0'], tolerances.VISION)
    encoded = case.model.visual(patches, grid)
    if 'vision_embeds' in golden:
        report.close('vision_embeds', torch.cat([f.tokens for f in encoded]),
                     golden['vision_embeds'], tolerances.VISION)
    if 'vision_deepstack' in golden:
        report.close('vision_deepstack', torch.cat([f.deepstack for f in encoded], 1),
                     golden['vision_deepstack'], tolerances.VISION)
    batch, views, frames = raw.shape[:3]
    by_place = [[[encoded[(b * views + v) * frames + f] for f in range(frames)]
                 for v in range(views)] for b in range(batch)]
    return by_place, grid


def check_prompts(case: Case, features, grid, report: Report) -> list[Row]:
    """Prefill every batch element; prompt text, ids, history tokens and positions."""
    golden, config, info = case.golden, case.config, case.info
    expected = golden['input_ids']
    merge = config.vision.spatial_merge_size
    cameras = np.atleast_2d(golden['camera_indices'])
    rows, texts = [], []
    for b in range(case.batch):
        ids = tuple(int(c) for c in cameras[b if len(cameras) > 1 else 0])
        nav, question = case.of_row('navigation_text', b) or '', case.of_row('question', b)
        texts.append(prompt_text(config, ids, nav, question))
        history = None
        if 'ego_history_xyz' in golden and not case.is_question:
            history = history_token_ids(golden['ego_history_xyz'][b, -1], config.prompt,
                                        golden['ego_history_rot'][b, -1])
        rows.append(prefill(
            case.model, case.tokenizer, config, ids,
            [tuple(n // merge for n in grid)] * len(ids), features[b], history, nav_text=nav,
            question=question, room=golden['generated_ids'].shape[1],
            pad_to=expected.shape[1]))
    if 'prompt_text' in info:
        report.equal('prompt_text', texts, np.atleast_1d(info['prompt_text']))
    pad = case.tokenizer.id('endoftext')
    report.equal('input_ids', padded([r.layout.token_ids for r in rows], rows, pad), expected)
    if 'attention_mask' in golden:
        report.equal('attention_mask', padded([np.ones(r.layout.size, int) for r in rows], rows),
                     golden['attention_mask'])
    if 'fused_input_ids' in golden:
        report.equal('fused_input_ids', padded([r.token_ids for r in rows], rows, pad),
                     golden['fused_input_ids'])
    if 'history_token_indices' in golden:
        report.equal('history_token_indices', [
            history_bins(golden['ego_history_xyz'][b, -1], config.prompt,
                         golden['ego_history_rot'][b, -1]) for b in range(case.batch)],
            golden['history_token_indices'])
    if 'position_ids' in golden:
        report.equal('position_ids', np.stack([
            padded([r.layout.positions[axis] for r in rows], rows, 1) for axis in range(3)]),
            golden['position_ids'])
    if 'rope_deltas' in golden:
        report.equal('rope_deltas', [[r.layout.rope_delta - r.pad] for r in rows],
                     golden['rope_deltas'])
    return rows


def check_prefill(case: Case, rows: list[Row], report: Report) -> None:
    """Hidden states, logits, keys and values of the prompt."""
    golden, info = case.golden, case.info
    logits = [raw_logits(case.model, r.hidden) for r in rows]
    if 'prefill_logits_last' in golden:
        report.close('prefill_logits_last', torch.stack([x[-1] for x in logits]),
                     golden['prefill_logits_last'], tolerances.LOGITS)
    if 'prefill_argmax_all' in golden:
        top = [x.topk(2).values for x in logits]
        near = [(t[:, 0] - t[:, 1] < 2 * tolerances.LOGITS).numpy() for t in top]
        report.equal('prefill_argmax_all', padded([x.argmax(-1) for x in logits], rows, -1),
                     golden['prefill_argmax_all'], excused=padded(near, rows))
    layers = len(case.model.language_model.layers)
    if 'llm_layer_inputs_last' in golden:
        report.close('llm_layer_inputs_last', torch.stack(
            [torch.stack([t[-1] for t in r.taps[:layers]]) for r in rows], 1),
            golden['llm_layer_inputs_last'], tolerances.HIDDEN)
    if 'llm_layer_inputs_first_image_token' in golden:
        slot = info.get('first_image_token_pos')
        slot = rows[0].layout.images[0][0][0] + 1 if slot is None else slot - rows[0].pad
        report.close('llm_layer_inputs_first_image_token',
                     torch.stack([t[slot] for t in rows[0].taps[:layers]]),
                     golden['llm_layer_inputs_first_image_token'], tolerances.HIDDEN)
    caches = {kind: [r.keys(kind == 'v') for r in rows] for kind in 'kv'}
    check_keys(case.golden, 'prefill_kv', caches, rows[0].pad, report)
    if 'prefill_kv_cache_len' in info:
        report.equal('prefill_kv_cache_len', [r.pad + r.layout.size for r in rows],
                     [info['prefill_kv_cache_len']] * len(rows))
