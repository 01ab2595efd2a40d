"""What heads read of the small model, and what is recorded around a window."""
import numpy as np
import pytest

from flashdrive_ros.evaluation.windows import ego_history, frame_set, stamp_ns
from flashdrive_ros.heads.reading import IMAGE, PLANS, PROMPT, QUESTION, Reader
from flashdrive_ros.heads.scoring import score
from flashdrive_ros.heads.status import motion_of, rows_of
from flashdrive_ros.heads.surroundings import FAR_M, HORIZON, Surroundings, surroundings_of
from flashdrive_ros.training.episodes import EpisodeConfig, drive

TICK = 20


@pytest.fixture(scope='module')
def episode():
    return drive(30_001, EpisodeConfig(seconds=10.0, push_every_s=0.0, jitter_cameras=0.0,
                                       balanced=False))


def window_of(episode):
    renderer = episode.world.renderer
    sets = [frame_set(renderer.render(m.pose, m.things), stamp_ns(1, t))
            for t, m in enumerate(episode.moments[TICK - 3:TICK + 1], TICK - 3)]
    ego = ego_history(episode.poses()[:TICK + 1], sets[-1].t0_ns)
    return sets, ego, episode.moments[TICK].navigation


def test_reading_holds_every_segment_and_repeats_exactly(episode):
    reader = Reader('small', ('flash',))
    sets, ego, words = window_of(episode)
    first = reader.read(sets[-1], ego, words, sets[:-1])
    assert first.states.dtype == np.float16 and first.states.shape[1] == 256
    assert np.isfinite(first.states).all()
    counts = {s: int((first.segments == s).sum()) for s in set(first.segments.tolist())}
    assert set(counts) == {PROMPT, IMAGE, QUESTION, PLANS['flash']}
    assert counts[IMAGE] == 4 * 45 and counts[QUESTION] == len(reader.question)
    assert counts[PLANS['flash']] >= 36  # the primitive, and the words around it
    reader.reset()
    again = reader.read(sets[-1], ego, words, sets[:-1])
    np.testing.assert_array_equal(first.states, again.states)
    assert len(first.select('no_plan')) == counts[PROMPT] + counts[IMAGE]
    assert len(first.select('plan')) == len(first.states)


def test_unknown_way_of_drawing_is_named():
    with pytest.raises(ValueError, match="not 'guessed'"):
        Reader('small', ('guessed',))


def test_recorded_surroundings_hold_what_the_world_held(episode):
    around = surroundings_of(episode, TICK)
    present = around.agents[..., 0] < FAR_M / 2
    assert present[0].any()
    moved = np.diff(around.progress)
    speeds = [m.speed for m in episode.moments[TICK:TICK + HORIZON]]
    np.testing.assert_allclose(moved, np.array(speeds) * 0.1, atol=0.2)


def test_what_the_expert_did_scores_as_safe(episode):
    _, ego, _ = window_of(episode)
    speed, rate = motion_of(rows_of(ego))
    found = score(episode.future(TICK)[None], np.array([speed]), np.array([rate]),
                  Surroundings.stack([surroundings_of(episode, TICK)]))
    assert found.no_collision[0] == found.on_road[0] == found.no_red_light[0] == 1
    assert found.progress[0] > 0.95
