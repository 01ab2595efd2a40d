"""Bar and line charts, drawn with what draws everything else here."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np

from ..view import draw

WIDTH, HEIGHT = 960, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 64, 44
COLOURS = ((96, 156, 255), (64, 220, 130), (255, 165, 50), (168, 120, 240), (110, 200, 235))
TICKS = 5


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, Sequence[float]]]) -> np.ndarray:
    """Draw groups of bars; each bar is (value, low, high), with a whisker from low to high."""
    image = _canvas(f'{title}, {unit}')
    series = list(dict.fromkeys(name for group in groups.values() for name in group))
    numbers = [v for group in groups.values() for bar in group.values() for v in bar
               if v is not None and np.isfinite(v)]
    top = _axis(image, max(numbers, default=1.0))
    slot = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    width = 0.8 * slot / max(len(series), 1)
    for g, (label, group) in enumerate(groups.items()):
        begin = LEFT + slot * g + 0.1 * slot
        for s, name in enumerate(series):
            if name in group and group[name][0] is not None:
                _bar(image, begin + s * width, width, group[name], top, COLOURS[s % len(COLOURS)])
        _centred(image, label, LEFT + slot * (g + 0.5), HEIGHT - BOTTOM + 22)
    _legend(image, series)
    return image


def lines(title: str, unit: str, x_label: str,
          series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> np.ndarray:
    """Draw lines with markers; each is (x values, y values)."""
    image = _canvas(f'{title}, {unit}')
    xs = sorted({float(x) for values, _ in series.values() for x in values})
    top = _axis(image, max((y for _, v in series.values() for y in v), default=1.0))
    span = max(xs[-1] - xs[0], 1e-9)

    def across(x):
        return LEFT + 30 + (x - xs[0]) / span * (WIDTH - LEFT - RIGHT - 60)
    for x in xs:
        _centred(image, f'{x:g}', across(x), HEIGHT - BOTTOM + 18)
    _centred(image, x_label, WIDTH / 2, HEIGHT - 8)
    for s, (x, y) in enumerate(series.values()):
        points = np.array([[across(a), _row(b, top)] for a, b in zip(x, y)])
        colour = COLOURS[s % len(COLOURS)]
        draw.line(image, points, colour, 2)
        for point, value in zip(points, y):
            cv2.circle(image, tuple(np.round(point).astype(int).tolist()), 4, colour, -1,
                       cv2.LINE_AA)
            _centred(image, f'{value:.3g}', point[0], point[1] - 10, 0.36)
    _legend(image, list(series))
    return image


def stack(images: Sequence[np.ndarray]) -> np.ndarray:
    """One chart below the other."""
    return np.concatenate(list(images))


def write(path: Path, image: np.ndarray) -> Path:
    """Write a chart as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR)):
        raise OSError(f'{path} can not be written')
    return path


def _canvas(title: str) -> np.ndarray:
    image = np.full((HEIGHT, WIDTH, 3), draw.BACKGROUND, np.uint8)
    draw.text(image, title, (LEFT, 26), scale=0.6)
    return image


def _axis(image, highest: float) -> float:
    """Grid lines with labels; returns the value at the top."""
    step = _nice(max(highest, 1e-9) / TICKS)
    top = step * max(1, int(np.ceil(highest / step + 0.05)))
    for i in range(round(top / step) + 1):
        y = _row(i * step, top)
        draw.line(image, [(LEFT, y), (WIDTH - RIGHT, y)], (46, 50, 58))
        label = f'{i * step:g}'
        draw.text(image, label, (LEFT - 8 - draw.text_width(label, 0.4), y + 4), draw.DIM, 0.4)
    return top


def _nice(step: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is no less than `step`."""
    power = 10.0 ** np.floor(np.log10(step))
    return float(next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9)))


def _row(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP)


def _bar(image, x, width, bar, top, colour):
    value, low, high = bar
    draw.filled(image, [[(x + 2, _row(0, top)), (x + width - 2, _row(0, top)),
                         (x + width - 2, _row(value, top)), (x + 2, _row(value, top))]],
                colour, 0.85)
    at, middle = _row(value, top), x + width / 2
    if low is not None and high is not None and np.isfinite([low, high]).all():
        draw.line(image, [(middle, _row(low, top)), (middle, _row(high, top))], draw.INK)
        for y in (_row(low, top), _row(high, top)):
            draw.line(image, [(middle - 4, y), (middle + 4, y)], draw.INK)
        at = min(at, _row(high, top))
    _centred(image, f'{value:.3g}', middle, at - 6, 0.38)


def _centred(image, words, x, y, scale: float = 0.42):
    draw.text(image, words, (x - draw.text_width(words, scale) / 2, y), draw.INK, scale)


def _legend(image, names):
    x = LEFT
    if len(names) < 2:
        return
    for s, name in enumerate(names):
        colour = COLOURS[s % len(COLOURS)]
        draw.filled(image, [[(x, 40), (x + 10, 40), (x + 10, 50), (x, 50)]], colour, 1.0)
        draw.text(image, name, (x + 16, 50), draw.DIM, 0.42)
        x += 16 + draw.text_width(name, 0.42) + 24
