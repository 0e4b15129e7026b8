"""Parallelism of loops: whether more threads pay, and the chunk size, by one model for all rules.

    work = {ROWS: Work(1000, 80.0)}                 1000 rows of 80 cycles each
    sharing_candidates(work, context)               {"parallel": ..., "chunk": ...} for a space
    sharing_legal(columns, work, context)           which chunks belong to which axis
    sharing_terms(columns, work, serial, context)   compute, wake, dispatch, imbalance
    piece_terms(cycles, pieces, machine)            dispatch and imbalance, of any other loop

Threads take chunks of consecutive units. Small chunks cost a dispatch each; large ones make others
wait when a core is slow or preempted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.machine import Machine
from tilewright.rules.context import RuleContext
from tilewright.rules.space import Column, Columns, Value, doublings

NONE = "none"
MAX_THREAD_CHUNKS = 8  # chunks per thread: bounds the wait for a slow thread to an eighth


@dataclass(frozen=True)
class Work:
    """Units of work along a parallel axis: rows, tiles, vectors of one row."""

    units: int
    unit_cycles: float
    is_dynamic: bool = False
    repeats: int = 1  # how often the units are run, fused into the same parallel loop
    is_static: bool = False  # static scheduling: one chunk per thread, the same one each time

    def chunks(self, context: RuleContext) -> tuple[int, ...]:
        """Candidate chunk sizes: a few chunks per thread, and slightly larger sizes that divide
        evenly."""
        if self.is_static:
            return (1,)
        found: list[int] = []
        for per_thread in reversed(doublings(MAX_THREAD_CHUNKS)):
            parts = -(-per_thread * context.threads // self.repeats)
            found += [max(1, self.units // parts), even_share(self.units, parts)]
        if self.is_dynamic:
            # A dynamic extent may turn out far smaller: a chunk should only just be worth a thread.
            worth = 2 * context.target.machine.wake_cycles
            most = max(1, int(worth / self.unit_cycles)) if self.unit_cycles else 1
            found = [min(size, most) for size in found]
        return tuple(dict.fromkeys(found))


Axes = Mapping[str, Work]  # parallel axis -> the work along it
Forms = Mapping[Value, Axes]  # axes by the value of another field of the plan


def even_share(whole: int, parts: int) -> int:
    """A chunk size for so many parts: one slightly above that divides evenly, if there is one."""
    least = max(1, -(-whole // parts))
    most = least + 2 * least // MAX_THREAD_CHUNKS
    # Search over the number of parts, which is small, not over sizes, which may be huge.
    for count in range(whole // least, max(0, -(-whole // most) - 1), -1):
        if whole % count == 0:
            return whole // count
    return least


def sharing_candidates(axes: Axes, context: RuleContext) -> dict[str, tuple[Value, ...]]:
    """Candidates for the fields `parallel` and `chunk`; a chunk of 1 goes with no parallelism."""
    if context.threads == 1:
        return {"parallel": (NONE,), "chunk": (1,)}
    sizes = [size for work in axes.values() for size in work.chunks(context)]
    return {"parallel": (NONE, *axes), "chunk": tuple(dict.fromkeys((1, *sizes)))}


def sharing_legal(c: Columns, axes: Axes, context: RuleContext) -> Column:
    """Whether a chunk size is one of its axis."""
    found: Column = (c["parallel"] == NONE) & (c["chunk"] == 1)
    for name, work in axes.items():
        found = found | ((c["parallel"] == name) & np.isin(c["chunk"], work.chunks(context)))
    return found


def sharing_terms(
    c: Columns, axes: Axes, serial_cycles: Any, context: RuleContext
) -> dict[str, Column]:
    """Cycles of the thread that finishes last, for work that takes `serial_cycles` on one
    thread."""
    machine, threads = context.target.machine, context.threads
    share = np.ones(len(c["parallel"]))
    dispatch, imbalance = np.zeros_like(share), np.zeros_like(share)
    for name, work in axes.items():
        chunk = np.maximum(c["chunk"], -(-work.units // threads) if work.is_static else 1)
        units = float(work.units)  # sizes of a model may exceed 64 bits
        full, rest = np.divmod(units, chunk)
        full, chunks = full * work.repeats, (full + (rest > 0)) * work.repeats
        rounds = -(-full // threads) * chunk + np.where(full % threads == 0, rest, 0)
        here = c["parallel"] == name
        total = max(1.0, units * work.repeats)
        share = np.where(here, np.minimum(1.0, np.maximum(1 / threads, rounds / total)), share)
        dispatch = np.where(here, chunks / threads * chunk_cycles(machine), dispatch)
        late = late_cycles(np.minimum(chunk, total) * serial_cycles / total, machine)
        imbalance = np.where(here, late, imbalance)
    wake = np.where(c["parallel"] == NONE, 0.0, machine.wake_cycles)
    return {
        "compute": serial_cycles * share,
        "wake": wake,
        "dispatch": dispatch,
        "imbalance": imbalance,
    }


def forms_candidates(forms: Forms, context: RuleContext) -> dict[str, tuple[Value, ...]]:
    """`sharing_candidates`, the union over all forms."""
    found = [sharing_candidates(axes, context) for axes in forms.values()]
    return {
        name: tuple(dict.fromkeys(value for each in found for value in each[name]))
        for name in ("parallel", "chunk")
    }


def forms_legal(c: Columns, field: str, forms: Forms, context: RuleContext) -> Column:
    """`sharing_legal` by the value of a field."""
    found: Column = np.zeros(len(c[field]), bool)
    for value, axes in forms.items():
        found = found | ((c[field] == value) & sharing_legal(c, axes, context))
    return found


def forms_terms(
    c: Columns, field: str, forms: Forms, serial_cycles: Any, context: RuleContext
) -> dict[str, Column]:
    """`sharing_terms` by the value of a field."""
    found: dict[str, Column] = {}
    for value, axes in forms.items():
        for name, term in sharing_terms(c, axes, serial_cycles, context).items():
            found[name] = np.where(c[field] == value, term, found.get(name, term))
    return found


def piece_terms(own_cycles: Any, own: Any, machine: Machine) -> dict[str, Any]:
    """Dispatch and imbalance cycles of a thread that runs `own` pieces of a parallel loop, several
    per dispatch where they are many. Zero where `own` is zero."""
    at_a_time = np.maximum(1, own // MAX_THREAD_CHUNKS)
    taken = -(-own // at_a_time)
    late = late_cycles(own_cycles / np.maximum(taken, 1), machine)
    return {"dispatch": taken * chunk_cycles(machine), "imbalance": late * (taken > 0)}


def late_cycles(piece_cycles: Any, machine: Machine) -> Any:
    """Expected wait for the last chunk: rarely, a core is preempted and all others wait for it."""
    return machine.exposed_share * piece_cycles


def chunk_cycles(machine: Machine) -> float:
    """Cycles to take a chunk: the shared counter's cache line is transferred, and the loop body
    starts."""
    return machine.cycles(machine.chunk_ns)
