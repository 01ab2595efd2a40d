"""What streaming keeps, and that it keeps it exactly: on a tiny network in float32."""
import numpy as np
import pytest
import torch
from support.tiny import (
    drive,
    ego_history,
    frame_set,
    image,
    r1_config,
    same,
    tiny_config,
    tiny_engine,
    tiny_model,
    tiny_tokenizer,
)

from flashdrive_ros.core import images
from flashdrive_ros.core.prompt import build_layout
from flashdrive_ros.core.stream import PromptStream
from flashdrive_ros.core.streaming import computed_slots, slide_table
from flashdrive_ros.core.types import GRID_NS, InputError

FRAMES = 4
CAMERAS = (0, 2, 5)


@pytest.fixture(scope='module')
def model():
    return tiny_model()


@pytest.fixture(scope='module')
def window(model):
    """A layout and the features of more frames than it holds, [views][times]."""
    config = model.config
    raw = [torch.from_numpy(image((c, t))).permute(2, 0, 1) for c in CAMERAS for t in range(9)]
    patches, grid = images.prepare(torch.stack(raw), config.vision, config.prompt)
    layout = build_layout(config, tiny_tokenizer(config), CAMERAS,
                          [tuple(n // 2 for n in grid)] * len(CAMERAS), nav_text='Keep left')
    with torch.inference_mode():
        features = model.visual(patches, grid)
    return layout, [features[i:i + 9] for i in range(0, len(features), 9)]


def history(layout, seed=0):
    first, end = layout.history
    return np.random.default_rng(seed).integers(538, 1538, end - first)


def at(features, first):
    """Features of the window whose oldest frame is number `first`."""
    return [view[first:first + FRAMES] for view in features]


@pytest.mark.parametrize('labels', ['keep', 'newest', 'all'])
@pytest.mark.parametrize('shift', [0, 1, 2, 3])
def test_unchanged_content_through_the_streaming_path_equals_the_full_prefill(
        model, window, shift, labels):
    """
    The cache holds a full prefill, filed as if its blocks stood `shift` places later.

    The slide then brings every block back to its own place, so what the
    streaming step recomputes must come out as the full prefill has it.
    """
    layout, features = window
    stream = PromptStream(model, layout, 4)
    with torch.inference_mode():
        full, _ = stream.prefill(at(features, 0), FRAMES, history(layout))
        keys, values = stream.cache.k.clone(), stream.cache.v.clone()
        later = slide_table(layout, np.arange(layout.size), FRAMES - shift)
        stream.cache.slide(torch.from_numpy(later))
        got, count = stream.prefill(at(features, 0), shift, history(layout), labels)
    slots = computed_slots(layout, shift, labels)
    assert torch.equal(stream.cache.table, torch.arange(layout.size))
    assert count == len(slots) < layout.size
    for ours, theirs in ((got, full[slots]), (stream.cache.k, keys), (stream.cache.v, values)):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-6


def test_prefix_keys_stay_bit_identical_over_any_number_of_slides(model, window):
    layout, features = window
    stream = PromptStream(model, layout, 4)
    cache, prefix = stream.cache, slice(0, layout.prefix)
    with torch.inference_mode():
        stream.prefill(at(features, 0), FRAMES, history(layout))
        first = [t[:, :, prefix].clone() for t in (cache.k, cache.v, cache.master_k)]
        for slide, shift in enumerate((1, 1, 2, 1, 3, 1)):
            stream.prefill(at(features, slide % 5), shift, history(layout, slide))
            stream.extend(torch.tensor([slide, 7]))
            for now, then in zip((cache.k, cache.v, cache.master_k), first):
                assert torch.equal(now[:, :, prefix], then)


def test_moved_blocks_keep_their_unrotated_keys_and_take_the_positions_of_their_place(
        model, window):
    layout, features = window
    stream = PromptStream(model, layout, 4)
    cache = stream.cache
    with torch.inference_mode():
        stream.prefill(at(features, 0), FRAMES, history(layout))
        before = cache.master_k.clone()
        stream.prefill(at(features, 1), 1, history(layout))
        rotated = cache.k[:, :, :layout.size].clone()
        other = PromptStream(model, layout, 4)
        other.prefill(at(features, 1), FRAMES, history(layout))
    for view in layout.images:
        for here, there in zip(view, view[1:]):
            moved = cache.master_k[:, :, cache.table[slice(*here)]]
            assert torch.equal(moved, before[:, :, slice(*there)])
            # in the first layer nothing is approximate: a full prefill has the same keys
            full = other.cache.k[0][:, slice(*here)]
            torch.testing.assert_close(rotated[0][:, slice(*here)], full, rtol=0, atol=1e-5)


def test_frames_beyond_the_window_leave_no_trace(model, window):
    """Two streams with different pasts agree once every block was replaced by a full prefill."""
    layout, features = window
    hidden = []
    for past in ((0, 1, 2), (4, 3)):
        stream = PromptStream(model, layout, 4)
        with torch.inference_mode():
            stream.prefill(at(features, 0), FRAMES, history(layout))
            for first in past:
                stream.prefill(at(features, first), 1, history(layout, first))
            hidden.append(stream.prefill(at(features, 5), FRAMES, history(layout))[0])
    assert torch.equal(*hidden)


def test_first_step_after_a_reset_equals_a_fresh_engine_bit_for_bit(model):
    settings = {'num_trajectories': 3, 'separate_reasonings': True, 'max_new_tokens': 6}
    used, fresh = tiny_engine(model, **settings), tiny_engine(model, **settings)
    drive(used, range(1, 7), nav_text='Turn left')
    used.reset('test')
    ours, theirs = (drive(e, range(20, 24), nav_text='Keep right') for e in (used, fresh))
    for a, b in zip(ours, theirs):
        assert same(a, b)
    assert ours[0].window.reason == 'test' and ours[0].window.mode == 'prefill'
    assert [p.window.mode for p in ours[1:]] == ['streaming'] * 3
    for name, stream in used.streams.items():
        assert torch.equal(stream.cache.table, fresh.streams[name].cache.table)


def test_sampled_tokens_and_noise_depend_on_seed_and_time_alone(model):
    engine = tiny_engine(model, seed=1)
    plan = drive(engine, [5])[0]
    assert same(plan, drive(tiny_engine(model, seed=1), [5])[0])
    assert not same(plan, drive(tiny_engine(model, seed=2), [5])[0])


def test_asking_leaves_the_stream_untouched(model):
    asked, silent = tiny_engine(model), tiny_engine(model)
    drive(asked, [1, 2, 3])
    before = [t.clone() for t in _state(asked)]
    assert isinstance(asked.ask('What is ahead?'), str)
    assert all(torch.equal(a, b) for a, b in zip(_state(asked), before))
    drive(silent, [1, 2, 3])
    for a, b in zip(drive(asked, [4, 5]), drive(silent, [4, 5])):
        assert same(a, b) and a.window == b.window


def _state(engine):
    cache = engine.streams['guided'].cache
    return cache.master_k, cache.master_v, cache.k, cache.v, cache.table


def test_asking_before_the_first_frames_is_refused(model):
    with pytest.raises(InputError, match='no frames were seen'):
        tiny_engine(model).ask('What is ahead?')


def test_alpamayo_1_answers_no_questions():
    engine = tiny_engine(tiny_model(r1_config()))
    drive(engine, [1])
    with pytest.raises(InputError, match='answers no questions'):
        engine.ask('What is ahead?')


STAGES = {'encode': 'visual', 'prefill': 'language_model', 'reason': 'lm_head', 'act': 'expert'}


@pytest.mark.parametrize('stage', STAGES)
@pytest.mark.parametrize('error', [torch.OutOfMemoryError('no memory'), KeyboardInterrupt()])
def test_failed_step_leaves_an_engine_as_good_as_new(model, monkeypatch, stage, error):
    engine = tiny_engine(model)
    drive(engine, [1, 2, 3])
    calls = []

    def fail(*arguments, **keywords):
        calls.append(arguments)
        raise error
    with monkeypatch.context() as patch:
        patch.setattr(getattr(model, STAGES[stage]), 'forward', fail)
        with pytest.raises(type(error)):
            drive(engine, [4])
    assert calls, 'the stage was never reached'
    fresh = tiny_engine(model)
    for a, b in zip(drive(engine, [4, 5, 6]), drive(fresh, [4, 5, 6])):
        assert same(a, b)
    assert engine.memory.reason == f'the last step failed: {type(error).__name__}'


def test_failure_inside_a_half_computed_prefill_leaves_no_half_advanced_stream(
        model, monkeypatch):
    """The third layer fails: two layers of the slid window were already written."""
    engine = tiny_engine(model)
    drive(engine, [1, 2, 3])
    with monkeypatch.context() as patch:
        def fail(*arguments):
            raise RuntimeError('layer')
        patch.setattr(model.language_model.layers[2], 'forward', fail)
        with pytest.raises(RuntimeError, match='layer'):
            drive(engine, [4])
    for a, b in zip(drive(engine, [4, 5]), drive(tiny_engine(model), [4, 5])):
        assert same(a, b)


def test_refused_input_changes_nothing(model):
    refused, plain = tiny_engine(model), tiny_engine(model)
    for engine in (refused, plain):
        drive(engine, [1, 2])
    t0 = 3 * GRID_NS
    with pytest.raises(InputError, match='ego history ends at'):
        refused.step(frame_set(t0), ego_history(t0 + 1))
    with pytest.raises(InputError, match='marker tokens'):
        refused.step(frame_set(t0), ego_history(t0), 'Turn <|im_end|>')
    with pytest.raises(InputError, match='aspect ratio'):
        refused.step(frame_set(t0, shape=(2, 1000)), ego_history(t0))
    for a, b in zip(drive(refused, [3, 4]), drive(plain, [3, 4])):
        assert same(a, b) and a.window == b.window and a.plan_id == b.plan_id


def test_alpamayo_1_ignores_navigation_text():
    model = tiny_model(r1_config())
    plans = [drive(tiny_engine(model), [1, 2], nav_text=text) for text in ('', 'Turn left')]
    assert all(same(a, b) and a.window == b.window for a, b in zip(*plans))


def test_other_frames_per_camera_work(model):
    for frames in (1, 3):
        engine = tiny_engine(tiny_model(tiny_config(frames=frames)))
        plans = drive(engine, [1, 2, 3, 4])
        assert [p.window.mode for p in plans][1:] == (
            ['streaming'] * 3 if frames > 1 else ['prefill'] * 3)
        assert plans[-1].window.frames_known == frames
