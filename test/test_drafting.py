"""Drafted reasonings are the plain ones: tokens, stop, cache and plan."""
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drafts import Scripted, tiny_drafter
from support.tiny import drive, tiny_engine, tiny_model, tiny_tokenizer

from flashdrive_ros.core import speculative
from flashdrive_ros.core.branches import BranchTails
from flashdrive_ros.core.config import EngineConfig
from flashdrive_ros.core.engine import Engine
from flashdrive_ros.core.reasoning import reason, reason_separately
from flashdrive_ros.core.sampling import choose
from flashdrive_ros.core.speculative import Draft
from flashdrive_ros.core.types import GRID_NS
from flashdrive_ros.evaluation.expert_drive import record_expert
from flashdrive_ros.evaluation.windows import ego_history, frame_set

CLOSE = {'rtol': 0, 'atol': 1e-5}
LIMIT = 24
pytestmark = pytest.mark.usefixtures('one_thread')


class Marked:
    """The tiny tokenizer, with other tokens as the ends of a reasoning."""

    def __init__(self, inner, **ids):
        self.inner, self.ids = inner, ids

    def id(self, name):
        return self.ids.get(name) or self.inner.id(name)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@lru_cache(maxsize=4)
def prompted(seed):
    """An engine and its stream behind some windows; last hidden state and taps of the prompt."""
    made = tiny_engine(tiny_model(seed=seed), max_new_tokens=LIMIT + 16)
    drive(made, [seed + 1, seed + 2])
    stream = made.streams['guided']
    count = 8
    stream.truncate(stream.layout.size - count)
    taps = []
    with torch.inference_mode():
        ids = torch.from_numpy(stream.layout.token_ids[-count:])
        hidden = stream.extend(ids, taps)
    return made, stream, hidden[-1], [t[0] for t in taps]


def both(seed, config, draft, ends=None, separate=False):
    """Plain and drafted reasoning of the same window: what was written and what is cached."""
    made, stream, hidden, _ = prompted(seed)
    tokenizer = Marked(made.tokenizer, **ends or {})
    results = []
    for used in (None, draft):
        stream.truncate(stream.layout.size)
        generator = torch.Generator().manual_seed(5)
        with torch.inference_mode():
            stream.cache.k[:, :, stream.layout.size:] = torch.nan  # what is left of others
            run = reason_separately if separate else reason
            reasoned = run(stream, tokenizer, hidden, config, generator, used)
        keys = []
        for k, end in enumerate(reasoned.visible):
            if reasoned.tails is None:
                assert stream.length == end
                own = stream.cache.k[:, :, :end], stream.cache.v[:, :, :end]
            else:
                assert reasoned.tails.length >= end - stream.layout.size
                n = end - stream.layout.size
                own = reasoned.tails.k[:, k, :, :n], reasoned.tails.v[:, k, :, :n]
            keys += [t.clone() for t in own]
        results.append((reasoned, keys, generator.get_state()))
    return results


def assert_equal(results):
    (plain, keys, state), (drafted, drafted_keys, drafted_state) = results
    assert [t.token_ids for t in drafted.texts] == [t.token_ids for t in plain.texts]
    for name in ('stop_reason', 'text'):
        assert [getattr(t, name) for t in drafted.texts] == [getattr(t, name) for t in plain.texts]
    assert drafted.visible == plain.visible
    assert drafted.first_action_slot == plain.first_action_slot
    assert torch.equal(state, drafted_state)  # what is drawn next is the same too
    for a, b in zip(keys, drafted_keys):
        torch.testing.assert_close(a, b, **CLOSE)
    return drafted


def random_draft(seed, weights=0, **changes):
    made, _, _, taps = prompted(seed)
    drafter = tiny_drafter(made.model, weights, **changes)
    context = drafter.config.context_len
    with torch.inference_mode():
        features = drafter.fuse([taps[i + 1][-context:] for i in drafter.config.target_layer_ids])
    return Draft(drafter, features)


def scripted(seed, known, right, block):
    draft = random_draft(seed, block_size=block)
    return Scripted(draft.drafter, draft.context, {}, known, right, [])


def settings_of(kind, **changes):
    return EngineConfig(**{'max_new_tokens': LIMIT, 'greedy': kind == 'greedy',
                           'temperature': 2.0 if kind == 'flat' else 0.6, **changes})


kinds = st.sampled_from(['greedy', 'sharp', 'flat'])
seeds = st.integers(0, 3)


@settings(max_examples=60, deadline=None)
@given(seeds, kinds, st.integers(2, 16), st.integers(1, 8), st.integers(1, LIMIT),
       st.integers(0, 2**20), st.booleans())
def test_a_random_drafter_changes_nothing(seed, kind, block, context, limit, weights, separate):
    config = settings_of(kind, max_new_tokens=limit, num_trajectories=3 if separate else 1)
    draft = random_draft(seed, weights, block_size=block, context_len=context)
    drafted = assert_equal(both(seed, config, draft, separate=separate))
    for text in drafted.texts:
        assert text.accepted <= text.drafted == text.rounds * (block - 1) or limit == 1


@settings(max_examples=150, deadline=None)
@given(seeds, kinds, st.integers(2, 12), st.integers(1, LIMIT),
       st.lists(st.integers(0, 11), min_size=1, max_size=6), st.integers(0, LIMIT - 1),
       st.sampled_from(['traj_future_start', 'im_end', None]))
def test_wherever_proposals_go_wrong_and_wherever_it_ends(seed, kind, block, limit, right, at,
                                                          name):
    """Blocks right up to any place; the end token at any offset in a block; the limit too."""
    config = settings_of(kind, max_new_tokens=LIMIT)
    known = both(seed, config, None)[0][0].texts[0].token_ids
    ends = {name: known[at]} if name else {}
    config = settings_of(kind, max_new_tokens=limit)
    drafted = assert_equal(both(seed, config, scripted(seed, (known,), tuple(right), block), ends))
    (text,) = drafted.texts
    first = known.index(known[at]) + 1 if name else LIMIT + 1
    assert len(text.token_ids) == min(limit, first)
    if first <= limit:
        assert text.stop_reason == {'traj_future_start': 'end_token', 'im_end': 'im_end'}[name]


@settings(max_examples=60, deadline=None)
@given(seeds, kinds, st.integers(2, 10), st.lists(st.integers(0, 9), min_size=1, max_size=5),
       st.integers(0, LIMIT - 1), st.integers(0, LIMIT - 1), st.integers(1, LIMIT))
def test_separate_reasonings_end_one_by_one_in_their_batch(seed, kind, block, right, end, stop,
                                                           limit):
    settings_ = {'num_trajectories': 3}
    config = settings_of(kind, **settings_)
    known = [t.token_ids for t in both(seed, config, None, separate=True)[0][0].texts]
    ends = {'traj_future_start': known[0][end], 'im_end': known[2][stop]}
    config = settings_of(kind, max_new_tokens=limit, **settings_)
    draft = scripted(seed, tuple(known), tuple(right), block)
    assert_equal(both(seed, config, draft, ends, separate=True))


@pytest.mark.parametrize('separate', [False, True])
@pytest.mark.parametrize('block', [2, 5, 8, 16])
def test_right_proposals_are_all_taken(block, separate):
    config = settings_of('sharp', num_trajectories=3 if separate else 1)
    known = tuple(t.token_ids for t in both(0, config, None, separate=separate)[0][0].texts)
    draft = scripted(0, known, (block,), block)
    for text in assert_equal(both(0, config, draft, separate=separate)).texts:
        assert text.rounds == len(draft.done) == -(-(LIMIT - 1) // block)
        assert text.accepted >= LIMIT - 1 - text.rounds


def test_wrong_proposals_bring_a_token_a_round():
    config = settings_of('greedy')
    known = both(0, config, None)[0][0].texts[0].token_ids
    draft = scripted(0, (known,), (0,), 8)
    (text,) = assert_equal(both(0, config, draft)).texts
    assert (text.accepted, text.rounds, text.drafted) == (0, LIMIT - 1, 7 * (LIMIT - 1))


def test_end_token_that_was_accepted_is_not_forwarded_again(monkeypatch):
    config = settings_of('greedy')
    known = both(0, config, None)[0][0].texts[0].token_ids
    _, stream, _, _ = prompted(0)
    passes, whole = [], stream.extend
    for at in range(1, 8):
        ends, first = {'traj_future_start': known[at]}, known.index(known[at])
        draft = scripted(0, (known,), (7,), 8)
        assert_equal(both(0, config, draft, ends))
        passes.clear()
        monkeypatch.setattr(stream, 'extend', lambda ids, *a: passes.append(len(ids)) or whole(
            ids, *a))
        both(0, config, scripted(0, (known,), (7,), 8), ends)
        monkeypatch.undo()
        assert passes[-1:] == [8] if first else [1]


def test_the_context_of_a_round_is_the_last_committed_tokens(monkeypatch):
    """Features that the drafter gets, against those of a single pass over prompt and tokens."""
    _, stream, _, prompt_taps = prompted(1)
    draft = random_draft(1, block_size=6, context_len=5)
    seen, propose = [], Draft.propose
    monkeypatch.setattr(Draft, 'propose', lambda self, model, anchors, context, allowed: (
        seen.append((int(anchors[0]), context[0])) or propose(
            self, model, anchors, context, allowed)))
    config = settings_of('sharp')
    known = both(1, config, draft)[1][0].texts[0].token_ids
    taps = []
    stream.truncate(stream.layout.size)
    with torch.inference_mode():
        stream.extend(torch.tensor(known), taps)
        chosen = [torch.cat((prompt_taps[i + 1], taps[i + 1][0]))
                  for i in draft.drafter.config.target_layer_ids]
        features = draft.drafter.fuse(chosen)
    for committed, (anchor, context) in enumerate(seen):  # random proposals are not accepted
        assert known[committed] == anchor
        end = 8 + committed  # eight tokens of the prompt are in front
        torch.testing.assert_close(context, features[end - 5:end], rtol=0, atol=1e-4)
    assert len(seen) == LIMIT - 1


def test_what_ends_a_text_is_proposed_behind_its_end_marker(monkeypatch):
    made = prompted(0)[0]
    draft = random_draft(0, block_size=4)
    marker, start = made.tokenizer.id('cot_end'), made.tokenizer.id('traj_future_start')
    draft = Draft(draft.drafter, draft.context, {marker: start})
    states = made.model.lm_head.weight[marker].expand(2, 4, -1)
    monkeypatch.setattr(type(draft.drafter), 'forward', lambda *_: states)
    allowed = made.model.allowed_tokens(trajectory_tokens=False)
    blocks = draft.propose(made.model, torch.tensor([7, marker]), draft.context[None], allowed)
    assert blocks.tolist() == [[7, marker, start, start], [marker, start, start, start]]


def test_trajectory_tokens_and_pad_rows_are_never_proposed(monkeypatch):
    made = prompted(0)[0]
    draft = random_draft(0, block_size=3)
    model, config = made.model, made.model.config
    allowed = model.allowed_tokens(trajectory_tokens=False)
    for token in (config.prompt.traj_token_start_idx, model.lm_head.weight.shape[0] - 1):
        logits = torch.zeros(1, 2, len(allowed))
        logits[..., token] = 9
        monkeypatch.setattr(speculative, 'next_logits', lambda m, s, a, logits=logits: (
            logits.masked_fill(~a, -torch.inf)))
        block = draft.propose(model, torch.tensor([7]), draft.context[None], allowed)
        assert token not in block.tolist()[0]


def test_block_of_branches_at_slots_of_their_own_equals_each_alone():
    made, stream, _, _ = prompted(2)
    model, rows = made.model, torch.randint(0, 500, (3, 9), generator=torch.Generator())
    starts, count = [2, 0, 5], 4
    with torch.inference_mode():
        tails = BranchTails(stream.cache, 3, 16)
        model.language_model(model.embed_tokens(rows), tails.attend)
        tails.k[..., 9:, :] = torch.nan
        attend = tails.block(torch.tensor(starts), max(starts) + count, count)
        block = torch.stack([row[a:a + count] for row, a in zip(rows, starts)])
        together = model.language_model(model.embed_tokens(block), attend)
        for k, start in enumerate(starts):
            stream.truncate(stream.layout.size)
            alone = stream.extend(rows[k, :start + count])[start:]
            torch.testing.assert_close(together[k], alone, **CLOSE)


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([0.4, 0.3, 0.0, 0.2, 0.1])) * 0.6
    draws = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    config = EngineConfig(temperature=0.6, top_p=0.85)
    counts = torch.bincount(choose(logits.expand(len(draws), -1), config, draws), minlength=5)
    expected = torch.tensor([4, 3, 0, 2, 0]) / 9 * len(draws)
    assert not counts[expected == 0].any()
    chi_square = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi_square < 13.8  # two degrees of freedom: one in a thousand is above


@pytest.mark.parametrize('draw', [0.0, 1 - 2**-24])
def test_extreme_draws_choose_allowed_tokens(draw):
    logits = torch.tensor([-torch.inf, 1.0, 0.5, -torch.inf])
    for top_p in (0.3, 1.0):
        token = int(choose(logits, EngineConfig(top_p=top_p), torch.tensor(draw)))
        assert token in (1, 2)


DRIVES = ({}, {'greedy': True}, {'num_trajectories': 3, 'separate_reasonings': True},
          {'nav_guidance_weight': 1.5, 'num_trajectories': 2},
          {'settle_reasoning': True, 'nav_guidance_weight': 1.5},
          {'settle_reasoning': True, 'num_trajectories': 3, 'separate_reasonings': True})


@pytest.mark.parametrize('changes', DRIVES, ids=str)
def test_drafted_drive_equals_the_plain_one(changes):
    check_drive([*range(1, 20), *range(25, 40)], changes)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(4))
def test_thousands_of_drafted_windows_equal_the_plain_ones(seed):
    check_drive(range(1, 600), {'greedy': True}, seed)


def check_drive(times, changes, seed=0):
    """
    Plans of streaming windows, plain and drafted; the prompt's cache to the bit.

    Plans differ by rounding, unless texts are settled.
    """
    model = tiny_model(seed=seed)
    config = {'max_new_tokens': 10, 'flow_steps': 1, **changes}
    plain = tiny_engine(model, **config)
    drafted = tiny_engine(model, drafting='on', drafter=tiny_drafter(model), **config)
    for t in times:
        a, b = (drive(e, [t], nav_text='Turn left')[0] for e in (plain, drafted))
        assert a.window == b.window
        assert [r.token_ids for r in a.all_reasonings] == [r.token_ids for r in b.all_reasonings]
        assert bool(b.reasoning.drafted) == (len(a.reasoning.token_ids) > 1)
        assert not a.reasoning.drafted
        close = {} if changes.get('settle_reasoning') else {'rtol': 1e-3, 'atol': 1e-4}
        for name in ('xyz', 'acceleration', 'curvature'):
            compare = np.testing.assert_allclose if close else np.testing.assert_array_equal
            compare(getattr(a, name), getattr(b, name), **close)
        caches = [e.streams['guided'].cache for e in (plain, drafted)]
        for name in ('master_k', 'master_v', 'table'):
            assert torch.equal(*(getattr(c, name) for c in caches))


@pytest.mark.parametrize('own', [True, False], ids=['its drafter', 'random'])
def test_shipped_model_says_the_same_and_ends_inside_a_block(own):
    """Its own end marker: the token behind it was proposed, accepted and so already cached."""
    settings_ = EngineConfig(device='cpu', cpu_threads=1, drafting='on', flow_steps=1)
    drafted = Engine.from_checkpoint('small', settings_)
    if not own:
        drafted.drafter = tiny_drafter(drafted.model)
    plain = Engine(drafted.model, drafted.tokenizer, replace(settings_, drafting='off'))
    ticks = range(20, 27)
    seen = record_expert(3, ticks.stop, ticks)
    sets = [frame_set(seen.images[t], t * GRID_NS) for t in ticks]
    for t in ticks[3:]:
        ego = ego_history(seen.poses[:t + 1], t * GRID_NS)
        a, b = (e.step(sets[t - 20], ego, seen.navigation[t], sets[:t - 20])
                for e in (plain, drafted))
        assert a.reasoning.text and a.reasoning.stop_reason == 'end_token'
        assert (b.reasoning.text, b.reasoning.token_ids, b.reasoning.stop_reason) == (
            a.reasoning.text, a.reasoning.token_ids, a.reasoning.stop_reason)
        assert b.reasoning.accepted > 0
        np.testing.assert_allclose(a.xyz, b.xyz, rtol=1e-3, atol=1e-3)


def test_tokenizer_of_the_tests_only_renames():
    made = prompted(0)[0]
    marked = Marked(tiny_tokenizer(made.model.config), im_end=7)
    assert marked.id('im_end') == 7 and marked.id('cot_end') == made.tokenizer.id('cot_end')
