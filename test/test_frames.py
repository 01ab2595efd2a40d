"""FrameSelector: which frames belong together, without ROS."""
import random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from flashdrive_ros.core.types import GRID_NS
from flashdrive_ros.nodes.frames import KEPT_PENDING, KEPT_REFUSED, KEPT_SETS, FrameSelector
from flashdrive_ros.nodes.stamps import JUMP_NS, StampGate, describe_difference

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
FRONT, LEFT, RIGHT = 1, 0, 2


def at(ms):
    return T0 + round(ms * MS)


def feed(selector, camera, *times_ms):
    """Add items whose payload is their own time; returns what `add` said last."""
    said = None
    for ms in times_ms:
        said = selector.add(camera, at(ms), (camera, ms))
    return said


def taken(selector, **arguments):
    """Time of the set and of each frame, ms after T0; None without a set."""
    selection = selector.take(**arguments)
    return selection and as_ms(selection)


def as_ms(selection):
    return ((selection.t0_ns - T0) / MS,
            {c: (f.stamp_ns - T0) / MS for c, f in selection.frames.items()})


def all_sets(selector, arrivals, tolerance=None):
    """Every set that comes out while (camera, stamp) arrive one by one."""
    sets = {}
    for camera, stamp in arrivals:
        assert selector.add(camera, stamp, None) is None
        newest = selector.newest_ns()
        if newest is None:
            continue
        # one frame may complete several sets with a hole between them: oldest first
        for until_ns in range(newest - KEPT_SETS * GRID_NS, newest + 1, GRID_NS):
            selection = selector.take(history=KEPT_SETS, until_ns=until_ns)
            if selection is not None:
                for s in (*selection.history, selection):
                    sets[s.t0_ns] = {c: f.stamp_ns for c, f in s.frames.items()}
    return sets


# ---- what is chosen

def test_cameras_in_step_give_a_set_as_soon_as_the_last_one_arrives():
    s = FrameSelector([LEFT, FRONT, RIGHT])
    for ms in (0, 100, 200):
        feed(s, FRONT, ms)
        feed(s, LEFT, ms)
        assert taken(s) is None
        feed(s, RIGHT, ms)
        assert taken(s) == (ms, {LEFT: ms, FRONT: ms, RIGHT: ms})


def test_30_hz_cameras_give_frames_100_ms_apart():
    """Weak point 1 of the peer: frames by count."""
    s = FrameSelector([LEFT, FRONT])
    for i in range(31):
        feed(s, FRONT, i * 100 / 3)
        feed(s, LEFT, i * 100 / 3)
    last = s.take(history=3)
    assert [round(as_ms(x)[0]) for x in (*last.history, last)] == [700, 800, 900, 1000]
    assert [round(as_ms(x)[1][LEFT]) for x in (*last.history, last)] == [700, 800, 900, 1000]


def test_a_repeated_frame_changes_nothing():
    """Weak point 2 of the peer."""
    s = FrameSelector([LEFT, FRONT])
    feed(s, FRONT, 0)
    feed(s, LEFT, 0)
    assert taken(s) is not None
    feed(s, FRONT, 0)
    feed(s, LEFT, 0)
    assert taken(s) is None
    assert s.tracks[FRONT].counts['repeated'] == 1


def test_the_nearest_frame_is_waited_for_when_it_is_due():
    s = FrameSelector([LEFT, FRONT])
    for i in range(12):
        feed(s, LEFT, i * 100 / 3)
        feed(s, FRONT, i * 100 / 3)
    taken(s)
    feed(s, FRONT, 400)
    assert taken(s) is None  # 367 is within the tolerance, but 400 is due
    feed(s, LEFT, 400)
    assert taken(s) == (400, {LEFT: 400, FRONT: 400})


def test_a_camera_a_little_early_is_not_waited_for_again():
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 500, 100):
        feed(s, LEFT, ms - 5)
        feed(s, FRONT, ms)
    assert taken(s) == (400, {LEFT: 395, FRONT: 400})


def test_a_frame_outside_the_tolerance_leaves_a_hole():
    s = FrameSelector([LEFT, FRONT], tolerance_ns=30 * MS)
    for ms in range(0, 300, 100):
        feed(s, FRONT, ms)
        feed(s, LEFT, ms + 31)
    assert taken(s) is None
    assert s.tracks[LEFT].counts['unmatched'] == 3


@pytest.mark.parametrize('phase', range(-50, 51, 10))
def test_a_10_hz_camera_of_any_phase_is_served(phase):
    s = FrameSelector([LEFT, FRONT])
    arrivals = sorted([(ms, FRONT) for ms in range(0, 1001, 100)]
                      + [(ms + phase, LEFT) for ms in range(0, 1001, 100)])
    sets = all_sets(s, [(c, at(ms)) for ms, c in arrivals])
    assert len(sets) >= 10


def test_the_first_frame_of_the_anchor_starts_the_grid():
    s = FrameSelector([LEFT, FRONT])
    feed(s, LEFT, 0, 33, 67)
    feed(s, FRONT, 70)
    feed(s, LEFT, 100)
    assert taken(s) == (70, {LEFT: 67, FRONT: 70})


def test_the_anchor_is_the_front_wide_camera_or_else_the_lowest_id():
    assert FrameSelector([6, 1, 0]).anchor == 1
    assert FrameSelector([6, 2]).anchor == 2
    with pytest.raises(ValueError, match='anchor 4'):
        FrameSelector([0, 1], anchor=4)


@pytest.mark.parametrize('period', [99, 101, 104])
def test_the_grid_follows_an_anchor_that_drifts(period):
    s = FrameSelector([FRONT])
    sets = all_sets(s, [(FRONT, at(i * period)) for i in range(300)])
    times = sorted(sets)
    assert len(sets) >= 299
    assert max(abs(sets[t][FRONT] - t) for t in times) < 40 * MS
    steps = [b - a for a, b in zip(times, times[1:])]
    assert steps.count(GRID_NS) >= 0.8 * len(steps)
    assert all(abs(step - GRID_NS) < 40 * MS for step in steps)


# ---- the newest, and what came before

def test_a_slow_consumer_gets_the_newest_set_and_can_ask_for_those_before():
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 1000, 100):
        feed(s, FRONT, ms)
        feed(s, LEFT, ms)
    last = s.take(history=3)
    assert as_ms(last)[0] == 900
    assert [as_ms(x)[0] for x in last.history] == [600, 700, 800]
    assert s.counts['skipped'] == 9
    assert s.take() is None


def test_history_ends_at_a_hole():
    s = FrameSelector([LEFT, FRONT])
    for ms in (0, 100, 200, 400, 500):
        feed(s, FRONT, ms)
        feed(s, LEFT, ms)
    last = s.take(history=3)
    assert as_ms(last)[0] == 500
    assert [as_ms(x)[0] for x in last.history] == [400]


def test_history_holds_sets_that_were_taken_before():
    s = FrameSelector([FRONT])
    feed(s, FRONT, 0)
    first = s.take()
    feed(s, FRONT, 100)
    assert s.take(history=3).history[0].frames[FRONT] is first.frames[FRONT]


def test_sets_after_until_stay_for_later():
    s = FrameSelector([FRONT])
    feed(s, FRONT, 0, 100, 200)
    assert taken(s, until_ns=at(150)) == (100, {FRONT: 100})
    assert taken(s, until_ns=at(150)) is None
    assert s.newest_ns() == at(200)
    assert taken(s, until_ns=at(250)) == (200, {FRONT: 200})


# ---- stamps that lie

def test_a_late_frame_is_dropped_and_counted():
    s = FrameSelector([LEFT, FRONT])
    feed(s, FRONT, 0, 100)
    feed(s, LEFT, 0, 100, 67)
    assert s.tracks[LEFT].counts['late'] == 1
    assert taken(s) == (100, {LEFT: 100, FRONT: 100})


def test_time_going_back_starts_again_with_the_reason():
    """Field reports 2 and 14."""
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 5000, 100):
        feed(s, FRONT, ms)
        feed(s, LEFT, ms)
    assert as_ms(s.take())[0] == 4900
    said = []
    for ms in range(0, 500, 100):  # the bag starts again
        said.append(feed(s, LEFT, ms))
        said.append(feed(s, FRONT, ms))
    assert [x for x in said if x] == ['camera front_wide_120: time went back by 4.800 s']
    last = s.take(history=8)
    assert as_ms(last) == (400, {LEFT: 400, FRONT: 400})
    # nothing of before the jump, and the two frames that proved the jump are not lost
    assert [as_ms(x)[0] for x in last.history] == [0, 100, 200, 300]


def test_a_gap_starts_again_with_the_reason():
    s = FrameSelector([LEFT, FRONT])
    feed(s, FRONT, 0)
    feed(s, LEFT, 0)
    assert taken(s) is not None
    feed(s, LEFT, 3000)
    feed(s, FRONT, 3000)
    feed(s, LEFT, 3100)
    assert feed(s, FRONT, 3100) == 'camera front_wide_120: a gap of 3.100 s'
    last = s.take(history=8)
    assert [as_ms(x)[0] for x in (*last.history, last)] == [3000, 3100]


@pytest.mark.parametrize('odd_ms', [-T0 / MS, -60_000, 60_000, 1e9])
def test_one_odd_stamp_of_any_camera_does_no_harm(odd_ms):
    s = FrameSelector([LEFT, FRONT])
    times = []
    for ms in range(0, 1000, 100):
        for camera in (FRONT, LEFT):
            feed(s, camera, ms)
            if ms == 300:
                feed(s, camera, odd_ms)
        times.append(as_ms(s.take())[0])
    assert times == list(range(0, 1000, 100))
    assert s.counts['jumps'] == 0
    assert s.tracks[FRONT].counts['foreign'] == s.tracks[LEFT].counts['foreign'] == 1


def test_a_camera_of_another_time_base_is_counted_and_spoils_nothing():
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 1000, 100):
        feed(s, LEFT, ms - 1e6)
        feed(s, FRONT, ms)
    assert taken(s) is None
    # the first one came before the anchor had a say
    assert s.tracks[LEFT].counts['foreign'] == 9
    feed(s, LEFT, 1000)
    feed(s, FRONT, 1000)
    assert taken(s) == (1000, {LEFT: 1000, FRONT: 1000})


def test_a_silent_camera_gives_no_sets_until_it_speaks_again():
    """Field report 4."""
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 100_000, 100):
        feed(s, FRONT, ms)
    assert taken(s) is None
    feed(s, FRONT, 100_000)
    feed(s, LEFT, 100_000)
    assert taken(s) == (100_000, {LEFT: 100_000, FRONT: 100_000})


def test_memory_is_bounded_whatever_comes():
    s = FrameSelector([LEFT, FRONT])
    random.seed(1)
    for i in range(20_000):
        camera = random.choice([LEFT, LEFT, FRONT])
        s.add(camera, at(i + random.uniform(-2000, 2000) * (random.random() < 0.2)), None)
    held = sum(len(t.pending) + len(t.foreign) for t in s.tracks.values())
    held += sum(len(slot.frames) for slot in s._slots.values())
    assert held + len(s._refused) <= 2 * (KEPT_PENDING + KEPT_REFUSED + KEPT_SETS) + KEPT_REFUSED


@pytest.mark.parametrize('rate', [3, 5, 7])
def test_cameras_slower_than_the_grid_give_what_they_have(rate):
    s = FrameSelector([LEFT, FRONT])
    arrivals = [(c, at(i * 1000 / rate)) for i in range(5 * rate) for c in (LEFT, FRONT)]
    sets = all_sets(s, arrivals)
    assert len(sets) >= 5 * rate - 3
    assert all(abs(x - t) <= s.tolerance_ns for t, f in sets.items() for x in f.values())


# ---- clocks that step, and cameras that fall silent

@pytest.mark.parametrize('step_ms', [-900, -500, -250])
def test_a_clock_that_steps_back_a_little_starts_again_instead_of_waiting(step_ms):
    """Issue 7, clock steps either way: 0.5 s of images must not pass for 0.1 s."""
    s = FrameSelector([LEFT, FRONT])
    said = []
    for ms in range(0, 4000, 100):
        for camera in (LEFT, FRONT):
            said.append(feed(s, camera, ms + (step_ms if ms >= 2000 else 0)))
    assert [x for x in said if x] == [
        f'camera front_wide_120: time went back by {-(step_ms + 200) / 1000:.3f} s']
    last = s.take(history=KEPT_SETS)
    assert as_ms(last)[0] == 3900 + step_ms
    assert as_ms(last.history[0])[0] >= 2000 + step_ms  # nothing of before the step


def test_a_clock_that_steps_on_a_little_leaves_a_hole():
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 3000, 100):
        for camera in (LEFT, FRONT):
            assert feed(s, camera, ms + (500 if ms >= 2000 else 0)) is None
    last = s.take(history=KEPT_SETS)
    assert [as_ms(x)[0] for x in (*last.history, last)] == list(range(2500, 3500, 100))


@pytest.mark.parametrize('camera', [LEFT, FRONT])
def test_one_stamp_a_little_ahead_costs_two_frames_not_its_whole_lead(camera):
    """Issue 7, future stamps."""
    s = FrameSelector([LEFT, FRONT])
    times = []
    for ms in range(0, 3000, 100):
        for c in (LEFT, FRONT):
            feed(s, c, ms + (900 if ms == 1000 and c == camera else 0))
        if (found := taken(s)) is not None:
            times.append(found[0])
    assert times[:10] == list(range(0, 1000, 100))
    assert times[10:] == list(range(round(times[10]), 3000, 100)) and times[10] <= 1300


@pytest.mark.parametrize('silent', [LEFT, FRONT])
def test_sets_go_on_without_a_camera_that_is_not_required_and_take_it_back(silent):
    s = FrameSelector([LEFT, FRONT, RIGHT])
    others = [c for c in (LEFT, FRONT, RIGHT) if c != silent]
    for ms in range(0, 1000, 100):
        for camera in (others if ms >= 500 else s.camera_ids):
            feed(s, camera, ms)
    assert taken(s)[0] == 400
    s.require(others)
    for ms in range(1000, 1500, 100):
        for camera in others:
            feed(s, camera, ms)
    assert taken(s) == (1400, dict.fromkeys(others, 1400))
    assert s.absent() == []
    s.require(s.camera_ids)
    for ms in range(1500, 1700, 100):
        for camera in s.camera_ids:
            feed(s, camera, ms)
    assert taken(s) == (1600, dict.fromkeys(s.camera_ids, 1600))
    assert s.anchor == FRONT


def test_the_frames_of_the_others_are_there_at_once_when_a_camera_is_left_out():
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 1000, 100):
        feed(s, FRONT, ms)
    assert s.take() is None
    s.require([FRONT])
    assert len(s.take(history=3).history) == 3


def test_no_camera_at_all_and_unknown_ones_can_not_be_required():
    s = FrameSelector([LEFT, FRONT])
    for cameras in ([], [LEFT, 5]):
        with pytest.raises(ValueError, match='some of'):
            s.require(cameras)


def test_sets_that_nobody_asks_for_again_are_let_go():
    s = FrameSelector([FRONT])
    for ms in range(0, 1000, 100):
        feed(s, FRONT, ms)
    s.take(history=3)
    assert sum(len(slot.frames) for slot in s._slots.values()) == 4


def test_a_driver_that_sets_no_stamps_is_recognised():
    s = FrameSelector([FRONT])
    for _ in range(10):
        s.add(FRONT, 0, None)
    assert s.trouble(FRONT) == 'stamps do not advance from 0: the driver sets none'


def test_each_camera_tells_how_far_its_frames_are_from_the_grid():
    """Issue 7, skew report."""
    s = FrameSelector([LEFT, FRONT])
    for ms in range(0, 1000, 100):
        feed(s, FRONT, ms)
        feed(s, LEFT, ms + 20)
    assert s.tracks[FRONT].offset_ns == 0 and s.tracks[LEFT].offset_ns == 20 * MS


# ---- against a model that sees all frames at once

def nearest_sets(streams, tolerance):
    """For each grid time the nearest frame of each camera, each frame used once."""
    origin = streams[FRONT][0]
    sets, used = {}, dict.fromkeys(streams, -1)
    for grid in range(origin, streams[FRONT][-1] + GRID_NS, GRID_NS):
        chosen = {}
        for camera, stamps in streams.items():
            free = [x for x in stamps if x > used[camera]]
            if free:
                best = min(free, key=lambda x: (abs(x - grid), -x))
                if abs(best - grid) <= tolerance:
                    chosen[camera] = used[camera] = best
        if len(chosen) == len(streams):
            sets[grid] = chosen
    return sets


def arrivals_of(streams, delays):
    return [(c, x) for _, c, x in sorted(
        (x + delays[c], c, x) for c, stamps in streams.items() for x in stamps)]


RATES = [10, 12.5, 15, 20, 24, 25, 29.97, 30, 50, 60]


@settings(max_examples=150, deadline=None)
@given(rates=st.lists(st.sampled_from(RATES), min_size=3, max_size=3),
       phases=st.lists(st.integers(-60, 60), min_size=2, max_size=2),
       delays=st.lists(st.integers(0, 250), min_size=3, max_size=3),
       drops=st.sets(st.integers(0, 120), max_size=30),
       tolerance=st.integers(20, 60))
@example(rates=[10, 12.5, 12.5], phases=[0, 0], delays=[0, 0, 0], drops={0, 2, 3}, tolerance=20)
def test_any_rates_phases_delays_and_drops_choose_as_the_model_does(
        rates, phases, delays, drops, tolerance):
    offsets = {FRONT: 0, LEFT: phases[0], RIGHT: phases[1]}
    streams = {}
    for camera, rate in zip((FRONT, LEFT, RIGHT), rates):
        stamps = [at(offsets[camera] + i * 1000 / rate) for i in range(int(3 * rate))]
        # the anchor loses nothing: the grid of the model does not follow drift
        streams[camera] = [x for i, x in enumerate(stamps)
                           if camera == FRONT or i not in drops] or stamps
    expected = nearest_sets(streams, tolerance * MS)
    selector = FrameSelector(streams, tolerance * MS)
    found = all_sets(selector, arrivals_of(
        streams, {c: d * MS for c, d in zip(streams, delays)}))
    assume(selector.counts['shifts'] == 0)
    last = max(found, default=0)
    assert found == {g: f for g, f in expected.items() if g <= last}
    # and what was still open when the frames ended is only the last moments
    assert not expected or max(expected) - last <= 3 * GRID_NS


@settings(max_examples=150, deadline=None)
@given(data=st.data(), jitter=st.integers(0, 12), rate=st.sampled_from([10, 20, 30]))
def test_jitter_and_late_frames_never_give_a_bad_set(data, jitter, rate):
    streams = {}
    for camera in (FRONT, LEFT):
        noise = data.draw(st.lists(st.integers(-jitter, jitter), min_size=2 * rate,
                                   max_size=2 * rate))
        streams[camera] = [at(i * 1000 / rate + n) for i, n in enumerate(noise)]
    lateness = data.draw(st.lists(st.integers(0, 80), min_size=4 * rate, max_size=4 * rate))
    arrivals = sorted((x + lateness.pop() * MS, c, x) for c in streams for x in streams[c])
    selector = FrameSelector(streams)
    sets = all_sets(selector, [(c, x) for _, c, x in arrivals])
    times = sorted(sets)
    for camera in streams:
        chosen = [sets[t][camera] for t in times]
        assert chosen == sorted(set(chosen))  # forwards, and each frame once
        assert all(abs(x - t) <= selector.tolerance_ns for x, t in zip(chosen, times))
    assert all(b - a >= GRID_NS - 50 * MS for a, b in zip(times, times[1:]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([FRONT, LEFT]), st.integers(-2**40, 2**62)),
                max_size=60))
def test_no_stamps_whatever_raise_or_go_backwards_unannounced(items):
    selector = FrameSelector([FRONT, LEFT])
    last = None
    for camera, stamp in items:
        if selector.add(camera, stamp, None):
            last = None
        selection = selector.take()
        if selection is not None:
            assert last is None or selection.t0_ns > last
            last = selection.t0_ns


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([FRONT, LEFT, RIGHT]), st.integers(0, 400),
                          st.sets(st.sampled_from([FRONT, LEFT, RIGHT]), min_size=1)),
                max_size=80))
def test_cameras_may_come_and_go_at_any_time(items):
    selector = FrameSelector([FRONT, LEFT, RIGHT])
    now = 0
    for camera, step, required in items:
        now += step
        selector.add(camera, at(now), None)
        selector.require(required)
        assert selector.anchor in required
        selection = selector.take(history=3)
        if selection is not None:
            for s in (*selection.history, selection):
                assert set(s.frames) == required
                assert all(abs(f.stamp_ns - s.t0_ns) <= selector.tolerance_ns
                           for f in s.frames.values())


# ---- the gate and the names of clocks

def test_the_gate_names_each_kind_of_stamp():
    gate = StampGate()
    assert [gate.judge(at(ms)) for ms in (0, 100, 100, 50, 5000, 200, 9000, 9100, 9200)] == [
        'new', 'new', 'repeated', 'late', 'foreign', 'new', 'foreign', 'jump', 'new']
    assert gate.limit_ns == JUMP_NS


def test_the_gate_takes_late_stamps_that_go_on_for_a_step_back():
    gate = StampGate()
    assert [gate.judge(at(ms)) for ms in (0, 500, 100, 133, 120, 150, 220, 230)] == [
        'new', 'new', 'late', 'late', 'late', 'late', 'jump', 'new']
    assert gate.witness_ns == at(150)


@pytest.mark.parametrize('stamp_s, said', [
    (0, '1.7e+09 s behind, the driver sets no stamp'),
    (5000, '1.7e+09 s behind, as of a clock that counts from its start, or simulated time'),
    (1_700_000_037.2, '37.2 s ahead, as of TAI (a PTP clock without UTC offset)'),
    (1_384_035_218, '3.15965e+08 s behind, as of GPS time'),
    (1_700_007_200.1, '7200.1 s ahead, as of local time instead of UTC'),
    (1_700_019_800, '19800 s ahead, as of local time instead of UTC'),
    (1_699_999_990, '10 s behind'),
])
def test_the_clock_of_a_foreign_stamp_is_named(stamp_s, said):
    """Issue 7: stamps from another time base recognised and named."""
    assert describe_difference(round(stamp_s * 1e9), T0) == said
