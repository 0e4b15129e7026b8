"""What must hold of a schedule, and the smallest trace for which it does not.

failure = check(program, trace)         None, or what went wrong
smallest(program, trace, failure)       fewer steps that fail the same way
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import native
import numpy as np
from programs import Program

from tilewright.base.errors import TilewrightError, UserError
from tilewright.sym import Const, Expr
from tilewright.tensor import Function, interpret, parse, verify
from tilewright.tensor.constants import Given, split_constant_blocks
from tilewright.tensor.ir import FLAT, THREAD, For
from tilewright.tensor.passes import lower
from tilewright.tensor.schedule import Schedule, Trace
from tilewright.tensor.visit import walk

SHAPES = 2  # how many sets of sizes a symbolic program is run with


@dataclass(frozen=True)
class Failure:
    """A kind to compare failures by, and the whole story."""

    kind: str
    story: str


_recent: dict[tuple[Function, int], list[np.ndarray]] = {}


def expected(program: Program, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Arguments, and what they become."""
    arguments = program.arguments(seed)
    results = _recent.get((program.function, seed))
    if results is None:
        results = [array.copy() for array in arguments]
        interpret(program.function, *results)
        if len(_recent) > 8:
            _recent.clear()
        _recent[program.function, seed] = results
    return arguments, results


def check(program: Program, trace: Trace, *, seed: int = 0, lowered: bool = True) -> Failure | None:
    """Replay the trace and look for anything that is not as it was."""
    schedule = Schedule(program.function)
    try:
        trace.apply(schedule)
    except Exception as error:
        return _failed("replay", error)
    return check_function(program, schedule.function, trace, seed=seed, lowered=lowered)


def check_function(
    program: Program,
    fn: Function,
    trace: Trace,
    *,
    seed: int = 0,
    lowered: bool = True,
    built: bool = True,
) -> Failure | None:
    """The same for a schedule that is there already: also that its trace gives it again."""
    for step in (_text, _replay):
        found = step(program, fn, trace)
        if found is not None:
            return found
    found = _answer("schedule", program, fn, seed) or _packed(program, fn, seed)
    if found is not None or not lowered:
        return found
    try:
        flat = lower(fn, "gpu" if _has_threads(fn) else "cpu")
    except Exception as error:
        return _failed("lower", error)
    try:
        verify(flat)
    except Exception as error:
        return _failed("verify lowered", error)
    found = _answer("lowered", program, flat, seed)
    if found is not None or flat.stage != FLAT or not built:
        return found
    try:
        wrong = native.differs(program, flat, *expected(program, seed), seed)
    except Exception as error:
        return _failed("native", error)
    return Failure("native answer", wrong) if wrong else None


def _has_threads(fn: Function) -> bool:
    return any(isinstance(stmt, For) and stmt.kind == THREAD for stmt in walk(fn.body))


def _failed(kind: str, error: Exception) -> Failure:
    code = error.code if isinstance(error, TilewrightError) else ""
    shown = str(error) if code else traceback.format_exc(limit=-6)
    where = "" if code else str(error)[:60]
    return Failure(f"{kind}: {type(error).__name__} {code}{where}", shown)


def _text(program: Program, fn: Function, trace: Trace) -> Failure | None:
    try:
        verify(fn)
    except Exception as error:
        return _failed("verify", error)
    try:
        same = parse(str(fn)) == fn
    except Exception as error:
        return _failed("parse", error)
    return None if same else Failure("round trip", f"parse(str(fn)) differs from\n{fn}")


def _replay(program: Program, fn: Function, trace: Trace) -> Failure | None:
    for form, again in (
        ("JSON", lambda: Trace.from_json(trace.to_json())),
        ("text", lambda: Trace.parse(str(trace))),
    ):
        try:
            copy = again()
        except Exception as error:
            return _failed(f"trace {form}", error)
        if copy != trace:
            return Failure(f"trace {form}", f"the trace read back differs\n{trace}\n{copy}")
    schedule = Schedule(program.function)
    try:
        copy.apply(schedule)
    except Exception as error:
        return _failed("trace applied", error)
    if schedule.function != fn:
        return Failure("trace applied", f"replay gives\n{schedule.function}\ninstead of\n{fn}")
    return None


def _answer(what: str, program: Program, fn: Function, seed: int) -> Failure | None:
    for at in range(SHAPES if program.is_symbolic else 1):
        arguments, wanted = expected(program, seed + at)
        try:
            interpret(fn, *arguments, seed=seed + at)
        except Exception as error:
            return _failed(f"{what} run", error)
        for buffer, have, want in zip(program.function.buffers, arguments, wanted, strict=True):
            if not np.array_equal(have, want, equal_nan=have.dtype.kind == "f"):
                shapes = [array.shape for array in arguments]
                return Failure(
                    f"{what} answer",
                    f"%{buffer.name} differs for shapes {shapes}\nhave {have}\nwant {want}\n{fn}",
                )
    return None


def _packed(program: Program, fn: Function, seed: int) -> Failure | None:
    """The same answer where work on weights is done beforehand, into zeroed memory."""
    try:
        split = split_constant_blocks(fn)
        if split.packer is None:
            return None
        verify(split.packer)
        verify(split.kernel)
        arguments, wanted = expected(program, seed)
        made = [np.zeros([_number(d) for d in b.shape], b.dtype.numpy) for b in split.results]
        interpret(split.packer, *[arguments[at] for at in split.weights], *made)
        given = [
            arguments[p.position] if isinstance(p, Given) else made[p.position]
            for p in split.params
        ]
        interpret(split.kernel, *given, seed=seed)
    except Exception as error:
        return _failed("packed", error)
    for have, want in zip(arguments, wanted, strict=True):
        if not np.array_equal(have, want, equal_nan=have.dtype.kind == "f"):
            return Failure("packed answer", f"{split.packer}\n{split.kernel}")
    return None


def _number(dim: Expr) -> int:
    assert isinstance(dim, Const), dim
    return int(dim.value)


def smallest(program: Program, trace: Trace, failure: Failure, *, seed: int = 0) -> Trace:
    """A trace with fewer steps that fails in the same way."""
    steps = list(trace.steps)
    size = max(1, len(steps) // 2)
    while size >= 1:
        at = 0
        while at < len(steps):
            fewer = replayable(program.function, [*steps[:at], *steps[at + size :]])
            if len(fewer) < len(steps):
                found = check(program, fewer, seed=seed)
                if found is not None and found.kind == failure.kind:
                    steps = list(fewer.steps)
                    continue
            at += size
        size //= 2
    return Trace(steps)


def replayable(fn: Function, steps: list) -> Trace:
    """The steps that still apply when others are left out."""
    kept = []
    for step in steps:
        try:
            Trace([*kept, step]).apply(Schedule(fn))
        except UserError:
            continue
        except Exception:
            pass  # a crash is what is looked for
        kept.append(step)
    return Trace(kept)
