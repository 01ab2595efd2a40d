"""The action expert and the flow of a golden case, and the trajectories they give."""
from __future__ import annotations

import numpy as np
import torch

from ...core import unicycle
from ...core.geometry import yaw_rotation
from ...core.reasoning import Reasoned, follow
from ...core.trajectories import ActionContext
from ...core.types import Reasoning
from . import tolerances
from .compare import check_keys
from .report import Report
from .rollout import Flowed, Forced, Row, action_constants, prefill, run_flow


def check_action(case, rows: list[Row], forced: list[Forced], report: Report) -> None:
    """Compare what the expert attends to, each flow step, and the trajectories."""
    end = case.tokenizer.id('traj_future_start')
    reasoned = [f.reasoned(end) for f in forced]
    contexts = [ActionContext(r.stream, case.samples, x) for r, x in zip(rows, reasoned)]
    _check_view(case, rows, forced, reasoned, contexts, report)
    guidance = case.info.get('classifier_free_guidance') or {}
    unguided = [None] * len(rows)
    if guidance:
        unguided = [_unguided(case, b, row, forced[b].ids) for b, row in enumerate(rows)]
        _check_unguided_view(case, unguided, report)
    run = _Flow(case, contexts, unguided, guidance.get('inference_guidance_weight', 1.0))
    flowed = run(torch.float32)
    _check_flow(case, flowed, '', report)
    _check_trajectories(case, flowed, torch.float32, '', report)
    if case.golden.names('bf16consts_'):
        flowed = run(torch.bfloat16)
        if 'bf16consts_fourier_freqs' in case.golden:
            report.close('bf16consts_fourier_freqs',
                         case.model.frequencies().to(torch.bfloat16).float()[None],
                         case.golden['bf16consts_fourier_freqs'], tolerances.CONSTANT)
        _check_flow(case, flowed, 'bf16consts_', report)
        _check_trajectories(case, flowed, torch.bfloat16, 'bf16consts_', report)


class _Flow:
    """Runs the flow of all batch elements; one result for the whole batch."""

    def __init__(self, case, contexts, unguided, weight: float):
        self.case, self.contexts, self.unguided, self.weight = case, contexts, unguided, weight

    def __call__(self, constants: torch.dtype) -> Flowed:
        """Flow with constants rounded to a dtype."""
        case, k = self.case, self.case.samples
        noise = case.golden.tensor('noise_x0')
        steps = case.info.get('num_flow_steps', case.config.action.num_inference_steps)
        parts = [run_flow(case.model, context, noise[b * k:(b + 1) * k], steps, other,
                          self.weight, constants)
                 for b, (context, other) in enumerate(zip(self.contexts, self.unguided))]

        def cat(name: str, axis: int):
            values = [getattr(p, name) for p in parts]
            return None if values[0] is None else torch.cat(values, axis)
        return Flowed(parts[0].t, cat('x', 1), cat('guided', 1), cat('unguided', 1),
                      cat('actions', 0), cat('tokens', 0), cat('hidden', 0))


def _check_view(case, rows, forced, reasoned, contexts, report: Report) -> None:
    """Keys, positions and mask of the action tokens."""
    golden = case.golden
    caches = {kind: [x for f in forced for x in f.keys(kind == 'v').unbind(1)] for kind in 'kv'}
    check_keys(golden, 'expert_prompt_kv', caches, rows[0].pad, report)
    if 'expert_position_ids' in golden:
        report.equal('expert_position_ids', _positions(contexts, case.samples),
                     golden['expert_position_ids'])
    if 'expert_attn_mask_row' in golden:
        expected = golden['expert_attn_mask_row']
        report.equal('expert_attn_mask_row', np.stack([
            _mask_row(visible, expected.shape[1], row.pad, case.config.action.n_waypoints)
            for row, x in zip(rows, reasoned) for visible in x.visible]), expected)
    if 'expert_prompt_kv_cache_len' in case.info:
        report.equal('expert_prompt_kv_cache_len',
                     [r.pad + f.keys(False).shape[3] for r, f in zip(rows, forced)],
                     [case.info['expert_prompt_kv_cache_len']] * len(rows))


def _positions(contexts: list[ActionContext], samples: int) -> torch.Tensor:
    rows = torch.cat([c.positions.expand(samples, -1) for c in contexts])
    return rows.expand(3, -1, -1)


def _mask_row(visible: int, length: int, pad: int, waypoints: int) -> np.ndarray:
    """True where action tokens look: their own prompt and reasoning, and each other."""
    slot = np.arange(length) - pad
    return ((slot >= 0) & (slot < visible)) | (np.arange(length) >= length - waypoints)


def _unguided(case, b: int, row: Row, ids: np.ndarray) -> ActionContext:
    """Context of the prompt without navigation text, after the same generated tokens."""
    layout = row.layout
    other = prefill(case.model, case.tokenizer, case.config, layout.camera_ids, layout.grids,
                    row.features, row.history_ids, room=ids.shape[1])
    end = case.tokenizer.id('traj_future_start')
    said = [i[:i.index(end) + 1] if end in i else i for i in ids.tolist()]
    texts = tuple(Reasoning('', tuple(i)) for i in said)
    return ActionContext(other.stream, case.samples, follow(other.stream, Reasoned(texts, (), ())))


def _check_unguided_view(case, contexts: list[ActionContext], report: Report) -> None:
    golden = case.golden
    if 'expert_position_ids_unguided' in golden:
        report.equal('expert_position_ids_unguided', _positions(contexts, case.samples),
                     golden['expert_position_ids_unguided'])
    if 'expert_attn_mask_row_unguided' in golden:
        expected = golden['expert_attn_mask_row_unguided']
        longest = max(c.stream.layout.size for c in contexts)
        report.equal('expert_attn_mask_row_unguided', np.stack([
            _mask_row(visible, expected.shape[1], longest - c.stream.layout.size,
                      case.config.action.n_waypoints)
            for c in contexts for visible in c.visible]), expected)


def _check_flow(case, flowed: Flowed, prefix: str, report: Report) -> None:
    """Times, states and velocities of each step; the expert's input and output of the first."""
    golden = case.golden
    if not prefix:
        if 'flow_t' in golden:
            report.close('flow_t', flowed.t, golden['flow_t'], tolerances.CONSTANT)
        if 'action_in_proj_step0_b0' in golden:
            report.close('action_in_proj_step0_b0', flowed.tokens[0],
                         golden['action_in_proj_step0_b0'], tolerances.HIDDEN)
        if 'expert_last_hidden_step0_b0' in golden:
            report.close('expert_last_hidden_step0_b0', flowed.hidden[0],
                         golden['expert_last_hidden_step0_b0'], tolerances.HIDDEN)
    for name, values in (('flow_v', flowed.guided), ('flow_v_unguided', flowed.unguided)):
        if prefix + name in golden and values is not None:
            expected = golden[prefix + name]
            report.close(f'{prefix}{name}', values, expected, tolerances.VELOCITY)
            report.close(f'{prefix}{name}[0]', values[0], expected[0], tolerances.FIRST_VELOCITY)
    if prefix + 'flow_x' in golden:
        report.close(f'{prefix}flow_x', flowed.x, golden[prefix + 'flow_x'], tolerances.ACTIONS)
    if prefix + 'actions_normalised' in golden:
        report.close(f'{prefix}actions_normalised', flowed.actions,
                     golden[prefix + 'actions_normalised'], tolerances.ACTIONS)


def _check_trajectories(case, flowed: Flowed, dtype: torch.dtype, prefix: str,
                        report: Report) -> None:
    """Controls in physical units and the trajectories they drive."""
    golden, k = case.golden, case.samples
    action = action_constants(case.config, dtype)
    xyz, rot = golden.tensor('ego_history_xyz')[:, -1], golden.tensor('ego_history_rot')[:, -1]
    speed = unicycle.speed_from_history(xyz, rot, action)
    if not prefix and 'v0_estimate' in golden:
        report.close('v0_estimate', speed, golden['v0_estimate'], tolerances.SPEED)
    driven = unicycle.decode(flowed.actions, speed.repeat_interleave(k),
                             xyz[:, -1, 2].repeat_interleave(k), action)
    if prefix + 'actions_physical' in golden:
        report.close(f'{prefix}actions_physical', unicycle.physical(flowed.actions, action),
                     golden[prefix + 'actions_physical'], tolerances.ACTIONS)
    if prefix + 'actions_within_bounds' in golden:
        report.equal(f'{prefix}actions_within_bounds',
                     unicycle.within_bounds(flowed.actions, action),
                     golden[prefix + 'actions_within_bounds'])
    found = {'pred_xyz': (driven.xyz, tolerances.XYZ),
             'pred_rot': (yaw_rotation(driven.yaw), tolerances.ROTATION)}
    for name, (values, tolerance) in found.items():
        if prefix + name in golden:
            expected = golden[prefix + name]
            report.close(prefix + name, values.reshape(expected.shape), expected, tolerance)
