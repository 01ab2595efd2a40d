"""The stages of static shape compute what the plain path does."""
from dataclasses import replace

import numpy as np
import pytest
from support.tiny import drive, tiny_config, tiny_engine, tiny_model

from flashdrive_ros.core.drafter import Drafter, DrafterConfig

SETTINGS = [
    {},
    {'num_trajectories': 6},
    {'flow_steps': 5, 'velocity_reuse': (2, 3), 'greedy': True},
    {'recompute_labels': 'all', 'top_p': 1.0},
    {'separate_reasonings': True, 'num_trajectories': 2, 'drafting': 'off'},
    {'nav_guidance_weight': 1.5, 'num_trajectories': 2},
]
CONFIG = tiny_config()
MODEL = tiny_model(replace(CONFIG, action=replace(CONFIG.action, max_freq=2.0)))
"""Low frequencies of the flow's features: they amplify rounding less."""


def drafter(**changes):
    return Drafter.random(DrafterConfig.for_target(MODEL.config, taps=2, **changes), seed=3)


def close(a, b):
    assert a.all_reasonings == b.all_reasonings
    assert (a.window, a.chosen) == (b.window, b.chosen)
    for name in ('xyz', 'yaw', 'speed', 'acceleration', 'curvature'):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize('settings', SETTINGS)
@pytest.mark.parametrize('drafts', [False, True])
def test_a_drive_is_that_of_the_plain_path(settings, drafts):
    model_drafter = drafter(block_size=4, context_len=3) if drafts else None
    engines = [tiny_engine(MODEL, model_drafter, max_new_tokens=7, graphs=graphs, **settings)
               for graphs in ('off', 'on')]
    for plain, fast in zip(*(drive(e, [9, 10, 11, 12, 13, 15, 20, 21]) for e in engines)):
        close(plain, fast)
    for engine in engines:
        engine.reset('test')
    for text in ('', 'Turn left'):
        for plain, fast in zip(*(drive(e, [30, 31, 33], text) for e in engines)):
            close(plain, fast)
        for engine in engines:
            engine.configure(num_trajectories=3)
