"""Every Triton kernel computes what its reference in plain torch does."""
import numpy as np
import pytest
import torch
from support.tiny import tiny_config

pytest.importorskip('triton')
kernels = pytest.importorskip('flashdrive_ros.core.fast.kernels')

from flashdrive_ros.core.fast import reference  # noqa: E402
from flashdrive_ros.core.fast.reference import HeadNorms, Rotation, Store  # noqa: E402
from flashdrive_ros.core.quantization.products import Product  # noqa: E402


def interpreter_loops() -> bool:
    """Triton's interpreter makes loop bounds of arrays of one element, which new NumPy refuses."""
    try:
        return int(np.array([3])) == 3
    except TypeError:
        return False


attends = pytest.mark.skipif(not torch.cuda.is_available() and not interpreter_loops(),
                             reason='this NumPy is too new for the interpreter of Triton')
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.fixture
def random():
    generator = torch.Generator(DEVICE).manual_seed(7)

    def draw(*shape):
        return torch.randn(shape, generator=generator, device=DEVICE)
    return draw


def products(random, m, n):
    """A plain product and one with scales."""
    yield Product(random(m, n))
    yield Product(random(m, n), random(m).abs(), random(n).abs())


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


def close_activation(got, expected):
    if expected.row_scale is None:
        assert got.row_scale is None
        close(got.values, expected.values)
        return
    close(got.row_scale, expected.row_scale)
    a, b = got.values.float(), expected.values.float()
    assert (a - b).norm() <= (0.01 if DEVICE == 'cuda' else 0.15) * b.norm()  # Triton's
    # interpreter rounds a few per cent of its e4m3 numbers by a factor of two


@pytest.mark.parametrize('fp8', [False, True])
@pytest.mark.parametrize('m, n', [(1, 32), (5, 48), (3, 1000)])
def test_norms(random, m, n, fp8):
    x, weight = random(m, n), random(n)
    for product in (None, *products(random, m, n)):
        got, expected = (ops.add_norm(x, product, weight, 1e-6, fp8)
                         for ops in (kernels, reference))
        close(got[0], expected[0])
        close_activation(got[1], expected[1])


def test_an_outlier_does_not_become_nan(random):
    x = random(2, 64)
    x[0, 3] = 1e6
    close_activation(kernels.quantise(x), reference.quantise(x))
    assert kernels.quantise(x).values.float().isfinite().all()


@pytest.mark.parametrize('fp8', [False, True])
def test_swiglu(random, fp8):
    for product in products(random, 3, 2 * 1100):
        close_activation(kernels.silu_mul(product, fp8), reference.silu_mul(product, fp8))


@pytest.mark.parametrize('heads, kv, d', [(4, 2, 16), (6, 2, 32), (16, 8, 128), (3, 3, 16)])
@pytest.mark.parametrize('with_master', [False, True])
def test_heads_are_normed_rotated_and_stored(random, heads, kv, d, with_master):
    n, capacity = 3, 11
    norms = HeadNorms(random(d), random(d), 1e-6)
    rotation = Rotation(random(20, d), random(20, d), torch.tensor([4, 19, 7], device=DEVICE))
    slots, rows = (torch.tensor(s, device=DEVICE) for s in ([2, 9, 5], [0, 4, 10]))
    for product in products(random, n, (heads + 2 * kv) * d):
        results = []
        for ops in (kernels, reference):
            k, v, mk, mv = torch.zeros(4, 2, kv, capacity, d, device=DEVICE)[:, 1]
            master = Store(mk, mv, rows) if with_master else None
            q = ops.store_heads(product, norms, rotation, Store(k, v, slots), master)
            results.append((q, k, v, mk, mv))
        for got, expected in zip(*results):
            close(got, expected)


def test_a_whole_cache_is_gathered_and_rotated(random):
    layers, kv, size, d = 2, 3, 37, 16
    masters = [random(layers, kv, size, d) for _ in range(2)]
    table = torch.randperm(size).to(DEVICE)
    cos, sin = random(50, d), random(50, d)
    results = []
    for ops in (kernels, reference):
        k, v = torch.zeros(2, layers, kv, 50, d, device=DEVICE)
        ops.gather_rotate(*masters, table, cos, sin, k, v)
        results.append((k, v))
    for got, expected in zip(*results):
        close(got, expected)


@attends
@pytest.mark.parametrize('n, heads, kv, d', [(1, 4, 2, 16), (8, 8, 2, 32), (48, 4, 4, 16)])
@pytest.mark.parametrize('first', [0, 3, 190, 300])
def test_attention_of_few_queries_to_a_long_cache(random, n, heads, kv, d, first):
    q, k, v = random(n, heads, d), random(kv, 351, d), random(kv, 351, d)
    limits = first + torch.arange(n, device=DEVICE)
    k[:, first + n:], v[:, first + n:] = torch.nan, torch.nan  # never seen
    expected = reference.attention(q, k[:, :first + n], v[:, :first + n], limits)
    close(kernels.attention(q, k, v, limits), expected)


@attends
def test_attention_within_a_window(random):
    slots = torch.cat([torch.arange(a, b) for a, b in ((3, 40), (90, 131), (140, 200))])
    q, k, v = random(len(slots), 4, 16), random(2, 220, 16), random(2, 220, 16)
    runs = [(0, 37, 40), (37, 78, 131), (78, 138, 200)]
    k[:, 200:], v[:, 200:] = torch.nan, torch.nan
    results = [ops.window_attention(q, k, v, slots.to(DEVICE), runs)
               for ops in (kernels, reference)]
    close(*results)


@attends
@pytest.mark.parametrize('samples, n, heads', [(1, 64, 4), (3, 5, 4), (2, 64, 2), (6, 20, 4)])
@pytest.mark.parametrize('visible', [1, 64, 150])
def test_attention_of_samples_that_share_a_prefix(random, samples, n, heads, visible):
    q, (k, v) = random(samples * n, heads, 16), (random(2, 190, 16) for _ in range(2))
    k[:, visible:], v[:, visible:] = 0, 0
    own = Store(random(2, samples * n, 16), random(2, samples * n, 16), None)
    results = [ops.shared_attention(q, k, v, torch.tensor(visible, device=DEVICE), own, samples)
               for ops in (kernels, reference)]
    close(*results)


@pytest.mark.parametrize('height, width', [(64, 96), (50, 131), (200, 130), (64, 131)])
def test_images_are_prepared(height, width):
    config = tiny_config()
    raw = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8, device=DEVICE)
    results = [ops.prepare_images(raw, config.vision, config.prompt, torch.float32)
               for ops in (kernels, reference)]
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-6)


@pytest.mark.parametrize('m, n', [(3, 24), (2, 1152)])
def test_layer_norms(random, m, n):
    x, product, bias = random(m, n), random(m, n), random(n)
    norm = torch.nn.LayerNorm(n, eps=1e-6, device=DEVICE).requires_grad_(False)
    norm.weight.copy_(random(n))
    norm.bias.copy_(random(n))
    for more in ((None, None), (product, bias)):
        for got, expected in zip(*(ops.add_layer_norm(x, *more, norm)
                                   for ops in (kernels, reference))):
            close(got, expected)


@pytest.mark.parametrize('heads, d', [(2, 8), (16, 72)])
def test_patches_are_rotated(random, heads, d):
    qkv, cos, sin = random(2, 6, 3, heads, d), random(6, d), random(6, d)
    expected = [x.clone() for x in reference.rotate_patches(qkv, cos, sin)]
    for got, wanted in zip(kernels.rotate_patches(qkv, cos, sin), expected):
        close(got, wanted)


def vocabulary(random, rows, dtype, spread):
    logits = (spread * random(rows, 5001)).to(dtype)
    allowed = torch.rand(5001, device=DEVICE) < 0.9
    return logits, allowed


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_the_likeliest_token(random, dtype):
    logits, allowed = vocabulary(random, 3, dtype, 2)
    logits[1] = 0.5  # all alike: the first
    got = kernels.likeliest(logits, allowed)
    assert torch.equal(got, reference.likeliest(logits, allowed))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('temperature, top_p, spread', [
    (0.6, 0.98, 1.0), (1.5, 0.5, 0.0), (0.1, 0.9, 6.0), (1.0, 2.0, 1.0)])
def test_sampled_tokens(random, dtype, temperature, top_p, spread):
    logits, allowed = vocabulary(random, 3, dtype, spread)
    draws = torch.rand(3, generator=torch.Generator(DEVICE).manual_seed(3), device=DEVICE)
    sampling = torch.tensor((temperature, top_p), device=DEVICE)
    got = kernels.sample(logits, allowed, draws, sampling)
    probs = torch.softmax(logits.double().masked_fill(~allowed, -torch.inf) / temperature, -1)
    ordered, index = probs.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0)
    kept = torch.zeros_like(probs).scatter_(-1, index, ordered / ordered.sum(-1, keepdim=True))
    reached = kept.cumsum(-1)
    chosen = got[:, None]
    assert (kept.gather(1, chosen) > 0).all()
    after = reached.gather(1, chosen)[:, 0]
    before = after - kept.gather(1, chosen)[:, 0]
    assert ((before <= draws + 5e-4) & (draws - 5e-4 <= after)).all()
