"""What a recorded drive achieved, as a dictionary and as a table."""
from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from ..core.types import GRID_NS
from .driving import followed_share, pace
from .plans import STAGES, RecordedPlan
from .recording import CameraTrack, Recording

JITTER_NS = 25_000_000
IDLE_NS = GRID_NS // 2
"""An engine that was free for less than this while a window was the newest had no chance."""
LIVE_NS = 200_000_000
"""Images that are heard later than this after their stamp are replayed."""
END_NS = 2_000_000_000
"""Plans that end less than this before the images do have not stopped."""
QUIET_NS = 20_000_000_000
"""A drive goes on for less than this after the end of its source."""
LEVELS = {1: 'WARN', 2: 'ERROR', 3: 'STALE'}


def summarise(recording: Recording) -> dict:
    """
    Figures of a recording; every key is always there, None where nothing was measured.

    `windows` counts the 100 ms grid windows from the first plan on: `planned`
    got one, `servable` could have had one. A machine that takes longer than
    100 ms for a plan can't serve every window: one is servable if it got a plan
    or if the engine was idle while it was the newest.
    """
    plans = sorted(recording.plans, key=lambda p: p.received_ns)
    drawn = [primitive for plan in plans for primitive in plan.primitives]
    seconds = (plans[-1].received_ns - plans[0].received_ns) / 1e9 if len(plans) > 1 else 0.0
    return {
        'bag': str(recording.path),
        'bag_mb': round(recording.size_bytes / 1e6, 1),
        'duration_s': round((recording.end_ns - recording.begin_ns) / 1e9, 2),
        'source': recording.source,
        'model': plans[-1].model if plans else None,
        'trained': plans[-1].trained if plans else None,
        'plans': len(plans),
        'plans_finite': sum(p.is_finite for p in plans),
        'plans_per_s': round((len(plans) - 1) / seconds, 2) if seconds else None,
        'seconds_to_first_plan': (round((plans[0].received_ns - recording.begin_ns) / 1e9, 2)
                                  if plans else None),
        'plans_stopped_s': _stopped_s(recording, plans),
        'pace': pace(recording),
        'plans_followed_share': followed_share(recording),
        'windows': _windows(recording, plans),
        'stages_ms': {
            'image': _spread([p.image_ms for p in plans]),
            **{stage: _spread([p.stages_ms[stage] for p in plans]) for stage in STAGES},
            'total': _spread([p.total_ms for p in plans])},
        'camera_to_plan_ms': _spread(_camera_to_plan_ms(recording, plans)),
        'window_modes': dict(Counter(p.mode for p in plans)),
        'prefill_reasons': dict(Counter(_kind(p.reason) for p in plans if p.reason)),
        'tokens': _spread([p.tokens for p in plans]),
        'tokens_per_round': _ratio(sum(p.tokens for p in plans), sum(p.rounds for p in plans)),
        'primitives': dict(Counter(p.type for p in drawn)),
        'primitive_decoding': dict(Counter(p.decode_path for p in drawn)),
        'accepted_share': _share(sum(p.accepted for p in plans), sum(p.drafted for p in plans)),
        'cameras': {c.name: {'images': len(c.stamps_ns), 'rate_hz': _rate_hz(c)}
                    for c in recording.cameras.values()},
        'warnings': _warnings(recording, plans),
    }


def grid_windows(track: CameraTrack) -> list[tuple[int, int]]:
    """Stamp and log time of the frames of a camera that begin a 100 ms window."""
    found: list[tuple[int, int]] = []
    for stamp, received in zip(track.stamps_ns, track.received_ns):
        if not found or not 0 <= stamp - found[-1][0] < GRID_NS - JITTER_NS:
            found.append((stamp, received))
    return found


def _stopped_s(recording: Recording, plans: list[RecordedPlan]) -> float | None:
    """How long before the end the plans stopped; None when they came to the end."""
    if not plans:
        return None
    images_end_ns = max((c.received_ns[-1] for c in recording.cameras.values()), default=0)
    awaited_ns = max(images_end_ns, recording.end_ns - QUIET_NS) - plans[-1].received_ns
    making_ns = max(END_NS, round(3e6 * np.median([p.total_ms for p in plans])))
    if awaited_ns <= making_ns:
        return None
    return round((recording.end_ns - plans[-1].received_ns) / 1e9, 2)


def _windows(recording: Recording, plans: list[RecordedPlan]) -> dict:
    if not plans or not recording.cameras:
        return {'seen': 0, 'planned': 0, 'planned_share': None, 'servable': 0,
                'servable_share': None}
    # at the end a plan may have been in the making: that says nothing about those windows
    stopped = _stopped_s(recording, plans) is not None
    windows = [(stamp, arrived) for stamp, arrived in grid_windows(recording.anchor)
               if stamp >= plans[0].stamp_ns - GRID_NS // 2
               and (stopped or stamp <= plans[-1].stamp_ns + GRID_NS // 2)]
    stamps = np.array([p.stamp_ns for p in plans])
    planned = [bool((np.abs(stamps - stamp) <= GRID_NS // 2).any()) for stamp, _ in windows]
    busy = sorted((p.received_ns - round((p.total_ms + p.image_ms) * 1e6), p.received_ns)
                  for p in plans)
    missed = sum(not done and _idle_ns(busy, arrived, until) > IDLE_NS
                 for done, (_, arrived), until in zip(
                     planned, windows, [w[1] for w in windows[1:]] + [recording.end_ns]))
    served = sum(planned)
    return {'seen': len(windows), 'planned': served,
            'planned_share': _share(served, len(windows)), 'servable': served + missed,
            'servable_share': _share(served, served + missed)}


def _camera_to_plan_ms(recording: Recording, plans) -> list[float]:
    """
    From the frames' time to the plan.

    A replay stamps frames with another time than now; then from the time at
    which the frames were heard.
    """
    if not plans or not recording.cameras:
        return []
    track = recording.anchor
    stamps, heard = np.array(track.stamps_ns), np.array(track.received_ns)
    # time that is published may stand still
    if '/clock' not in recording.topics and abs(np.median(heard - stamps)) < LIVE_NS:
        return [p.camera_to_plan_ms for p in plans]
    nearest = [int(np.abs(stamps - p.stamp_ns).argmin()) for p in plans]
    return [(p.received_ns - int(heard[i])) / 1e6 for p, i in zip(plans, nearest)]


def _idle_ns(busy, begin, end) -> int:
    """Time between begin and end in which no plan was being made."""
    idle, at = 0, begin
    for start, stop in busy:
        if stop <= at:
            continue
        if start >= end:
            break
        idle += max(0, start - at)
        at = max(at, stop)
    return idle + max(0, end - at)


def _kind(reason: str) -> str:
    """The reason without its numbers, so that like ones count together."""
    return re.sub(r'\d+(\.\d+)?', 'N', reason)


def _spread(values) -> dict | None:
    """Median and 90th percentile."""
    if not values:
        return None
    return {'median': round(float(np.median(values)), 2),
            'p90': round(float(np.percentile(values, 90)), 2)}


def _ratio(part, whole) -> float | None:
    return round(part / whole, 2) if whole else None


def _share(part, whole) -> float | None:
    return round(part / whole, 4) if whole else None


def _rate_hz(track) -> float | None:
    span = (track.stamps_ns[-1] - track.stamps_ns[0]) / 1e9 if track.stamps_ns else 0
    return round((len(track.stamps_ns) - 1) / span, 2) if span > 0 else None


def _warnings(recording: Recording, plans) -> list[dict]:
    """
    What diagnostics complained of between the first and the last plan, and how often.

    When plans stopped, to the end of the recording: there it says why.
    One entry per status and level, with its last words: they may hold numbers.
    """
    if not plans:
        alarms = recording.alarms
    else:
        stopped = _stopped_s(recording, plans) is not None
        begin = plans[0].received_ns
        end = recording.end_ns if stopped else plans[-1].received_ns
        alarms = [a for a in recording.alarms if begin <= a.time_ns <= end]
    counts = Counter((a.level, a.name) for a in alarms)
    words = {(a.level, a.name): a.message for a in alarms}
    return [{'level': LEVELS.get(level, str(level)), 'name': name,
             'message': words[level, name], 'times': times}
            for (level, name), times in counts.most_common()]


def table(summary: dict) -> str:
    """The summary as lines of text for a terminal."""
    rows = [('recording', f'{summary["bag"]} ({summary["bag_mb"]} MB, '
             f'{summary["duration_s"]} s)')]
    if summary['source']:
        rows.append(('source', summary['source']))
    rows += _plan_rows(summary) if summary['plans'] else [
        ('plans', 'none: no plan was recorded')]
    rows += [('camera', f'{name}: {c["images"]} images'
              + (f', {c["rate_hz"]} Hz' if c['rate_hz'] else ''))
             for name, c in summary['cameras'].items()]
    rows += [('warning', f'{w["level"]} {w["name"]}: {w["message"]} ({w["times"]}x)')
             for w in summary['warnings'][:8]] or [('warnings', 'none')]
    width = max(len(name) for name, _ in rows)
    return '\n'.join(f'{name:<{width}}  {value}' for name, value in rows)


def _plan_rows(summary: dict) -> list[tuple[str, str]]:
    def spread(value):
        return 'not measured' if value is None else (
            f'{value["median"]:8.1f} ms median {value["p90"]:8.1f} ms p90')

    def share(value):
        return 'not measured' if value is None else f'{100 * value:.1f} %'

    windows = summary['windows']
    rows = [
        ('model', summary['model']
         + ('' if summary['trained'] else ' (UNTRAINED: plans mean nothing)')),
        ('plans', f'{summary["plans"]}, {summary["plans_finite"]} of them finite'
         + (f', {summary["plans_per_s"]} per second' if summary['plans_per_s'] else '')),
        ('10 Hz windows', f'{windows["planned"]} of {windows["seen"]} with a plan '
         f'({share(windows["planned_share"])})'),
        ('  servable ones', f'{windows["planned"]} of {windows["servable"]} '
         f'({share(windows["servable_share"])})'),
        *((f'stage {name}', spread(value)) for name, value in summary['stages_ms'].items()),
        ('camera to plan', spread(summary['camera_to_plan_ms'])),
        ('windows by mode', _counts(summary['window_modes'])),
    ]
    if summary['plans_stopped_s']:
        rows.insert(2, ('PLANS STOPPED', f'{summary["plans_stopped_s"]} s before the end'))
    if (drive := summary['pace']) and drive['times_real_time'] is not None:
        waited = 'the world waited for plans: ' if drive['waits_for_plans'] else ''
        rows.insert(2, ('driven', f'{drive["driven_s"]:.1f} s in {drive["wall_s"]:.1f} s; '
                        f'{waited}{drive["times_real_time"]:.2f} times real time'))
    if summary['plans_followed_share'] is not None:
        rows.insert(3, ('plans followed', f'{share(summary["plans_followed_share"])} of that '
                        'time; else the world\'s expert drove'))
    if summary['prefill_reasons']:
        rows.append(('prefill because', _counts(summary['prefill_reasons'])))
    rows.append(('drafted accepted', share(summary['accepted_share'])
                 if summary['accepted_share'] is not None else 'nothing was drafted'))
    if summary['tokens_per_round']:
        rows.append(('tokens a round', f'{summary["tokens_per_round"]:.2f}'))
    if summary['primitives']:
        rows.append(('primitives', f'{_counts(summary["primitives"])} '
                     f'({_counts(summary["primitive_decoding"])})'))
    return rows


def _counts(counts: dict) -> str:
    return ', '.join(f'{key} {value}' for key, value in counts.items()) or 'none'


def write_summary(summary: dict, path) -> None:
    """Write the summary as JSON."""
    Path(path).write_text(json.dumps(summary, indent=2) + '\n', encoding='utf-8')
