"""A checkpoint as ParoQuant publishes it, made from a plain tiny one: written by hand, slowly."""
import json
import shutil

import torch
from safetensors.torch import save_file

from flashdrive_ros.core import checkpoint

SETS = 8


def rotation(k, generator):
    """Random theta, pairs and channel scales of a linear with k inputs."""
    groups = k // 128
    pairs = torch.stack([torch.cat([torch.randperm(128, generator=generator)
                                    for _ in range(groups)]) for _ in range(SETS)])
    theta = torch.randn(SETS, k // 2, generator=generator).half()
    scales = (1 + 0.5 * torch.rand(1, k, generator=generator)).half()
    return {'theta': theta, 'pairs': pairs.short(), 'channel_scales': scales}


def turned(x, parts):
    """Rotate rows [m, k] pair after pair, as the definition says."""
    x = x.double() * parts['channel_scales'].double()
    group = torch.arange(x.shape[1] // 2) // 64 * 128
    for angles, pairs in zip(parts['theta'].double(), parts['pairs'].long()):
        i, j = group + pairs[::2], group + pairs[1::2]
        a, b = x[:, i], x[:, j]  # copies
        x[:, i] = a * angles.cos() + b * angles.sin()
        x[:, j] = b * angles.cos() - a * angles.sin()
    return x.float()


def codes(n, k, generator):
    """Random codes [k, n], zeros and scales [k/128, n], and the weights [n, k] they stand for."""
    q = torch.randint(0, 16, (k, n), generator=generator)
    z = torch.randint(0, 16, (k // 128, n), generator=generator)
    s = (0.01 + 0.01 * torch.rand(k // 128, n, generator=generator)).half()
    weight = (q - z.repeat_interleave(128, 0)) * s.float().repeat_interleave(128, 0)
    return q, z, s, weight.T


def words(values):
    """Eight numbers to an int32, the first lowest."""
    values = values.long().unflatten(-1, (-1, 8))
    word = sum(values[..., i] << 4 * i for i in range(8))
    return torch.where(word >= 1 << 31, word - (1 << 32), word).int()


def awq(q, z, s):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    def pack(v):
        return words(v.unflatten(-1, (-1, 8))[..., order].flatten(-2))
    return {'qweight': pack(q), 'qzeros': pack(z), 'scales': s}


def marlin(q, z, s):
    """For 8-bit activations; the code that the kernel expects, position by position."""
    k, n = q.shape
    tiles = q.view(k // 32, 32, n // 16, 16).permute(0, 2, 1, 3).reshape(-1, 2, 32, 16)
    packed = torch.zeros(len(tiles), 32, 2, 2, 8, dtype=torch.long)
    for lane in range(32):
        for tile in range(2):
            for block in range(2):
                rows = [4 * (lane % 4 + 4 * h) + i for h in range(2) for i in range(4)]
                column = lane // 4 + 8 * block
                packed[:, lane, tile, block] = tiles[:, tile][:, rows, column]
    packed = packed[..., [0, 4, 1, 5, 2, 6, 3, 7]].reshape(k // 16, -1)
    unit = s.float().max() / 4096
    integers = (s.float() / unit).round().to(torch.int16).view(torch.float16)
    scale_order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    zero_order = [i + 8 * j for i in range(8) for j in range(8)]
    empty = torch.zeros(0, dtype=torch.int32)
    return {'qweight': words(packed),
            'qzeros': words(z.unflatten(-1, (-1, 64))[..., zero_order].flatten(-2)),
            'scales': integers.unflatten(-1, (-1, 32))[..., scale_order].flatten(-2),
            'input_global_scale': unit, 'g_idx': empty, 'g_idx_sort_indices': empty,
            'workspace': torch.zeros(8, dtype=torch.int32)}


def paro_checkpoint(source, directory, pack, nested=True, seed=0):
    """
    Write the checkpoint `source` with the language model quantised.

    Returns the directory and by linear (rotation parts, weights [n, k] behind the rotation).
    """
    model, _ = checkpoint.load(str(source), torch.device('cpu'), torch.float32)
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns('*.safetensors*'))
    config = json.loads((directory / 'config.json').read_text())
    config['flashdrive'].pop('random_weights_seed', None)
    (directory / 'config.json').write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    stored, meant = {}, {}
    for key, tensor in checkpoint.public_tensors(model):
        if 'vlm.model.language_model.layers' not in key or not key.endswith('_proj.weight'):
            stored[key] = tensor.contiguous()
            continue
        linear, (n, k) = key.removesuffix('.weight'), tensor.shape
        turn = rotation(k, generator)
        *parts, weight = codes(n, k, generator)
        meant[linear] = turn, weight
        for inside, tensors in (('rotation', turn), ('qlinear', pack(*parts))):
            prefix = f'{linear}.rotate_linear.{inside}' if nested else linear
            stored |= {f'{prefix}.{name}': t.contiguous() for name, t in tensors.items()}
    save_file(stored, directory / 'model.safetensors')
    return directory, meant
