"""Low-bit weights: what is packed comes back, products are those of the numbers they stand for."""
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import drive, same, tiny_engine, tiny_model

from flashdrive_ros.core.config import CheckpointError
from flashdrive_ros.core.quantization import int4, int4_kernels
from flashdrive_ros.core.quantization.activations import FP8, INT8, quantize_rows, restored
from flashdrive_ros.core.quantization.int4 import GROUP, Int4Matrix, pack, quantize_int4, unpack
from flashdrive_ros.core.quantization.linear import QuantLinear, matrix_of
from flashdrive_ros.core.quantization.matrices import Fp8Matrix, PlainMatrix
from flashdrive_ros.core.quantization.swap import (
    KINDS,
    QuantizationConfig,
    quantize,
    quantized,
    restore,
    target_names,
)

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 300))


def randn(*shape, seed=0, outliers=False):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    if outliers:
        x[:, ::200] *= 6
    return x


def error(found, expected):
    return float((found - expected).norm() / expected.norm())


@given(st.lists(st.integers(0, 15), min_size=1, max_size=64))
def test_codes_survive_packing(codes):
    codes = torch.tensor(codes * 2, dtype=torch.uint8)[None]
    assert pack(codes).shape[-1] * 2 == codes.shape[-1]
    assert torch.equal(unpack(pack(codes)), codes)


@given(SIZES, st.integers(0, 9), st.sampled_from((1e-3, 1.0, 50.0)))
def test_each_weight_is_within_half_a_step_of_its_code(size, seed, spread):
    weight = spread * randn(*size, seed=seed)
    found = quantize_int4(weight)
    step = found.scale.float().repeat_interleave(GROUP, 1)[:, :size[1]]
    wrong = (found.dequantized()[:, :size[1]] - weight).abs()
    assert (wrong <= 0.51 * step + step * 15 * 2 ** -11).all()
    assert (found.dequantized()[:, size[1]:] == 0).all()


def test_a_group_of_zeros_and_a_group_of_equal_numbers_stay_what_they_are():
    weight = torch.cat((torch.zeros(2, GROUP), torch.full((2, GROUP), 0.75)), 1)
    assert torch.allclose(quantize_int4(weight).dequantized(), weight, rtol=1e-3)


@pytest.mark.parametrize('dtype', (FP8, INT8))
def test_activations_saturate_and_keep_their_largest_number(dtype):
    x = randn(4, 64) * torch.tensor([1e-20, 1.0, 1e4, 1e30])[:, None]
    found = restored(quantize_rows(x, dtype))
    assert found.isfinite().all()
    assert torch.allclose(found[1:].abs().amax(1), x[1:].abs().amax(1), rtol=1e-5)
    assert error(found[1], x[1]) < 0.04


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('shape', ((48, 128), (40, 300)))
def test_product_is_that_of_the_dequantised_numbers(kind, shape):
    matrix, x = quantized(randn(*shape), kind), randn(5, shape[1], seed=1, outliers=True)
    activation = matrix.activate(x)
    expected = restored(activation) @ matrix.dequantized().T
    assert torch.allclose(matrix(activation).apply(), expected, rtol=1e-4, atol=1e-4)
    if kind == 'w4a16':
        assert activation.row_scale is None and torch.equal(activation.values, x)
    else:
        assert activation.values.dtype == matrix.activation_type(5)


@pytest.mark.parametrize(('kind', 'most'), (('fp8', 0.05), ('w4a8', 0.13), ('w4a16', 0.12)))
def test_rounding_costs_what_its_bits_allow(kind, most):
    weight, x = randn(64, 512), randn(7, 512, seed=1)
    matrix = quantized(weight, kind)
    found = error(matrix(matrix.activate(x)).apply(), x @ weight.T)
    assert 0.005 < found < most


def test_plain_matrix_multiplies_as_the_linear_does():
    linear = torch.nn.Linear(16, 8, bias=False)
    x = randn(3, 16)
    assert torch.equal(matrix_of(linear)(matrix_of(linear).activate(x)).apply(), linear(x))
    assert isinstance(matrix_of(linear), PlainMatrix)


def test_quantised_linear_is_called_like_a_linear():
    linear = QuantLinear(Fp8Matrix.quantized(randn(8, 16)))
    assert linear(randn(2, 3, 16)).shape == (2, 3, 8)
    assert linear(randn(2, 3, 16).bfloat16()).dtype == torch.bfloat16
    assert matrix_of(linear) is linear.matrix


@pytest.mark.parametrize('kind', KINDS)
def test_quantised_engine_plans_and_the_swap_can_be_undone(kind):
    model = tiny_model()
    before = drive(tiny_engine(model), (1, 2))
    originals = quantize(model, QuantizationConfig(kind, expert=True))
    low = drive(tiny_engine(model), (1, 2))
    restore(model, originals)
    after = drive(tiny_engine(model), (1, 2))
    assert all(plan.is_finite for plan in low)
    assert not same(before[1], low[1])
    assert all(same(a, b) for a, b in zip(before, after))


def test_weight_only_engine_is_the_engine_with_dequantised_weights():
    low, plain = tiny_model(), tiny_model()
    quantize(low, QuantizationConfig('w4a16'))
    with torch.no_grad():
        for name in target_names(plain, QuantizationConfig('w4a16')):
            plain.get_submodule(name).weight.copy_(
                low.get_submodule(name).matrix.dequantized())
    for a, b in zip(drive(tiny_engine(low), (1, 2, 3)), drive(tiny_engine(plain), (1, 2, 3))):
        assert a.reasoning.text == b.reasoning.text
        assert abs(a.xyz - b.xyz).max() < 1e-3


def test_what_is_kept_high_stays_plain():
    model = tiny_model()
    quantize(model, QuantizationConfig('fp8', high=('*.layers.1.mlp.down_proj', '*.o_proj')))
    layers = model.language_model.layers
    assert isinstance(layers[0].mlp.down_proj, QuantLinear)
    assert isinstance(layers[1].mlp.down_proj, torch.nn.Linear)
    assert isinstance(layers[0].self_attn.o_proj, torch.nn.Linear)
    assert not any(isinstance(m, QuantLinear) for m in model.expert.modules())
    assert isinstance(model.lm_head, torch.nn.Linear)


def test_unknown_kind_is_named():
    with pytest.raises(CheckpointError, match="'int3', expected one of"):
        QuantizationConfig('int3')


# the order in which the CUDA kernel reads weights: by hand, element for element

def element(words, steps, out, column):
    """Code, scale bits and zero bits of one weight, found as a lane of the kernel finds them."""
    tile, row, block = out // 16, out % 16, column // 64
    step, within = column % 64 // 16, column % 16
    register = (row >= 8) + 2 * (within >= 8)
    lane = row % 8 * 4 + within % 8 // 2
    word = int(words[tile, block, lane, step]) & 0xFFFFFFFF
    packed = int(steps[tile, column // GROUP, row]) & 0xFFFFFFFF
    return word >> (4 * register + 16 * (within % 2)) & 15, packed & 0xFFFF, packed >> 16


@given(st.integers(0, 31), st.integers(0, 2 * GROUP - 1), st.integers(0, 9))
def test_fragments_hold_every_weight_where_the_kernel_looks(out, column, seed):
    weights = quantize_int4(randn(32, 2 * GROUP, seed=seed))
    code, scale, zero = element(*int4_kernels.to_fragments(*weights), out, column)
    group = column // GROUP
    assert code == weights.codes[out, column]
    assert scale == int(weights.scale[out, group].view(torch.int16)) & 0xFFFF
    minus = torch.tensor(zero - 65536, dtype=torch.int16).view(torch.bfloat16)
    assert float(minus) == -(128 + int(weights.zero[out, group]))


SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (2048, 8256), (4096, 2048),
          (16512, 2048), (2048, 2048))


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('rows', (8, 16))
@pytest.mark.parametrize('shared', (99 << 10, 163 << 10, 227 << 10))
def test_every_group_and_output_has_its_block_within_shared_memory(shape, rows, shared):
    n, k = shape
    cut = int4_kernels.plan(n, k, rows, 132, shared)
    groups = int4.padded(k) // GROUP
    share = -(-groups // cut.parts)
    assert cut.shared_bytes < shared
    assert (cut.parts - 1) * share < groups <= cut.parts * share
    assert n % (16 * cut.tiles) == 0 and cut.blocks * cut.parts <= 4 * 132
    assert int4_kernels.fits(n, k)


def test_matrix_remembers_where_its_padding_begins():
    matrix = Int4Matrix.quantized(randn(16, 200), None)
    assert matrix.dequantized().shape == (16, 200) and matrix.qweight.shape == (16, 128)
