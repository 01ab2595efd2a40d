"""
Put the figures of bench/results/*.json into README.md and docs/*.md, between their markers.

    python bench/readme_tables.py            # rewrite them
    python bench/readme_tables.py --check    # exit 1 if one is not up to date
"""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / 'bench' / 'results'


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
    auto = 'bfloat16' if settings['dtype'] == 'auto' else settings['dtype']
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


def _number(value: float | None, digits: int) -> str:
    return '–' if value is None else f'{value:.{digits}f}'


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
            f'less the engine\'s step: {data["p50_ms"]:.1f} ms at the median, '
            f'{data["p95_ms"]:.1f} ms at p95, over {data["plans"]} plans of engine '
            f'`{data["engine"]}`; {data["decoding_p50_ms"]:.1f} ms of it decode the images. '
            f'{data["hardware"]["cores"]} cores, load {data["hardware"]["load_average"]:.1f}.']


TABLES = {'streaming_cpu': ('streaming_cpu', streaming_cpu),
          'world_render': ('world_render', world_render),
          'closed_loop': ('closed_loop', closed_loop), 'open_loop': ('open_loop', open_loop),
          'velocity_reuse': ('open_loop', velocity_reuse),
          'faults': ('faults', faults), 'soak': ('soak', soak), 'fuzz': ('fuzz', fuzz),
          'node_overhead': ('node_overhead', node_overhead),
          'reasoning': ('reasoning', reasoning), 'primitives': ('primitives', primitives)}
"""Results file and what to make of it, by the name of a section."""


def section(name: str, up: str = '') -> str:
    """Text between the markers of `name`, on a page from which `up` leads to the root."""
    stem, table = TABLES[name]
    path = RESULTS / f'{stem}.json'
    data = json.loads(path.read_text(encoding='utf-8'))
    lines = [*table(data), '',
             f'<sub>[`{path.relative_to(ROOT)}`]({up}{path.relative_to(ROOT)}), commit '
             f'{data["commit"][:9]}: `{data["command"]}`</sub>']
    return '\n'.join(lines)


def updated(text: str, up: str = '') -> str:
    """A page's text with every marked section made again; an unknown name is an error."""
    def replace(match: re.Match) -> str:
        return f'{match[1]}\n{section(match[2], up)}\n{match[3]}'
    return re.sub(r'(<!-- bench:(\w+) -->)\n.*?(<!-- /bench -->)', replace, text, flags=re.DOTALL)


def main() -> int:
    """Rewrite or check the pages."""
    stale = []
    for page in (ROOT / 'README.md', *sorted(ROOT.glob('docs/*.md'))):
        old = page.read_text(encoding='utf-8')
        new = updated(old, '../' * (len(page.relative_to(ROOT).parts) - 1))
        if new == old:
            continue
        stale.append(page)
        if '--check' in sys.argv[1:]:
            print(f'{page.relative_to(ROOT)}: figures are not those of bench/results; run '
                  'python bench/readme_tables.py', file=sys.stderr)
        else:
            page.write_text(new, encoding='utf-8')
    return int(bool(stale) and '--check' in sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
