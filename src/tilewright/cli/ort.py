"""tilewright ort PROGRAM ARGS"""

from __future__ import annotations

import os
import pickle
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import tilewright.ort as onnxruntime
from tilewright.base.errors import UserError
from tilewright.cli import common
from tilewright.ort.observe import observed

PEER_SECONDS = 120.0  # limit of a session in ONNX Runtime, including loading
_TIMED = 5  # runs, of which the minimum is used


@dataclass
class SessionRecord:
    """A session of the program."""

    model: str
    load_s: float = 0.0
    runs: int = 0
    run_s: float = 0.0  # sum over all runs
    fallbacks: tuple[str, ...] = ()
    error: str = ""
    ours_s: float | None = None  # minimum time of a run on the last feed
    theirs_s: float | None = None  # the same in ONNX Runtime
    source: Any = field(default=None, repr=False)
    feed: dict[str, Any] = field(default_factory=dict, repr=False)
    threads: int = 0
    run: Any = field(default=None, repr=False)

    @property
    def saved_s(self) -> float | None:
        """Estimated time saved in all runs, by the time of the last feed."""
        if self.ours_s is None or self.theirs_s is None:
            return None
        return self.runs * (self.theirs_s - self.ours_s)


class Watch:
    """Records sessions and runs."""

    def __init__(self) -> None:
        self.records: dict[int, SessionRecord] = {}
        self._sessions: list[Any] = []  # keeps them alive, so that ids are unique
        self._lock = Lock()

    def loaded(self, session: Any, seconds: float) -> None:
        with self._lock:
            self._sessions.append(session)
            self.records[id(session)] = SessionRecord(
                _label(session._source),
                seconds,
                fallbacks=session.module.fallbacks,
                source=session._source,
                threads=session.module.threads,
                run=session.run,
            )

    def refused(self, source: Any, error: Exception) -> None:
        with self._lock:
            self.records[-1 - len(self.records)] = SessionRecord(_label(source), error=str(error))

    def ran(self, session: Any, feed: Mapping[str, Any], seconds: float) -> None:
        with self._lock:
            record = self.records.get(id(session))
            if record is not None:
                record.runs += 1
                record.run_s += seconds
                record.feed = dict(feed)


def _label(source: Any) -> str:
    if isinstance(source, bytes):
        return f"{len(source):,} bytes"
    return Path(source).name


@common.command
def ort(
    program: Annotated[str, typer.Argument(help="A Python file, or -m and a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module.")] = False,
    compare: Annotated[
        bool, typer.Option(help="Also time the last feeds in ONNX Runtime, if installed.")
    ] = True,
    report: Annotated[Path | None, typer.Option(help="Write a JSON report to this file.")] = None,
) -> None:
    """Run a Python program with Tilewright in place of onnxruntime, and report the time saved."""
    common.check_folder(report)
    watch, begun = Watch(), time.perf_counter()
    code: Any = 0
    with observed(watch):
        try:
            _run(program, arguments or [], module)
        except SystemExit as end:
            code = end.code
    total = time.perf_counter() - begun
    records = list(watch.records.values())
    if compare:
        with common.progress("timing beside onnxruntime") as move:
            for at, record in enumerate(records):
                move(record.model, at, len(records))
                _time(record)
    _show(records, total)
    if report is not None:
        summary = {"seconds": total, "sessions": [_told(record) for record in records]}
        with common.writing(report):
            report.write_text(common.json_text(summary), encoding="utf-8")
    if code not in (None, 0):
        raise typer.Exit(code if isinstance(code, int) else 1)


def _run(program: str, arguments: Sequence[str], module: bool) -> None:
    """Execute the program as Python would, with `import onnxruntime` redirected."""
    saved = (sys.argv, list(sys.path), sys.modules.get("onnxruntime"))
    sys.modules["onnxruntime"] = onnxruntime
    sys.argv = [program, *arguments]
    try:
        if module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            if not Path(program).exists():
                raise UserError("TW6030", f"there is no program {program}")
            sys.path.insert(0, str(Path(program).resolve().parent))
            runpy.run_path(program, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = saved[0], saved[1]
        if saved[2] is not None:
            sys.modules["onnxruntime"] = saved[2]
        else:
            sys.modules.pop("onnxruntime", None)  # unless the program has removed it


# --------------------------------------------------------------------------- what it saved

_PEER = """
import pickle, sys, time
import onnxruntime
job = pickle.load(open(sys.argv[1], "rb"))
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.intra_op_num_threads = job["threads"]
session = onnxruntime.InferenceSession(job["source"], options, providers=["CPUExecutionProvider"])
best = None
for _ in range(job["timed"] + 1):
    begun = time.perf_counter()
    session.run(None, job["feed"])
    spent = time.perf_counter() - begun
    best = spent if best is None else min(best, spent)
print(best)
"""


def _time(record: SessionRecord) -> None:
    """Time a run on the last feed: Tilewright here, ONNX Runtime in a subprocess."""
    if not record.runs or record.error or not _is_plain(record.feed):
        return
    record.theirs_s = _by_onnxruntime(record)
    times = []
    for _ in range(_TIMED):
        begun = time.perf_counter()
        record.run(None, record.feed)
        times.append(time.perf_counter() - begun)
    record.ours_s = min(times)


def _is_plain(feed: Mapping[str, Any]) -> bool:
    return all(isinstance(value, np.ndarray) for value in feed.values())


def _by_onnxruntime(record: SessionRecord) -> float | None:
    """Seconds of a run in ONNX Runtime; None if it is not installed or fails."""
    source = record.source if isinstance(record.source, bytes) else os.fspath(record.source)
    job = {"source": source, "feed": record.feed, "threads": record.threads, "timed": _TIMED}
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        path = Path(folder) / "job"
        path.write_bytes(pickle.dumps(job))
        try:
            end = subprocess.run(
                [sys.executable, "-c", _PEER, str(path)],
                capture_output=True,
                text=True,
                timeout=PEER_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    words = end.stdout.split()
    return float(words[-1]) if end.returncode == 0 and words else None


def _told(record: SessionRecord) -> dict[str, Any]:
    hidden = ("source", "feed", "run")
    plain = SessionRecord(**{k: v for k, v in record.__dict__.items() if k not in hidden})
    shown = {key: value for key, value in asdict(plain).items() if key not in hidden}
    return shown | {"saved_s": record.saved_s}


def _show(records: Sequence[SessionRecord], total: float) -> None:
    out = common.console
    table = Table(
        "session",
        "compile s",
        "runs",
        "mean ms",
        "best ms",
        "onnxruntime",
        "ratio",
        "saved s",
        "fell back",
        title="onnxruntime programs on Tilewright",
        title_justify="left",
        caption=f"best ms, and onnxruntime's: the fastest of {_TIMED} more runs on the last feed",
        caption_justify="left",
    )
    for one in records:
        table.add_row(*_row(one))
    out.print(table)
    saved_s = [one.saved_s for one in records if one.saved_s is not None]
    words = f"{len(records)} sessions, {sum(one.runs for one in records)} runs, {total:.1f} s"
    if saved_s:
        words += f"; {sum(saved_s):.2f} s of running saved"
    out.print(words)


def _row(one: SessionRecord) -> tuple[str, ...]:
    """A row of the table for a session."""
    if one.error:
        return (one.model, "", "0", *[""] * 5, one.error.splitlines()[0])
    ratio = one.theirs_s / one.ours_s if one.theirs_s and one.ours_s else None
    return (
        one.model,
        f"{one.load_s:.1f}",
        str(one.runs),
        _number(one.run_s / one.runs if one.runs else None, 1e3),
        _number(one.ours_s, 1e3),
        _number(one.theirs_s, 1e3),
        _number(ratio),
        _number(one.saved_s),
        ", ".join(one.fallbacks) or "nothing",
    )


def _number(value: float | None, times: float = 1.0) -> str:
    return "" if value is None else f"{value * times:.2f}"
