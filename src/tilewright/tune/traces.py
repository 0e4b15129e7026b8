"""A trace as a search space: the recorded schedule with other sampling decisions.

    sch = tw.Schedule(fn)
    i, j = sch.get_loops(sch.get_block("y"))
    sch.split(i, sch.sample_tile(i, n=2, max_innermost=16))
    sch.split(j, [None, sch.sample_choice([4, 8, 16])])

    space = TraceSpace(fn, sch.trace)
    found = tune_function(space, trials=40)

Every `sample_tile` and `sample_choice` is a decision, named by its first result; the trace's own
decisions are the default. Candidates come from the trace alone, and nothing is replayed before a
point is built. The steps are fixed: optional steps need a template. Where a sampled loop results
from an earlier sample, combinations that do not fit are refused when built, and cost one trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.base.errors import UserError
from tilewright.tensor.ir import Function
from tilewright.tensor.schedule import Schedule, Trace
from tilewright.tensor.schedule.trace import Step
from tilewright.tune.templates import MAX_CANDIDATES, Decided, DecidedSpace, Knob, Split, factorings

TRACE = "trace"  # the prefix of points' texts


class TraceSpace(DecidedSpace):
    """All ways to decide the samples of a trace.

    Examples:
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> x = te.placeholder((12,), name="x")
        >>> y = te.compute((12,), lambda i: x[i] * 2.0, name="y")
        >>> fn = te.function([x, y], name="f")
        >>> sch = tw.Schedule(fn)
        >>> (i,) = sch.get_loops(sch.get_block("y"))
        >>> _ = sch.split(i, sch.sample_tile(i, n=2, max_innermost=4, decision=[6, 2]))
        >>> space = tw.tune.TraceSpace(fn, sch.trace)
        >>> space.size, space.choice(space.default(), 0)
        (4, 'trace d0=6x2')
    """

    def __init__(self, fn: Function, trace: Trace) -> None:
        self.trace = trace
        self._steps = {trace.steps[at].results[0]: at for at in trace.decisions}
        decisions = {name: candidates(trace.steps[at]) for name, at in self._steps.items()}
        if not decisions:
            raise UserError(
                "TW5102",
                "the trace decides nothing",
                help="sample what may be otherwise: sample_tile, sample_choice",
            )
        super().__init__(fn.name, TRACE, fn, decisions)

    def schedule(self, choice: str) -> Schedule:
        """The schedule that the text of a point stands for."""
        taken = {name: self.decisions[name][at] for name, at in self.chosen(choice).items()}
        decided = {self._steps[name]: _decision(each) for name, each in taken.items()}
        made = Schedule(self.function)
        self.trace.with_decisions(decided).apply(made)
        return made


def candidates(step: Step) -> tuple[Decided, ...]:
    """What a sample could decide, as it has first."""
    assert step.decision is not None
    given = dict(step.arguments)
    if step.primitive == "sample_choice":
        values = given["candidates"]
        made: list[Decided] = [Knob(value, at, len(values)) for at, value in enumerate(values)]
        own: Decided = made[step.decision[0]]
    else:
        tiles = factorings(prod(step.decision), len(step.decision))
        made = [each for each in tiles if each.size[-1] <= given["max_innermost"]]
        own = Split(tuple(step.decision))
    if len(made) > MAX_CANDIDATES:
        raise UserError(
            "TW5104",
            f"the sample {step.results[0]} of a trace has {len(made)} candidates",
            help="sample fewer factors, or set max_innermost",
        )
    return tuple({each.text: each for each in (own, *made)}.values())


def _decision(taken: Decided) -> Sequence[int]:
    if isinstance(taken, Split):
        return taken.size
    assert isinstance(taken, Knob)
    return [taken.at]
