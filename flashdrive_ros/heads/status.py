"""What the vehicle itself says: past poses, velocity, acceleration and the navigation command."""
from __future__ import annotations

import re

import numpy as np

from ..core.ego import HISTORY_POSES, EgoHistory

STEP_S = 0.1
PAST = (15, 10, 5, 0)
"""Ticks before now of the past poses a head sees: 2 Hz, as NAVSIM has them."""
HISTORY, STATUS = 3 * len(PAST), 8
COMMANDS = ('left', 'straight', 'right', 'unknown')
_TURN = re.compile(r'\bturn (left|right)\b', re.IGNORECASE)
_STRAIGHT = re.compile(r'\bgo straight\b', re.IGNORECASE)


def command_of(nav_text: str) -> int:
    """Index in `COMMANDS` of what navigation text says."""
    turn = _TURN.search(nav_text)
    if turn:
        return COMMANDS.index(turn[1].lower())
    return COMMANDS.index('straight' if _STRAIGHT.search(nav_text) else 'unknown')


def rows_of(ego: EgoHistory) -> np.ndarray:
    """Rows x, y, yaw [16, 3] of an ego history."""
    return np.column_stack((ego.xyz[:, :2], np.arctan2(ego.rot[:, 1, 0], ego.rot[:, 0, 0])))


def motion_of(history: np.ndarray) -> tuple[float, float]:
    """Speed (m/s) and yaw rate (rad/s) at the end of rows x, y, yaw [16, 3]."""
    speed = float(np.linalg.norm(history[-1, :2] - history[-2, :2])) / STEP_S
    return speed, float(history[-1, 2] - history[-2, 2]) / STEP_S


def status_of(history: np.ndarray, command: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Past poses [12] and status [8] of rows x, y, yaw [16, 3] in the ego frame at t0.

    Status: command one-hot (4), velocity (2, m/s), acceleration (2, m/s^2).  The
    acceleration is that of the last half second, which the poses tell without much noise.
    """
    if history.shape != (HISTORY_POSES, 3):
        raise ValueError(f'a history is [{HISTORY_POSES}, 3] (x, y, yaw), got '
                         f'{list(history.shape)}')
    velocities = np.diff(history[:, :2], axis=0) / STEP_S
    acceleration = (velocities[-1] - velocities[-6]) / (5 * STEP_S)
    past = history[[HISTORY_POSES - 1 - p for p in PAST]]
    one_hot = np.eye(len(COMMANDS))[command]
    status = np.concatenate((one_hot, velocities[-1], acceleration))
    return past.ravel().astype(np.float32), status.astype(np.float32)
