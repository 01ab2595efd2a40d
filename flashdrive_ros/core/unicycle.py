"""
Unicycle action space: (acceleration, curvature) per 0.1 s <-> trajectory (spec section 6).

Everything here is float32 or better and is never autocast.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import ActionConfig


@dataclass(frozen=True)
class UnicycleTrajectory:
    """
    K decoded trajectories of N waypoints in the ego frame at t0.

    `xyz` [K, N, 3] m, `yaw` [K, N] rad, `speed` [K, N] m/s at the waypoint,
    `acceleration` m/s^2 and `curvature` 1/m [K, N] of the interval that ends there.
    """

    xyz: Tensor
    yaw: Tensor
    speed: Tensor
    acceleration: Tensor
    curvature: Tensor


def unwrap(angles: Tensor) -> Tensor:
    """Remove jumps of 2 pi along the last axis."""
    step = torch.diff(angles)
    wrapped = torch.remainder(step + torch.pi, 2 * torch.pi) - torch.pi
    return torch.cat((angles[..., :1], angles[..., :1] + wrapped.cumsum(-1)), -1)


def third_difference(n: int, dtype=torch.float32, device=None) -> Tensor:
    """Matrix [n - 3, n] of third differences."""
    rows = torch.zeros(n - 3, n, dtype=dtype, device=device)
    for offset, value in enumerate((-1.0, 3.0, -3.0, 1.0)):
        rows.diagonal(offset)[:] = value
    return rows


def speed_from_history(xyz: Tensor, rot: Tensor, config: ActionConfig) -> Tensor:
    """
    Speed [B] m/s at t0 from history `xyz` [B, 16, 3], `rot` [B, 16, 3, 3].

    Regularised least squares over all poses, so that trapezoidal integration
    along the heading reproduces the positions; the last of the 16 speeds.
    """
    yaw = unwrap(torch.atan2(rot[..., 1, 0], rot[..., 0, 0]))
    heading = torch.stack((yaw.cos(), yaw.sin()), -1)  # [B, n, 2]
    n, dt = xyz.shape[-2], config.dt
    target = 2 / dt * torch.diff(xyz[..., :2], dim=-2)  # [B, n - 1, 2]
    design = xyz.new_zeros(*xyz.shape[:-2], n - 1, 2, n)
    index = torch.arange(n - 1, device=xyz.device)
    design[..., index, :, index] = heading[..., :-1, :].movedim(-2, 0)
    design[..., index, :, index + 1] = heading[..., 1:, :].movedim(-2, 0)
    design = design.flatten(-3, -2)
    smooth = third_difference(n, xyz.dtype, xyz.device)
    normal = design.mT @ design + config.v_lambda / dt ** 6 * smooth.T @ smooth
    normal = normal + config.v_ridge * torch.eye(n, dtype=xyz.dtype, device=xyz.device)
    right = design.mT @ target.flatten(-2)[..., None]
    return torch.cholesky_solve(right, torch.linalg.cholesky(normal))[..., -1, 0]


def decode(actions: Tensor, speed_0: Tensor, z: Tensor,
           config: ActionConfig) -> UnicycleTrajectory:
    """
    Integrate normalised `actions` [K, N, 2] from `speed_0` [K] m/s; `z` [K] m is kept.

    The trajectory starts at the origin with heading 0; waypoint i is (i + 1) dt later.
    """
    acceleration = actions[..., 0] * config.accel_std + config.accel_mean
    curvature = actions[..., 1] * config.curvature_std + config.curvature_mean
    dt = config.dt
    speed = torch.cat((speed_0[:, None], speed_0[:, None] + (acceleration * dt).cumsum(-1)), -1)
    before = speed[:, :-1]
    turn = curvature * before * dt + curvature * acceleration * dt ** 2 / 2
    yaw = torch.cat((torch.zeros_like(speed_0)[:, None], turn.cumsum(-1)), -1)
    vx, vy = speed * yaw.cos(), speed * yaw.sin()
    x = (dt / 2 * (vx[:, :-1] + vx[:, 1:])).cumsum(-1)
    y = (dt / 2 * (vy[:, :-1] + vy[:, 1:])).cumsum(-1)
    xyz = torch.stack((x, y, z[:, None].expand_as(x)), -1)
    return UnicycleTrajectory(xyz, yaw[:, 1:], speed[:, 1:], acceleration, curvature)


def within_bounds(actions: Tensor, config: ActionConfig) -> Tensor:
    """Say for each sample of normalised `actions` [K, N, 2] whether every control is plausible."""
    acceleration = actions[..., 0] * config.accel_std + config.accel_mean
    curvature = actions[..., 1] * config.curvature_std + config.curvature_mean
    inside = ((acceleration >= config.accel_bounds[0]) & (acceleration <= config.accel_bounds[1])
              & (curvature >= config.curvature_bounds[0])
              & (curvature <= config.curvature_bounds[1]))
    return inside.all(-1)
