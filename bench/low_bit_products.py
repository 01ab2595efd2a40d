"""
Error and time of every low-bit product at the sizes of Alpamayo 1.5: one layer's projections.

    python bench/low_bit_products.py --device cuda     # errors and times
    python bench/low_bit_products.py --projections o   # errors, on a CPU; all four take minutes

Random weights; activations with 0.5 % outlier channels (x6), as in low_bit_kernels.md.
"kernel": relative error against the float32 product of the same dequantised weights and
activations as the product read them; "total": against the plain weights and activations.
Times are of CUDA graphs over enough copies of the weights that they come from memory.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch

from flashdrive_ros.core.quantization.activations import quantize_rows, restored
from flashdrive_ros.core.quantization.matrices import Matrix, PlainMatrix
from flashdrive_ros.core.quantization.swap import KINDS, quantized
from flashdrive_ros.evaluation.record import write_results

HERE = Path(__file__).resolve().parent
PROJECTIONS = {'qkv': (6144, 4096), 'o': (4096, 4096), 'gate_up': (24576, 4096),
               'down': (4096, 12288), 'expert_qkv': (4096, 2048), 'expert_o': (2048, 2048),
               'expert_gate_up': (16512, 2048), 'expert_down': (2048, 8256)}
ROWS = {False: (1, 8, 16, 48, 802, 3086), True: (64, 384)}
"""Rows of the language model's products, and of the expert's (name begins with expert)."""
LAYERS = 36


def draw(n: int, k: int, rows: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [n, k] and activations [rows, k]."""
    generator = torch.Generator(device).manual_seed(n + k)
    weight = torch.randn(n, k, generator=generator, device=device) * k ** -0.5
    x = torch.randn(rows, k, generator=generator, device=device)
    x[:, torch.randperm(k, generator=generator, device=device)[:max(1, k // 200)]] *= 6
    dtype = torch.bfloat16 if device.type == 'cuda' else torch.float32
    return weight.to(dtype), x.to(dtype)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative L2 error."""
    return float((found.float() - expected).norm() / expected.norm())


def make(kind: str, weight: torch.Tensor) -> tuple[Matrix, torch.Tensor]:
    """Matrix of a kind, sealed, and the float32 weights it stands for."""
    matrix = PlainMatrix(weight) if kind == 'bf16' else quantized(weight, kind)
    meant = matrix.dequantized().clone()
    matrix.seal()
    return matrix, meant


def errors(kind: str, n: int, k: int, rows, device) -> dict:
    """Errors of one projection by number of rows."""
    weight, x = draw(n, k, max(rows), device)
    matrix, meant = make(kind, weight)
    found = {}
    for m in rows:
        activation = matrix.activate(x[:m])
        result = matrix(activation).apply()
        read = restored(activation)
        found[m] = {'kernel': relative(result, read @ meant.T),
                    'total': relative(result, x[:m].float() @ weight.float().T)}
    return found


def microseconds(kind: str, n: int, k: int, rows, device) -> dict:
    """Time of one product by number of rows, activations already as it reads them."""
    weight, x = draw(n, k, max(rows), device)
    copies = max(2, -(-(160 << 20) // (n * k // 2)))
    if rows[0] > 16:
        copies = 4
    matrices = [make(kind, weight)[0] for _ in range(copies)]
    found = {}
    for m in rows:
        activations = [a.activate(x[:m]) for a in matrices]

        def work(activations=activations):
            for matrix, activation in zip(matrices, activations):
                matrix(activation)
        found[m] = replayed_us(work) / copies
    return found


def replayed_us(work) -> float:
    """Median time of a replayed CUDA graph of `work`."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def quantising_us(k: int, rows, device) -> dict:
    """Time of quantising activations to e4m3 in plain torch, by number of rows."""
    x = draw(16, k, max(rows), device)[1]
    return {m: replayed_us(lambda m=m: quantize_rows(x[:m], torch.float8_e4m3fn)) for m in rows}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--projections', nargs='+', default=list(PROJECTIONS), metavar='NAME')
    parser.add_argument('--kinds', nargs='+', default=['bf16', *KINDS], metavar='KIND')
    parser.add_argument('--rows', nargs='+', type=int, default=[], help='only these')
    parser.add_argument('--no-times', action='store_true')
    parser.add_argument('--out', type=Path, default=HERE / 'results' / 'low_bit_products.json')
    args = parser.parse_args()
    device = torch.device(args.device)
    body = {'projections': {}}
    for name in args.projections:
        n, k = PROJECTIONS[name]
        rows = args.rows or ROWS[name.startswith('expert')]
        if device.type == 'cpu':
            rows = args.rows or rows[:2]
        for kind in args.kinds:
            found = {'errors': errors(kind, n, k, rows, device)}
            if device.type == 'cuda' and not args.no_times:
                found['us'] = microseconds(kind, n, k, rows, device)
            body['projections'].setdefault(name, {'n': n, 'k': k})[kind] = found
            print(name, kind, {m: f'{100 * e["kernel"]:.3f} % / {100 * e["total"]:.2f} %'
                               for m, e in found['errors'].items()},
                  {m: round(t, 1) for m, t in found.get('us', {}).items()}, flush=True)
            if device.type == 'cuda':
                torch.cuda.empty_cache()
    if device.type == 'cuda' and not args.no_times:
        body['quantising_us'] = {k: quantising_us(k, (8, 802), device) for k in (4096, 12288)}
        body['layers_ms'] = layers_ms(body['projections'])
        print(body['quantising_us'], body['layers_ms'])
    write_results(args.out, body)


def layers_ms(projections: dict) -> dict:
    """All layers' products in ms by kind and rows, where every projection was measured."""
    found = {}
    for expert in (False, True):
        names = [name for name in PROJECTIONS if name.startswith('expert') == expert]
        if not all(name in projections for name in names):
            continue
        for kind in [k for k in projections[names[0]] if k not in ('n', 'k')]:
            times = [projections[name][kind]['us'] for name in names]
            found[('expert ' if expert else '') + kind] = {
                m: LAYERS * sum(t[m] for t in times) / 1e3 for m in times[0]}
    return found


if __name__ == '__main__':
    sys.exit(main())
