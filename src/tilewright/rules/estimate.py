"""Predicted time of a kernel that has not been built, for decisions of the graph compiler.

    estimate_ns(fn, target, threads=2, constants=("w",))
    estimate_ns(fn, target, threads=2, several=True)

A kernel of several operators, and one without reductions, is scheduled, and the predictions of all
its decisions are added up. A kernel of one operator is not scheduled: its price is the cheapest
plan of the first rule entry that serves one of its blocks, since that rule takes all its stages.
The search is a short one: the graph compiler asks often, and its candidates differ by more than
neighbouring plans do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from tilewright.base.multiprocessor import multiprocessor_of
from tilewright.base.target import CUDA, Target
from tilewright.graph.winograd import PRODUCT, ROLE
from tilewright.rules import RULES, schedule
from tilewright.rules.context import RuleContext
from tilewright.rules.inline import inline_producers
from tilewright.rules.rule import Closed, Rule
from tilewright.rules.space import Columns, Cost, Priced
from tilewright.sym import Const
from tilewright.tensor.ir import REDUCE, Block, Buffer, Function, annotation
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import blocks, written_buffers


def estimate_ns(
    fn: Function,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    constants: Iterable[str] = (),
    in_cache: bool = True,
    several: bool = False,
) -> float | None:
    """Predicted nanoseconds of a kernel; None where some part of it is served by no rule with a
    price.

    `in_cache` says that weights are still in L2 from the previous call, as far as they fit;
    otherwise a kernel takes at least as long as loading them from memory.
    """
    context = RuleContext(Target.parse(target), threads, frozenset(constants))
    cycles = (
        _cycles_of_decisions(fn, context)
        if several or not _reduces(fn)
        else _cycles_of_first_rule(fn, context)
    )
    if cycles is None:
        return None
    if not in_cache:
        cycles = max(cycles, weights_bytes(fn, context.constants) / _weights_rate(context))
    return cycles * context.target.machine.cycle_ns


def _reduces(fn: Function) -> bool:
    return any(it.kind == REDUCE for block in blocks(fn.body) for it in block.iters)


def _weights_rate(context: RuleContext) -> float:
    """Bytes per cycle of weights from memory, when latency is exposed."""
    if context.target.kind == CUDA:
        return multiprocessor_of(context.target).memory_bytes_per_cycle
    return context.target.machine.scattered_bytes_per_cycle * context.threads


def _cycles_of_decisions(fn: Function, context: RuleContext) -> float | None:
    """Predicted cycles of all decisions together; None if some rule has no price."""
    made = schedule(
        fn, context.target, threads=context.threads, constants=sorted(context.constants)
    )
    found = [each.predicted_ns for each in made.decisions]
    if not all(found):
        return None  # a rule without a price took a block
    return sum(found) / context.target.machine.cycle_ns if found else None


def _cycles_of_first_rule(fn: Function, context: RuleContext) -> float | None:
    """Predicted cycles of the cheapest plan of the first entry with a price."""
    sch = Schedule(fn)
    inline_producers(sch)
    # The stages of a Winograd convolution are priced together, by their own rule, or not at all.
    marked = any(annotation(block, ROLE) == PRODUCT for block in blocks(sch.function.body))
    for entry in RULES.get(context.target.kind, ()):
        rivals = [rule for rule in entry if rule.plan is not Closed]
        rivals = [rule for rule in rivals if not marked or rule.name == ROLE]
        for block in blocks(sch.function.body):
            if not block.writes:
                continue
            reference = sch.get_block(block.name)
            found = [_cheapest(sch, reference, rule, context) for rule in rivals]
            priced = [each for each in found if each is not None]
            if priced:
                return min(each.cycles for each in priced)
    return None


def _cheapest(
    sch: Schedule, block: BlockRef, rule: Rule[Any, Any], context: RuleContext
) -> Priced[Any] | None:
    problem = rule.match(sch, block, context)
    space = None if problem is None else rule.plans(problem, context)
    if space is None:
        return None
    return space.cheapest(partial(_cost, rule, problem, context), beam_width=1, rounds=1)


def _cost(rule: Rule[Any, Any], problem: Any, context: RuleContext, columns: Columns) -> Cost:
    return rule.cost(problem, columns, context)


def weights_bytes(fn: Function, constants: frozenset[str]) -> int:
    """Bytes of weights that each call reads: as given, or as precomputed from constants."""
    fixed: dict[Buffer, None] = {b: None for b in fn.buffers if b.name in constants}
    read: dict[Buffer, None] = {}
    for block in blocks(fn.body):
        taken = [region.buffer for region in block.reads]
        if taken and all(buffer in fixed for buffer in taken) and _is_temporary(block, fn):
            fixed.update(dict.fromkeys(region.buffer for region in block.writes))
        else:
            read.update(dict.fromkeys(buffer for buffer in taken if buffer in fixed))
    return sum(_size_bytes(buffer) for buffer in read)


def _is_temporary(block: Block, fn: Function) -> bool:
    """Whether a block writes no buffer of the caller."""
    return not any(buffer in fn.buffers for buffer in written_buffers(block))


def _size_bytes(buffer: Buffer) -> int:
    total = buffer.dtype.size_bytes
    for dim in buffer.shape:
        total *= int(dim.value) if isinstance(dim, Const) else 1
    return total
