"""
Closed-form kinematics of the arm: yaw, shoulder, elbow and a wrist that keeps the tool down.

The base frame has x forward, y left, z up and its origin on the table.  Angles of shoulder,
elbow and wrist are positive upwards; all at zero the arm is stretched out along x.
"""
from __future__ import annotations

import numpy as np

UPPER_M = FORE_M = 0.24
TOOL_M = 0.11
"""From the wrist's axis to the middle between the finger tips."""
SHOULDER_M = 0.12


class ReachError(ValueError):
    """A point that the arm can't reach; the text has it."""


def joints_of(tip) -> np.ndarray:
    """Joints [4] (rad) that bring the tip to `tip` [3] (m, base frame), the tool downwards."""
    x, y, z = (float(v) for v in tip)
    r, h = np.hypot(x, y), z + TOOL_M - SHOULDER_M
    cosine = (r * r + h * h - UPPER_M ** 2 - FORE_M ** 2) / (2 * UPPER_M * FORE_M)
    if not -1 <= cosine <= 1:
        raise ReachError(f'the point ({x:.3f}, {y:.3f}, {z:.3f}) m is out of reach')
    elbow = -np.arccos(cosine)
    shoulder = np.arctan2(h, r) - np.arctan2(
        FORE_M * np.sin(elbow), UPPER_M + FORE_M * np.cos(elbow))
    return np.array([np.arctan2(y, x), shoulder, elbow, -np.pi / 2 - shoulder - elbow])


def tip_of(joints) -> np.ndarray:
    """Tip [3] (m, base frame) at `joints` [4] (rad)."""
    yaw, shoulder, elbow, wrist = (float(v) for v in joints)
    angles = np.cumsum([shoulder, elbow, wrist])
    lengths = np.array([UPPER_M, FORE_M, TOOL_M])
    r, h = lengths @ np.cos(angles), SHOULDER_M + lengths @ np.sin(angles)
    return np.array([r * np.cos(yaw), r * np.sin(yaw), h])
