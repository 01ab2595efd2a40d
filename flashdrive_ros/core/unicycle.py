"""
Unicycle action space: (acceleration, curvature) per 0.1 s <-> trajectory (spec section 6).

Everything here is float32 or better and is never autocast.  Estimating controls
is ill-conditioned: encode training targets in float64.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import ActionConfig
from .geometry import unwrap, yaw_of


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


@dataclass(frozen=True)
class UnicycleControls:
    """
    Controls that drive along K given trajectories of N waypoints.

    `actions` [K, N, 2] are normalised; `speed` m/s and `yaw` rad [K, N + 1]
    are the smoothed states they come from, t0 first.
    """

    actions: Tensor
    speed: Tensor
    yaw: Tensor


def speed_from_history(xyz: Tensor, rot: Tensor, config: ActionConfig) -> Tensor:
    """Speed [B] m/s at t0 from history `xyz` [B, 16, 3] m and `rot` [B, 16, 3, 3]."""
    return _speeds(xyz[..., :2], unwrap(yaw_of(rot)), config)[..., -1]


def decode(actions: Tensor, speed_0: Tensor, z: Tensor,
           config: ActionConfig) -> UnicycleTrajectory:
    """
    Integrate normalised `actions` [K, N, 2] from `speed_0` [K] m/s; `z` [K] m is kept.

    The trajectory starts at the origin with heading 0; waypoint i is (i + 1) dt later.
    """
    acceleration, curvature = physical(actions, config).unbind(-1)
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


def encode(xyz: Tensor, rot: Tensor, speed_0: Tensor, config: ActionConfig,
           start: Tensor | None = None) -> UnicycleControls:
    """
    Find the controls of future `xyz` [K, N, 3] m and `rot` [K, N, 3, 3] from `speed_0` [K] m/s.

    `start` [K, 3] is the position at t0 (the origin when left out), where the
    heading is 0.  The inverse of `decode` up to the regularisation.
    """
    start = torch.zeros_like(xyz[..., 0, :]) if start is None else start
    yaw = smooth_yaw(rot, config)
    path = torch.cat((start[..., None, :2], xyz[..., :2]), -2)
    speed = _speeds(path, yaw, config, speed_0)
    dt, n = config.dt, xyz.shape[-2]
    identity = torch.eye(n, dtype=xyz.dtype, device=xyz.device)
    acceleration = _solve(identity + _roughness(n, 2, config.a_lambda / dt ** 4, xyz)
                          + config.a_ridge * identity, torch.diff(speed) / dt)
    travelled = dt * speed[..., :-1] + dt ** 2 / 2 * acceleration
    curvature = _solve(torch.diag_embed(travelled ** 2)
                       + _roughness(n, 2, config.kappa_lambda / dt ** 4, xyz)
                       + config.kappa_ridge * identity, travelled * torch.diff(yaw))
    actions = torch.stack(((acceleration - config.accel_mean) / config.accel_std,
                           (curvature - config.curvature_mean) / config.curvature_std), -1)
    return UnicycleControls(actions, speed, yaw)


def smooth_yaw(rot: Tensor, config: ActionConfig) -> Tensor:
    """Heading [K, N + 1] rad of future `rot` [K, N, 3, 3], smoothed and fixed to 0 at t0."""
    yaw = unwrap(yaw_of(rot))
    yaw = torch.cat((torch.zeros_like(yaw[..., :1]), yaw), -1)
    n = yaw.shape[-1]
    identity = torch.eye(n, dtype=yaw.dtype, device=yaw.device)
    normal = (identity + _roughness(n, 3, config.theta_lambda / config.dt ** 6, yaw)
              + config.theta_ridge * identity)
    return _solve(normal, yaw, first=yaw[..., 0])


def physical(actions: Tensor, config: ActionConfig) -> Tensor:
    """Normalised `actions` [..., 2] in m/s^2 and 1/m."""
    return torch.stack((actions[..., 0] * config.accel_std + config.accel_mean,
                        actions[..., 1] * config.curvature_std + config.curvature_mean), -1)


def within_bounds(actions: Tensor, config: ActionConfig) -> Tensor:
    """Say for each sample of normalised `actions` [K, N, 2] whether every control is plausible."""
    acceleration, curvature = physical(actions, config).unbind(-1)
    inside = ((acceleration >= config.accel_bounds[0]) & (acceleration <= config.accel_bounds[1])
              & (curvature >= config.curvature_bounds[0])
              & (curvature <= config.curvature_bounds[1]))
    return inside.all(-1)


def _speeds(path: Tensor, yaw: Tensor, config: ActionConfig,
            first: Tensor | None = None) -> Tensor:
    """
    Speeds [..., n] m/s along `path` [..., n, 2] m with heading `yaw` [..., n].

    Least squares, so that trapezoidal integration of speed along the heading
    reproduces the path; regularised; the first speed is given or free.
    """
    heading = torch.stack((yaw.cos(), yaw.sin()), -1)
    n, dt = path.shape[-2], config.dt
    target = 2 / dt * torch.diff(path, dim=-2)  # [..., n - 1, 2]
    design = path.new_zeros(*path.shape[:-2], n - 1, 2, n)
    index = torch.arange(n - 1, device=path.device)
    design[..., index, :, index] = heading[..., :-1, :].movedim(-2, 0)
    design[..., index, :, index + 1] = heading[..., 1:, :].movedim(-2, 0)
    design = design.flatten(-3, -2)
    normal = design.mT @ design + _roughness(n, 3, config.v_lambda / dt ** 6, path)
    normal = normal + config.v_ridge * torch.eye(n, dtype=path.dtype, device=path.device)
    return _solve(normal, (design.mT @ target.flatten(-2)[..., None])[..., 0], first)


def _roughness(n: int, order: int, weight: float, like: Tensor) -> Tensor:
    """Quadratic form [n, n]: `weight` times the squared differences of `order`."""
    differences = torch.eye(n, dtype=like.dtype, device=like.device).diff(n=order, dim=0)
    return weight * (differences.T @ differences)


def _solve(normal: Tensor, right: Tensor, first: Tensor | None = None) -> Tensor:
    """Solve the positive definite `normal` [..., n, n] x = `right` [..., n]; x[0] may be given."""
    if first is not None:
        rest = _solve(normal[..., 1:, 1:], right[..., 1:] - normal[..., 1:, 0] * first[..., None])
        return torch.cat((first[..., None], rest), -1)
    factor = torch.linalg.cholesky(normal.expand(*right.shape, -1))
    return torch.cholesky_solve(right[..., None], factor)[..., 0]
