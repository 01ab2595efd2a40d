"""Features read from messages, and as the inputs of three action models."""
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.action_blocks import CosmosBlock, LayerwiseBlocks, RecogBlock

from flashdrive_ros import features as lib

LAYERS, TOKENS, HIDDEN = 4, 9, 12
X = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))


def made(**changes):
    rng = np.random.default_rng(0)
    valid = np.ones(TOKENS, bool)
    valid[[3, 8]] = False
    values = rng.normal(2, 3, (LAYERS, TOKENS, HIDDEN)).astype(np.float32)
    values[:, 8] = np.nan
    return lib.Features(**{
        'values': values, 'layer_ids': (0, 1, 2, 3), 'token_ids': np.arange(TOKENS),
        'positions': np.arange(TOKENS) + 5, 'valid': valid,
        'segment_ids': np.array([0, 0, 3, 3, 255, 1, 1, 2, 2], np.uint8)} | changes)


def message_of(features, dtype):
    stored = {0: lambda v: v.astype('<f4'), 1: lambda v: v.astype('<f2'),
              2: lambda v: (v.view(np.uint32) >> 16).astype('<u2')}[dtype]
    return SimpleNamespace(
        header=SimpleNamespace(stamp=SimpleNamespace(sec=3, nanosec=7)), plan_id=11, model='m',
        decode_path='direct', dtype=dtype, shape=np.array(features.values.shape, np.uint32),
        data=stored(features.values).tobytes(), layer_ids=list(features.layer_ids),
        token_ids=features.token_ids, positions=features.positions,
        segment_ids=bytes(features.segment_ids), valid=features.valid.tolist(),
        standardised=False)


def bytes_as_array(message):
    message.segment_ids = np.frombuffer(message.segment_ids, np.uint8)
    return message


@pytest.mark.parametrize('dtype, close', [(0, 0), (1, 1e-3), (2, 1e-2)])
def test_a_message_is_read_whatever_its_number_type(dtype, close):
    true = made()
    read = lib.from_message(bytes_as_array(message_of(true, dtype)))
    np.testing.assert_allclose(read.values, true.values, rtol=close)
    assert read.values.dtype == np.float32 and read.layer_ids == (0, 1, 2, 3)
    assert (read.plan_id, read.model, read.stamp_ns, read.decode_path) == (
        11, 'm', 3_000_000_007, 'direct')
    for name in ('token_ids', 'positions', 'segment_ids', 'valid'):
        assert np.array_equal(getattr(read, name), getattr(true, name))


@pytest.mark.parametrize('field, value, said', [
    ('dtype', 3, 'dtype is 3'), ('data', b'123', 'data has 3 bytes'),
    ('valid', [True], 'valid has 1 entries, the shape says 9'),
    ('layer_ids', [1], 'layer_ids has 1 entries, the shape says 4')])
def test_a_malformed_message_is_refused(field, value, said):
    message = bytes_as_array(message_of(made(), 0))
    setattr(message, field, value)
    with pytest.raises(lib.FeatureError, match=said):
        lib.from_message(message)


def test_segments_and_layers_are_selected_by_name_and_id():
    some = made().select(('subtask', 'trajectory'), (2, -1))
    assert some.values.shape == (2, 4, HIDDEN) and some.layer_ids == (2, 3)
    assert some.positions.tolist() == [10, 11, 12, 13]
    assert len(made().select(valid_only=True).valid) == TOKENS - 2
    for wrong in ({'segments': ('answer',)}, {'layers': (9,)}):
        with pytest.raises(lib.FeatureError, match='there are'):
            made().select(**wrong)


def by_hand(values):
    """Standardised in torch, as the reference interface has it."""
    values = torch.from_numpy(values)
    return (values - values.mean(-1, keepdim=True)) / (values.std(-1, keepdim=True) + 1e-8)


@torch.no_grad()
def test_cosmos_takes_standardised_layers_side_by_side_and_no_invalid_token():
    features, block = made(), CosmosBlock(3 * HIDDEN)
    valid = features.valid
    expected = torch.cat([by_hand(features.values[n, valid]) for n in (1, 2, 3)], -1)
    context = lib.for_cosmos(features, length=None, backend='torch')
    assert context.shape == (1, TOKENS - 2, 3 * HIDDEN)
    torch.testing.assert_close(context[0], expected)
    torch.testing.assert_close(block(X, context), block(X, expected[None]))
    other = made(values=np.where(valid[:, None], features.values, 1e6))
    torch.testing.assert_close(context, lib.for_cosmos(other, length=None, backend='torch'))


@torch.no_grad()
def test_cosmos_fillers_are_attended_to_and_may_be_learned():
    features, block = made(), CosmosBlock(3 * HIDDEN)
    bare = lib.for_cosmos(features, None)
    context = lib.for_cosmos(features)
    assert context.shape == (1, 512, 3 * HIDDEN) and not context[0, TOKENS - 2:].any()
    assert np.array_equal(context[:, :TOKENS - 2], bare)
    assert np.array_equal(lib.for_cosmos(features, 4), bare[:, :4])
    pad = np.arange(3 * HIDDEN)
    learned = lib.for_cosmos(features, 10, pad=pad)
    assert (learned[0, -1] == pad).all()
    given = [torch.from_numpy(c) for c in (bare, lib.for_cosmos(features, 10), learned)]
    results = [block(X, c) for c in given]
    assert not torch.isclose(results[0], results[1]).all()
    assert not torch.isclose(results[1], results[2]).all()
    assert lib.for_cosmos(features, layers='mean').shape == (1, 512, HIDDEN)
    for wrong in ({'layers': 'sum'}, {'pad': np.zeros(2)}, {'backend': 'jax'}):
        with pytest.raises(lib.FeatureError, match='expected'):
            lib.for_cosmos(features, **wrong)


def test_standardised_features_are_not_standardised_again():
    features = made(standardised=True)
    np.testing.assert_array_equal(lib.for_cosmos(features, None)[0, :, :HIDDEN],
                                  features.values[1, features.valid])


@torch.no_grad()
def test_piv3_gives_block_i_its_layer_and_masks_the_rest():
    features, blocks = made(), LayerwiseBlocks(3, HIDDEN)
    states, mask = lib.for_starvla_piv3(features, backend='torch')
    assert states.shape == (3, 1, TOKENS, HIDDEN) and mask.dtype == torch.bool
    expected = torch.from_numpy(features.values[1:, None][:, :, features.valid])
    everything = torch.ones(expected.shape[1:3], dtype=torch.bool)
    close = {'rtol': 1e-4, 'atol': 1e-5}
    torch.testing.assert_close(blocks(X, states, mask), blocks(X, expected, everything), **close)
    padded = lib.for_starvla_piv3(features, length=20, backend='torch')
    assert padded[1].shape == (1, 20)
    torch.testing.assert_close(blocks(X, *padded), blocks(X, states, mask), **close)
    last, _ = lib.for_starvla_piv3(features, blocks=2)
    assert np.array_equal(last, states[1:].numpy())
    for wrong, said in (({'blocks': 4}, '4 blocks'), ({'length': 3}, 'do not fit')):
        with pytest.raises(lib.FeatureError, match=said):
            lib.for_starvla_piv3(features, **wrong)


@torch.no_grad()
def test_recogdrive_takes_the_last_layer_of_valid_tokens():
    features, block = made(), RecogBlock(HIDDEN)
    states = lib.for_recogdrive(features, backend='torch')
    expected = torch.from_numpy(features.values[-1:, features.valid])
    history = X[:, :1]
    torch.testing.assert_close(block(history, X, states), block(history, X, expected))
    assert block(history, X, states).isfinite().all()
    with pytest.raises(lib.FeatureError, match='no token is valid'):
        lib.for_recogdrive(made(valid=np.zeros(TOKENS, bool)))


def test_the_embedding_output_alone_feeds_no_action_model():
    with pytest.raises(lib.FeatureError, match='embedding output only'):
        lib.for_cosmos(made().select(layers=(0,)))


def test_the_library_needs_neither_engine_nor_ros():
    code = ('import sys, flashdrive_ros.features;'
            'print([m for m in ("torch", "rclpy", "flashdrive_ros.core") if m in sys.modules])')
    ran = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert ran.stdout.strip() == '[]', ran.stdout + ran.stderr
