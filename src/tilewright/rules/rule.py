"""What a rule is, and how one is applied.

    Rule(name, plan, match, plans, cost, apply)

`match` finds a problem of the rule's kind (a contraction, windows, rows) at a block and changes
nothing. `plans` spans the space of decisions as data; `cost` prices many plans at once by the
target's machine model. The default is the cheapest legal plan. `apply` alone touches the schedule.
Everything is recorded: the rule, its plan, the predicted time, and every refusal on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tilewright.base.errors import ScheduleError, UserError, UserTypeError
from tilewright.rules.context import RuleContext
from tilewright.rules.match.nest import block_of
from tilewright.rules.space import Columns, Cost, Priced, Space, parse_plan, plan_text
from tilewright.tensor.schedule import BlockRef, Schedule

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FALLBACK_NAME = "fallback"  # the rule that takes every block no other rule took
PLAIN = "plain loops"  # reported where no rule took a block, or the target has no rules

F = TypeVar("F")
P = TypeVar("P", bound="DataclassInstance")


@dataclass(frozen=True)
class Rule(Generic[F, P]):
    """One way to schedule one kind of computation."""

    name: str
    plan: type[P]
    match: Callable[[Schedule, BlockRef, RuleContext], F | None]
    plans: Callable[[F, RuleContext], Space[P] | None]  # None: this rule does not serve the problem
    cost: Callable[[F, Columns, RuleContext], Cost]
    # None: the cost is that of leaving the block to the rules of later entries
    apply: Callable[[Schedule, F, P, RuleContext], Iterable[BlockRef]] | None

    def default(self, found: F, context: RuleContext) -> Priced[P] | None:
        """The cheapest legal plan; None where the rule does not serve."""
        space = self.plans(found, context)
        return None if space is None else space.cheapest(lambda c: self.cost(found, c, context))


@dataclass(frozen=True)
class Choice:
    """A rule and its plan for a block, as text: what a tuner passes in, and what is recorded."""

    rule: str
    plan: str


def choice_of(block: str, given: Choice | tuple[str, str]) -> Choice:
    """The choice given for a block; a tuple of rule and plan is accepted."""
    match given:
        case Choice():
            return given
        case (str(rule), str(plan)):
            return Choice(rule, plan)
    raise UserTypeError(
        "TW2706",
        f"the choice for block {block} is {given!r}",
        help='give the names of a rule and a plan: ("gemm", "mr=4 nr=2")',
    )


@dataclass(frozen=True)
class Decision:
    """The rule and plan that scheduled a block and those around it."""

    block: str
    rule: str
    plan: str
    predicted_ns: float
    terms: Mapping[str, float] = field(compare=False)  # cycles, by cause
    is_given: bool = field(default=False, compare=False)  # by a tuner, which measured it

    @property
    def choice(self) -> Choice:
        return Choice(self.rule, self.plan)


@dataclass(frozen=True)
class Refusal:
    """A rule that would have applied to a block, and why it could not."""

    block: str
    rule: str
    reason: str


def why_fell_back(decisions: Iterable[Decision], refusals: Iterable[Refusal]) -> str:
    """Why some block got the fallback's schedule or none; "" where every block has a rule of its
    own, or the fallback was chosen because it measured fastest."""
    fallen = [each for each in decisions if each.rule == FALLBACK_NAME and not each.is_given]
    taken = [each.block for each in fallen]
    lost = [each for each in refusals if each.rule == PLAIN or each.block in taken]
    if not taken and not any(each.rule == PLAIN for each in lost):
        return ""
    reasons = [f"{each.rule} {each.reason}" for each in lost]
    return "; ".join(reasons) or f"no rule knows what {', '.join(taken)} computes"


@dataclass(frozen=True)
class Offer:
    """A rule that could schedule a block, with its space of plans, to sample or to search."""

    block: str
    rule: Rule[Any, Any]
    problem: Any
    context: RuleContext
    chosen: str = ""  # the plan decided on; "" where another rule was applied

    @property
    def is_open(self) -> bool:
        """Whether the rule has anything to decide."""
        return self.rule.plan is not Closed

    @property
    def space(self) -> Space[Any]:
        space = self.rule.plans(self.problem, self.context)
        assert space is not None
        return space

    def cost(self, columns: Columns) -> Cost:
        return self.rule.cost(self.problem, columns, self.context)


@dataclass
class Log:
    """Everything that was decided and refused while a function was scheduled."""

    decisions: list[Decision] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)  # one for each decision


def apply_first(
    rules: Sequence[Rule[Any, Any]],
    sch: Schedule,
    block: str,
    context: RuleContext,
    log: Log,
) -> tuple[str, ...]:
    """Apply the cheapest of several rules at a block; returns the blocks it scheduled, none where
    they are left to later rules."""
    found: list[tuple[float, Rule[Any, Any], Any, Priced[Any]]] = []
    for rule in rules:
        problem = rule.match(sch, sch.get_block(block), context)
        if problem is None:
            continue
        priced = rule.default(problem, context)
        if priced is None:
            log.refusals.append(Refusal(block, rule.name, "no plan of this rule serves it"))
            continue
        found.append((priced.cycles, rule, problem, priced))
    for _, rule, problem, priced in sorted(found, key=lambda each: each[0]):
        if rule.apply is None:
            reason = "kernels of their own are expected to take less"
            log.refusals += [Refusal(block, each.name, reason) for _, each, _, _ in found
                             if each is not rule]  # fmt: skip
            return ()
        done = _apply(rule, sch, block, problem, priced, context, log)
        if done:
            return done
    return ()


def apply_choice(
    rule: Rule[Any, Any],
    choice: Choice,
    sch: Schedule,
    block: str,
    context: RuleContext,
    log: Log,
) -> tuple[str, ...]:
    """Apply a given plan of a rule; an illegal one is an error."""
    problem = rule.match(sch, sch.get_block(block), context)
    space = None if problem is None else rule.plans(problem, context)
    plan = parse_plan(rule.plan, choice.plan)
    if problem is None or space is None or not space.is_legal(plan):
        raise UserError(
            "TW2702",
            f"the plan {choice.plan!r} of {rule.name} is not legal for block {block}",
            help="`tilewright inspect --schedules` shows the rule and plan of every kernel",
        )
    priced = space.price(plan, lambda columns: rule.cost(problem, columns, context))
    done = _apply(rule, sch, block, problem, priced, context, log)
    if not done:
        raise UserError(
            "TW2702",
            f"the plan {choice.plan!r} of {rule.name} cannot be applied to block {block}: "
            f"{log.refusals[-1].reason}",
        )
    log.decisions[-1] = replace(log.decisions[-1], is_given=True)
    return done


def _apply(
    rule: Rule[Any, Any],
    sch: Schedule,
    block: str,
    problem: Any,
    priced: Priced[Any],
    context: RuleContext,
    log: Log,
) -> tuple[str, ...]:
    text = plan_text(priced.plan)
    point = sch.checkpoint()
    try:
        done = _scheduled(rule, sch, block, problem, priced.plan, context)
    except ScheduleError as error:
        sch.restore(point)
        log.refusals.append(Refusal(block, rule.name, f"{text}: {error.message}"))
        try:
            problem = _match_without_epilogue(rule, sch, block, priced.plan, context)
            done = problem and _scheduled(rule, sch, block, problem, priced.plan, context)
        except ScheduleError:
            done = ()
        if not done:
            sch.restore(point)
            return ()
    if not done:
        sch.restore(point)
        log.refusals.append(Refusal(block, rule.name, f"{text}: it leaves the block alone"))
        return ()
    log.refusals.extend(Refusal(block, rule.name, reason) for reason in sch.take_refusals())
    ns = priced.cycles * context.target.machine.cycle_ns
    log.decisions.append(Decision(block, rule.name, text, ns, priced.terms))
    log.offers.append(Offer(block, rule, problem, context, text))
    return done


def _scheduled(
    rule: Rule[Any, Any],
    sch: Schedule,
    block: str,
    problem: Any,
    plan: Any,
    context: RuleContext,
) -> tuple[str, ...]:
    assert rule.apply is not None
    sch.decide(rule.name, sch.get_block(block), plan_text(plan))
    return tuple(ref.name for ref in rule.apply(sch, problem, plan, context))


def _match_without_epilogue(
    rule: Rule[Any, Any], sch: Schedule, block: str, plan: Any, context: RuleContext
) -> Any:
    """Match again with the consumers of a block reading a copy of its result, so that the epilogue,
    which could not be fused, becomes work of its own. None without consumers, or if the plan is not
    legal then."""
    reference = sch.get_block(block)
    if not sch.get_consumers(reference):
        return None
    for number in range(len(block_of(sch.function, block).writes)):
        sch.cache_write(reference, number, "global")
    problem = rule.match(sch, reference, context)
    space = None if problem is None else rule.plans(problem, context)
    return problem if space is not None and space.is_legal(plan) else None


RuleSet = tuple[tuple[Rule[Any, Any], ...], ...]  # in the order they are tried; entries compete


@dataclass(frozen=True)
class Closed:
    """The plan of a rule without decisions."""

    form: str = "only"
