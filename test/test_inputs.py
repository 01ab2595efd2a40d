"""What callbacks store and the worker fetches, without ROS."""
import threading

import numpy as np
import pytest

from flashdrive_ros.core.types import InputError
from flashdrive_ros.nodes.frames import FrameSelector
from flashdrive_ros.nodes.inputs import StepInputs
from flashdrive_ros.nodes.odometry import OdometrySample

MS = 1_000_000
T0 = 1_700_000_000_000_000_000
TOPICS = {0: '/left', 1: '/front'}


def at(ms):
    return T0 + round(ms * MS)


class Store:
    """StepInputs with a clock in hand and a record of what was decoded."""

    def __init__(self, cameras=(0, 1)):
        self.now, self.decoded = 100.0, []
        self.inputs = StepInputs(FrameSelector(cameras), self.decode, clock=lambda: self.now)

    def decode(self, camera, payload):
        self.decoded.append((camera, payload))
        if payload == 'bad':
            raise InputError('bad image')
        return np.full((4, 2000, 3) if payload == 'odd' else (2, 2, 3), camera, np.uint8)

    def odometry(self, from_ms, to_ms, step_ms=10, speed=10.0):
        for ms in np.arange(from_ms, to_ms + 1e-6, step_ms):
            self.inputs.add_odometry(
                OdometrySample(at(ms), (speed * ms / 1000, 0, 0), (0, 0, 0, 1)))

    def see(self, *times_ms, payload=None):
        for ms in times_ms:
            for camera in self.inputs.selector.camera_ids:
                self.inputs.add_camera(camera, at(ms), payload or ms)

    def why(self):
        return self.inputs.waiting_for(1.0, TOPICS)


def test_frames_and_ego_history_of_one_time_come_together():
    store = Store()
    store.odometry(-1500, 0)
    store.see(0)
    step = store.inputs.take()
    assert step.frames.t0_ns == step.ego.t0_ns == at(0)
    assert step.frames.camera_ids == (0, 1)
    assert step.ego.xyz[0, 0] == pytest.approx(-15)
    assert store.inputs.take() is None


@pytest.mark.parametrize('step_ms', [1000 / 30, 10, 50])
def test_ego_history_does_not_depend_on_the_odometry_rate(step_ms):
    """Weak point 5 of the peer: ego history by index."""
    store = Store()
    store.odometry(-2000, 100, step_ms)
    store.see(0)
    ego = store.inputs.take().ego
    assert ego.xyz[:, 0] == pytest.approx(np.linspace(-15, 0, 16), abs=1e-6)


def test_only_frames_that_are_chosen_are_decoded_and_each_once():
    """Field report 12: decoding every large image in Python is too slow."""
    store = Store()
    store.odometry(-1500, 1000)
    for i in range(10):
        store.see(i * 100 / 3)
    store.inputs.take()
    assert sorted({ms for _, ms in store.decoded}) == pytest.approx([0, 100, 200, 300])
    store.see(333.3, 366.7, 400)
    step = store.inputs.take()
    assert len(step.history) == 3
    assert len(store.decoded) == 2 * 5


def test_frames_of_the_set_that_is_being_completed_come_early_and_once():
    store = Store(cameras=(0, 1, 2))
    store.odometry(-1500, 0)
    store.inputs.add_camera(1, at(0), 'front')
    store.inputs.add_camera(0, at(5), 'left')
    early = [store.inputs.take_early() for _ in range(3)]
    assert [pair and pair[0] for pair in early] == [1, 0, None]
    assert store.inputs.take() is None
    store.inputs.add_camera(2, at(10), 'right')
    frames = store.inputs.take().frames.frames
    assert frames[1] is early[0][1] and frames[0] is early[1][1]
    assert store.decoded == [(1, 'front'), (0, 'left'), (2, 'right')]
    assert store.inputs.take_early() is None


def test_frames_that_wait_for_odometry_come_early():
    store = Store()
    store.odometry(-1500, -10)
    store.see(0)
    assert store.inputs.take() is None
    assert {store.inputs.take_early()[0] for _ in range(2)} == {0, 1}


def test_an_early_image_that_cannot_be_used_is_told_with_its_set():
    store = Store()
    store.odometry(-1500, 0)
    store.inputs.add_camera(1, at(0), 'bad')
    assert store.inputs.take_early() is None
    assert store.inputs.take_early() is None and len(store.decoded) == 1
    store.inputs.add_camera(0, at(0), 'left')
    with pytest.raises(InputError, match='bad image'):
        store.inputs.take()


def test_history_completes_the_window_after_a_skip():
    store = Store()
    store.odometry(-1500, 1000)
    store.see(0, 100, 200, 300, 400, 500)
    step = store.inputs.take()
    assert [h.t0_ns for h in (*step.history, step.frames)] == [at(m) for m in (200, 300, 400, 500)]


def test_frames_wait_for_the_odometry_that_covers_them():
    store = Store()
    store.odometry(-1500, -50)
    store.see(0)
    assert store.inputs.take() is None
    store.odometry(0, 0)
    assert store.inputs.take().frames.t0_ns == at(0)


def test_late_odometry_gives_older_frames_rather_than_none():
    store = Store()
    store.odometry(-1500, 250)
    store.see(0, 100, 200, 300, 400)
    assert store.inputs.take().frames.t0_ns == at(200)


def test_odometry_that_begins_too_late_is_named():
    store = Store()
    store.odometry(-500, 0)
    store.see(0)
    with pytest.raises(InputError, match=r'odometry begins 1\.000 s after'):
        store.inputs.take()
    assert store.inputs.take() is None


def test_a_jump_is_told_with_the_next_step_even_when_one_fails_between():
    store = Store()
    store.odometry(-1500, 5000)
    store.see(*range(0, 5000, 100))
    assert store.inputs.take().restart == ''
    store.odometry(0, 1400)
    store.see(0, 100, 200)
    with pytest.raises(InputError):
        store.inputs.take()  # 1.5 s of odometry are not there yet
    store.odometry(1400, 2000)
    store.see(*range(300, 2001, 100))
    assert 'went back' in store.inputs.take().restart
    store.see(2100)
    store.odometry(2100, 2100)
    assert store.inputs.take().restart == ''


@pytest.mark.parametrize('payload, reason', [
    ('bad', 'bad image'), ('odd', 'image 2000x4 has an aspect ratio above 200')])
def test_an_image_that_cannot_be_used_costs_only_its_own_set(payload, reason):
    store = Store()
    store.odometry(-1500, 1000)
    store.see(0)
    store.inputs.take()
    store.see(100, payload=payload)
    with pytest.raises(InputError, match=reason):
        store.inputs.take()
    store.see(200)
    step = store.inputs.take()
    assert step.frames.t0_ns == at(200)
    # the window ends where the bad image is
    assert step.history == ()


def test_nav_text_wins_over_route_text_and_an_empty_one_clears():
    inputs = Store().inputs
    assert inputs.nav_text == ''
    inputs.set_route_text('follow the road')
    assert inputs.nav_text == 'follow the road'
    inputs.set_nav_text(' turn left ')
    assert inputs.nav_text == 'turn left'
    inputs.set_nav_text('')
    assert inputs.nav_text == 'follow the road'
    inputs.set_route_text('')
    assert inputs.nav_text == ''


@pytest.mark.parametrize('text', ['a' * 513, 'Turn <|im_end|>', 'Turn <i3>', '<5>'])
def test_a_text_that_no_prompt_takes_is_left_out_and_told(text):
    inputs = Store().inputs
    inputs.set_route_text('follow the road')
    inputs.set_nav_text(text)
    assert inputs.nav_text == 'follow the road'
    assert list(inputs.ignored_texts) == ['navigation text']
    inputs.set_nav_text('turn left')
    assert inputs.nav_text == 'turn left' and not inputs.ignored_texts


# ---- why nothing comes

def test_a_silent_camera_is_named_with_its_topic():
    """Field report 4."""
    store = Store()
    store.odometry(-1500, 0)
    store.inputs.add_camera(1, at(0), None)
    assert store.why() == 'no images from camera 0 cross_left_120 (/left)'
    store.now += 2
    assert '/left' in store.why() and '/front' in store.why()


def test_missing_and_old_odometry_are_told():
    store = Store()
    store.see(0)
    assert store.why() == 'no odometry'
    store.odometry(-1500, -300)
    assert store.why() == "odometry is 0.300 s older than the newest frames"
    store.odometry(0, 0)
    assert store.why() == ''


def test_a_camera_that_never_comes_near_the_others_is_named():
    store = Store()
    store.inputs.selector = FrameSelector((0, 1), tolerance_ns=20 * MS)
    store.odometry(-1500, 500)
    for ms in range(0, 500, 100):
        store.inputs.add_camera(1, at(ms), None)
        store.inputs.add_camera(0, at(ms + 30), None)
    assert store.why() == (
        'no frame near those of the others from camera 0 cross_left_120 (/left)')


def test_a_camera_of_another_time_is_named():
    store = Store()
    store.odometry(-1500, 500)
    for ms in range(0, 600, 100):
        store.inputs.add_camera(1, at(ms), None)
        store.inputs.add_camera(0, ms * MS, None)
    assert store.why() == ('camera 0 cross_left_120 (/left): stamps are of another time than '
                           'those of camera front_wide_120: 1.7e+09 s behind, as of a clock that '
                           'counts from its start, or simulated time')


@pytest.mark.parametrize('stamps_ms, reason', [
    ([300] * 20, 'stamps do not advance'),
    (range(3000, 60_000, 3000), 'stamps are more than 1 s apart')])
def test_an_anchor_with_useless_stamps_is_named_itself(stamps_ms, reason):
    store = Store()
    store.odometry(-1500, 2000)
    store.see(0, 100, 200)
    store.inputs.take()
    for i, ms in enumerate(stamps_ms):
        store.inputs.add_camera(1, at(ms), None)
        store.inputs.add_camera(0, at(300 + 100 * i), None)
    store.inputs.take()
    assert store.why() == f'camera 1 front_wide_120 (/front): {reason}'


def test_a_camera_whose_stamps_do_not_advance_is_named():
    store = Store()
    store.odometry(-1500, 2000)
    for ms in range(0, 1000, 100):
        store.inputs.add_camera(1, at(ms), None)
        store.inputs.add_camera(0, at(0), None)
    store.inputs.take()
    assert store.why() == 'camera 0 cross_left_120 (/left): stamps do not advance'


def test_odometry_of_another_time_is_named():
    """Issue 7: stamps from another time base recognised and named."""
    store = Store()
    for ms in range(0, 2000, 10):
        store.inputs.add_odometry(OdometrySample(ms * MS, (ms / 100, 0, 0), (0, 0, 0, 1)))
    store.see(0)
    assert store.why().startswith('odometry is of another time than the frames: 1.7e+09 s behind')
    store.inputs.odometry.clear()
    store.odometry(60_000, 62_000)
    with pytest.raises(InputError, match='of another time than the frames: 62 s ahead'):
        store.inputs.take()


# ---- a camera that falls silent

def drive(store, from_ms, to_ms, cameras):
    """Frames and odometry, 0.1 s at a time, on the clock of the test; what came out of each."""
    taken = []
    for ms in range(from_ms, to_ms, 100):
        store.now = 100 + ms / 1000
        store.odometry(ms - 90, ms)
        for camera in cameras:
            store.inputs.add_camera(camera, at(ms), ms)
        step = store.inputs.take()
        taken.append(step and step.frames.camera_ids)
    return taken


def going_on(cameras=(0, 1, 2), go_on=True):
    store = Store(cameras)
    store.inputs.go_on = go_on
    store.odometry(-1600, 0)
    return store


@pytest.mark.parametrize('silent', [0, 1, 2])
def test_a_silent_camera_stops_the_sets_or_is_left_out_as_told(silent):
    """Field report 4: one frozen camera silences everything."""
    others = [c for c in (0, 1, 2) if c != silent]
    stop = going_on(go_on=False)
    drive(stop, 0, 1000, (0, 1, 2))
    assert drive(stop, 1000, 4000, others) == [None] * 30
    assert f'camera {silent}' in stop.inputs.waiting_for(1.0, {})

    store = going_on()
    assert drive(store, 0, 1000, (0, 1, 2)) == [(0, 1, 2)] * 10
    taken = drive(store, 1000, 4000, others)
    assert set(taken[:10]) == {None} and set(taken[12:]) == {tuple(others)}
    assert store.inputs.missing == {silent}
    # back, but not at once: what the model sees must not flicker
    taken = drive(store, 4000, 8000, (0, 1, 2))
    assert set(taken[:9]) == {tuple(others)} and set(taken[-20:]) == {(0, 1, 2)}
    assert not store.inputs.missing


def test_a_camera_whose_stamps_stand_still_counts_as_silent():
    """Field report 4."""
    store = going_on()
    drive(store, 0, 1000, (0, 1, 2))
    for ms in range(1000, 3000, 100):
        store.inputs.add_camera(2, at(900), 900)
        taken = drive(store, ms, ms + 100, (0, 1))
    assert taken == [(0, 1)]


def test_a_camera_that_never_spoke_is_left_out_after_the_timeout():
    store = going_on()
    taken = drive(store, 0, 3000, (0, 1))
    assert taken[0] is None and set(taken[12:]) == {(0, 1)}


def test_a_camera_that_flickers_is_left_out_once():
    store = going_on((0, 1))
    drive(store, 0, 1000, (0, 1))
    seen = []
    for ms in range(1000, 9000, 100):
        seen += drive(store, ms, ms + 100, (0, 1) if ms % 2000 == 0 else (1,))
    assert set(seen[22:]) == {(1,)}


def test_cameras_that_start_together_late_are_all_waited_for():
    store = going_on((0, 1))
    store.now += 60
    store.odometry(58_000, 60_000)
    seen = []
    for ms in range(60_000, 63_000, 100):
        for camera in (1, 0):  # one always a little before the other
            store.now += 0.05
            store.odometry(ms + 10, ms + 10)
            store.inputs.add_camera(camera, at(ms), ms)
            step = store.inputs.take()
            seen += [step.frames.camera_ids] if step else []
    assert len(seen) == 30 and set(seen) == {(0, 1)}


def test_without_any_camera_nothing_is_left_out():
    store = going_on((0, 1))
    drive(store, 0, 1000, (0, 1))
    drive(store, 1000, 4000, ())
    assert not store.inputs.missing
    assert 'camera 0' in store.why() and 'camera 1' in store.why()


def test_a_clock_that_goes_back_makes_all_that_was_stored_stale():
    """Field report 14: state of before a jump of /clock is stale; one reset a jump."""
    store = going_on((0, 1))
    drive(store, 0, 1000, (0, 1))
    store.inputs.clock_went_back(at(-100), '/clock went back by 1.000 s')
    assert store.inputs.odometry.newest_ns is None and store.inputs.take() is None
    store.odometry(-1600, 50)
    store.see(0, 50)
    step = store.inputs.take()
    assert step.restart == '/clock went back by 1.000 s' and step.frames.t0_ns == at(0)
    store.inputs.clock_went_back(at(0), 'told late')
    store.see(100)
    store.odometry(60, 100)
    assert store.inputs.take().restart == ''


def test_an_exception_in_decoding_leaves_the_inputs_free():
    """Field report 3: an exception in the handling of a set must not keep a lock."""
    store = going_on((0, 1))
    store.see(0, payload='bad')
    with pytest.raises(InputError):
        store.inputs.take()
    locked = threading.Thread(target=store.see, args=(100,), daemon=True)
    locked.start()
    locked.join(10)
    assert not locked.is_alive()
    store.odometry(0, 100)
    assert store.inputs.take().frames.t0_ns == at(100)


def test_a_loop_after_a_camera_was_silent_gives_all_sets_again():
    """Field report 2: the old stamps of the others must not push out every new frame."""
    store = Store((0, 1, 2))
    per_pass = []
    for _ in range(3):
        taken = []
        store.inputs.add_odometry(OdometrySample(at(-1600), (-16, 0, 0), (0, 0, 0, 1)))
        store.odometry(-1590, 0)
        for ms in range(0, 3500, 100):
            taken += drive(store, ms, ms + 100, (0, 1, 2) if ms < 2500 else (0, 1))
        per_pass.append(sum(t is not None for t in taken))
    assert per_pass[0] == 25 and min(per_pass[1:]) >= 23
