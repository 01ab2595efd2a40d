"""
The CUDA kernels of 4-bit weights (`w4a16.cu`): compiled when first needed, by NVRTC.

NVRTC comes with torch; neither nvcc nor headers are needed.
"""
from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .activations import INT8, LARGEST

MOST_ROWS = 16
"""Up to here products read the 4-bit weights themselves."""
_SOURCE = Path(__file__).with_name('w4a16.cu')
_GROUP = 128
_STATIC_SHARED = 64
"""More than the kernels declare themselves."""


def fits(rows: int, columns: int) -> bool:
    """Whether the kernels take weights [rows, columns]: whole tiles, enough groups for 8 warps."""
    return rows % 32 == 0 and columns % 64 == 0 and columns >= 8 * _GROUP


def to_fragments(codes: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """
    Order codes [n, k] uint8, `scale` [n, k/128] fp16 and `zero` uint8 as `w4a16.cu` reads them.

    Words int32 [n/16, k/64, 32, 4] and steps int32 [n/16, k/128, 16].
    """
    n, k = codes.shape
    lane = torch.arange(32, device=codes.device)
    quad, pair = lane // 4, lane % 4
    # [n/16, k/64, k-step, 16 outputs, 16 inputs]
    tiles = codes.view(n // 16, 16, k // 64, 4, 16).permute(0, 2, 3, 1, 4)
    words = torch.zeros(n // 16, k // 64, 4, 32, dtype=torch.int32, device=codes.device)
    for register in range(4):
        out, column = quad + 8 * (register & 1), pair * 2 + 8 * (register >> 1)
        words |= tiles[..., out, column].int() << 4 * register
        words |= tiles[..., out, column + 1].int() << 16 + 4 * register
    low = scale.view(torch.int16).int() & 0xFFFF
    steps = (low | (0xC300 | zero.int()) << 16).view(n // 16, 16, -1)
    return words.transpose(2, 3).contiguous(), steps.transpose(1, 2).contiguous()


class Launch(NamedTuple):
    """How a product is cut: warps a block, tiles of 16 outputs, blocks of 8 rows, grid."""

    warps: int
    tiles: int
    row_blocks: int
    blocks: int
    parts: int
    shared_bytes: int

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return f'product_{self.warps}_{self.tiles}_{self.row_blocks}'


def plan(n: int, k: int, rows: int, processors: int, shared_limit: int) -> Launch:
    """
    Cut a product of `rows` rows with weights [n, k] for a GPU.

    `processors` (SMs) with at most `shared_limit` bytes of shared memory a block.
    Measured best on an H200 (spec `low_bit_kernels.md` section 5); elsewhere the
    groups are divided until x fits into shared memory.
    """
    row_blocks = 1 if rows <= 8 else 2
    groups, wide = -(-k // _GROUP), n // 32
    for parts in range(1, groups + 1):
        if parts > 1 or wide > 4 * processors or groups < 16:
            warps, tiles = 8, 2
        else:
            warps, tiles = 16, 2 if processors * 2 // 3 <= wide <= processors else 1
        share = -(-groups // parts)
        size = warps * tiles * 16 * row_blocks * 8 * 4  # sums of the warps, then x
        size += row_blocks * 8 * (share * _GROUP + 8) * 2
        if size > shared_limit - _STATIC_SHARED:
            continue
        at_once = 1 if warps == 16 else min(2, shared_limit // size)
        if parts > 1 and at_once < 2 and share >= 4 * warps:
            continue  # smaller parts, of which two run side by side
        blocks = max(1, min(n // (16 * tiles), processors * at_once // parts))
        return Launch(warps, tiles, row_blocks, blocks, parts, size)
    raise RuntimeError(f'no way to cut [{n}, {k}] for {shared_limit} bytes of shared memory')


class Kernel:
    """4-bit weights [n, k] on a GPU, and the products with them."""

    def __init__(self, weights, columns: int, activations: torch.dtype | None,
                 shared_limit: int = 0):
        """
        `weights`: codes, scale and zero on the GPU; of the codes' channels `columns` count.

        `shared_limit`: bytes of shared memory a block may use; 0: what the GPU has.
        """
        codes, scale, zero = weights
        self.n, self.k, self.device = len(codes), columns, codes.device
        self.words, self.steps = to_fragments(codes, scale, zero)
        self.activations = activations
        self.functions = _functions(self.device.index or 0)
        properties = torch.cuda.get_device_properties(self.device)
        limit = shared_limit or properties.shared_memory_per_block_optin
        self.plans = [plan(self.n, columns, rows, properties.multi_processor_count, limit)
                      for rows in (8, MOST_ROWS)]
        for cut in self.plans:
            _allow_shared(self.functions[cut.name], cut.shared_bytes)
        most = max(cut.parts for cut in self.plans)
        self.partial = scratch(self.device, torch.float32, most * MOST_ROWS * self.n)
        self.arrived = scratch(self.device, torch.int32, self.n // 16)
        self.row_scale: Tensor | None = None
        if activations is not None:
            values = (codes.view(self.n, -1, _GROUP).float() - zero[..., None]) * scale[..., None]
            self.row_scale = (values.abs().amax((1, 2)) / LARGEST[activations]).clamp_min(1e-12)
            self.one = torch.ones((), device=self.device)
        self.plain = scratch(self.device, activations or torch.bfloat16, self.n * self.k)

    def multiply(self, x: Tensor) -> Tensor:
        """bf16 product [m, n] of plain `x` [m, k]."""
        x = x.to(torch.bfloat16).contiguous()
        if len(x) > MOST_ROWS:
            return x @ self.dequantized().T
        y = torch.empty(len(x), self.n, dtype=torch.bfloat16, device=self.device)
        cut = self.plans[len(x) > 8]
        self.functions[cut.name](
            (cut.blocks, cut.parts, 1), (32 * cut.warps, 1, 1),
            [self.words, self.steps, x, y, self.partial, self.arrived, len(x), self.n, self.k],
            cut.shared_bytes)
        return y

    def multiply_8bit(self, x: Tensor) -> Tensor:
        """bf16 product [m, n] of 8-bit numbers [m, k] with the weights over `row_scale`."""
        weights = self.rounded()
        if self.activations == INT8:
            return torch._int_mm(x, weights.T).to(torch.bfloat16)
        return torch._scaled_mm(x, weights.T, self.one, self.one, out_dtype=torch.bfloat16,
                                use_fast_accum=True)

    def rounded(self) -> Tensor:
        """The weights over `row_scale` [n, k] in the type of the activations, in that buffer."""
        name = 'dequantize_int8' if self.activations == INT8 else 'dequantize_fp8'
        return self._make(name, self.plain, self.row_scale)

    def dequantized(self) -> Tensor:
        """bf16 weights [n, k], in the shared buffer unless activations are e4m3."""
        buffer = self.plain if self.plain.dtype == torch.bfloat16 else torch.empty(
            self.n * self.k, dtype=torch.bfloat16, device=self.device)
        return self._make('dequantize_bf16', buffer, self.words)

    def _make(self, name: str, buffer: Tensor, row_scale: Tensor) -> Tensor:
        weights = buffer[:self.n * self.k].view(self.n, self.k)
        self.functions[name]((self.n // 16, -(-self.k // 256), 1), (128, 1, 1),
                             [self.words, self.steps, row_scale, weights, self.k])
        return weights


_scratch: dict[tuple, Tensor] = {}
_outgrown: list[Tensor] = []


def scratch(device: torch.device, dtype: torch.dtype, count: int) -> Tensor:
    """
    A buffer of at least `count` zeros that all products of a device share, one at a time.

    One that is outgrown is kept: captured graphs may still write to it.
    """
    key = device, dtype
    if key not in _scratch or len(_scratch[key]) < count:
        if key in _scratch:
            _outgrown.append(_scratch[key])
        _scratch[key] = torch.zeros(count, dtype=dtype, device=device)
    return _scratch[key]


def _allow_shared(function, size: int) -> None:
    if size > getattr(function, '_max_shared_mem_bytes', 0):
        function.set_shared_memory_config(size)


@cache
def _functions(device: int) -> dict:
    """Compile `w4a16.cu` for a device; launchers by name."""
    from torch.cuda import _utils
    with torch.cuda.device(device):
        major, minor = torch.cuda.get_device_capability(device)
        names = [f'product_{cut}' for cut in ('8_2_1', '8_2_2', '16_1_1', '16_1_2', '16_2_1',
                                              '16_2_2')]
        names += ['dequantize_bf16', 'dequantize_int8']
        if (major, minor) >= (8, 9):
            names.append('dequantize_fp8')
        binary = _compile(_SOURCE.read_text(encoding='utf-8'), f'sm_{major}{minor}')
        return _utils._cuda_load_module(binary, names)


def _compile(source: str, architecture: str) -> bytes:
    """Machine code of CUDA C++ through NVRTC; raises `RuntimeError` with its log."""
    from torch.cuda import _utils
    nvrtc = _utils._get_nvrtc_library()
    program = ctypes.c_void_p()

    def check(code: int) -> None:
        if code:
            size = ctypes.c_size_t()
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value or 1)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f'{_SOURCE.name} does not compile for {architecture}: NVRTC error '
                               f'{code}\n{log.value.decode(errors="replace")}')
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), _SOURCE.name.encode(),
                                   0, None, None))
    options = [f'--gpu-architecture={architecture}'.encode(), b'--std=c++17']
    check(nvrtc.nvrtcCompileProgram(program, len(options),
                                    (ctypes.c_char_p * len(options))(*options)))
    size = ctypes.c_size_t()
    check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    binary = ctypes.create_string_buffer(size.value)
    check(nvrtc.nvrtcGetCUBIN(program, binary))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw
