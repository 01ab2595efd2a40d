"""The slot map, the positions and the visible sets against a brute-force model of the rules."""
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import tiny_config, tiny_tokenizer

from flashdrive_ros.core.attention import lower_right, runs
from flashdrive_ros.core.prompt import build_layout
from flashdrive_ros.core.streaming import (
    Window,
    computed_slots,
    fill_window,
    shift_between,
    slide_table,
)
from flashdrive_ros.core.types import GRID_NS

TOLERANCE = 40_000_000
WORDS = ('turn', 'left', 'onto', 'main', 'street', 'in', '40m')


@st.composite
def layouts(draw):
    cameras = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=7)))
    grids = [draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in cameras]
    config = tiny_config(frames=draw(st.integers(1, 6)))
    nav = ' '.join(draw(st.lists(st.sampled_from(WORDS), max_size=8)))
    return build_layout(config, tiny_tokenizer(config), cameras, grids, nav_text=nav)


def test_masks_made_while_inferring_can_be_trained_with():
    with torch.inference_mode():
        first = lower_right(3, 7, torch.float32, torch.device('cpu'))
    assert lower_right(3, 7, torch.float32, torch.device('cpu')) is first
    assert not first.is_inference()
    assert (first == 0).int().sum(1).tolist() == [5, 6, 7]


def places(layout):
    """What every slot is for: ('image', view, frame, offset), ('label', ...) or ('text', slot)."""
    found = [('text', slot) for slot in range(layout.size)]
    for kind, spans in (('image', layout.images), ('label', layout.labels)):
        for v, view in enumerate(spans):
            for f, (first, end) in enumerate(view):
                for slot in range(first, end):
                    found[slot] = (kind, v, f, slot - first)
    return found


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(['keep', 'newest', 'all']),
       st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_slot_table_shows_every_frame_in_its_place(layout, labels, shifts):
    """Shift 0 recomputes in place; a shift of all frames or more is a full prefill."""
    frames, what = layout.frames, places(layout)
    newest = frames  # number of the frame after the newest one shown
    table = np.arange(layout.size)
    rows = {slot: (what[slot], slot if what[slot][0] == 'text' else what[slot][2], 0)
            for slot in range(layout.size)}  # row -> (place it was computed for, content, step)
    for step, shift in enumerate(shifts, 1):
        newest += shift
        table = np.arange(layout.size) if shift >= frames else slide_table(layout, table, shift)
        assert sorted(table) == list(range(layout.size))
        computed = set(computed_slots(layout, shift, labels).tolist())
        for slot in computed:
            kind = what[slot][0]
            shown = newest - frames + what[slot][2] if kind == 'image' else what[slot][-1]
            rows[table[slot]] = (what[slot], shown, step)
        for slot, place in enumerate(what):
            of_place, shown, when = rows[table[slot]]
            if place[0] == 'image':
                _, v, f, offset = place
                assert of_place[1] == v and of_place[3] == offset
                assert shown == newest - frames + f
            else:
                assert of_place == place and table[slot] == slot
            due = _is_computed(layout, place, slot, shift, labels)
            assert (slot in computed) == due
            assert (when == step) == due


def _is_computed(layout, place, slot, shift, labels):
    """Say in words what a window computes."""
    newest = place[0] != 'text' and place[2] >= layout.frames - shift
    if shift >= layout.frames or slot >= layout.suffix:
        return True
    if place[0] == 'image':
        return newest
    if place[0] == 'label':
        return labels == 'all' or (labels == 'newest' and newest)
    return False


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 6), st.sampled_from(['keep', 'newest', 'all']))
def test_visible_sets_are_those_of_the_rules(layout, shift, labels):
    """
    Each computed token sees what the full prompt would let it see.

    An image token: the prefix, all views before its own, the older frames of its
    own view with the labels up to its place, and its block up to itself.  The
    suffix sees every image and itself up to the token.
    """
    what = places(layout)
    slots = computed_slots(layout, shift, labels)
    seen = {}
    for first, end, after in runs(slots):
        for index in range(first, end):
            seen[int(slots[index])] = set(range(after - (end - 1 - index)))
    assert sorted(seen) == slots.tolist()
    for slot, visible in seen.items():
        place = what[slot]
        if place[0] == 'text':
            allowed = {k for k in range(layout.size)
                       if what[k][0] != 'text' or k < layout.prefix or layout.suffix <= k}
            allowed = {k for k in allowed if what[k][0] == 'text' or slot >= layout.suffix}
            allowed = {k for k in allowed if what[k][0] != 'text' or k <= slot}
        else:
            own = place[1:3]
            allowed = set(range(layout.prefix))
            for k, other in enumerate(what):
                if other[0] == 'text':
                    continue
                older = other[1] < own[0] or (other[1] == own[0] and other[2] < own[1])
                beside = other[1:3] == own and k <= slot
                if older or beside:
                    allowed.add(k)
        assert visible == allowed


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(30, 400), min_size=1, max_size=9), st.integers(1, 6))
def test_window_places_take_the_nearest_frame_or_repeat_the_next_newer(steps_ms, frames):
    times = np.cumsum(steps_ms) * 1_000_000
    t0 = int(times[-1])
    window = fill_window(t0, [int(t) for t in times], frames, TOLERANCE)
    expected, known = [t0], 1
    for k in range(1, frames):
        wanted = t0 - k * GRID_NS
        near = [int(t) for t in times if abs(t - wanted) <= TOLERANCE and t < expected[0]]
        best = min(near, key=lambda t, wanted=wanted: (abs(t - wanted), t), default=None)
        # the nearest of all frames counts: one that is already shown leaves the place open
        if best is not None and all(abs(best - wanted) <= abs(t - wanted) for t in times):
            expected.insert(0, best)
            known += 1
        else:
            expected.insert(0, expected[0])
    assert window == Window(tuple(expected), known)
    assert list(window.sources) == sorted(window.sources)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6),
       st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_shift_is_the_least_slide_that_keeps_every_kept_frame(old, new):
    old, new = sorted(old), sorted(new)
    frames = len(new)
    shift = shift_between(Window(tuple(old), 1), Window(tuple(new), 1))
    fits = [n for n in range(frames) if len(old) == frames
            and all(new[i] == old[i + n] for i in range(frames - n))
            and all(a < b for a, b in zip(new[frames - n - 1:], new[frames - n:]))]
    assert shift == (fits[0] if fits else frames)
    assert shift_between(None, Window(tuple(new), 1)) == frames
