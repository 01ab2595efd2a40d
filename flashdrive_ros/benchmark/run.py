"""Rows one after the other; whatever fails is reported and the next one begins."""
from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..core import checkpoint
from ..core.engine import Engine
from ..core.streaming import computed_slots
from ..core.types import DrivePlan
from .correctness import WINDOWS, Oracles
from .first_plan import time_first_plan
from .floors import Ceilings, Work, floors, measure_ceilings
from .measure import Load, Sample, clean, peak_gib, repeat, time_engine, warm_up
from .primitives import time_primitives
from .released import ReleasedPipeline
from .results import Results
from .rows import FLOW_STEPS, RELEASED, ROWS, TOKENS, NotAvailable, Row

PRIMITIVES, FIRST_PLAN, MEMORY = 'primitives', 'first_plan', 'memory'


class Bench:
    """Runs rows and fills `results`."""

    def __init__(self, load: Load, results: Results, trajectories: Sequence[int],
                 say: Callable[[str], None] = print):
        self.load, self.results, self.trajectories, self.say = load, results, trajectories, say
        self.oracles = Oracles()
        self.ceilings: Ceilings | None = None

    def run(self, names: Sequence[str]) -> int:
        """Measure the rows `names`; returns how many failed."""
        failed = 0
        parts = {RELEASED: self._released, PRIMITIVES: self._primitives,
                 FIRST_PLAN: self._first_plan, MEMORY: self._memory}
        before = ('ceilings', 'oracles') if any(name in ROWS for name in names) else ()
        for name in (*before, *names):
            begin = time.perf_counter()
            try:
                if name == 'ceilings':
                    self._ceilings()
                elif name == 'oracles':
                    self._oracles([ROWS[n] for n in names if n in ROWS])
                else:
                    parts.get(name, lambda name=name: self._row(ROWS[name]))()
                    self.results.data['not_available'].pop(name, None)
            except NotAvailable as reason:
                self.say(f'{name}: not available: {reason}')
                self.results.refuse(name, str(reason))
            except Exception as error:
                failed += 1
                self.say(f'{name}: FAILED\n{traceback.format_exc()}')
                self.results.refuse(name, f'failed: {type(error).__name__}: {error}'[:500])
            clean(self.load.device)
            self.results.save()
            self.say(f'{name}: {time.perf_counter() - begin:.1f} s')
        return failed

    def _ceilings(self) -> None:
        cuda = self.load.device.type == 'cuda'
        self.ceilings = measure_ceilings(self.load.device,
                                         torch.bfloat16 if cuda else torch.float32)
        self.results.data['ceilings'] = self.ceilings.as_json()

    def _oracles(self, rows: Sequence[Row]) -> None:
        """What the plain path makes of a few windows, for every set of algorithms."""
        eager = ROWS['eager']
        plain = replace(eager, settings={'drafting': 'auto'})
        engine = self.load.engine(plain)
        if not self.load.trained and not hasattr(engine, 'measure_acceptance'):
            rows = [row for row in rows if not row.drafts]
        self.oracles.make(engine, self.load, [eager, *rows])

    def _row(self, row: Row) -> None:
        load, samples = self.load, {}
        clean(load.device)
        begin = time.perf_counter()
        engine = load.engine(row)
        loaded = time.perf_counter()
        at_load = peak_gib(load.device)
        for count in self.trajectories:
            clean(load.device)
            engine.configure(num_trajectories=count)
            warm_up(engine, load)
            warm = time.perf_counter()
            sample, plan = time_engine(engine, load, row)
            samples[count] = sample
            if count == self.trajectories[0]:
                first = warm - begin + sample.times['total'][0] / 1e3
                self.results.put('start', row.name, value={
                    'first_plan_s': first, 'load_s': loaded - begin, 'warm_up_s': warm - loaded,
                    'weights': weights_from(load.model),
                    **({'load_peak_gib': at_load['allocated']} if at_load else {})})
            work = work_of(engine, plan, row)
            self._store(row.name, count, sample, floors(
                engine.model.config, engine.drafter and engine.drafter.config, work,
                self.ceilings, engine.model.dtype.itemsize) if self.ceilings else None)
            if row.streams:
                early, _ = time_engine(engine, load, row, early=True)
                self.results.put('encode_early', row.name, str(count), value=early.summary())
                self.say(f'{row.name}, {count}, from the last camera on: '
                         f'{early.summary()["total"]:.2f} ms')
        engine.configure(num_trajectories=1)
        checked = self.oracles.check(engine, load, row)
        if checked is not None:
            self.results.put('correctness', row.name, value=checked)
            self.say(f'{row.name}: against the plain path {_numbers(checked)}')

    def _store(self, name: str, count: int, sample: Sample, floor: dict | None = None) -> None:
        key, times = str(count), sample.summary()
        self.results.put('rows', name, key, value=times)
        self.results.put('details', name, key, value=sample.details())
        if floor is not None:
            self.results.put('floors_ms', name, key, value=floor)
        peak = peak_gib(self.load.device)
        if peak is not None:
            self.results.put('peak_gib', name, key, value=peak['allocated'])
            self.results.put('details', name, key, 'reserved_gib', value=peak['reserved'])
        self.results.save()
        self.say(f'{name}, {key}: {_numbers({k: v for k, v in times.items() if "p90" not in k})} '
                 f'ms, p90 {times["total_p90"]:.1f}'
                 + (f', {peak["allocated"]:.1f} GiB' if peak else ''))

    def _released(self) -> None:
        load = self.load
        model, tokenizer = checkpoint.load(load.model, load.device, _dtype(load.device))
        pipeline = ReleasedPipeline(model, tokenizer, None if load.trained else TOKENS)
        generator = torch.Generator(load.device).manual_seed(load.seed)
        for count in self.trajectories:
            clean(load.device)
            windows, sets, sample = load.drive(), [], Sample()

            def once(sets=sets, windows=windows, sample=sample, count=count):
                frames, ego = next(windows)
                sets[:] = [*sets, frames][-model.config.prompt.frames_per_camera:]
                whole = [sets[0]] * (model.config.prompt.frames_per_camera - len(sets)) + sets
                pipeline.step(whole, ego, count, FLOW_STEPS, generator)
                tokens = int(pipeline.visible.max()) - pipeline.layout.size
                sample.add(pipeline.times, sum(pipeline.times.values()), tokens, tokens)
            for number in range(WINDOWS):
                once()
                if number == WINDOWS - 1 and count == 1:
                    self._check_released(pipeline)
            sample.clear()
            repeat(once, load.repeats, load.limit_s)
            self._store(RELEASED, count, sample)

    def _check_released(self, pipeline: ReleasedPipeline) -> None:
        layout = pipeline.layout
        checked = self.oracles.check_released(pipeline, slice(layout.suffix, layout.size))
        if checked is not None:
            self.results.put('correctness', RELEASED, value=checked)
            self.say(f'{RELEASED}: against the plain path {_numbers(checked)}')

    def _primitives(self) -> None:
        row = ROWS['all']
        engine = self.load.engine(replace(row, name=PRIMITIVES))
        if engine.drafter is None:
            raise NotAvailable(f'{engine.model_name} has no drafter')
        warm_up(engine, self.load)
        for size, times in time_primitives(engine, self.load).items():
            self.results.put('primitives', size, value=times)
            self.say(f'primitive of {size} tokens: {_numbers(times)} ms')


    def _first_plan(self) -> None:
        row = 'all_low_bit' if self.load.device.type == 'cuda' else 'all'
        times = time_first_plan(self.load, row)
        self.results.put(FIRST_PLAN, value={'row': row, **times})
        self.say(f'a new process, {row}: {_numbers(times)}')


    def _memory(self) -> None:
        """Memory and total of every kind of quantization, for the table of other cards."""
        from ..core.quantization.footprint import GIB, SETTINGS, memory_needed
        count, failed = max(self.trajectories), []
        for kind, expert in SETTINGS:
            name = f'{kind}, expert too' if expert else kind
            row = ROWS['all_low_bit_expert' if expert else 'all_low_bit' if kind != 'none'
                       else 'all']
            load = replace(self.load, quantization=kind, repeats=5,
                           settings={**self.load.settings, 'num_trajectories': count})
            clean(load.device)
            try:
                engine = load.engine(row)
                clean(load.device)
                warm_up(engine, load)
                sample, _ = time_engine(engine, load, row)
            except Exception as error:
                self.say(f'memory, {name}: FAILED\n{traceback.format_exc()}')
                self.results.put(MEMORY, name, value={'failed': f'{error}'[:300]})
                failed.append(name)
                continue
            estimate = memory_needed(engine.model.config, engine.config, engine.model.dtype,
                                     drafter=engine.drafter is not None).total / GIB
            peak = peak_gib(load.device) or {}
            value = {'trajectories': count, 'estimate_gib': estimate,
                     'total_ms': sample.summary()['total'], **peak}
            self.results.put(MEMORY, name, value=value)
            self.say(f'memory, {name}: {_numbers(value)}')
            self.results.save()
            del engine
        if failed:
            raise RuntimeError(f'no figures for {", ".join(failed)}')


def work_of(engine: Engine, plan: DrivePlan, row: Row) -> Work:
    """What the step of a plan had to do."""
    config, settings, text = engine.model.config, engine.config, plan.reasoning
    layout = engine.streams['guided'].layout
    drafted = bool(text.accepted_by_round)
    return Work(
        images=plan.window.images_encoded,
        patches=int(np.mean([r * c for r, c in layout.grids])
                    * config.vision.spatial_merge_size ** 2),
        prompt=layout.size,
        slots=computed_slots(layout, layout.frames if plan.window.mode == 'prefill' else 1,
                             settings.recompute_labels),
        passes=text.rounds if drafted else len(text.token_ids) - (text.stop_reason == 'length'),
        tokens_a_pass=engine.drafter.config.block_size if drafted else 1,
        drafts=text.rounds if drafted else 0,
        evaluations=engine.flow_steps - len(settings.velocity_reuse),
        samples=settings.num_trajectories,
        quantization=getattr(settings, 'quantization', 'none'),
        quantize_expert=getattr(settings, 'quantize_expert', False))


def weights_from(name: str) -> str:
    """Say where the weights came from."""
    config, _ = checkpoint.read_config(checkpoint.find(name))
    return ('drawn at random on the device' if config.random_weights_seed is not None
            else 'read from the checkpoint')


def _dtype(device: torch.device) -> torch.dtype:
    return checkpoint.resolve_device(str(device), 'auto')[1]


def _numbers(values: dict) -> str:
    return ', '.join(f'{name} {value:.4g}' for name, value in values.items())
