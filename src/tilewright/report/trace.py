"""Export compilation and a run as one trace, in the Trace Event format of Perfetto.

Stages and passes of the compiler are one process of the trace, the run another: kernels on the
calling thread, and each worker's share on its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.runtime.profiler import Record

COMPILING, RUNNING = 1, 2


def trace_of(record: Record, timings: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The trace of a compilation and a run, each starting at time zero."""
    events = [_named("process_name", COMPILING, 0, "compile"), *_compiled(timings)]
    events.append(_named("process_name", RUNNING, 0, "run"))
    begun = min((event.begin_ns for event in record.events), default=0)
    callers = dict.fromkeys(sorted(event.thread for event in record.events))
    workers = dict.fromkeys(sorted(share.thread for share in record.shares))
    named = {thread: f"caller {at}" for at, thread in enumerate(callers)}
    named |= {t: f"worker {at}" for at, t in enumerate(t for t in workers if t not in callers)}
    threads = {thread: at for at, thread in enumerate(named)}
    events += [_named("thread_name", RUNNING, threads[t], name) for t, name in named.items()]
    for event in (*record.events, *record.shares):
        entry = {
            "name": event.kernel,
            "ph": "X",
            "ts": (event.begin_ns - begun) / 1000,
            "dur": event.duration_ns / 1000,
            "pid": RUNNING,
            "tid": threads[event.thread],
        }
        if event.flops or event.size_bytes:
            entry["args"] = {
                "flops": event.flops,
                "bytes": event.size_bytes,
                "GFLOP/s": round(event.flops / max(event.duration_ns, 1), 2),
            }
        events.append(entry)
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _compiled(timings: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Stages in sequence, and their passes below, in order of first run."""
    events: list[dict[str, Any]] = []
    if not timings:
        return events
    at = 0.0
    for stage, seconds in timings.get("stages", {}).items():
        events.append(_span(stage, at, seconds, 0))
        if stage == "passes":
            begun = at
            for name, spent in timings.get("passes", {}).items():
                events.append(_span(name, begun, spent, 1))
                begun += spent
        at += seconds
    events.append(_named("thread_name", COMPILING, 0, "stages"))
    events.append(_named("thread_name", COMPILING, 1, "passes, each with all its runs"))
    return events


def _span(name: str, at_s: float, seconds: float, tid: int) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "ts": at_s * 1e6,
        "dur": seconds * 1e6,
        "pid": COMPILING,
        "tid": tid,
    }


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def write_trace(path: str | Path, record: Record, timings: Mapping[str, Any]) -> None:
    """Write the trace of a compilation and a run."""
    Path(path).write_text(json.dumps(trace_of(record, timings)), encoding="utf-8")
