"""Frames encoded as they arrive: the same plans, and less left to encode in the step."""
import numpy as np
import pytest
from support.tiny import GRID_NS, drive, ego_history, frame_set, r1_config, same, tiny_engine
from support.tiny import tiny_model as make_model

from flashdrive_ros.core.types import CameraFrame, InputError

pytestmark = pytest.mark.usefixtures('one_thread')
CAMERAS = (0, 1, 2, 6)


@pytest.fixture(scope='module')
def model():
    return make_model()


def step_prepared(engine, tick, cameras):
    """Step through a grid time whose frames of `cameras` were there before the others."""
    frames = frame_set(tick * GRID_NS)
    for camera in cameras:
        assert engine.prepare(camera, frames.frames[camera])
    return engine.step(frames, ego_history(tick * GRID_NS))


@pytest.mark.parametrize('early', [CAMERAS, CAMERAS[:3], (6,)])
def test_plans_are_the_same_bit_for_bit(model, early):
    plain, prepared = tiny_engine(model), tiny_engine(model)
    for tick in range(1, 7):
        expected = drive(plain, [tick])[0]
        found = step_prepared(prepared, tick, early)
        assert same(found, expected) and found.window.mode == expected.window.mode
        assert found.window.images_encoded == expected.window.images_encoded - len(early)


def test_a_known_frame_is_not_encoded_again(model):
    engine, frame = tiny_engine(model), frame_set(GRID_NS).frames[1]
    assert engine.prepare(1, frame) and not engine.prepare(1, frame)


def test_another_frame_of_the_same_time_is_not_taken_for_it(model):
    engine, plain = tiny_engine(model), tiny_engine(model)
    frames = frame_set(GRID_NS)
    other = frame_set(GRID_NS, key='other').frames[1]
    engine.prepare(1, CameraFrame(other.image, frames.frames[1].stamp_ns))
    assert same(engine.step(frames, ego_history(GRID_NS)), drive(plain, [1])[0])


def test_a_failure_leaves_the_state_as_it_was(model):
    engine, plain = tiny_engine(model), tiny_engine(model)
    drive(engine, [1, 2])
    drive(plain, [1, 2])
    encoder, engine.memory.encoder = engine.memory.encoder, lambda images: 1 / 0
    with pytest.raises(ZeroDivisionError):
        engine.prepare(1, frame_set(3 * GRID_NS).frames[1])
    engine.memory.encoder = encoder
    found, expected = drive(engine, [3])[0], drive(plain, [3])[0]
    assert same(found, expected) and found.window.mode == 'streaming'


def test_a_reset_forgets_prepared_frames(model):
    engine, frame = tiny_engine(model), frame_set(GRID_NS).frames[1]
    engine.prepare(1, frame)
    engine.reset('test')
    assert engine.prepare(1, frame)


def test_a_camera_that_the_model_does_not_know_is_refused():
    engine = tiny_engine(make_model(r1_config()))
    with pytest.raises(InputError, match='has no camera 3'):
        engine.prepare(3, CameraFrame(np.zeros((64, 96, 3), np.uint8), 0))
