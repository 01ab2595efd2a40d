"""FlashAttention-3 (the optional package `fa3_fwd`) for the attention of whole windows."""
from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

HOPPER = (9, 0)


@lru_cache(maxsize=1)
def _package():
    """The package's interface where it is installed and made for this device, else None."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != HOPPER:
        return None
    try:
        import fa3_fwd_interface
    except (ImportError, OSError):
        return None
    return fa3_fwd_interface


def serves(q: Tensor) -> bool:
    """Say whether `q` [n, heads, d] can be attended with here."""
    return q.dtype == torch.bfloat16 and q.shape[-1] in (64, 128) and _package() is not None


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept ones may meet autograd
def _edges(runs: tuple[tuple[int, int, int], ...], device: torch.device):
    """First query of every run and the end, slots that a run's last query sees, zeros."""
    def integers(values) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)
    return (integers([0, *(end for _, end, _ in runs)]), integers([seen for *_, seen in runs]),
            integers([0] * len(runs)))


def window_attention(q: Tensor, k: Tensor, v: Tensor,
                     runs: list[tuple[int, int, int]]) -> Tensor:
    """
    As `reference.window_attention`, in one call.

    Every run is a sequence of its own for the package; all share one cache, of
    which each sees as much as is its past.
    """
    begins, seen, zeros = _edges(tuple(runs), q.device)
    out = _package().flash_attn_with_kvcache(
        q, k.transpose(0, 1)[None], v.transpose(0, 1)[None], cache_seqlens=seen,
        cache_batch_idx=zeros, cu_seqlens_q=begins, max_seqlen_q=max(b - a for a, b, _ in runs),
        causal=True, num_splits=1)
    return out.flatten(1)
