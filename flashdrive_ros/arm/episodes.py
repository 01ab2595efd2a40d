"""
Expert episodes as training samples: pictures, words, plan and actions every 20 periods.

    flashdrive train arm --stage episodes

The expert is disturbed on the way (its clean action stays the label), so that samples lie
beside its paths as well.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np

from .cameras import MAIN_CAMERA
from .expert import Expert
from .simulator import LIMIT_STEPS, TASKS, ArmSimulator
from .timing import CHUNK, SPACING, WAYPOINTS

NOISE_RAD = 0.02
HELD = 8
"""Periods that an episode goes on after its success."""


def waypoints(tips: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Plan at `step` of a path `tips` [n, 3] (base frame), one row a period.

    Shares [10, 2] of the main image (NaN out of view) and metres [10, 3] in its optical frame.
    """
    rows = np.minimum(step + SPACING * np.arange(1, WAYPOINTS + 1), len(tips) - 1)
    return MAIN_CAMERA.shares(tips[rows]), MAIN_CAMERA.to_optical(tips[rows])


def record(sim: ArmSimulator, task: str, seed: int) -> list[dict]:
    """Samples of one episode of the disturbed expert; none when it failed."""
    sim.reset(task, seed)
    expert, rng = Expert(sim), np.random.default_rng((7, seed))
    looks, tips, actions, texts, noise, held = [], [], [], [], np.zeros(4), 0
    while sim.steps < LIMIT_STEPS[task] and held < HELD:
        if sim.steps % CHUNK == 0:
            looks.append((sim.steps, sim.observe()))
        tips.append(sim.tip)
        joints, gripper = expert.act()
        actions.append(np.append(joints, gripper))
        texts.append(expert.text)
        noise = 0.9 * noise + rng.normal(0, NOISE_RAD * 0.44, 4)
        sim.act(joints + noise * (held == 0), gripper)
        held += sim.success
    if not sim.success:
        return []
    tips, actions = np.array([*tips, sim.tip]), np.array(actions)
    samples = []
    for step, look in looks:
        uv, metres = waypoints(tips, step)
        rows = np.minimum(step + np.arange(CHUNK), len(actions) - 1)
        samples.append({
            'main': look.main, 'wrist': look.wrist, 'uv': uv, 'metres': metres,
            'state': np.append(look.joints, look.gripper), 'actions': actions[rows],
            'instruction': sim.instruction, 'subtask': texts[step], 'step': step,
            'episode': seed * len(TASKS) + TASKS.index(task)})
    return samples


def make(path: Path, seeds: range, say=print) -> dict[str, np.ndarray]:
    """Record all tasks for `seeds` into the .npz file `path`; returns the columns."""
    sim = ArmSimulator()
    samples = [sample for seed in seeds for task in TASKS for sample in record(sim, task, seed)]
    columns = {key: np.array([s[key] for s in samples]) for key in samples[0]}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **columns)
    say(f'{path}: {len(samples)} samples of {len(set(columns["episode"]))} episodes')
    return columns
