"""Angles, rotations and boxes as the released code computes them; leading axes are batches."""
from __future__ import annotations

import torch
from torch import Tensor

BOX_CORNERS = ((-1, -1), (1, -1), (1, 1), (-1, 1))
"""Signs of (length, width) of the corners, counter-clockwise from rear right; bottom, then top."""


def yaw_of(rot: Tensor) -> Tensor:
    """Yaw [...] rad of rotations [..., 3, 3], counter-clockwise."""
    return torch.atan2(rot[..., 1, 0], rot[..., 0, 0])


def nearest_turn(angles: Tensor) -> Tensor:
    """Angles brought into [-pi, pi] by sine and cosine."""
    return torch.atan2(angles.sin(), angles.cos())


def wrap(angles: Tensor) -> Tensor:
    """Angles brought into [-pi, pi) by the remainder."""
    return torch.remainder(angles + torch.pi, 2 * torch.pi) - torch.pi


def unwrap(angles: Tensor) -> Tensor:
    """Remove jumps of 2 pi along the last axis."""
    steps = nearest_turn(torch.diff(angles)).cumsum(-1)
    return torch.cat((angles[..., :1], angles[..., :1] + steps), -1)


def planar_rotation(yaw: Tensor) -> Tensor:
    """Rotations [..., 2, 2] by `yaw` [...] rad."""
    c, s = yaw.cos(), yaw.sin()
    return torch.stack((torch.stack((c, -s), -1), torch.stack((s, c), -1)), -2)


def lift_rotation(planar: Tensor) -> Tensor:
    """Rotations [..., 3, 3] about z from planar ones [..., 2, 2]."""
    rot = torch.zeros(*planar.shape[:-2], 3, 3, dtype=planar.dtype, device=planar.device)
    rot[..., :2, :2] = planar
    rot[..., 2, 2] = 1
    return rot


def yaw_rotation(yaw: Tensor) -> Tensor:
    """Rotations [..., 3, 3] about z by `yaw` [...] rad."""
    return lift_rotation(planar_rotation(yaw))


def flatten_rotation(rot: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Planar rotation [..., 2, 2] nearest to [..., 3, 3] by Gram-Schmidt on its x and y axes."""
    x, y = rot[..., :2, 0], rot[..., :2, 1]
    x = x / (x.norm(dim=-1, keepdim=True) + epsilon)
    y = y - (x * y).sum(-1, keepdim=True) * x
    return torch.stack((x, y / (y.norm(dim=-1, keepdim=True) + epsilon)), -1)


def orthonormal_frame(axes: Tensor, epsilon: float = 1e-7) -> Tensor:
    """Rotations [..., 3, 3] whose first axes are those of `axes` [..., 3, 2], orthonormalised."""
    x, y = axes.unbind(-1)
    x = x / x.norm(dim=-1, keepdim=True).clamp_min(epsilon)
    y = y - (x * y).sum(-1, keepdim=True) * x
    y = y / y.norm(dim=-1, keepdim=True).clamp_min(epsilon)
    return torch.stack((x, y, torch.linalg.cross(x, y, dim=-1)), -1)


def euler_rotation(angles: Tensor) -> Tensor:
    """Rotations [..., 3, 3] from turns [..., 3] rad about the fixed axes x, then y, then z."""
    (cx, cy, cz), (sx, sy, sz) = angles.cos().unbind(-1), angles.sin().unbind(-1)
    rows = [cy * cz, sx * sy * cz - cx * sz, cx * sy * cz + sx * sz,
            cy * sz, sx * sy * sz + cx * cz, cx * sy * sz - sx * cz,
            -sy, sx * cy, cx * cy]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def stable_atan2(s: Tensor, c: Tensor, epsilon: float = 1e-4) -> Tensor:
    """atan2 whose gradient stays finite: `c` is moved away from 0 by `epsilon`."""
    away = torch.where(c >= 0, epsilon, -epsilon) * (c.abs() < epsilon)
    return torch.atan2(s, c + away)


def box_corners(centre: Tensor, rot: Tensor, size: Tensor) -> Tensor:
    """Corners [..., 8, 3] of boxes at `centre` [..., 3], `rot` [..., 3, 3], `size` [..., 3] m."""
    signs = [(x, y, z) for z in (-1, 1) for x, y in BOX_CORNERS]
    half = 0.5 * torch.tensor(signs, dtype=centre.dtype, device=centre.device)
    local = size[..., None, :] * half
    return (rot[..., None, :, :] @ local[..., None])[..., 0] + centre[..., None, :]
