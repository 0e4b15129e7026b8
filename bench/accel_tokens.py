"""Tokens of ResNet-18's layers: the verifier's answers when they are missing.

    python bench/accel_tokens.py [--json FILE] [--pairs 2000] [--schedules 2000] [--jobs N]
                                 [--first SEED] [--seconds S]

Of the layers' streams, pushes with the pops that they meet are removed, a pair at a time: the
verifier reports a race, or the pair was superfluous, and then the answer is the same under 20
memory timings. A push or a pop removed alone is always reported. Random schedules of random layers
are all accepted, as whatever the compiler makes. Geometry and memories as in `accel_compiler.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial

import numpy as np
import report
from accel_compiler import GEOMETRY, LAYERS, TARGET

from tilewright.accel.compare import random_inputs
from tilewright.accel.compiler import compile_function
from tilewright.accel.device import run_on
from tilewright.accel.isa import Instruction, Stream
from tilewright.accel.isa.table import FIELD_INDEX
from tilewright.accel.operators import Axis, Conv, conv
from tilewright.accel.rules import RULES, schedule
from tilewright.accel.verify import is_accepted
from tilewright.base.errors import TilewrightError
from tilewright.rules.context import RuleContext
from tilewright.rules.rule import Choice
from tilewright.rules.space import plan_text
from tilewright.tensor import Schedule

TIMINGS = 20
CHUNK = 25  # pairs of one job
End = tuple[int, str, int]  # of a token: task, field, queue


def measure(options: argparse.Namespace) -> list[report.Figure]:
    shapes = [shape for _, _, shape, _ in LAYERS]
    begun = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        counts = list(pool.map(count_pairs, shapes)) if options.pairs else [0] * len(shapes)
        every = [
            (shape, at) for shape, count in zip(shapes, counts, strict=True) for at in range(count)
        ]
        order = np.random.default_rng(options.first).permutation(len(every))[: options.pairs]
        chosen = [every[at] for at in sorted(order)]
        jobs = [chosen[at : at + CHUNK] for at in range(0, len(chosen), CHUNK)]
        end = time.time() + options.seconds
        found = list(pool.map(partial(without_tokens, end), jobs))
        seeds = range(options.first, options.first + options.schedules)
        told = list(pool.map(partial(is_false_alarm, end), seeds, chunksize=4))
    columns = zip((0,) * 5, *found, strict=True)
    pairs, accepted, changed, lone, missed = (sum(column) for column in columns)
    return [
        report.at_least("pairs removed", float(pairs), f"of {len(every)}", 2000),
        report.at_most("pairs accepted", accepted / max(1, pairs), "", 0.05),
        report.at_most("accepted pairs that change an answer", float(changed), "", 0),
        report.at_least("lone pushes or pops removed", float(lone), "", 2000),
        report.at_most("lone ones not reported", float(missed), "", 0),
        report.at_least("random schedules", float(len(told) - told.count(None)), "", 2000),
        report.at_most("false alarms", float(told.count(True)), "", 0),
        report.Figure("taken", time.perf_counter() - begun, "s"),
    ]


@cache
def stream_of(shape: Conv) -> Stream:
    """A layer by its default plan."""
    return compile_function(schedule(conv(shape, GEOMETRY), TARGET)[0].function, TARGET)


def count_pairs(shape: Conv) -> int:
    return len(token_pairs(stream_of(shape)))


def without_tokens(
    end: float, chosen: Sequence[tuple[Conv, int]]
) -> tuple[int, int, int, int, int]:
    """Until the time is over: pairs removed, accepted, changing an answer; lone ends removed,
    unreported."""
    done = accepted = changed = missed = 0
    for shape, at in chosen:
        if time.time() > end:
            break
        done += 1
        stream = stream_of(shape)
        push, pop = token_pairs(stream)[at]
        missed += is_accepted(without(stream, push)) + is_accepted(without(stream, pop))
        bare = without(without(stream, push), pop)
        if is_accepted(bare):
            accepted += 1
            changed += changes_an_answer(bare, stream)
    return done, accepted, changed, 2 * done, missed


def changes_an_answer(bare: Stream, stream: Stream) -> bool:
    inputs = random_inputs(stream, 0)
    want = run_on("functional", stream, inputs).outputs
    runs = (run_on("cycle", bare, inputs, seed).outputs for seed in range(TIMINGS))
    return any(not np.array_equal(run[name], want[name]) for run in runs for name in want)


def token_pairs(stream: Stream) -> list[tuple[End, End]]:
    """Pushes and the pops that they meet: the k-th of either, from a queue to another."""
    pushes: dict[tuple[int, int], list[End]] = {}
    pops: dict[tuple[int, int], list[End]] = {}
    for number, task in enumerate(stream.instructions):
        for other in task.pushes():
            pushes.setdefault((task.queue, other), []).append((number, "push", other))
        for other in task.pops():
            pops.setdefault((other, task.queue), []).append((number, "pop", other))
    return [pair for way, ends in pushes.items() for pair in zip(ends, pops[way], strict=True)]


def without(stream: Stream, end: End) -> Stream:
    number, field, queue = end
    task = stream.instructions[number]
    values = list(task.values)
    values[FIELD_INDEX[task.op][field]] &= ~(1 << queue)
    tasks = list(stream.instructions)
    tasks[number] = Instruction(task.op, tuple(values))
    return replace(stream, instructions=tuple(tasks))


def random_layer(seed: int) -> Conv:
    """A convolution of any stride, dilation and padding; every twentieth is one of ResNet-18."""
    if seed % 20 == 0:
        return LAYERS[seed // 20 % len(LAYERS)][2]
    random = np.random.default_rng(seed)

    def axis(skips: bool) -> Axis:
        kernel, dilation = int(random.integers(1, 4)), int(random.integers(1, 3))
        pads = [int(one) for one in random.integers(0, kernel, 2)]
        size = (kernel - 1) * dilation + int(random.integers(1, 16))
        return Axis(size, kernel, int(random.integers(1, 3)), pads[0], pads[1], dilation, skips)

    images, groups, ins, outs = (int(one) for one in random.integers(1, (3, 3, 5, 5)))
    return Conv(images, groups, ins, outs, axis(True), axis(False), int(random.integers(-9, 9)))


def is_false_alarm(end: float, seed: int) -> bool | None:
    """Whether a random schedule of a layer is refused; None when the time is over."""
    if time.time() > end:
        return None
    fn, context = conv(random_layer(seed), GEOMETRY), RuleContext(TARGET)
    sch, rule = Schedule(fn), RULES[0][0]
    space = rule.plans(rule.match(sch, sch.get_block("acc"), context), context)
    assert space is not None
    plan = plan_text(space.plan_at(space.sample(1, np.random.default_rng(seed)), 0))
    made = schedule(fn, TARGET, Choice(rule.name, plan))[0].function
    try:
        return not is_accepted(compile_function(made, TARGET))
    except TilewrightError:
        return True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--seconds", type=float, default=1e9)


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
