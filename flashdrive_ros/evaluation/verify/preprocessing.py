"""Images: the resize rule, one image at real resolution, and full-size prompts."""
from __future__ import annotations

import re
from dataclasses import replace

import cv2
import numpy as np
import torch

from ...core import images
from ...core.config import ModelConfig
from ...core.prompt import build_layout, prompt_text
from ...core.types import InputError
from . import tolerances
from .golden import GoldenDirectory, GoldenError, GoldenFile
from .report import Report


def verify_preprocessing(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Compare one file of `preprocess/`."""
    checks = {'smart_resize': _check_resize_rule, 'real_res': _check_image,
              'full_vocab_prompts': _check_prompts}
    name = file.path.stem
    if name in checks:
        checks[name](golden, file, report)
    for left in file.left():
        report.unchecked(left)


def _check_resize_rule(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    rows = file['rows']
    vision = ModelConfig().vision
    factor = vision.patch_size * vision.spatial_merge_size
    found = []
    for row in rows:
        try:
            found.append(images.smart_resize(row['h'], row['w'], row.get('factor', factor),
                                             row['min_pixels'], row['max_pixels']))
        except InputError:
            found.append(None)
    report.equal(f'resize rule, {len(rows)} sizes', [str(f and list(f)) for f in found],
                 [str(row.get('out')) for row in rows])


def _check_image(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Resized pixels and patch rows of the PNG beside the arrays, and of a small image."""
    config = ModelConfig()
    file.taken.update(n for n in file.arrays if n.startswith('vs_pil'))
    limits = {k: file[k] for k in ('min_pixels', 'max_pixels') if k in file}
    prompt = replace(config.prompt, **limits)
    if file.names('image', 'resized', 'pixel_values'):
        raw = _read_image(file, report)
        if 'resized_u8_chw' in file:
            expected = file['resized_u8_chw']
            size = expected.shape[1:]
            report.equal('resized_u8_chw', images.resize(raw, *size)[0], expected)
            report.close('resized_u8_chw (as on a device)',
                         images.resize_by_products(raw, *size)[0], expected, 1)
        rows, grid = images.prepare(raw, config.vision, prompt)
        _check_rows(file, '', rows[0], grid, report)
    if 'small_image_u8_chw' in file:
        small = file.tensor('small_image_u8_chw')[None]
        if 'small_image_grid_thw' in file:  # the limits that give this grid are not told
            prompt = _limits_for(small, file['small_image_grid_thw'], golden, prompt)
        rows, grid = images.prepare(small, config.vision, prompt)
        _check_rows(file, 'small_', rows[0], grid, report)


def _read_image(file: GoldenFile, report: Report) -> torch.Tensor:
    """Image [1, 3, H, W] that the arrays were made from."""
    path = file.path.with_name(f'{file.path.stem}_image.png')
    image = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
    if image is None:
        raise GoldenError(f'{path} does not exist or is no image')
    if 'image_hw' in file:
        report.equal('image size', image.shape[:2], file['image_hw'])
    return torch.from_numpy(image).permute(2, 0, 1)[None]


def _limits_for(small, grid, golden: GoldenDirectory, prompt):
    """Pixel limits of this directory's checkpoints that give `grid`, or the ones at hand."""
    config = golden.config()
    height, width = small.shape[-2:]
    for candidate in (prompt, config.prompt):
        if images.patch_grid(height, width, config.vision, candidate) == tuple(grid[0][1:]):
            return candidate
    return prompt


def _check_rows(file: GoldenFile, prefix: str, rows, grid, report: Report) -> None:
    """Patch rows of one image: `NAME_rows_0_1_400_last` tells which."""
    if f'{prefix}image_grid_thw' in file:
        report.equal(f'{prefix}image_grid_thw', [[1, *grid]], file[f'{prefix}image_grid_thw'])
    levels = (rows * 127.5 + 127.5).round().to(torch.uint8)
    for name in file.names(f'{prefix}pixel_values'):
        as_levels = '_u8' in name
        source = levels if as_levels else rows
        if name.endswith('colsum'):
            report.close(name, levels.double().sum(0), file[name], 0.5)
        elif picks := re.search(r'_rows_(\w+)$', name):
            index = [{'last': len(rows) - 1, 'mid': len(rows) // 2}.get(p) if not p.isdigit()
                     else int(p) for p in picks.group(1).split('_')]
            report.close(name, source[index], file[name], 0 if as_levels else tolerances.PIXEL)


def _check_prompts(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Prompts of the full vocabulary: text, ids and length."""
    for name in list(file.arrays):
        case = file[name]
        is_r1 = name.startswith('a1_')
        config, tokenizer = golden.full_vocabulary(is_r1)
        labels = 'frame 0' in case['text']
        config = replace(config, prompt=replace(
            config.prompt, frames_per_camera=case['frames_per_camera'],
            include_camera_ids=labels, include_frame_nums=labels))
        nav, question = case['nav'] or '', case['question']
        report.equal(f'{name}: text', prompt_text(config, case['cams'], nav, question),
                     case['text'])
        merge = config.vision.spatial_merge_size
        grid = tuple(n // merge for n in case['image_grid_thw_first'][1:])
        layout = build_layout(config, tokenizer, case['cams'], [grid] * len(case['cams']),
                              nav_text=nav, question=question)
        ids = np.repeat(*np.asarray(case['input_ids_rle_id_count']).T)
        report.equal(f'{name}: input ids', layout.token_ids, ids)
        report.equal(f'{name}: length', layout.size, case['length'])
        report.equal(f'{name}: images', sum(map(len, layout.images)), case['n_images'])
