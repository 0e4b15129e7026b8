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
from tilewright.rules.attention import attention
from tilewright.rules.attention_amx import attention_amx
from tilewright.rules.conv import conv
from tilewright.rules.conv_amx import conv_amx
from tilewright.rules.depthwise import depthwise
from tilewright.rules.elementwise import elementwise
from tilewright.rules.inline import inline_producers
from tilewright.rules.matmul import matmul
from tilewright.rules.planes import planes
from tilewright.rules.pooling import pooling
from tilewright.rules.recurrent import recurrent
from tilewright.rules.reduction import reduction
from tilewright.rules.rows import rows
from tilewright.rules.setting import Setting
from tilewright.rules.spread import spread
from tilewright.rules.transpose import transpose
from tilewright.rules.winograd import winograd
from tilewright.sym import ZERO
from tilewright.tensor.ir import Block, Function
from tilewright.tensor.schedule import BlockRef, Schedule
from tilewright.tensor.visit import blocks

# Takes the nest of a block, or several nests, and says which blocks it has scheduled; an empty
# answer means that the block is not of its kind. A refused step undoes the whole attempt.
Rule = Callable[[Schedule, BlockRef, Setting], Iterable[BlockRef]]

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
    setting = Setting(Target.parse(target), threads, frozenset(constants))
    sch = Schedule(fn)
    inline_producers(sch)
    taken: set[str] = set()
    taken.update(block.name for block in blocks(sch.function.body) if _is_idle(block))
    for rule in CPU:
        for block in list(blocks(sch.function.body)):
            if block.writes and block.name not in taken:  # others are requests of a rule
                taken.update(found.name for found in _attempt(rule, sch, block.name, setting))
    return sch


def _is_idle(block: Block) -> bool:
    """Whether a block never runs: there is nothing to gain, and no size to plan with."""
    return any(it.extent is ZERO for it in block.iters)


def _attempt(rule: Rule, sch: Schedule, name: str, setting: Setting) -> Iterable[BlockRef]:
    point = sch.checkpoint()
    try:
        return tuple(rule(sch, sch.get_block(name), setting))
    except ScheduleError:
        sch.restore(point)
        return ()
