"""Pure functions on trajectories: the action space and the trajectory tokenizers."""
from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import torch

from ...core import trajectory_tokens, unicycle
from ...core.config import ActionConfig, ModelConfig
from ...core.geometry import yaw_rotation
from . import tolerances
from .golden import GoldenFile
from .report import Report

NEUTRAL = {'accel_mean': 0.0, 'accel_std': 1.0, 'curvature_mean': 0.0, 'curvature_std': 1.0,
           'curvature_bounds': (-0.2, 0.2)}
"""Defaults of the released action space class."""


def check_action_space(config: ModelConfig, file: GoldenFile, report: Report) -> None:
    """Trajectories to controls and back."""
    action = config.action
    file.taken.update(n for n in ('scenario_names',) if n in file)
    for prefix, dtype in (('enc_f32_', torch.float32), ('enc_f64_', torch.float64)):
        _check_encoding(action, prefix, dtype, file, report)
    if 'enc_defaultcfg_action' in file:
        neutral = replace(action, **NEUTRAL)
        controls, _ = _encode(neutral, file, torch.float64)
        physical = tolerances.ENCODED[0], tolerances.ENCODED[1] * action.curvature_std
        report.close('enc_defaultcfg_action', controls.actions, file['enc_defaultcfg_action'],
                     physical)
        report.equal('enc_defaultcfg_within_bounds',
                     unicycle.within_bounds(controls.actions, neutral),
                     file['enc_defaultcfg_within_bounds'])
    if 'dec_action' in file:
        _check_decoding(action, file, report)


def _encode(action: ActionConfig, file: GoldenFile, dtype: torch.dtype):
    """Controls of all scenarios, and the speeds at t0."""
    history = file.tensor('hist_xyz', dtype)
    speed = unicycle.speed_from_history(history, file.tensor('hist_rot', dtype), action)
    return unicycle.encode(file.tensor('fut_xyz', dtype), file.tensor('fut_rot', dtype), speed,
                           action, history[:, -1]), speed


def _check_encoding(action: ActionConfig, prefix: str, dtype, file: GoldenFile,
                    report: Report) -> None:
    """Compare what `encode` finds in float64 with the released results in `dtype`."""
    if prefix + 'action' not in file:
        return
    exact = dtype == torch.float64
    controls, speed = _encode(action, file, torch.float64)
    state = torch.stack((controls.speed[:, :-1], controls.actions[..., 0],
                         controls.yaw[:, :-1]), -1)
    driven = unicycle.decode(controls.actions, speed, file.tensor('hist_xyz').double()[:, -1, 2],
                             action)
    loose = tolerances.ENCODED_FLOAT64 if exact else 1e-4
    found = {
        'v0': (speed, loose), 'theta_smooth': (controls.yaw, loose),
        'v_profile': (controls.speed, loose),
        'action': (controls.actions, loose if exact else tolerances.ENCODED),
        'state_v_accelnorm_theta': (state, loose),
        'roundtrip_xyz': (driven.xyz, 1e-6 if exact else 3 * tolerances.DECODED),
        'roundtrip_rot': (yaw_rotation(driven.yaw), loose),
    }
    for name, (values, tolerance) in found.items():
        if prefix + name in file:
            report.close(prefix + name, values, file[prefix + name], tolerance)
    if prefix + 'within_bounds' in file:
        report.equal(f'{prefix}within_bounds', unicycle.within_bounds(controls.actions, action),
                     file[prefix + 'within_bounds'])


def _check_decoding(action: ActionConfig, file: GoldenFile, report: Report) -> None:
    index = file['dec_hist_index'] if 'dec_hist_index' in file else slice(None)

    def decoded(constants: ActionConfig, dtype, speed=None) -> unicycle.UnicycleTrajectory:
        history = file.tensor('hist_xyz', dtype)[index]
        rot = file.tensor('hist_rot', dtype)[index]
        speed = unicycle.speed_from_history(history, rot, constants) if speed is None else speed
        return unicycle.decode(file.tensor('dec_action', dtype), speed, history[:, -1, 2],
                               constants)

    runs = {'dec_f32': decoded(action, torch.float32), 'dec_f64': decoded(action, torch.float64)}
    if 'dec_given_v0' in file:
        runs['dec_given_v0'] = decoded(action, torch.float32, file.tensor('dec_given_v0'))
    constants = file.names('bf16_consts_')
    if constants:
        names = ('accel_mean', 'accel_std', 'curvature_mean', 'curvature_std')
        rounded = replace(action, **dict(zip(names, file[constants[0]].tolist())))
        ours = [float(torch.tensor(getattr(action, n), dtype=torch.bfloat16)) for n in names]
        report.close(constants[0], ours, file[constants[0]], 1e-9)
        runs['dec_bf16consts'] = decoded(rounded, torch.float32)
    for name, run in runs.items():
        for kind, values in (('xyz', run.xyz), ('rot', yaw_rotation(run.yaw))):
            if f'{name}_{kind}' in file:
                report.close(f'{name}_{kind}', values, file[f'{name}_{kind}'],
                             tolerances.DECODED)
    if 'dec_within_bounds' in file:
        report.equal('dec_within_bounds',
                     unicycle.within_bounds(file.tensor('dec_action'), action),
                     file['dec_within_bounds'])


def check_trajectory_tokenizers(config: ModelConfig, file: GoldenFile, report: Report) -> None:
    """Histories and futures as tokens and back, at whatever numbers of bins are there."""
    for name in file.names('delta_', 'discrete_'):
        if match := re.fullmatch(r'(delta|delta_yaw|discrete)_b(\d+)_tokens', name):
            kind, bins = match.group(1), int(match.group(2))
            check = _check_discrete if kind == 'discrete' else _check_delta
            check(config, kind, bins, file, report)


def _check_delta(config: ModelConfig, kind: str, bins: int, file: GoldenFile,
                 report: Report) -> None:
    prompt = replace(config.prompt, history_bins=bins, history_yaw=kind == 'delta_yaw')
    name = f'{kind}_b{bins}'
    found = [trajectory_tokens.history_bins(xyz, prompt, rot)
             for xyz, rot in zip(file['hist_xyz'], file['hist_rot'])]
    report.equal(f'{name}_tokens', found, file[f'{name}_tokens'], _near_edge(file, name))
    decoded = [trajectory_tokens.history_from_bins(tokens, prompt)
               for tokens in file[f'{name}_tokens']]
    for place, key in enumerate(('xyz', 'rot')):
        if f'{name}_decoded_{key}' in file:
            report.close(f'{name}_decoded_{key}', np.stack([d[place] for d in decoded]),
                         file[f'{name}_decoded_{key}'], tolerances.DECODED)


def _check_discrete(config: ModelConfig, kind: str, bins: int, file: GoldenFile,
                    report: Report) -> None:
    prompt = replace(config.prompt, future_bins=bins)
    action, name = config.action, f'{kind}_b{bins}'
    source = _futures_of(file, len(file[f'{name}_tokens']))
    controls, speed = _encode(action, source, torch.float32)
    source_history = source.tensor('hist_xyz')
    expected = file[f'{name}_tokens']
    report.equal(f'{name}_tokens', trajectory_tokens.future_bins(controls.actions, prompt),
                 expected, _near_edge(file, name, _bins_of_error(prompt)))
    actions = trajectory_tokens.actions_from_future_bins(torch.from_numpy(expected), prompt)
    driven = unicycle.decode(actions, speed, source_history[:, -1, 2], action)
    for key, values in (('xyz', driven.xyz), ('rot', yaw_rotation(driven.yaw))):
        if f'{name}_decoded_{key}' in file:
            report.close(f'{name}_decoded_{key}', values, file[f'{name}_decoded_{key}'],
                         tolerances.DECODED)


def _futures_of(file: GoldenFile, count: int) -> GoldenFile:
    """Scenarios of the discrete tokens: in this file, or those of the action space."""
    if 'fut_xyz' in file and len(file['fut_xyz']) == count:
        return file
    from .golden import read
    path = file.path.with_name('action_space.npz')
    return GoldenFile(path.stem, path, read(path), {})


def _bins_of_error(prompt) -> np.ndarray:
    """How many bins the float32 error of encoding may be, for acceleration and curvature."""
    width = (np.subtract(prompt.future_max, prompt.future_min)) / (prompt.future_bins - 1)
    return np.maximum(np.asarray(tolerances.ENCODED) / width, tolerances.EDGE)


def _near_edge(file: GoldenFile, name: str, limit=tolerances.EDGE):
    """Mask of tokens whose value lies so close to a rounding edge that either side will do."""
    key = f'{name}_distance_to_rounding_edge'
    if key not in file:
        return None
    distance = file[key]
    return distance < np.tile(np.atleast_1d(limit), distance.shape[-1] // np.size(limit))
