"""`flashdrive trust faults`, `soak` and `overhead`: run, print, and write the results files."""
from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from ...errors import UserError
from ...values import value_of
from ..record import write_results
from . import overhead as node_overhead
from . import soak as soaking
from .fault_table import FAULTS
from .faults import Row, run


def _parameters(args) -> dict:
    """Parameters of the drive node from PARAMETER=VALUE."""
    found = {}
    for text in args.set:
        name, sign, value = text.partition('=')
        if not sign:
            raise UserError(f'--set {text}: expected PARAMETER=VALUE')
        found[name] = value_of(value)
    return found


def _load() -> float:
    """Of the machine, over the last minute."""
    return round(os.getloadavg()[0], 2)


def faults(args) -> int:
    """Break the drive in every way that was asked for; 0 when every fault was held."""
    wanted = [f for f in FAULTS if not args.only or any(w in f.name for w in args.only)]
    if not wanted:
        raise UserError(f'--only {" ".join(args.only)}: no fault has such a name; there are '
                        + ', '.join(f.name for f in FAULTS))

    def say(row: Row):
        recovery = 'never' if row.recovery_s is None else f'{row.recovery_s:.2f} s'
        print(f'{"held  " if row.held else "FAILED"} {row.fault}: sent {row.sent}, lost '
              f'{row.lost}, well after {recovery}'
              + ''.join(f'; {text}' for text in (row.note, row.why) if text), flush=True)
    before = _load()
    rows = [asdict(row) for row in run(wanted, args.work, args.engine, args.seed, say,
                                       **_parameters(args))]
    path = args.out / 'faults.json'
    done = {(row['fault'], row['engine']) for row in rows}
    if args.only and path.is_file():
        kept = [r for r in json.loads(path.read_text())['rows']
                if (r['fault'], r['engine']) not in done]
        rows = kept + rows
    write_results(path, {'rows': rows}, load_before=before, load_after=_load())
    print(path)
    return 0 if all(row['held'] for row in rows) else 1


def soak(args) -> int:
    """Thousands of windows; 0 when each has a plan or a reason."""
    done = soaking.run(args.work, args.windows, args.engine, **_parameters(args)).summary()
    return _write(args.out / _named('soak', args.engine, 'double'), done, args,
                  not done['unexplained_gaps'])


def overhead(args) -> int:
    """Overhead of the node; 0 when every plan was heard."""
    before = _load()
    done = node_overhead.measure(args.work, args.engine, args.plans, **_parameters(args))
    done.update(load_before=before, load_after=_load())
    return _write(args.out / _named('node_overhead', args.engine, 'small'), done, args,
                  done['plans'] == done['asked'])


def _named(name: str, engine: str, usual: str) -> str:
    """File of a measurement; one with another engine than usual has a file of its own."""
    return f'{name}.json' if engine == usual else f'{name}_{Path(engine).name}.json'


def _write(path: Path, body: dict, args, good: bool) -> int:
    body = write_results(path, {**body, 'engine': args.engine, 'parameters': args.set})
    for key, value in body.items():
        if key not in ('hardware', 'versions'):
            print(f'{key:24} {value}')
    print(path)
    return 0 if good else 1
