"""
The released pipeline, built of transformers' classes around our weights.

As the release works (spec `alpamayo.md` sections 7 and 8, `gpu_baseline.md` section 2): all
images are encoded and the whole prompt is prefilled for every trajectory, reasoning is
`generate`d token by token under autocast, and the action expert appends its tokens to the
generated cache, layer by layer, and crops them off after every flow step.  The weights are
views of the engine's own, so no memory is taken twice and both compute the same function.
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor, nn

from ..core import checkpoint, images
from ..core.action import held_constants, integrate
from ..core.config import DecoderConfig
from ..core.ego import EgoHistory
from ..core.model import Alpamayo
from ..core.prompt import build_layout
from ..core.tokenizer import Tokenizer
from ..core.trajectories import drive
from ..core.trajectory_tokens import history_token_ids
from ..core.types import FrameSet
from .measure import synchronise

TEMPERATURE, TOP_P = 0.6, 0.98
MOST_TOKENS = 128
MAX_POSITIONS = 262_144


class ReleasedPipeline:
    """
    One step from camera frames to trajectories, as the release takes it.

    `tokens` fixes the length of a reasoning, the trajectory-start token included; None: the
    model ends it.  Of the last step, `times` holds the stages in ms, `ids` [K, n] the reasonings,
    `cache` the keys of all but the last token, `visible` [K] the slots that action tokens see.
    """

    def __init__(self, model: Alpamayo, tokenizer: Tokenizer, tokens: int | None = None):
        self.model, self.tokenizer, self.tokens = model, tokenizer, tokens
        weights = dict(checkpoint.public_tensors(model))
        self.vlm = _language_model(model, tokenizer, weights)
        self.expert = _expert(model, weights)
        self.frequencies = model.frequencies()
        self.times: dict[str, float] = {}
        self.ids = self.visible = self.cache = self.layout = None
        self._marks: dict[str, float] = {}
        self.vlm.model.visual.register_forward_hook(lambda *_: self._mark('encode'))
        self.vlm.lm_head.register_forward_hook(lambda *_: self._mark('prefill'))

    def _mark(self, stage: str) -> None:
        """Note when a stage ended, the first time in a step."""
        if stage not in self._marks:
            synchronise(self.model.device)
            self._marks[stage] = time.perf_counter()

    @torch.inference_mode()
    def step(self, sets: Sequence[FrameSet], ego: EgoHistory, samples: int, flow_steps: int,
             generator: torch.Generator) -> np.ndarray:
        """Waypoints [K, N, 3] for a window of frame sets, oldest first."""
        synchronise(self.model.device)
        begin, self._marks = time.perf_counter(), {}
        with torch.autocast(self.model.device.type, torch.bfloat16,
                            enabled=self.model.dtype == torch.bfloat16):
            inputs, self.layout = self._inputs(sets, ego)
            self.ids, self.cache = self._generate(inputs, samples)
            self._mark('decode')
            controls = self._act(samples, flow_steps, generator)
        plan = drive(controls.float(), ego, held_constants(
            self.model.config.action, self.model.dtype))
        self._mark('action')
        ends = [begin, *(self._marks[s] for s in ('encode', 'prefill', 'decode', 'action'))]
        self.times = {stage: (b - a) * 1e3 for stage, a, b in zip(
            ('encode', 'prefill', 'decode', 'action'), ends, ends[1:])}
        return plan.xyz.numpy()

    def _inputs(self, sets: Sequence[FrameSet], ego: EgoHistory):
        config = self.model.config
        cameras = sets[-1].camera_ids
        raw = torch.stack([torch.as_tensor(s.frames[c].image, device=self.model.device)
                           for c in cameras for s in sets]).permute(0, 3, 1, 2)
        patches, grid = images.prepare(raw, config.vision, config.prompt)
        merge = config.vision.spatial_merge_size
        layout = build_layout(config, self.tokenizer, cameras,
                              [tuple(n // merge for n in grid)] * len(cameras))
        ids = layout.token_ids.copy()
        ids[slice(*layout.history)] = history_token_ids(ego.xyz, config.prompt, ego.rot)
        ids = torch.from_numpy(ids)[None].to(self.model.device)
        pads = (ids == self.tokenizer.id('image_pad')).int()
        return {'input_ids': ids, 'attention_mask': torch.ones_like(ids),
                'pixel_values': patches.flatten(0, 1).to(self.model.dtype),
                'image_grid_thw': torch.tensor([[1, *grid]] * len(raw), device=ids.device),
                'mm_token_type_ids': pads}, layout

    def _generate(self, inputs: dict, samples: int):
        """Reasonings [K, n] as ids, and the cache that holds all of them but the last token."""
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
        start = inputs['input_ids'].shape[1]
        end = self.tokenizer.id('traj_future_start')
        forbidden = ~self.model.allowed_tokens(trajectory_tokens=False)[
            :self.model.config.vocab_size]
        if self.tokens is not None:
            forbidden[[end, self.tokenizer.id('im_end')]] = True

        def mask(_, scores):
            return scores.masked_fill(forbidden, -torch.inf)

        def stop(ids, _, **__):  # one token later, so that the end is in the cache
            ended = (ids[:, start:-1] == end).any(1).all()
            return ended.expand(len(ids))
        out = self.vlm.generate(
            **inputs, logits_processor=LogitsProcessorList([mask]),
            stopping_criteria=StoppingCriteriaList([stop]),
            generation_config=GenerationConfig(
                do_sample=True, temperature=TEMPERATURE, top_p=TOP_P, top_k=0,
                max_new_tokens=(self.tokens or MOST_TOKENS) + 1, num_return_sequences=samples,
                pad_token_id=self.tokenizer.id('endoftext'), return_dict_in_generate=True))
        return out.sequences[:, start:], out.past_key_values

    def _act(self, samples: int, flow_steps: int, generator: torch.Generator) -> Tensor:
        """Controls [K, N, 2] from noise."""
        device, config, layout = self.model.device, self.model.config, self.layout
        n, held = config.action.n_waypoints, self.ids.shape[1] - 1
        ends = self.ids[:, :held] == self.tokenizer.id('traj_future_start')
        found = ends.int().argmax(1)
        visible = torch.where(ends.any(1), found, held - 1) + layout.size + 1
        self.visible = visible
        first = visible + layout.rope_delta
        positions = (first[:, None] + torch.arange(n, device=device)).expand(3, -1, -1)
        keys = torch.arange(layout.size + held + n, device=device)
        seen = (keys < visible[:, None]) | (keys >= layout.size + held)
        mask = torch.zeros(samples, 1, n, len(keys), dtype=self.model.dtype, device=device)
        mask.masked_fill_(~seen[:, None, None], -torch.inf)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            tokens = self.model.action_in_proj(x, t, self.frequencies).to(self.model.dtype)
            out = self.expert(inputs_embeds=tokens, position_ids=positions, attention_mask=mask,
                              past_key_values=self.cache, use_cache=True)
            self.cache.crop(-n)
            return self.model.action_out_proj(out.last_hidden_state)
        noise = torch.randn(samples, n, 2, generator=generator, device=device)
        return integrate(velocity, noise, flow_steps)


def _language_model(model: Alpamayo, tokenizer: Tokenizer, weights: dict[str, Tensor]):
    """Qwen3-VL of transformers whose parameters are views of our weights."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
    config = model.config
    vlm = Qwen3VLConfig(
        text_config={**_sizes(config.text), 'vocab_size': config.vocab_size},
        vision_config={key: list(value) if isinstance(value, tuple) else value
                       for key, value in asdict(config.vision).items()},
        image_token_id=tokenizer.id('image_pad'), video_token_id=tokenizer.id('video_pad'),
        vision_start_token_id=tokenizer.id('vision_start'),
        vision_end_token_id=tokenizer.id('vision_end'), tie_word_embeddings=False)
    with torch.device('meta'):
        net = Qwen3VLForConditionalGeneration._from_config(vlm, attn_implementation='sdpa')
    return _filled(net, {key.removeprefix('vlm.'): value for key, value in weights.items()
                         if key.startswith('vlm.')}, model.device)


def _expert(model: Alpamayo, weights: dict[str, Tensor]):
    """Decoder of transformers with the expert's sizes; like the release, without embeddings."""
    from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel
    config = Qwen3VLTextConfig(**_sizes(model.config.expert), vocab_size=1)
    with torch.device('meta'):
        net = Qwen3VLTextModel._from_config(config, attn_implementation='sdpa')
    del net.embed_tokens
    return _filled(net, {key.removeprefix('expert.'): value for key, value in weights.items()
                         if key.startswith('expert.')}, model.device)


def _sizes(decoder: DecoderConfig) -> dict:
    sizes = asdict(decoder)
    rope = {'rope_type': 'default', 'mrope_interleaved': True,
            'rope_theta': sizes.pop('rope_theta'),
            'mrope_section': list(sizes.pop('mrope_section'))}
    return {**sizes, 'rope_parameters': rope, 'pad_token_id': None,
            'max_position_embeddings': MAX_POSITIONS}


def _filled(net: nn.Module, weights: dict[str, Tensor], device: torch.device) -> nn.Module:
    """Give a network that was made without memory its weights, and compute its buffers."""
    net.load_state_dict(weights, strict=True, assign=True)
    for module in net.modules():
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            fresh = type(module)(module.config)
            for name, buffer in fresh.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
    return net.eval().requires_grad_(False)
