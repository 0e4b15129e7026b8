"""Timing of kernels on an NVIDIA GPU: CUDA graphs of 20 launches with rotating operands.

count = copies_of(x.nbytes + w.nbytes)                   so that none is warm in L2
ours = recorded(lambda turn, stream: run(xs[turn % count], ws[turn % count], stream=stream))
theirs = captured(lambda turn: torch.matmul(xs[turn % count], ws[turn % count]))
seconds_of({"ours": ours, "theirs": theirs})             medians of one launch, in turns
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import numpy as np
import torch

from tilewright.base.errors import UserError
from tilewright.rules import Scheduled
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text
from tilewright.runtime import cuda, cuda_graphs

LAUNCHES, ROUNDS = 20, 5
ROTATED_BYTES = 150 << 20  # three times what L2 holds

Run = Callable[[], object]


def copies_of(operand_bytes: int) -> int:
    """How many copies of operands take turns: enough to fill L2 three times, or one per launch."""
    return max(1, min(LAUNCHES, ROTATED_BYTES // operand_bytes + 1))


def recorded(start: Callable[[int, int], object]) -> Run:
    """Launches of ours, `start(turn, stream)`, as a graph."""
    stream = cuda.Stream()

    def all_turns(handle: int) -> None:
        for turn in range(LAUNCHES):
            start(turn, handle)

    all_turns(stream.handle)  # kernels are loaded and memory is there before anything is recorded
    cuda.synchronize()
    graph = cuda_graphs.Graph(all_turns, stream)
    return lambda: graph.launch(0)


def captured(start: Callable[[int], object]) -> Run:
    """Launches of torch's, `start(turn)`, as a graph."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for turn in range(3):  # what measures algorithms does so before anything is captured
            start(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        for turn in range(LAUNCHES):
            start(turn)
    return graph.replay


def seconds(run: Run) -> float:
    """The time of one launch of a graph."""
    timer = cuda.Timer()
    timer.start()
    run()
    return timer.stop() / 1e3 / LAUNCHES


def seconds_of(runs: Mapping[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    """Medians of several, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return {name: statistics.median(found) for name, found in times.items()}


def cheapest(made: Scheduled, count: int, alike: tuple[str, ...] = ()) -> list[Choice]:
    """The plans of the first block that are priced lowest; of those that differ in the fields
    `alike` alone, one."""
    offer = made.offers[0]
    if not count or not offer.is_open:
        return []
    columns = offer.space.columns()
    found: dict[tuple[object, ...], Choice] = {}
    for row in np.argsort(offer.cost(columns).cycles, kind="stable"):
        plan = offer.space.plan_at(columns, int(row))
        key = tuple(value for name, value in vars(plan).items() if name not in alike)
        found.setdefault(key, Choice(offer.rule.name, plan_text(plan)))
        if len(found) == count:
            break
    return list(found.values())


def print_plans(
    title: str, choices: list[Choice], build: Callable[[Choice], tuple[Run, float]]
) -> None:
    """What other plans of a kernel take, and their errors; a plan that is refused says why."""
    for choice in choices:
        try:
            run, error = build(choice)
        except UserError as problem:
            print(title, choice.plan, problem.message)
            continue
        best = min(seconds(run) for _ in range(3))
        print(f"{title} {choice.plan}: {best * 1e6:.1f} us, error {error:.1e}")
