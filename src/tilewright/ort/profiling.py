"""The profile that a session writes: events in the format of ONNX Runtime's tools."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from tilewright.ort.devices import CPU
from tilewright.runtime.profiler import profile

_turn = Lock()  # the process has a single profiler


class SessionProfile:
    """Kernel events of a session's runs."""

    def __init__(self, prefix: str, runtime: int = 0) -> None:
        self.start_ns = time.monotonic_ns()
        self._runtime = runtime
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")
        self.path = Path(f"{prefix}_{stamp}.json")
        self._events: list[dict[str, Any]] = []

    @contextmanager
    def run(self) -> Iterator[None]:
        """Record the block as one run of the model."""
        with _turn:
            begun = time.monotonic_ns()
            with profile(runtime=self._runtime) as record:
                yield
            spent = time.monotonic_ns() - begun
        at = (begun - self.start_ns) / 1e3
        self._add("Session", "model_run", at, spent / 1e3, 0, {})
        first = min((event.begin_ns for event in record.events), default=0)
        for event in record.events:
            since = at + (event.begin_ns - first) / 1e3
            told = {"op_name": event.kernel, "provider": CPU, "flops": str(event.flops)}
            name = f"{event.kernel}_kernel_time"
            self._add("Node", name, since, event.duration_ns / 1e3, event.thread, told)

    def _add(
        self, cat: str, name: str, ts: float, dur: float, thread: int, args: dict[str, str]
    ) -> None:
        self._events.append(
            {
                "cat": cat,
                "pid": os.getpid(),
                "tid": thread,
                "dur": round(dur),
                "ts": round(ts),
                "ph": "X",
                "name": name,
                "args": args,
            }
        )

    def write(self) -> str:
        """Write the file and return its name."""
        self.path.write_text(json.dumps(self._events, indent=0), encoding="utf-8")
        return str(self.path)
