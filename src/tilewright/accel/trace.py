"""Convert timings to browser traces: a row per unit, with a cycle shown as a microsecond."""

from __future__ import annotations

from typing import Any

from tilewright.accel.cycle import Timing
from tilewright.accel.isa.stream import Stream
from tilewright.accel.isa.table import QUEUES
from tilewright.accel.isa.text import print_instruction


def chrome_trace(stream: Stream, timing: Timing) -> dict[str, Any]:
    """The trace for chrome://tracing and Perfetto, as JSON."""
    names = [buffer.name for buffer in stream.buffers]
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": at, "args": {"name": queue}}
        for at, queue in enumerate(QUEUES)
    ]
    spans = zip(stream.instructions, timing.begin, timing.end, strict=True)
    for number, (task, begin, end) in enumerate(spans):
        events.append(
            {
                "name": f"{number}: {task.op}",
                "ph": "X",
                "pid": 0,
                "tid": task.queue,
                "ts": begin,
                "dur": end - begin,
                "args": {"text": print_instruction(task, names)},
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
