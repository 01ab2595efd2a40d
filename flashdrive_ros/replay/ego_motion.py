"""Ego motion for footage that has none of its own: an assumption, or recorded pose arrays."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np


class EgoMotion(Protocol):
    """Pose and speed of the vehicle as a function of media time."""

    description: str

    def at(self, time_s: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Position [3] m, quaternion [4] (x, y, z, w) and forward speed m/s at `time_s`."""
        ...


@dataclass(frozen=True)
class ConstantSpeed:
    """Straight ahead at one speed: an assumption, not a measurement."""

    speed_mps: float

    @property
    def description(self) -> str:
        """One line that says what is assumed."""
        return f'ego motion ASSUMED: straight ahead at {self.speed_mps:g} m/s'

    def at(self, time_s: float):
        """See `EgoMotion.at`."""
        return (np.array([self.speed_mps * time_s, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, 1.0]),
                self.speed_mps)


class PoseArrays:
    """
    Measured ego motion in the layout of comma2k19's `global_pose`.

    A folder of NumPy arrays: `frame_times` [n] s, `frame_positions` [n, 3] m
    (ECEF), `frame_velocities` [n, 3] m/s (ECEF), `frame_orientations` [n, 4]
    (w, x, y, z; device to ECEF, device axes forward, right, down).  The local
    frame is the vehicle's at the first sample, levelled to the earth's surface
    (z up).  Times beyond the ends are extrapolated along the end velocities.
    """

    def __init__(self, folder):
        folder = Path(folder)
        names = ('frame_times', 'frame_positions', 'frame_velocities', 'frame_orientations')
        try:
            with_pose = [np.load(folder / name, allow_pickle=False) for name in names]
        except (OSError, ValueError) as error:
            raise ValueError(f'ego motion {folder}: needs the arrays {", ".join(names)}: '
                             f'{error}') from error
        times, positions, velocities, orientations = with_pose
        if len({len(a) for a in with_pose}) != 1 or len(times) < 2:
            raise ValueError(f'ego motion {folder}: arrays of lengths '
                             f'{[len(a) for a in with_pose]}, need at least 2 of one length')
        self.description = f'ego motion from the pose arrays {folder}'
        ecef_from_device = _matrices(orientations)
        local_from_ecef = _levelled_frame(positions[0], ecef_from_device[0])
        self._times = times - times[0]
        self._positions = (positions - positions[0]) @ local_from_ecef.T
        self._velocities = velocities @ local_from_ecef.T
        forward = np.einsum('ij,njk->nik', local_from_ecef, ecef_from_device)[:, :, 0]
        self._yaw = np.unwrap(np.arctan2(forward[:, 1], forward[:, 0]))

    def at(self, time_s: float):
        """See `EgoMotion.at`; roll and pitch are left out."""
        inside = float(np.clip(time_s, self._times[0], self._times[-1]))
        position, velocity = (np.array([np.interp(inside, self._times, column)
                                        for column in array.T])
                              for array in (self._positions, self._velocities))
        yaw = float(np.interp(inside, self._times, self._yaw))
        position = position + velocity * (time_s - inside)
        quaternion = np.array([0.0, 0.0, np.sin(yaw / 2), np.cos(yaw / 2)])
        return position, quaternion, float(velocity[:2] @ [np.cos(yaw), np.sin(yaw)])


def _matrices(q):
    """Rotation matrices [n, 3, 3] of quaternions [n, 4] in w, x, y, z order."""
    w, x, y, z = (q / np.linalg.norm(q, axis=1, keepdims=True)).T
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
            2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
            2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]
    return np.stack(rows, -1).reshape(-1, 3, 3)


def _levelled_frame(position, ecef_from_device):
    """Rows: forward (horizontal), left, up, in ECEF."""
    up = position / np.linalg.norm(position)
    forward = ecef_from_device[:, 0] - up * (up @ ecef_from_device[:, 0])
    forward /= np.linalg.norm(forward)
    return np.stack([forward, np.cross(up, forward), up])
