"""Schedule rules: from a function as lowering made it to one that runs well on a target.

    default_schedule(fn, "cpu", threads=2) -> Schedule

Every rule is a trace of schedule primitives chosen by analysis of the program and the target, so
its result is the same answer, and what a rule decides can be searched over. A rule is tried on
every block that none before it took; the last one takes any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.base.errors import ScheduleError
from tilewright.base.target import Target
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.attention import attention
from tilewright.rules.cpu.attention_amx import attention_amx
from tilewright.rules.cpu.conv import conv
from tilewright.rules.cpu.conv_amx import conv_amx
from tilewright.rules.cpu.depthwise import depthwise
from tilewright.rules.cpu.depthwise_nchw import planes
from tilewright.rules.cpu.elementwise import elementwise
from tilewright.rules.cpu.fallback import spread
from tilewright.rules.cpu.fused_reductions import rows
from tilewright.rules.cpu.gemm import matmul
from tilewright.rules.cpu.pooling import pooling
from tilewright.rules.cpu.recurrent import recurrent
from tilewright.rules.cpu.reduction import reduction
from tilewright.rules.cpu.transpose import transpose
from tilewright.rules.cpu.winograd import winograd
from tilewright.rules.inline import inline_producers
from tilewright.sym import ZERO
from tilewright.tensor.ir import Block, Function
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import blocks

# Takes the nest of a block, or several nests, and says which blocks it has scheduled; an empty
# answer means that the block is not of its kind. A refused step undoes the whole attempt.
Rule = Callable[[Schedule, BlockRef, RuleContext], Iterable[BlockRef]]

CPU: tuple[Rule, ...] = (
    attention_amx,
    attention,
    recurrent,
    winograd,
    depthwise,
    planes,
    pooling,
    conv_amx,
    conv,
    matmul,
    rows,
    reduction,
    transpose,
    elementwise,
    spread,
)


def default_schedule(
    fn: Function,
    target: str | Target = "cpu",
    *,
    threads: int = 1,
    constants: Iterable[str] = (),
) -> Schedule:
    """The schedule chosen without tuning. `constants` names parameters known before any call."""
    context = RuleContext(Target.parse(target), threads, frozenset(constants))
    sch = Schedule(fn)
    inline_producers(sch)
    taken: set[str] = set()
    taken.update(block.name for block in blocks(sch.function.body) if _is_idle(block))
    for rule in CPU:
        for block in list(blocks(sch.function.body)):
            if block.writes and block.name not in taken:  # others are requests of a rule
                taken.update(found.name for found in _attempt(rule, sch, block.name, context))
    return sch


def _is_idle(block: Block) -> bool:
    """Whether a block never runs: there is nothing to gain, and no size to plan with."""
    return any(it.extent is ZERO for it in block.iters)


def _attempt(rule: Rule, sch: Schedule, name: str, context: RuleContext) -> Iterable[BlockRef]:
    point = sch.checkpoint()
    try:
        return tuple(rule(sch, sch.get_block(name), context))
    except ScheduleError:
        sch.restore(point)
        return ()
