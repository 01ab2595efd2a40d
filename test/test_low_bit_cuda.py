"""The CUDA kernels of low-bit products against float32 products of the numbers they read."""
import pytest
import torch

from flashdrive_ros.core.quantization import int4_kernels
from flashdrive_ros.core.quantization.activations import FP8, INT8, restored
from flashdrive_ros.core.quantization.int4 import Int4Matrix, quantize_int4
from flashdrive_ros.core.quantization.swap import has_fp8, quantized

CUDA = torch.device('cuda')
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288), (2048, 8256), (4096, 2048),
          (16512, 2048), (2048, 2048), (64, 1024))
BF16 = 2 ** -8
"""Relative step of bf16."""


def draw(n, k, rows=16):
    generator = torch.Generator(CUDA).manual_seed(n * 7 + k)
    weight = torch.randn(n, k, generator=generator, device=CUDA) * k ** -0.5
    x = torch.randn(rows, k, generator=generator, device=CUDA)
    x[:, ::200] *= 6
    return weight.bfloat16(), x.bfloat16()


def close(found, expected):
    """Equal but for the rounding of the result and of float32 sums."""
    assert found.dtype == torch.bfloat16
    wrong = (found.float() - expected).abs()
    allowed = BF16 / 2 * 1.02 * expected.abs() + 2e-4 * expected.abs().mean()
    assert (wrong <= allowed).all(), f'{float((wrong - allowed).max())} above what is allowed'


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('rows', (1, 3, 8, 9, 16))
def test_4_bit_product_of_few_rows_is_exact_to_bf16(shape, rows):
    weight, x = draw(*shape, rows)
    matrix = Int4Matrix.quantized(weight, None)
    meant = matrix.dequantized()
    matrix.seal()
    assert matrix.kernel is not None
    for _ in range(2):  # the second one finds the counters as the first left them
        close(matrix(matrix.activate(x)).apply(), x.float() @ meant.T)


@pytest.mark.parametrize('shared', (64 << 10, 99 << 10))
@pytest.mark.parametrize('shape', ((4096, 12288), (2048, 8256), (6144, 4096)))
def test_parts_of_the_groups_are_summed_where_shared_memory_is_small(shape, shared):
    weight, x = draw(*shape)
    weights = quantize_int4(weight)
    meant = weights.dequantized()[:, :shape[1]]
    kernel = int4_kernels.Kernel(weights, shape[1], None, shared_limit=shared)
    assert max(cut.parts for cut in kernel.plans) > 1
    for rows in (1, 8, 16, 5):
        close(kernel.multiply(x[:rows]), x[:rows].float() @ meant.T)


@pytest.mark.parametrize('shape', SHAPES)
def test_4_bit_weights_are_made_plain_to_the_bit(shape):
    weights = quantize_int4(draw(*shape)[0])
    meant = weights.dequantized()[:, :shape[1]]
    kernel = int4_kernels.Kernel(weights, shape[1], FP8)
    assert torch.equal(kernel.dequantized(), meant.bfloat16())
    if has_fp8(CUDA):
        made = kernel.rounded()
        expected = (meant / kernel.row_scale[:, None]).clamp(-448, 448).to(FP8)
        differ = made.view(torch.uint8) != expected.view(torch.uint8)
        assert differ.float().mean() < 1e-3  # 1 / scale is rounded before it multiplies
        assert ((made.float() - expected.float()).abs() <= expected.float().abs() / 8 + 1e-2).all()


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('rows', (1, 8, 17, 200))
def test_fp8_product_is_that_of_the_dequantised_numbers(shape, rows):
    if not has_fp8(CUDA):
        pytest.skip('no e4m3 here')
    weight, x = draw(*shape, rows)
    matrix = quantized(weight, 'fp8')
    meant = matrix.dequantized()
    matrix.seal()
    activation = matrix.activate(x)
    expected = restored(activation) @ meant.T
    found = matrix(activation).apply().float()
    assert (found - expected).norm() < 0.006 * expected.norm()


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('activations', (None, FP8, INT8))
def test_4_bit_product_of_many_rows(shape, activations):
    if activations == FP8 and not has_fp8(CUDA):
        pytest.skip('no e4m3 here')
    weight, x = draw(*shape, 100)
    matrix = Int4Matrix.quantized(weight, activations)
    meant = matrix.dequantized()
    matrix.seal()
    activation = matrix.activate(x)
    assert activation.values.dtype == (activations or torch.bfloat16)
    found = matrix(activation).apply()
    assert found.dtype == torch.bfloat16
    expected = restored(activation) @ meant.T
    most = {None: 0.005, FP8: 0.03, INT8: 0.02}[activations]
    assert (found.float() - expected).norm() < most * expected.norm()


@pytest.mark.parametrize('kind', ('fp8', 'w4a8', 'w4a16'))
def test_products_can_be_captured_and_replayed(kind):
    if kind != 'w4a16' and not has_fp8(CUDA):
        pytest.skip('no e4m3 here')
    weight, x = draw(4096, 4096, 40)
    matrix = quantized(weight, kind)
    matrix.seal()
    for rows in (8, 40):
        activation = matrix.activate(x[:rows].clone())
        expected = matrix(activation).apply().clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            matrix(activation)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            product = matrix(activation)
        product.values.zero_()
        graph.replay()
        assert torch.equal(product.apply(), expected)
