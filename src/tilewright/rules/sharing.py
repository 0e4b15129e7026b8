"""Is another thread worth it, and in which pieces does work go to threads: one answer for all.

    work = {ROWS: Work(1000, 80.0)}                 1000 rows of 80 cycles each
    sharing_candidates(work, context)               {"parallel": ..., "chunk": ...} for a space
    sharing_legal(columns, work, context)           which chunks belong to which axis
    sharing_terms(columns, work, serial, context)   compute, wake, dispatch, imbalance
    piece_terms(cycles, pieces, machine)            the last two, of other loops

Threads take chunks of consecutive units. Small ones cost a call each; large ones keep others
waiting when a core is slow or taken away.
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
MAX_THREAD_CHUNKS = 8  # threads differ in speed: an eighth of a share is waited for at most


@dataclass(frozen=True)
class Work:
    """Units that threads may share out: rows, tiles, vectors of one row."""

    units: int
    unit_cycles: float
    is_dynamic: bool = False
    repeats: int = 1  # times that the units are shared out one after the other, as one loop
    is_static: bool = False  # every thread takes one share, the same one each time

    def chunks(self, context: RuleContext) -> tuple[int, ...]:
        """Sizes of chunks: those that give every thread a few, and even ones a little above."""
        if self.is_static:
            return (1,)
        found: list[int] = []
        for per_thread in reversed(doublings(MAX_THREAD_CHUNKS)):
            parts = -(-per_thread * context.threads // self.repeats)
            found += [max(1, self.units // parts), even_share(self.units, parts)]
        if self.is_dynamic:
            # Of a dynamic extent there may be far fewer: a chunk is worth waking a thread, no more.
            worth = 2 * context.target.machine.wake_cycles
            most = max(1, int(worth / self.unit_cycles)) if self.unit_cycles else 1
            found = [min(size, most) for size in found]
        return tuple(dict.fromkeys(found))


Axes = Mapping[str, Work]  # what threads may share out -> the work along it
Forms = Mapping[Value, Axes]  # where that depends on another field: by the field's value


def even_share(whole: int, parts: int) -> int:
    """The size of parts: without a rest, if there is such a size a little above."""
    least = max(1, -(-whole // parts))
    most = least + 2 * least // MAX_THREAD_CHUNKS
    # There are few parts, but as many sizes as a model's extents: look for the number of parts.
    for count in range(whole // least, max(0, -(-whole // most) - 1), -1):
        if whole % count == 0:
            return whole // count
    return least


def sharing_candidates(axes: Axes, context: RuleContext) -> dict[str, tuple[Value, ...]]:
    """The fields `parallel` and `chunk` of a plan; a chunk of 1 stands for no sharing."""
    if context.threads == 1:
        return {"parallel": (NONE,), "chunk": (1,)}
    sizes = [size for work in axes.values() for size in work.chunks(context)]
    return {"parallel": (NONE, *axes), "chunk": tuple(dict.fromkeys((1, *sizes)))}


def sharing_legal(c: Columns, axes: Axes, context: RuleContext) -> Column:
    """Whether a chunk is one of its axis."""
    found: Column = (c["parallel"] == NONE) & (c["chunk"] == 1)
    for name, work in axes.items():
        found = found | ((c["parallel"] == name) & np.isin(c["chunk"], work.chunks(context)))
    return found


def sharing_terms(
    c: Columns, axes: Axes, serial_cycles: Any, context: RuleContext
) -> dict[str, Column]:
    """Cycles of the thread that finishes last, of work that takes `serial_cycles` alone."""
    machine, threads = context.target.machine, context.threads
    share = np.ones(len(c["parallel"]))
    dispatch, imbalance = np.zeros_like(share), np.zeros_like(share)
    for name, work in axes.items():
        chunk = np.maximum(c["chunk"], -(-work.units // threads) if work.is_static else 1)
        units = float(work.units)  # a model may ask for any size: 64 bits may not hold it
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
    """As `sharing_candidates`, of all forms together."""
    found = [sharing_candidates(axes, context) for axes in forms.values()]
    return {
        name: tuple(dict.fromkeys(value for each in found for value in each[name]))
        for name in ("parallel", "chunk")
    }


def forms_legal(c: Columns, field: str, forms: Forms, context: RuleContext) -> Column:
    """As `sharing_legal`, by the value of a field."""
    found: Column = np.zeros(len(c[field]), bool)
    for value, axes in forms.items():
        found = found | ((c[field] == value) & sharing_legal(c, axes, context))
    return found


def forms_terms(
    c: Columns, field: str, forms: Forms, serial_cycles: Any, context: RuleContext
) -> dict[str, Column]:
    """As `sharing_terms`, by the value of a field."""
    found: dict[str, Column] = {}
    for value, axes in forms.items():
        for name, term in sharing_terms(c, axes, serial_cycles, context).items():
            found[name] = np.where(c[field] == value, term, found.get(name, term))
    return found


def piece_terms(own_cycles: Any, own: Any, machine: Machine) -> dict[str, Any]:
    """Of a thread that takes so many pieces of a loop, several at a time where they are many: to
    take them, and to wait for the last of another thread. Of none, nothing."""
    at_a_time = np.maximum(1, own // MAX_THREAD_CHUNKS)
    taken = -(-own // at_a_time)
    late = late_cycles(own_cycles / np.maximum(taken, 1), machine)
    return {"dispatch": taken * chunk_cycles(machine), "imbalance": late * (taken > 0)}


def late_cycles(piece_cycles: Any, machine: Machine) -> Any:
    """Where a core is taken away, all others wait for its chunk; that is seldom."""
    return machine.exposed_share * piece_cycles


def chunk_cycles(machine: Machine) -> float:
    """To take one more chunk: a line that threads share comes over, and the loop's body starts."""
    return machine.cycles(machine.chunk_ns)
