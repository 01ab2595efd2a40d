"""
Put the figures of bench/results/*.json into README.md and docs/, between their markers.

    python bench/readme_tables.py            # rewrite them
    python bench/readme_tables.py --check    # exit 1 if they are not up to date
"""
from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'bench' / 'results'
PAGES = (ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md')))


def streaming_cpu(data: dict) -> list[str]:
    """What a step computes, and how long that takes."""
    rows = [f'| {name} | {step["images_encoded"]} of 16 | {step["slots_computed"]} of '
            f'{data["prompt_slots"]} | {step["encode_ms"]:.0f} | {step["prefill_ms"]:.0f} | '
            f'{data["steps"]["released"]["encode_prefill_ms"] / step["encode_prefill_ms"]:.2f} |'
            f' {step.get("path_deviation_m_mean", 0):.2f} |'
            for name, step in data['steps'].items()]
    return ['| step | images encoded | slots computed | encode ms | prefill ms | times as fast | '
            'path off by, m |', '|---|---|---|---|---|---|---|', *rows, '',
            f'Small model ({"trained" if data["trained"] else "untrained"}), '
            f'{data["windows"]} windows, {data["hardware"]["threads"]} thread of a '
            f'{data["hardware"]["cores"]}-core CPU, float32. "released": no memory, as the public '
            'code does; "full": features of older frames remembered, the whole prompt computed. '
            'The last column is the mean distance from the full step\'s path over 6.4 s, same '
            'noise, other words where they differ.']


def world_render(data: dict) -> list[str]:
    """Frames a CPU-second of the world's renderer."""
    summary = data['summary']
    return [f'The embedded world draws {summary["frames_per_cpu_second"]:.0f} four-camera frames '
            f'per CPU-second at 320×180, {summary["frames_per_cpu_second_with_boxes"]:.0f} with '
            'visible-pixel boxes.']


def closed_loop(data: dict) -> list[str]:
    """Closed loop by policy."""
    rows = [f'| {name} | ' + ' | '.join(
        '–' if policy.get(key) is None else f'{100 * policy[key]:.0f} %'
        for key in ('collision', 'off_road', 'wrong_lane', 'red_light', 'cause_right'))
        + f' | {policy["p_rel"]:.2f} | {policy["d_traj"]:.1f} |'
        for name, policy in data['policies'].items()]
    return ['| policy | collision | off road | wrong lane | red light | cause right | progress | '
            'off the expert\'s path, m |', '|---|---|---|---|---|---|---|---|', *rows, '',
            f'{data["episodes"]} held-out episodes of {data["seconds"]:.0f} s in the embedded '
            f'world{_selection(data)}. {_device(data)}. '
            'An episode ends at a collision or after 1 s off the road; the world waits for plans.']


def _selection(data: dict) -> str:
    """Which episodes these are, when they are not all that were asked for."""
    done, asked = data['episodes'] + len(data['dropped_seeds']), data.get('seeds_asked', 0)
    cut = (f'{done} of {asked} asked for: stopped by its time limit, and episodes that end early '
           'are done first' if done < asked else '')
    return ''.join(f', {text}' for text in (data.get('note', ''), cut) if text)


def _device(data: dict) -> str:
    """What the model ran on, and in which numbers."""
    settings = data['settings']
    if settings['device'] == 'cpu':
        return 'CPU, float32'
    auto = settings.get('dtype', 'auto')
    auto = 'bfloat16' if auto == 'auto' else auto
    return f'{data["hardware"]["gpu"]}, {auto}'


def open_loop(data: dict) -> list[str]:
    """Errors of planned trajectories, by row."""
    lines = []
    for name, row in data['rows'].items():
        relation = data['relations'].get(f'{name} / full')
        lines.append(f'| {name} | {_with_interval(row, "minADE1")} | '
                     f'{_with_interval(row, "minADE6")} | '
                     + (f'{relation["minADE6"][0]:.2f}' if relation else '–') + ' |')
    windows = {row['windows'] for row in data['rows'].values()}
    return ['| row | minADE1, m | minADE6, m | minADE6 / full |', '|---|---|---|---|', *lines, '',
            f'At 6.4 s, {max(windows)} windows of {len(data["seeds"])} held-out episodes, the '
            f'same ones in every row; 95 % intervals over the episodes. {_device(data)}.']


def _with_interval(row: dict, key: str) -> str:
    low, high = row[f'{key}_ci']
    return f'{row[key]:.2f} ({low:.2f} to {high:.2f})'


def velocity_reuse(data: dict) -> list[str]:
    """Errors when steps of the flow take the velocity of the step before them."""
    profile = data['velocity_profile']
    lines = [f'| {count} | {", ".join(map(str, row["steps"])) or "–"} | {row["minADE1"]:.3f} | '
             f'{row["minADE6"]:.3f} | {row["minADE6_to_none"][0]:.3f} |'
             for count, row in data['velocity_reuse'].items()]
    steps = len(profile['change']) + 1
    shape = 'is U-shaped' if profile['u_shape'] else 'is not U-shaped'
    return [f'| steps reused of {steps} | which | minADE1, m | minADE6, m | minADE6 / none reused '
            '|', '|---|---|---|---|---|', *lines, '',
            f'Row {profile["row"]}, {profile["windows"]} windows. Reused are the steps over which '
            'the velocity changes least; its change from step to step, as a share of itself, '
            f'{shape}: {", ".join(f"{c:.3f}" for c in profile["change"])}.']


def reasoning(data: dict) -> list[str]:
    """Drafted reasoning beside plain decoding, by block size."""
    lines = [f'| {name}{sampling} | {_number(row["tokens_per_round"], 2)} | '
             f'{_number(row["most_per_round"], 2)} | {_number(row["tokens"], 1)} | '
             f'{100 * row["equal_to_plain"]:.2f} % | '
             f'{_number(row["plain_reason_ms"], 1)} | {_number(row["reason_ms"], 1)} | '
             f'{_number(row["speedup"], 2)} |'
             for key, sampling in (('rows', ''), ('sampled_rows', ', sampled'))
             for name, row in data[key].items()]
    windows = {row['windows'] for row in data['rows'].values()}
    settings = data['settings']
    return ['| block | tokens a round | at most | tokens | as plain | plain ms | drafted ms | '
            'times as fast |', '|---|---|---|---|---|---|---|---|', *lines, '',
            f'{max(windows)} windows of {len(data["seeds"])} held-out episodes, plain and drafted '
            'behind the same prompt in alternation; greedy, and sampled at '
            f'{settings["temperature"]}/{settings["top_p"]}. B{data["drafter_block"]} is the '
            f'drafter\'s own block. {_device(data)}, {data["threads"]} thread.']


def primitives(data: dict) -> list[str]:
    """Boxes and trajectories by mode of decoding."""
    columns = (('ade_2d', 4), ('ade_3d_m', 2), ('fde_3d_m', 2), ('box_f1', 3), ('boxes_per_s', 1),
               ('tokens_per_round', 2), ('target_passes', 2), ('ms_per_answer', 1))
    lines = [f'| {name} | ' + ' | '.join(_number(row[key], n) for key, n in columns) + ' |'
             for name, row in data['rows'].items()]
    return ['| mode | ADE 2D | ADE 3D, m | FDE 3D, m | box F1 | boxes/s | tokens a round | '
            'target passes a primitive | ms an answer |', '|---|---|---|---|---|---|---|---|---|',
            *lines, '',
            f'{data["windows"]} windows of {len(data["seeds"])} held-out episodes, the same in '
            'every mode. 2D errors in shares of the image, F1 the mean of IoU .50 to .95. '
            f'{_device(data)}, {data["threads"]} thread.']


STAGES = ('encode', 'prefill', 'decode', 'action', 'total')


def stages(data: dict) -> list[str]:
    """Stage times by row and times the floor; one table for each count of trajectories."""
    lines = []
    for count in sorted({c for row in data['rows'].values() for c in row}, key=int):
        lines += [*_stage_table(data, count), '']
    return [*lines, _ratios(data), '', _conditions(data)]


def _stage_table(data: dict, count: str) -> list[str]:
    plural = 'y' if count == '1' else 'ies'
    base = data['rows'].get('released', {}).get(count)
    lines = []
    for name, row in data['rows'].items():
        times = row.get(count)
        if times is None:
            continue
        floor = data['floors_ms'].get(name, {}).get(count, {})
        cells = [f'{times[stage]:.1f}' + (
            f' ({times[stage] / floor[stage]:.1f})' if floor else '') for stage in STAGES]
        faster = f'{base["total"] / times["total"]:.1f}' if base else '–'
        peak = _number(data['peak_gib'].get(name, {}).get(count), 1)
        lines.append(f'| {name} | ' + ' | '.join([*cells, f'{times["total_p90"]:.1f}', faster,
                                                  peak]) + ' |')
    return [f'| {count} trajector{plural} | encode | prefill | decode | action | total, ms | p90 '
            '| times as fast | peak GiB |', '|---|---|---|---|---|---|---|---|---|', *lines]


def _ratios(data: dict) -> str:
    """What techniques bring together, in words."""
    found = []
    for slow, fast in (('released', 'all'), ('graphs', 'all_low_bit'), ('eager', 'all')):
        one, other = (data['rows'].get(name, {}).get('1') for name in (slow, fast))
        if one and other:
            found.append(f'`{slow}` / `{fast}` {one["total"] / other["total"]:.1f}')
    return f'Totals, one trajectory: {", ".join(found)}.' if found else ''


def _conditions(data: dict) -> str:
    ceilings, settings = data['ceilings'], data['settings']
    rates = f'copy {ceilings["copy_tb_s"]:.3g} TB/s, matrix products ' \
        f'{ceilings["matmul_tflop_s"]:.3g} TFLOP/s'
    if ceilings.get('matmul_8bit_tflop_s'):
        rates += f' ({ceilings["matmul_8bit_tflop_s"]:.4g} in 8 bits)'
    what = (f'images {settings["image_size"]} on the device' if settings['image_size'] else
            'the embedded world')
    tokens = {row['1']['tokens'] for row in data['details'].values() if '1' in row}
    return (f'{data["model"]} ({"trained" if data["trained"] else "random weights"}), '
            f'{_device(data)}, from {what} to trajectories on the host; medians, in brackets '
            'times the floor. '
            f'{min(tokens):.0f} to {max(tokens):.0f} tokens of reasoning, 8 flow steps (4 '
            'evaluated with velocity_reuse). `released` draws a reasoning for every trajectory, '
            f'the others share one. Floors from what was measured here: {rates}.')


def primitive_sizes(data: dict) -> list[str]:
    """Primitives token by token and by draft and commit."""
    lines = [f'| {size} | {times["autoregressive"]:.1f} | {times["flash"]:.1f} | '
             f'{times["autoregressive"] / times["flash"]:.1f} |'
             for size, times in data['primitives'].items()]
    return ['| tokens | autoregressive, ms | draft and commit, ms | times as fast |',
            '|---|---|---|---|', *lines, '', f'{data["model"]}, {_device(data)}.']


def deviations(data: dict) -> list[str]:
    """What each row computes against the plain path on the same windows."""
    lines = [f'| {name} | {row["keys"]:.2g} | {row["values"]:.2g} | '
             f'{_percent(row.get("equal_tokens"))} | {_number(row.get("waypoints_m"), 3)} |'
             for name, row in data['correctness'].items()]
    return ['| row | keys | values | equal tokens | waypoints, m |', '|---|---|---|---|---|',
            *lines, '', 'Relative L2 of keys and values behind the images, against the plain path '
            'with the same algorithms, weights and noise, greedy. With random weights the '
            'likeliest tokens are nearly as likely as others, so rounding changes some.']


CARDS_GIB = (24, 32, 48, 96)
CONTEXT_GIB = 0.6
"""Of the CUDA context, which PyTorch does not count."""


def cards(data: dict) -> list[str]:
    """Which setting runs on cards of which memory."""
    lines = []
    for name, row in data['memory'].items():
        if 'failed' in row:
            continue
        fits = [f'{card}' for card in CARDS_GIB if row['reserved'] + CONTEXT_GIB < card]
        lines.append(f'| {name} | {row["allocated"]:.1f} | {row["reserved"]:.1f} | '
                     f'{row["estimate_gib"]:.1f} | {", ".join(fits) or "–"} |')
    count = max(row.get('trajectories', 1) for row in data['memory'].values())
    return ['| quantization | allocated GiB | reserved GiB | estimate GiB | runs on cards of, GiB '
            '|', '|---|---|---|---|---|', *lines, '',
            f'{data["model"]} with its drafter, {count} trajectories, measured on '
            f'{data["hardware"]["gpu"]}; a card needs the reserved memory and about '
            f'{CONTEXT_GIB} GiB for CUDA. The estimate is what the engine refuses by before it '
            'loads anything.']


def _percent(value: float | None) -> str:
    return '–' if value is None else f'{100 * value:.0f} %'


def _number(value: float | None, digits: int) -> str:
    return '–' if value is None else f'{value:.{digits}f}'


def camera_throughput(data: dict) -> list[str]:
    """What arrives of four cameras over DDS, and what taking it costs."""
    rows = [f'| {"JPEG" if row["transport"] == "compressed" else "raw"} {row["size"]} '
            f'({row["bytes_per_image"] / 1e6:.2g} MB) | {row["dds"]} | '
            f'{100 * row["sets_arrived"] / row["expected_sets"]:.0f} % | '
            + (f'{row["cpu_of_one_core"]:.2f} | {row["age_ms_p50"]:.0f} / '
               f'{row["age_ms_p95"]:.0f} |'
               if row['sets_arrived'] >= 0.9 * row['expected_sets'] else '– | – |')
            for row in data['rows']]
    return ['| images | Fast DDS settings | sets that arrive | of one core | age when decoded, ms '
            '(p50 / p95) |', '|---|---|---|---|---|', *rows, '',
            f'{data["cameras"]} cameras at {data["rate_hz"]} Hz and odometry at 100 Hz into the '
            f'drive node without a model, on {data["hardware"]["cores"]} cores that other work '
            f'shared (load {min(row["load_before"] for row in data["rows"]):.1f} to '
            f'{max(row["load_before"] for row in data["rows"]):.1f}). "Of one core" is all that '
            'the receiving process takes: DDS, copies, decoding; left out where images get lost.']


def faults(data: dict) -> list[str]:
    """What each fault cost, and whether it was held."""
    engines = {row['engine'] for row in data['rows']}
    lines = [f'| {row["fault"]}{"" if len(engines) == 1 else ", " + row["engine"]} | '
             f'{row["sent"]} | {row["lost"]} | {_number(row["recovery_s"], 2)} | '
             f'{"yes" if row["held"] else "**no**: " + row["why"]}'
             f'{"; " + row["note"] if row["note"] else ""} |' for row in data['rows']]
    held = sum(row['held'] for row in data['rows'])
    return ['| fault | windows sent | without a plan | well again after, s | held |',
            '|---|---|---|---|---|', *lines, '',
            f'{held} of {len(data["rows"])} held. Windows are those of the fault and of the time '
            f'until recovery. {data["hardware"]["cores"]} cores, load '
            f'{data["load_before"]:.1f} before and {data["load_after"]:.1f} after.']


def soak(data: dict) -> list[str]:
    """Memory over many windows."""
    return [f'{data["windows"]} windows in lock-step: {data["plans"]} plans, '
            f'{data["withheld_with_reason"]} withheld with a reason, '
            f'{data["unexplained_gaps"]} without one. Resident memory grew by '
            f'{data["rss_slope_mb_per_1000"]:.2f} MB in 1000 windows (from '
            f'{data["rss_mb"][0]:.0f} to {data["rss_mb"][1]:.0f} MB in all, the filling of caches '
            'included).']


def fuzz(data: dict) -> list[str]:
    """Inputs and crashes."""
    kinds = ', '.join(f'{count} of kind {kind}' for kind, count in data['by_kind'].items())
    return [f'{data["inputs"]} inputs ({kinds}): {data["crashes"]} crashes.']


def node_overhead(data: dict) -> list[str]:
    """From the stamp to the plan, less the engine."""
    return [f'From the stamp of {len(data["cameras"])} cameras '
            f'({"×".join(map(str, data["image_size"]))}, JPEG) to the plan in another process, '
            f'less the engine: {data["p50_ms"]:.1f} ms at the median, '
            f'{data["p95_ms"]:.1f} ms at p95, over {data["plans"]} plans of engine '
            f'`{data["engine"]}` (a step takes {data["engine_p50_ms"]:.0f} ms). In '
            f'{_percent(data["waited"])} of them the engine was still busy at the stamp; they '
            'count from the plan before. Decoding images takes '
            f'{data["decoding_p50_ms"]:.1f} ms. '
            f'{data["hardware"]["cores"]} cores, load {data["hardware"]["load_average"]:.1f}.']


def quantization(data: dict) -> list[str]:
    """What plans of quantised weights differ by."""
    rows = [f'| {name} | {row["minADE1"]:.2f} | {row["minADE6"]:.2f} | '
            + ('–' if name == 'none' else
               f'{row["minADE6_to_none"][0]:.2f} ({row["minADE6_to_none"][1]:.2f} to '
               f'{row["minADE6_to_none"][2]:.2f})')
            + f' | {row["apart_m"]:.2f} | {_percent(row["equal_text"][0])} |'
            for name, row in data['rows'].items()]
    return ['| weights | minADE1, m | minADE6, m | minADE6 / none | apart, m | same text |',
            '|---|---|---|---|---|---|', *rows, '',
            f'Small model, {data["windows"]} windows of {len(data["seeds"])} held-out '
            'episodes, the same ones and the same noise in every row; 95 % intervals over the '
            'episodes. "expert": the action expert is quantised too; "calibrated": scaled by what '
            f'{data["calibration_windows"]} windows of other episodes activate; "apart": mean '
            'distance from the path of plain weights. CPU, 8-bit activations emulated as e4m3.']


TABLES = {'camera_throughput': ('camera_throughput', camera_throughput),
          'streaming_cpu': ('streaming_cpu', streaming_cpu),
          'world_render': ('world_render', world_render),
          'closed_loop': ('closed_loop', closed_loop), 'open_loop': ('open_loop', open_loop),
          'velocity_reuse': ('open_loop', velocity_reuse),
          'reasoning': ('reasoning', reasoning), 'primitives': ('primitives', primitives),
          'gpu_full_size': ('gpu_full_size', stages), 'cpu_small': ('cpu_small', stages),
          'gpu_primitives': ('gpu_full_size', primitive_sizes),
          'gpu_cards': ('gpu_full_size', cards),
          'quantization': ('quantization', quantization),
          'faults': ('faults', faults), 'soak': ('soak', soak), 'fuzz': ('fuzz', fuzz),
          'node_overhead': ('node_overhead', node_overhead),
          'gpu_correctness': ('gpu_full_size', deviations)}
"""Results file and what to make of it, by the name of a section."""


def section(name: str, page: Path) -> str:
    """Text between the markers of `name` on a page."""
    stem, table = TABLES[name]
    path = RESULTS / f'{stem}.json'
    data = json.loads(path.read_text(encoding='utf-8'))
    link = os.path.relpath(path, page.parent)
    lines = [*table(data), '',
             f'<sub>[`{path.relative_to(ROOT)}`]({link}), commit '
             f'{data["commit"][:9]}: `{data["command"]}`</sub>']
    return '\n'.join(lines)


def updated(text: str, page: Path) -> str:
    """Text of a page with every marked section made again; an unknown name is an error."""
    def replace(match: re.Match) -> str:
        return f'{match[1]}\n{section(match[2], page)}\n{match[3]}'
    return re.sub(r'(<!-- bench:(\w+) -->)\n.*?(<!-- /bench -->)', replace, text, flags=re.DOTALL)


def main() -> int:
    """Rewrite or check the pages."""
    stale = 0
    for page in PAGES:
        old = page.read_text(encoding='utf-8')
        new = updated(old, page)
        if '--check' not in sys.argv[1:]:
            page.write_text(new, encoding='utf-8')
        elif new != old:
            stale = 1
            print(f'{page.relative_to(ROOT)}: figures are not those of bench/results; run '
                  'python bench/readme_tables.py', file=sys.stderr)
    return stale


if __name__ == '__main__':
    sys.exit(main())
