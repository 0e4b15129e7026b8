"""Schedule rules: from a tensor function as lowered to one that runs well on a target.

    default_schedule(fn, "cpu", threads=2) -> Schedule
    schedule(fn, "cpu", threads=2) -> Scheduled     with every decision and refusal on the way

A rule (`rule.py`) matches a computation, spans a space of plans, prices them, and applies one by
schedule primitives, so no plan can change an answer. Each kind of target has one tuple of entries,
tried in order on every block that no earlier entry took. Where an entry holds several rules they
compete, and the cheapest plan takes the block; one that applies nothing stands for what later
entries would make of it. The last entry, `fallback`, takes any block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.base.errors import UserError
from tilewright.base.target import CPU, CUDA, WASM, Target
from tilewright.rules.context import RuleContext
from tilewright.rules.inline import inline_producers
from tilewright.rules.rule import (
    PLAIN,
    Choice,
    Decision,
    Log,
    Offer,
    Refusal,
    Rule,
    RuleSet,
    apply_choice,
    apply_first,
    choice_of,
)
from tilewright.rules.space import plan_text
from tilewright.sym import ZERO
from tilewright.tensor.ir import SERIAL, Block, For, Function
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.schedule.analysis.tree import find_block
from tilewright.tensor.visit import blocks, walk


class _Loaded(Mapping[str, RuleSet]):
    """The rules of a kind of target, imported on first use: a process that finds all its kernels in
    the cache imports none."""

    def __getitem__(self, kind: str) -> RuleSet:
        if kind in (CPU, WASM):
            from tilewright.rules.cpu import RULES
        elif kind == CUDA:
            from tilewright.rules.gpu import RULES
        else:
            raise KeyError(kind)
        return RULES

    def __iter__(self) -> Iterator[str]:
        return iter((CPU, WASM, CUDA))

    def __len__(self) -> int:
        return len(tuple(self))


RULES = _Loaded()
RIVAL_TIMES = 4.0  # the default's cost: a rule that is predicted to take longer is no alternative


@dataclass(frozen=True)
class Scheduled:
    """A schedule, with the decisions and refusals that led to it."""

    schedule: Schedule
    decisions: tuple[Decision, ...]
    refusals: tuple[Refusal, ...]
    offers: tuple[Offer, ...] = ()  # for each decision, the space it was chosen from


def schedule(
    fn: Function,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    constants: Iterable[str] = (),
    choices: Mapping[str, Choice | tuple[str, str]] | None = None,
    only: Collection[str] | None = None,
) -> Scheduled:
    """Schedule a function.

    `constants` names parameters that are known before any call. `choices` gives the rule and plan
    of some blocks, as a `Choice` or a tuple; all others get the cheapest plan of the first rule
    that serves. With `only`, no rules but those named are tried.
    """
    context = RuleContext(Target.parse(target), threads, frozenset(constants))
    rules = RULES.get(context.target.kind, ())
    given = {name: choice_of(name, each) for name, each in (choices or {}).items()}
    if only is not None:
        rules = tuple([tuple([r for r in entry if r.name in only]) for entry in rules])
    known = {rule.name for entry in rules for rule in entry if rule.apply is not None}
    for name, choice in given.items():
        if choice.rule not in known:
            raise UserError(
                "TW2703",
                f"there is no rule {choice.rule!r} for block {name}",
                help=f"rules for {context.target.kind}: {', '.join(sorted(known))}",
            )
    sch, log = Schedule(fn), Log()
    inline_producers(sch)
    taken = {block.name for block in blocks(sch.function.body) if _is_idle(block)}
    for entry in rules:
        for block in list(blocks(sch.function.body)):
            name = block.name
            if not block.writes or name in taken:  # blocks without writes are prefetches
                continue
            if find_block(sch.function, name) is None:
                continue  # inlined by a rule since
            if name not in given or any(each.block == name for each in log.decisions):
                taken.update(apply_first(entry, sch, name, context, log))
                continue  # already decided; after rfactor the block that adds partial sums is left
            for rule in entry:
                if rule.name == given[name].rule:
                    taken.update(apply_choice(rule, given[name], sch, name, context, log))
    unused = [name for name in given if name not in {each.block for each in log.decisions}]
    if unused:
        raise UserError(
            "TW2704",
            f"a plan is given for {', '.join(unused)}, which no rule came to",
            help="plans name the block that a rule starts from, as `inspect --schedules` shows it",
        )
    left = _unscheduled(sch.function, taken)
    log.refusals += [Refusal(name, PLAIN, "as no rule takes it") for name in left]
    return Scheduled(sch, tuple(log.decisions), tuple(log.refusals), tuple(log.offers))


def default_schedule(
    fn: Function,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    constants: Iterable[str] = (),
    choices: Mapping[str, Choice | tuple[str, str]] | None = None,
) -> Schedule:
    """The schedule that `schedule` makes, without the record of decisions."""
    made = schedule(fn, target, threads=threads, constants=constants, choices=choices)
    return made.schedule


def alternatives(
    fn: Function,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    constants: Iterable[str] = (),
) -> tuple[tuple[Offer, ...], ...]:
    """For every block that a decision is made about, an offer of each rule that could take it.

    The rule that takes it by default comes first. The others are matched on the function as it was
    before any rule was applied.
    """
    weights = tuple(constants)
    made = schedule(fn, target, threads=threads, constants=weights)
    decided = {each.block: each.choice for each in made.decisions}
    fresh = Schedule(fn)
    inline_producers(fresh)

    def serves(rule: Rule[Any, Any], problem: Any, taken: Offer, ns: float) -> bool:
        """Whether a rule reaches the block when it is chosen for it, and can schedule it."""
        priced = rule.default(problem, taken.context)
        cycle_ns = taken.context.target.machine.cycle_ns
        if priced is None or (ns > 0 and not 0 < priced.cycles * cycle_ns <= RIVAL_TIMES * ns):
            return False  # an unpriced rule does not compete with a priced one
        asked = {taken.block: Choice(rule.name, plan_text(priced.plan))}
        # With all other decisions given, nothing is priced again; but a rule that takes several
        # blocks may leave some of these decisions without a block.
        return any(can_schedule({**given, **asked}) for given in (decided, {}))

    def can_schedule(choices: Mapping[str, Choice]) -> bool:
        try:
            schedule(fn, target, threads=threads, constants=weights, choices=choices)
        except UserError:
            return False
        return True

    found = []
    for taken, decision in zip(made.offers, made.decisions, strict=True):
        rivals = [taken]
        for rule in (each for entry in RULES[taken.context.target.kind] for each in entry):
            if rule.apply is None or rule.name == taken.rule.name:
                continue
            if find_block(fresh.function, taken.block) is None:
                continue
            problem = rule.match(fresh, fresh.get_block(taken.block), taken.context)
            if problem is not None and serves(rule, problem, taken, decision.predicted_ns):
                rivals.append(Offer(taken.block, rule, problem, taken.context))
        found.append(tuple(rivals))
    return tuple(found)


def _unscheduled(fn: Function, taken: Collection[str]) -> list[str]:
    """Blocks that no rule scheduled: all their loops are serial, as lowered."""
    found = []
    for block in blocks(fn.body):
        path = find_block(fn, block.name) or (block,)
        root = next((stmt for stmt in path if isinstance(stmt, (For, Block))), block)
        loops = [stmt for stmt in walk(root) if isinstance(stmt, For)]
        is_touched = any(loop.kind != SERIAL for loop in loops)
        if block.writes and not is_touched and not any(b.name in taken for b in blocks(root)):
            found.append(block.name)
    return found


def _is_idle(block: Block) -> bool:
    """Whether a block has an empty domain: it never runs, and gives no size to plan with."""
    return any(it.extent is ZERO for it in block.iters)
