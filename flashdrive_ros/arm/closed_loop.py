"""Closed-loop episodes of a head and its plans, many tables in step with each other."""
from __future__ import annotations

import torch

from .head import ActionHead
from .plans import Planner, pictures_of
from .simulator import LIMIT_STEPS, TASKS, ArmSimulator
from .timing import CHUNK, CHUNKS_PER_PLAN
from .variants import VARIANTS, plan

FIRST_SEED = 50_000
"""Seeds from here on are held out: training takes those from 0 on."""


def run(name: str, head: ActionHead, planner: Planner, per_task: int,
        first_seed: int = FIRST_SEED) -> dict[str, int]:
    """Successes by task out of `per_task` episodes each; a new plan every three chunks."""
    tables = []
    for task in TASKS:
        for seed in range(first_seed, first_seed + per_task):
            tables.append(ArmSimulator())
            tables[-1].reset(task, seed)
    variant, generator = VARIANTS[name], torch.Generator(planner.device).manual_seed(first_seed)
    running, plans = list(range(len(tables))), None
    for chunk in range(max(LIMIT_STEPS.values()) // CHUNK):
        if not running:
            break
        looks = [tables[i].observe() for i in running]
        seen, told = pictures_of(looks), [tables[i].instruction for i in running]
        if chunk % CHUNKS_PER_PLAN == 0:
            plans, planned = plan(planner, variant, seen, told), list(running)
        rows = [planned.index(i) for i in running]
        now = planner.looks(seen, told)
        state = torch.tensor([[*o.joints, o.gripper] for o in looks],
                             dtype=torch.float32, device=planner.device)
        memory = head.memory((now.features, now.segments), plans and (
            plans.features[rows], plans.segments[rows]))
        age = torch.full((len(running),), chunk % CHUNKS_PER_PLAN, device=planner.device)
        actions = head.act(state, age, memory, generator).double().cpu().numpy()
        for i, own in zip(running, actions):
            for action in own:
                if not tables[i].success and tables[i].steps < LIMIT_STEPS[tables[i].task]:
                    tables[i].act(action[:4], action[4])
        running = [i for i in running if not tables[i].success
                   and tables[i].steps < LIMIT_STEPS[tables[i].task]]
    return {task: sum(t.success for t in tables if t.task == task) for task in TASKS}
