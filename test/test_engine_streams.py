"""Whole engines driven at random: every plan's window, and what the caches really hold."""
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.tiny import SHAPES, ego_history, frame_set, tiny_config, tiny_engine, tiny_model

from flashdrive_ros.core import images
from flashdrive_ros.core.trajectory_tokens import history_token_ids
from flashdrive_ros.core.types import GRID_NS, NANOSECONDS

TOLERANCE = 40_000_000
TEXTS = ('', 'Turn left', 'Continue straight for 120m, then keep left')
MODULES = ('visual', 'language_model', 'lm_head', 'expert')
model_of = lru_cache(maxsize=8)(lambda frames: tiny_model(tiny_config(frames=frames)))

cameras = st.sets(st.integers(0, 6), min_size=1, max_size=7).map(lambda c: tuple(sorted(c)))
slides = st.tuples(st.just('slide'), st.integers(1, 3), st.integers(-12, 12))
"""Grid times to go on by (those left out come as history), and jitter in ms."""
events = st.one_of(
    slides, slides, slides,
    st.tuples(st.just('gap'), st.integers(2, 9)),
    st.tuples(st.just('back'), st.integers(1, 30)),
    st.tuples(st.just('repeat')),
    st.tuples(st.just('cameras'), cameras),
    st.tuples(st.just('size'), st.sampled_from(SHAPES)),
    st.tuples(st.just('text'), st.sampled_from(TEXTS)),
    st.tuples(st.just('reset')),
    st.tuples(st.just('failure'), st.sampled_from(MODULES)))


class Rules:
    """A brute-force model of the engine's memory: all frame sets since it last forgot."""

    def __init__(self, frames):
        self.frames = frames
        self.forget()

    def forget(self):
        self.sets, self.window, self.prompt = {}, None, None

    def step(self, t0, history, kind, prompt):
        """Sources of the window, places known, and whether it must be computed whole."""
        horizon = t0 - self.frames * GRID_NS
        fresh = [t for t in (*history, t0) if t not in self.sets and t > horizon]
        self.sets |= dict.fromkeys(fresh, kind)
        sources, known = [t0], 1
        for k in range(1, self.frames):
            wanted = t0 - k * GRID_NS
            best = min((t for t, of in self.sets.items() if of == kind),
                       key=lambda t, wanted=wanted: (abs(t - wanted), t))
            own = abs(best - wanted) <= TOLERANCE and best < sources[0]
            sources.insert(0, best if own else sources[0])
            known += own
        shift = self.frames
        if self.window is not None and self.prompt == (kind, prompt):
            for n in reversed(range(self.frames)):
                new = sources[self.frames - n - 1:]
                if sources[:self.frames - n] == self.window[n:] and new == sorted(set(new)):
                    shift = n
        self.window, self.prompt = sources, (kind, prompt)
        return sources, known, shift, len(fresh)


def first_layer_keys(model, x):
    """Keys [kv_heads, n, d] of the first layer before rotation, for embeddings `x` [n, hidden]."""
    layer, config = model.language_model.layers[0], model.config.text
    qkv = layer.self_attn.qkv_proj(layer.input_layernorm(x)).unflatten(-1, (-1, config.head_dim))
    heads = config.num_attention_heads
    keys = qkv[:, heads:heads + config.num_key_value_heads]
    return layer.self_attn.k_norm(keys).transpose(0, 1)


def expected_keys(model, layout, sources, shape, t0):
    """First-layer keys of every slot, from the images that should be in the window."""
    config = model.config
    ids = layout.token_ids.copy()
    ids[slice(*layout.history)] = history_token_ids(ego_history(t0).xyz, config.prompt)
    x = model.embed_tokens(torch.from_numpy(ids))
    for v, camera in enumerate(layout.camera_ids):
        for f, t in enumerate(sources):
            image = frame_set(t, (camera,), shape).frames[camera].image
            raw = torch.from_numpy(image).permute(2, 0, 1)[None]
            patches, grid = images.prepare(raw, config.vision, config.prompt)
            first, end = layout.images[v][f]
            x[first + 1:end - 1] = model.visual(patches, grid)[0].tokens
    return first_layer_keys(model, x)


def check_caches(engine, sources, shape, t0):
    stream = engine.streams['guided']
    cache, layout = stream.cache, stream.layout
    with torch.inference_mode():
        expected = expected_keys(engine.model, layout, sources, shape, t0)
    held = cache.master_k[0][:, cache.table]
    torch.testing.assert_close(held, expected, rtol=0, atol=2e-5)
    rotated = cache.k[0][:, :layout.size]
    half = cache.config.head_dim // 2
    for axis in range(3):
        assert np.array_equal(layout.positions[axis][:layout.prefix], np.arange(layout.prefix))
    turned = torch.cat((-held[..., half:], held[..., :half]), -1)
    cos, sin = cache.cos[:layout.size], cache.sin[:layout.size].abs()
    sign = cache.sin[:layout.size, half:].sign().repeat(1, 2)
    torch.testing.assert_close(rotated, held * cos + turned * sin * sign, rtol=0, atol=1e-5)


@settings(max_examples=30, deadline=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(frames=st.integers(1, 6), first_cameras=cameras, labels=st.sampled_from(
    ['keep', 'newest', 'all']), script=st.lists(events, min_size=2, max_size=7))
def test_any_drive_shows_the_windows_that_the_rules_demand(frames, first_cameras, labels, script):
    """Weak point 9 of the peer too: only new frames are encoded."""
    model = model_of(frames)
    engine = tiny_engine(model, recompute_labels=labels, max_new_tokens=2)
    rules = Rules(frames)
    now = {'cameras': first_cameras, 'shape': SHAPES[0], 'text': ''}
    grid, last = 50, None
    for event in [('slide', 1, 0), *script, ('slide', 1, 0)]:
        kind, history, jitter = event[0], [], 0
        step = 1
        if kind == 'slide':
            step, jitter = event[1], event[2]
            history = [(grid + n) * GRID_NS for n in range(1, step)]
        elif kind == 'gap':
            step = event[1]
        elif kind == 'back':
            step = -event[1]
        elif kind == 'cameras':
            now['cameras'] = event[1]
        elif kind == 'size':
            now['shape'] = event[1]
        elif kind == 'text':
            now['text'] = event[1]
        elif kind == 'reset':
            engine.reset('test')
            rules.forget()
        elif kind == 'repeat':
            if last is not None:
                assert engine.step(frame_set(last, now['cameras'], now['shape'], key=9),
                                   ego_history(last)) is None
            continue
        grid += step
        t0 = grid * GRID_NS + jitter * 1_000_000
        if last is not None and t0 < last:
            rules.forget()
        arguments = (frame_set(t0, now['cameras'], now['shape']), ego_history(t0), now['text'],
                     [frame_set(t, now['cameras'], now['shape']) for t in history])
        if kind == 'failure':
            _fail_once(engine, getattr(model, event[1]), arguments)
            rules.forget()
        plan = engine.step(*arguments)
        last = t0
        layout = engine.streams['guided'].layout
        prompt = layout.size
        sources, known, shift, fresh = rules.step(t0, history, tuple(
            (c, now['shape']) for c in now['cameras']), prompt)
        window = plan.window
        assert window.mode == ('prefill' if shift == frames else 'streaming')
        assert bool(window.reason) == (shift == frames)
        assert (window.frames_known, window.frames_per_camera) == (known, frames)
        assert window.images_encoded == fresh * len(now['cameras'])
        assert window.prompt_tokens == layout.size
        assert list(engine.memory.window.sources) == sources
        assert plan.t0_ns == t0 and plan.is_finite
        check_caches(engine, sources, now['shape'], t0)


def _fail_once(engine, module, arguments):
    def fail(*_):
        raise RuntimeError('injected')
    module.forward = fail
    try:
        with pytest.raises(RuntimeError, match='injected'):
            engine.step(*arguments)
    finally:
        del module.forward


REASONS = {
    'gap': ({'times': [5]}, 'frames 0.200 s after the last ones, expected 0.100 s'),
    'back': ({'times': [1]}, 'time went back by 0.200 s'),
    'cameras': ({'times': [4], 'cameras': (0, 1)},
                'cameras changed from [0, 1, 2, 6] to [0, 1]'),
    'size': ({'times': [4], 'shape': SHAPES[1]},
             'image size of camera 0 changed from 96x64 to 64x96'),
    'text': ({'times': [4], 'nav_text': 'Turn left'}, 'prompt length changed from '),
}


@pytest.mark.parametrize('change', REASONS)
def test_prefill_says_why_and_gives_a_plan(change):
    """Field report 31, weak points 3 and 4 of the peer."""
    engine = tiny_engine(model_of(4))
    from support.tiny import drive
    drive(engine, [1, 2, 3])
    arguments, reason = REASONS[change]
    plan = drive(engine, **arguments)[0]
    assert plan.window.mode == 'prefill' and plan.window.reason.startswith(reason)
    assert plan.is_finite and plan.xyz.shape == (1, 64, 3)


def test_history_newer_than_the_frames_is_left_out():
    from support.tiny import drive, same
    expected = drive(tiny_engine(model_of(4)), [3])[0]
    given = tiny_engine(model_of(4)).step(
        frame_set(3 * GRID_NS), ego_history(3 * GRID_NS),
        history=[frame_set(t * GRID_NS) for t in (3, 5, 9)])
    assert same(given, expected)


def test_refresh_is_due_every_period():
    from support.tiny import drive
    engine = tiny_engine(model_of(4), refresh_period_s=0.3)
    plans = drive(engine, range(1, 9))
    assert [p.window.mode == 'prefill' for p in plans] == [i % 3 == 0 for i in range(8)]
    assert plans[3].window.reason == 'periodic refresh every 0.3 s'
    assert plans[3].t0_ns - plans[0].t0_ns == 0.3 * NANOSECONDS


def test_settings_that_change_the_cache_cause_a_prefill():
    from support.tiny import drive
    engine = tiny_engine(model_of(4))
    drive(engine, [1, 2])
    engine.configure(max_new_tokens=6, num_trajectories=2)
    plan = drive(engine, [3])[0]
    assert plan.window.reason == 'max_new_tokens changed' and len(plan.xyz) == 2
    engine.configure(num_trajectories=3, greedy=True)
    assert drive(engine, [4])[0].window.mode == 'streaming'
    engine.configure(streaming=False)
    assert drive(engine, [5])[0].window.reason == 'streaming is off'
