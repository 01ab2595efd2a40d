"""
Put the figures of bench/results/*.json into README.md, between its markers.

    python bench/readme_tables.py            # rewrite README.md
    python bench/readme_tables.py --check    # exit 1 if it is not up to date
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
            'The last column is the mean distance from the full step\'s path, same noise: what '
            'the approximation costs this checkpoint, which was not fine-tuned for streaming.']


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
            f'world, {data.get("note", "")}. {data["hardware"].get("gpu", "CPU")}, float32. '
            'An episode ends at a collision or after 1 s off the road; the world waits for plans.']


TABLES = {'streaming_cpu': streaming_cpu, 'world_render': world_render,
          'closed_loop': closed_loop}


def section(name: str) -> str:
    """Text between the markers of `name`."""
    path = RESULTS / f'{name}.json'
    data = json.loads(path.read_text(encoding='utf-8'))
    lines = [*TABLES[name](data), '',
             f'<sub>[`{path.relative_to(ROOT)}`]({path.relative_to(ROOT)}), commit '
             f'{data["commit"][:9]}: `{data["command"]}`</sub>']
    return '\n'.join(lines)


def updated(text: str) -> str:
    """README text with every marked section made again; an unknown name is an error."""
    def replace(match: re.Match) -> str:
        return f'{match[1]}\n{section(match[2])}\n{match[3]}'
    return re.sub(r'(<!-- bench:(\w+) -->)\n.*?(<!-- /bench -->)', replace, text, flags=re.DOTALL)


def main() -> int:
    """Rewrite or check README.md."""
    readme = ROOT / 'README.md'
    old = readme.read_text(encoding='utf-8')
    new = updated(old)
    if '--check' in sys.argv[1:]:
        if new != old:
            print('README.md: figures are not those of bench/results; run '
                  'python bench/readme_tables.py', file=sys.stderr)
        return int(new != old)
    readme.write_text(new, encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
