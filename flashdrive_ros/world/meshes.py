"""
Shapes of the things in the world, as quads in their own frame.

A mesh lies with its middle at the origin of the ground plane, x forward.  Its
quads are drawn in their order (bodies first, then what is painted on them), so
a mesh must look right that way from every side; what can't is two meshes.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

FIXED, PAINT, BRAKE, LEFT, RIGHT, RED, YELLOW, GREEN = range(8)
"""What a quad's colour depends on: nothing, the object's paint, its lamps' state."""

DARK = (26, 26, 28)
GLASS = (44, 54, 66)
BODY, LAMP, PART, PANE = 0.6, 0.8, 1.6, 3.5
"""Smallest apparent size (px) at which a quad is drawn, by what it is to its thing."""


@dataclass(frozen=True)
class Mesh:
    """
    Quads [q, 4, 3] (m), counter-clockwise seen from outside.

    Each has its unit `normals` [q, 3], RGB `colours` [q, 3], `kinds` [q] (what
    the colour depends on), `least` [q], the apparent size in pixels below which
    it is not drawn, and `sizes` [q], its longest edge (m).
    """

    quads: np.ndarray
    colours: np.ndarray
    kinds: np.ndarray
    least: np.ndarray
    normals: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, parts) -> Mesh:
        """Build from (quads, colour, kind, least) parts."""
        quads = np.concatenate([np.reshape(p[0], (-1, 4, 3)) for p in parts]).astype(np.float32)
        counts = [len(np.reshape(p[0], (-1, 4, 3))) for p in parts]
        normals = np.cross(quads[:, 1] - quads[:, 0], quads[:, 2] - quads[:, 0])
        normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-9)
        return cls(
            quads,
            np.repeat(np.array([p[1] for p in parts], np.float32), counts, 0),
            np.repeat(np.array([p[2] for p in parts]), counts),
            np.repeat(np.array([p[3] for p in parts], np.float32), counts),
            normals.astype(np.float32),
            np.linalg.norm(np.roll(quads, -1, 1) - quads, axis=2).max(1))


def frustum(bottom, top, z0: float, z1: float) -> np.ndarray:
    """
    Sides and roof [5, 4, 3] of a block; `bottom` and `top` are (x0, x1, y0, y1).

    In the order rear, front, right, left, roof.
    """
    (a0, a1, b0, b1), (c0, c1, d0, d1) = bottom, top
    low = np.array([[a0, b0, z0], [a1, b0, z0], [a1, b1, z0], [a0, b1, z0]])
    high = np.array([[c0, d0, z1], [c1, d0, z1], [c1, d1, z1], [c0, d1, z1]])
    side = [np.array([low[i], low[j], high[j], high[i]])
            for i, j in ((3, 0), (1, 2), (0, 1), (2, 3))]
    return np.stack([*side, high])


def block(x0, x1, y0, y1, z0, z1) -> np.ndarray:
    """Sides and roof of an upright box."""
    return frustum((x0, x1, y0, y1), (x0, x1, y0, y1), z0, z1)


def inset(quad, u0=0.1, u1=0.9, v0=0.1, v1=0.9, lift=0.01) -> np.ndarray:
    """Part [4, 3] of a quad, from u0 to u1 along its lower edge and v0 to v1 up, lifted off it."""
    return insets(quad, [(u0, u1, v0, v1)], lift)[0]


def insets(quad, parts, lift=0.01) -> np.ndarray:
    """Parts [n, 4, 3] of a flat quad, given as rows (u0, u1, v0, v1) as in `inset`."""
    a, b, c, d = quad
    u0, u1, v0, v1 = np.asarray(parts, dtype=np.float64).T
    u, v = np.stack([u0, u1, u1, u0], 1)[..., None], np.stack([v0, v0, v1, v1], 1)[..., None]
    (ax, ay, az), (bx, by, bz) = b - a, d - a
    normal = np.array([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx])
    return ((a * (1 - u) + b * u) * (1 - v) + (d * (1 - u) + c * u) * v
            + normal * (lift / np.sqrt(normal @ normal)))


def _wheel(x, y, radius) -> np.ndarray:
    """Octagon [3, 4, 3] on the outside of the body at y, facing away from the middle."""
    k = radius * 0.4142
    r = radius
    z = radius
    rows = [((-k, -r), (k, -r), (r, -k), (-r, -k)), ((-r, -k), (r, -k), (r, k), (-r, k)),
            ((-r, k), (r, k), (k, r), (-k, r))]
    quads = np.array([[[x + u, y, z + v] for u, v in row] for row in rows])
    return quads if y < 0 else quads[:, ::-1]


def _road_vehicle(length, width, height, *, belt, cabin, roof, wheel=0.34, clear=0.24) -> Mesh:
    """
    Car-like body: `belt` height of the lower body; `cabin` and `roof` x ranges as shares.

    The lower body is painted, the cabin is glass with a painted frame.
    """
    h, w = length / 2, width / 2
    body = frustum((-h, h, -w, w), (-h * 0.985, h * 0.96, -w * 0.96, w * 0.96), clear, belt)
    top = frustum((length * cabin[0], length * cabin[1], -w * 0.92, w * 0.92),
                  (length * roof[0], length * roof[1], -w * 0.76, w * 0.76), belt, height)
    rear, front = body[:2]
    lamp_v = (0.52, 0.86)
    parts = [
        (np.array([[-h, -w, .01], [h, -w, .01], [h, w, .01], [-h, w, .01]]) * [1.03, 1.06, 1],
         (34, 34, 36), FIXED, BODY),
        (body, (0, 0, 0), PAINT, BODY),
        (top, (0, 0, 0), PAINT, BODY),
        ([inset(top[0], .06, .94, .12, .88), inset(top[1], .05, .95, .08, .92)], GLASS, FIXED,
         PART),
        ([inset(q, a, b, .14, .86) for q in top[2:4] for a, b in ((.08, .48), (.53, .93))],
         GLASS, FIXED, PART),
        ([inset(q, 0, 1, 0, .26) for q in body[:4]], DARK, FIXED, PART),
        ([_wheel(x, y, wheel) for x in (-h * .62, h * .64) for y in (-w - .01, w + .01)],
         DARK, FIXED, PART),
        ([inset(rear, .02, .22, *lamp_v), inset(rear, .78, .98, *lamp_v)], (120, 16, 18),
         BRAKE, LAMP),
        ([inset(rear, .02, .1, *lamp_v, lift=.02), inset(front, .9, .99, *lamp_v, lift=.02)],
         (150, 90, 40), LEFT, PART),
        ([inset(rear, .9, .98, *lamp_v, lift=.02), inset(front, .01, .1, *lamp_v, lift=.02)],
         (150, 90, 40), RIGHT, PART),
        ([inset(front, .04, .24, .5, .82), inset(front, .76, .96, .5, .82)], (236, 236, 224),
         FIXED, LAMP),
        ([inset(rear, .38, .62, .36, .54), inset(front, .38, .62, .12, .28)], (226, 226, 214),
         FIXED, PART),
        ([inset(front, .3, .7, .4, .66)], (36, 36, 40), FIXED, PART),
    ]
    return Mesh.of(parts)


def _truck(length, width, height) -> tuple[Mesh, Mesh]:
    """Cab and cargo box; two meshes because either may hide the other."""
    h, w = length / 2, width / 2
    split = h - 2.1
    cab = block(split + .15, h, -w * .95, w * .95, .5, min(height * .85, 2.9))
    box = block(-h, split, -w, w, 1.0, height)
    skirt = block(-h, split, -w * .8, w * .8, .45, 1.0)
    shadow = np.array([[-h, -w, .01], [h, -w, .01], [h, w, .01], [-h, w, .01]])
    r = .5
    cab_mesh = Mesh.of([
        (cab, (0, 0, 0), PAINT, BODY),
        ([inset(cab[1], .08, .92, .5, .9), inset(cab[2], .35, .95, .5, .88),
          inset(cab[3], .05, .65, .5, .88)], GLASS, FIXED, PART),
        ([inset(cab[1], .1, .9, .06, .26)], DARK, FIXED, PART),
        ([inset(cab[1], .04, .2, .28, .4), inset(cab[1], .8, .96, .28, .4)], (236, 236, 224),
         FIXED, LAMP),
        ([_wheel(h - 1.0, y, r) for y in (-w, w)], DARK, FIXED, PART),
    ])
    box_mesh = Mesh.of([
        (shadow, (34, 34, 36), FIXED, BODY),
        (skirt, (48, 48, 50), FIXED, BODY),
        (box, (214, 212, 206), FIXED, BODY),
        ([inset(box[0], .48, .52, .04, .96), inset(box[2], .1, .9, .35, .6),
          inset(box[3], .1, .9, .35, .6)], (0, 0, 0), PAINT, PART),
        ([inset(skirt[0], .02, .2, .35, .75), inset(skirt[0], .8, .98, .35, .75)],
         (120, 16, 18), BRAKE, LAMP),
        ([_wheel(x, y, r) for x in (-h + 1.1, -h + 2.3) for y in (-w, w)], DARK, FIXED, PART),
    ])
    return cab_mesh, box_mesh


def _cyclist(length, width, height) -> Mesh:
    wheel = [_wheel(x, y, .34) for x in (-length * .3, length * .3) for y in (-.03, .03)]
    return Mesh.of([
        (wheel, DARK, FIXED, BODY),
        (block(-length * .3, length * .3, -.03, .03, .5, .62), (70, 70, 74), FIXED, PART),
        (frustum((-.18, .12, -.14, .14), (-.2, .08, -.16, .16), .5, .98), (44, 48, 66), FIXED,
         BODY),
        (frustum((-.22, .1, -.2, .2), (.08, .3, -.22, .22), .98, 1.5), (0, 0, 0), PAINT,
         BODY),
        (block(.12, .34, -.11, .11, 1.52, height), (198, 156, 128), FIXED, BODY),
    ])


def _pedestrian(stride: float, height: float) -> Mesh:
    k = height / 1.75
    legs = [frustum((x - .08, x + .08, y - .07, y + .07), (-.09, .09, y - .09, y + .09), 0,
                    .85 * k)
            for x, y in ((stride, -.1), (-stride, .1))]
    arms = [frustum((x - .06, x + .06, y - .05, y + .05), (-.06, .06, y - .06, y + .06),
                    .8 * k, 1.4 * k) for x, y in ((-stride, -.27), (stride, .27))]
    return Mesh.of([
        (legs, (46, 50, 70), FIXED, BODY),
        (arms, (0, 0, 0), PAINT, PART),
        (frustum((-.13, .13, -.2, .2), (-.12, .12, -.24, .24), .82 * k, 1.45 * k), (0, 0, 0),
         PAINT, BODY),
        (block(-.11, .11, -.1, .1, 1.48 * k, height), (200, 158, 130), FIXED, BODY),
        (block(-.12, .12, -.11, .11, 1.66 * k, height + .02), (50, 36, 28), FIXED, PART),
    ])


def _signal_head() -> Mesh:
    """A traffic light facing backwards (-x), its foot at z = 0."""
    housing = block(-.18, .18, -.24, .24, 0, 1.2)
    return Mesh.of([
        (housing, (30, 32, 30), FIXED, BODY),
        *(([inset(housing[0], .16, .84, v, v + .27)], (20, 20, 20), kind, BODY)
          for kind, v in ((RED, .69), (YELLOW, .37), (GREEN, .05))),
    ])


SIZES = {
    'car': (4.5, 1.84, 1.48), 'suv': (4.7, 1.92, 1.74), 'hatchback': (3.9, 1.74, 1.52),
    'van': (5.3, 2.0, 2.3), 'truck': (8.6, 2.5, 3.4), 'cyclist': (1.8, 0.6, 1.78),
    'pedestrian': (0.5, 0.6, 1.75), 'traffic_light': (0.36, 0.48, 1.2),
}
"""Length, width and height of each model, m."""

LABELS = {'suv': 'car', 'hatchback': 'car', 'van': 'car'}
"""Class that a model belongs to, where it isn't its own."""

PEDESTRIAN_STRIDES = (0.0, 0.18, 0.3, 0.18, 0.0, -0.18, -0.3, -0.18)


@cache
def meshes_of(model: str, phase: int = 0) -> tuple[Mesh, ...]:
    """Return the meshes of a model; `phase` is the step of a pedestrian's walk."""
    size = SIZES[model]
    if model == 'car':
        return (_road_vehicle(*size, belt=.86, cabin=(-.46, .24), roof=(-.3, .06)),)
    if model == 'suv':
        return (_road_vehicle(*size, belt=1.0, cabin=(-.49, .24), roof=(-.42, .08), wheel=.38,
                              clear=.3),)
    if model == 'hatchback':
        return (_road_vehicle(*size, belt=.88, cabin=(-.49, .27), roof=(-.4, .08)),)
    if model == 'van':
        return (_road_vehicle(*size, belt=1.15, cabin=(-.495, .42), roof=(-.485, .22), wheel=.36,
                              clear=.3),)
    if model == 'truck':
        return _truck(*size)
    if model == 'cyclist':
        return (_cyclist(*size),)
    if model == 'traffic_light':
        return (_signal_head(),)
    stride = PEDESTRIAN_STRIDES[phase % len(PEDESTRIAN_STRIDES)]
    return (_pedestrian(stride, size[2]),)
