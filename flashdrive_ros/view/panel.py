"""The text panel below the pictures: reasoning, stage times, planned speed."""
from __future__ import annotations

import numpy as np

from ..recording.plans import RecordedPlan
from . import draw

REASONING_WIDTH = 560
BAR = (590, 330)
PLOT = (950, 310)


def draw_panel(image, plan: RecordedPlan | None, *, seconds: float, bar_ms: float, fresh: bool,
               age_s: float):
    """Fill the panel `image` [144, 1280, 3] in place; `bar_ms` is the full width of the bar."""
    image[:] = draw.BACKGROUND
    draw.text(image, f'{seconds:.2f} s', (14, 26), scale=0.6)
    if plan is None:
        draw.text(image, 'no plan', (110, 26), draw.ALARM, 0.6)
        return
    model = plan.model + ('' if plan.trained else ' (UNTRAINED)')
    draw.text(image, f'plan {plan.plan_id}', (110, 26), scale=0.6)
    draw.text(image, model, (235, 26), draw.DIM if plan.trained else draw.ALARM, 0.45)
    if not fresh:
        draw.text(image, f'{age_s:.1f} s old', (430, 26), draw.HISTORY, 0.5)
    lines = draw.wrap(plan.text or '(no reasoning)', REASONING_WIDTH - 28, 0.52)
    for i, line in enumerate(lines[:3]):
        draw.text(image, line, (14, 56 + 23 * i), scale=0.52)
    window = plan.mode + (f': {plan.reason}' if plan.reason else '')
    drafted = (f'{plan.accepted} of {plan.drafted} drafted accepted, '
               f'{plan.tokens / max(plan.rounds, 1):.1f} a round' if plan.drafted
               else 'no drafting')
    draw.text(image, f'{window};  {plan.tokens} tokens, {drafted}', (14, 132), draw.DIM, 0.4)
    _stage_bar(image, plan, bar_ms)
    _speed_plot(image, plan)


def _stage_bar(image, plan, bar_ms):
    """Stage times end to end on a scale of `bar_ms`, with a mark at 100 ms."""
    x, width = BAR
    draw.text(image, f'engine {plan.total_ms:.0f} ms', (x, 26), scale=0.5)
    draw.text(image, f'camera to plan {plan.camera_to_plan_ms:.0f} ms', (x + 130, 26), draw.DIM,
              0.45)
    image[40:62, x:x + width] = draw.PANEL
    stages = {'image': plan.image_ms, **plan.stages_ms}
    at = 0.0
    for i, (stage, ms) in enumerate(stages.items()):
        begin, at = at, at + ms
        left, right = (x + int(min(1.0, t / bar_ms) * width) for t in (begin, at))
        image[40:62, left:right] = draw.STAGE_COLOURS[stage]
        column, row = x + 110 * (i % 3), 88 + 22 * (i // 3)
        image[row - 9:row, column:column + 9] = draw.STAGE_COLOURS[stage]
        draw.text(image, f'{stage} {ms:.1f}', (column + 14, row), scale=0.4)
    limit = x + int(100 / bar_ms * width)
    draw.line(image, [(limit, 36), (limit, 66)], draw.INK)
    draw.text(image, '100 ms', (min(limit + 3, x + width - 46), 74), draw.DIM, 0.32)


def _speed_plot(image, plan):
    """Planned speed over the horizon."""
    x, width = PLOT
    top, bottom = 44, 120
    if not plan.is_finite:
        draw.text(image, 'plan is not finite', (x, 26), draw.ALARM, 0.5)
        return
    speed, time_s = plan.speed[plan.chosen], plan.time_s[plan.chosen]
    draw.text(image, f'planned speed {speed[0]:.1f} m/s, curvature '
              f'{plan.curvature[plan.chosen][0]:+.4f} 1/m', (x, 26), scale=0.42)
    image[top:bottom, x:x + width] = draw.PANEL
    highest = max(10.0, float(np.ceil(speed.max() / 10) * 10))
    lowest = min(0.0, float(speed.min()))
    points = np.column_stack([
        x + time_s / time_s[-1] * (width - 1),
        bottom - 2 - (speed - lowest) / (highest - lowest) * (bottom - top - 4)])
    draw.line(image, points, draw.CHOSEN, 1)
    draw.text(image, f'{highest:.0f} m/s', (x + 4, top + 12), draw.DIM, 0.32)
    draw.text(image, f'0 to {time_s[-1]:.1f} s', (x, 134), draw.DIM, 0.32)
