"""Pure functions of the released code: one group of comparisons per file of `pure/`."""
from __future__ import annotations

import re
from functools import partial

import numpy as np
import torch

from ...core import action, geometry, text, unicycle
from ...core.ego import EgoHistory, in_frame_of, quaternion_to_matrix
from ...core.streaming import fill_window
from ...core.trajectory_tokens import find_future_bins
from ...core.types import CAMERA_NAMES, GRID_NS
from .. import metrics
from . import tolerances
from .golden import GoldenDirectory, GoldenFile
from .pure_actions import check_action_space, check_trajectory_tokenizers
from .report import Report


def verify_pure(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Compare one file of `pure/`."""
    checks = {
        'action_space': lambda: check_action_space(golden.config(), file, report),
        'trajectory_tokenizers':
            lambda: check_trajectory_tokenizers(golden.config(), file, report),
        'geometry': lambda: _check_geometry(golden, file, report),
        'metrics': lambda: _check_metrics(file, report),
        'fourier_flow': lambda: _check_flow(golden, file, report),
        'ego_frames': lambda: _check_ego_frames(file, report),
        'camera_selection': lambda: _check_cameras(file, report),
        'text_functions': lambda: _check_text(file, report),
    }
    if file.path.stem in checks:
        checks[file.path.stem]()
    for left in file.left():
        report.unchecked(left)


def _check_geometry(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    functions = {
        'so3_to_yaw': ('rot', geometry.yaw_of), 'round_2pi': ('angles', geometry.nearest_turn),
        'angle_wrap': ('angles', geometry.wrap),
        'rotation_matrix_2d': ('angles', geometry.planar_rotation),
        'rot_2d_to_3d': ('angles', geometry.yaw_rotation),
        'rot_3d_to_2d': ('rot', geometry.flatten_rotation),
        'unwrap_angle': ('wrapped_seq', geometry.unwrap),
        'gram_schmidt': ('gs_in', geometry.orthonormal_frame),
        'euler_2_so3_lowercase_xyz':
            ('euler_xyz_deg', lambda degrees: geometry.euler_rotation(degrees.deg2rad())),
        'ratan2': ('ratan2_s_c', lambda x: geometry.stable_atan2(*x.unbind(-1))),
        'theta_smooth': ('theta_smooth_in_rot',
                         lambda rot: unicycle.smooth_yaw(rot, golden.config().action)),
    }
    for name, (source, function) in functions.items():
        if name in file:
            limit = 1e-5 if name == 'theta_smooth' else _rounding(file[name])
            report.close(name, function(file.tensor(source)), file[name], limit)
    if 'corners' in file:
        rot = file.tensor('rot')[:len(file['corners_xyz'])]
        found = geometry.box_corners(file.tensor('corners_xyz'), rot, file.tensor('corners_dims'))
        report.close('corners', found, file['corners'], _rounding(file['corners']))


def _rounding(expected: np.ndarray) -> float:
    """A few roundings of the largest number."""
    return tolerances.GEOMETRY * max(1.0, float(np.abs(expected).max()))


def _check_metrics(file: GoldenFile, report: Report) -> None:
    predicted, truth = file.tensor('pred_xyz'), file.tensor('gt_xyz')
    ade = metrics.average_displacement
    for name in file.names('ade'):
        steps = int(name.removeprefix('ade_first')) if name.startswith('ade_first') else None
        if name in ('ade', 'ade_3d') or steps:
            report.close(name, ade(predicted, truth, steps, planar=name != 'ade_3d'), file[name],
                         tolerances.METRIC)
    least = partial(metrics.least_average_displacement, truth=truth, horizons=_horizons(file))
    groups = {'minade_nosummary_': least(predicted, spread=False),
              'minade_N1_': least(predicted[:, :1]),
              'minade_3d_': least(predicted, planar=False), 'minade_': least(predicted)}
    if 'corner_dims' in file:
        truth_rot = file.tensor('gt_rot')
        rot = file.tensor('pred_rot') if 'pred_rot' in file else \
            truth_rot[:, None, None].expand(*predicted.shape, 3)
        groups['corner_'] = metrics.corner_distance(predicted, rot, truth, truth_rot,
                                                    file.tensor('corner_dims'))
    for prefix, values in groups.items():
        for key, value in values.items():
            if prefix + key in file:
                limit = 1e-4 if key.endswith('_std') else tolerances.METRIC
                report.close(prefix + key, value, file[prefix + key], limit)
    if 'example_script_ade' in file:
        report.close('example_script_ade', ade(predicted, truth)[0, 0],
                     file['example_script_ade'], tolerances.METRIC)
    if 'example_script_minade' in file:
        report.close('example_script_minade', ade(predicted, truth)[0, 0].min(),
                     file['example_script_minade'], tolerances.METRIC)


def _horizons(file: GoldenFile) -> list[int]:
    """Steps of 0.1 s that names like `min_ade/by_t=3.0` ask for."""
    found = {re.search(r'/by_t=([\d.]+)', name) for name in file.names('minade_')} - {None}
    return sorted({round(10 * float(match.group(1))) for match in found})


def _check_flow(golden: GoldenDirectory, file: GoldenFile, report: Report) -> None:
    """Fourier features, and Euler integration of two fields with and without guidance."""
    config = golden.config().action
    frequencies = action.fourier_frequencies(config)
    rounded = action.fourier_frequencies(config, torch.bfloat16)
    for name, values in (('fourier_freqs_f32', frequencies),
                         ('fourier_freqs_f32_rounded_to_bf16', rounded)):
        if name in file:
            report.close(name, values[None], file[name], 1e-5)
    if 'fourier_freqs_bf16_default_dtype' in file:  # computed in bfloat16, not only rounded
        computed = torch.logspace(0, float(np.log10(config.max_freq)), len(rounded),
                                  dtype=torch.bfloat16).float()
        report.close('fourier_freqs_bf16_default_dtype', computed[None],
                     file['fourier_freqs_bf16_default_dtype'], 1e-5)
    if 'fourier_out' in file:
        report.close('fourier_out', action.fourier_features(file.tensor('fourier_x'), frequencies),
                     file['fourier_out'], 5e-5)
    if 'flow_M' not in file:
        return
    matrix, bias = file.tensor('flow_M'), file.tensor('flow_b')

    def guided(x, t):
        return x @ matrix + bias * torch.sin(3 * t)

    def unguided(x, t):
        return -0.5 * x + bias * t

    for name in file.names('flow_n', 'flow_cfg_w'):
        if not name.endswith('_x'):
            continue
        states, field = file.tensor(name), guided
        if name.startswith('flow_cfg_w'):
            w = float(name.removeprefix('flow_cfg_w').removesuffix('_x'))

            def field(x, t, w=w):
                return action.guide(guided(x, t), unguided(x, t), w)
        trace: list = []
        steps = states.shape[1] - 1
        last = action.integrate(field, states[:, 0], steps, trace)
        found = torch.stack([*(x for _, x, _ in trace), last], 1)
        report.close(name, found, states, 1e-5)
        times = name.removesuffix('_x') + '_t'
        if times in file:
            report.close(times, [*(float(t) for t, _, _ in trace), 1.0], file[times], 1e-6)


def _check_ego_frames(file: GoldenFile, report: Report) -> None:
    t0 = int(file['t0_us']) * 1000
    xyz, quaternions = file['hist_world_xyz'], file['hist_world_quat_xyzw']
    stamps = t0 + GRID_NS * np.arange(1 - len(xyz), 1)
    history = EgoHistory.from_odometry(stamps, xyz, quaternions, t0)
    future = in_frame_of(file['fut_world_xyz'], quaternion_to_matrix(_unit(
        file['fut_world_quat_xyzw'])), xyz[-1], quaternion_to_matrix(_unit(quaternions[-1])))
    for name, found in (('ego_history_xyz', history.xyz), ('ego_history_rot', history.rot),
                        ('ego_future_xyz', future[0]), ('ego_future_rot', future[1])):
        if name in file:
            report.close(name, found[None, None], file[name], _rounding(file[name]))


def _unit(quaternions: np.ndarray) -> np.ndarray:
    return quaternions / np.linalg.norm(quaternions, axis=-1, keepdims=True)


def _check_cameras(file: GoldenFile, report: Report) -> None:
    """
    Order of cameras, and which frames belong to a window.

    The released code takes an unknown name for camera 0; ours refuses it, so
    only here it counts as 0.
    """
    ids = {f'camera_{name}fov': number for number, name in CAMERA_NAMES.items()}
    if 'camera_name_to_index' in file:
        report.equal('camera_name_to_index', sorted(ids.items()),
                     sorted(file['camera_name_to_index'].items()))
    default = [f'camera_{CAMERA_NAMES[c]}fov' for c in (1, 6, 0, 2)]
    for number, choice in enumerate(file.get('selections', [])):
        names = choice['requested'] or default
        report.equal(f'selection {number}: camera_indices',
                     sorted(ids.get(n, 0) for n in names), choice['camera_indices'])
        stamps = np.asarray(choice['absolute_timestamps_us'])
        relative = ((stamps - stamps.min()).astype(np.float32) * np.float32(1e-6))
        report.close(f'selection {number}: relative_timestamps_s', relative,
                     choice['relative_timestamps_s'], 1e-6)
        frames = choice['num_frames']
        for row in stamps * 1000:
            window = fill_window(int(row[-1]), [int(s) for s in row], frames, GRID_NS // 4)
            if window.sources != tuple(row) or window.known != frames:
                report.failed(f'selection {number}: frames', f'{window} for {row.tolist()}')
                break
        else:
            report.equal(f'selection {number}: frames per camera', stamps.shape[1], frames)


def _check_text(file: GoldenFile, report: Report) -> None:
    if 'swap_direction' in file:
        pairs = file['swap_direction']
        report.equal('swap_direction', [text.swap_sides(p['in']) for p in pairs],
                     [p['out'] for p in pairs])
    if 'extract_between_special_tokens' in file:
        case = file['extract_between_special_tokens']
        report.equal('extract_between_special_tokens',
                     [text.between(t, case['token']) for t in case['in']], case['out'])
    if 'replace_padding_after_eos' in file:
        case = file['replace_padding_after_eos']
        report.equal('replace_padding_after_eos',
                     [text.pad_after(r, case['eos'], case['pad']) for r in case['in']],
                     case['out'])
    if 'stop_after_eos' in file:
        case = file['stop_after_eos']
        rows = [list(r) for r in zip(*(v for k, v in case.items() if k.startswith('last_token'))
                                     .__next__())]
        stop = text.steps_until_all_ended(rows, case['eos'])
        found = [stop is not None and step + 1 >= stop for step in range(len(rows[0]))]
        report.equal('stop_after_eos', found, case['returned'])
    if 'extract_traj_tokens' in file:
        case = file['extract_traj_tokens']
        found = find_future_bins(torch.tensor(case['in']), case['start'], case['end'],
                                 case['tokens_per_future_traj'], case['future_token_start_idx'],
                                 case['traj_tokenizer_vocab_size'])
        report.equal('extract_traj_tokens', found, case['out'])
