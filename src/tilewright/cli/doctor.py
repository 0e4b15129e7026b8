"""tilewright doctor"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from tilewright import __version__
from tilewright.base.errors import TilewrightError, summary_of
from tilewright.base.host import host_cores
from tilewright.base.machine import GUESSED
from tilewright.base.target import Target
from tilewright.cli import common
from tilewright.cli.cache import summary
from tilewright.cli.common import Json
from tilewright.cli.targets import NOTABLE

OK, NOTE, PROBLEM = "ok", "note", "problem"
MARKS = {OK: "[green]ok[/]", NOTE: "[yellow]note[/]", PROBLEM: "[red]problem[/]"}
LEAST_PYTHON = (3, 11)
DRIVER = Path("/proc/driver/nvidia/version")

# extra: a package that it installs
EXTRAS = {
    "torch": "torch",
    "tune": "xgboost",
    "fleet": "ray",
    "cuda": "cuda",
    "accel": "pyosys",
    "report": "fast_sugiyama",
    "bench": "openvino",
    "docs": "mkdocs",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check, and how to fix it."""

    name: str
    found: str
    status: str = OK
    fix: str = ""


@common.command
def doctor(json: Json = False) -> None:
    """Check the installation, and suggest fixes.

    Exit code 1 if there is a problem. A note concerns optional features only.
    """
    with common.progress("looking"):
        found = list(findings())
    if json:
        common.print_json([asdict(one) for one in found])
    else:
        table = Table("", "", "found", "what to do", show_lines=False)
        for one in found:
            table.add_row(MARKS[one.status], one.name, escape(one.found), escape(one.fix))
        common.output().print(table)
    if any(one.status == PROBLEM for one in found):
        raise typer.Exit(1)


def findings() -> Iterator[Finding]:
    """All results, in order."""
    for look in (_python, _llvm, _processor, _machine, _threads, _compiler, _native, _gpu, _extras):
        yield from _guarded(look)
    yield from _guarded(_cache)


def _guarded(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Run one check; an exception in it is reported as a problem."""
    try:
        yield from look()
    except Exception as error:
        yield Finding(look.__name__.strip("_"), summary_of(error), PROBLEM, "see the message")


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    old = sys.version_info[:2] < LEAST_PYTHON
    yield Finding(
        "Python",
        f"{version}, {sys.executable}",
        PROBLEM if old else OK,
        "use Python 3.11 or newer" if old else "",
    )
    yield Finding("Tilewright", f"{__version__}, {Path(__file__).parents[1]}")


def _llvm() -> Iterator[Finding]:
    from tilewright.codegen.llvm import VERSION

    yield Finding("LLVM", f"{VERSION}, in llvmlite {importlib.metadata.version('llvmlite')}")


def _processor() -> Iterator[Finding]:
    from tilewright.codegen.llvm import host_cpu

    target = Target.host()
    notable = ", ".join(name for name in NOTABLE if target.has(name)) or "none of note"
    lanes = f"{target.vector_registers} vector registers of {target.vector_bits} bits"
    yield Finding("processor", f"{host_cpu()[0]} ({target.triple}): {lanes}; {notable}")


def _machine() -> Iterator[Finding]:
    machine = Target.host().machine
    levels = (("L1", machine.l1d), ("L2", machine.l2), ("L3", machine.l3))
    sizes = ", ".join(f"{name} {_size(c.size_bytes)}" for name, c in levels if c.size_bytes)
    yield Finding("caches", sizes)
    guessed = machine.source == GUESSED
    yield Finding(
        "machine model",
        f"{machine.name}, {machine.source}: {machine.frequency_ghz:.1f} GHz, "
        f"{machine.fma_per_cycle} multiply-adds per cycle",
        NOTE if guessed else OK,
        "schedules are chosen by a guess; name the processor: -mcpu=NAME" if guessed else "",
    )


def _threads() -> Iterator[Finding]:
    from tilewright.runtime.pool import threads

    setting = os.environ.get("TILEWRIGHT_NUM_THREADS")
    text = f"{threads()} by default, of {host_cores()} cores that this process may use"
    yield Finding("threads", text + (f" (TILEWRIGHT_NUM_THREADS={setting})" if setting else ""))


def _compiler() -> Iterator[Finding]:
    from tilewright.codegen.artifact import find_compiler

    try:
        yield Finding("C compiler", " ".join(find_compiler(Target.host())))
    except TilewrightError:
        yield Finding(
            "C compiler",
            "none: models compile and run, but are not saved as libraries",
            NOTE,
            "install gcc or clang, or pip install ziglang",
        )


def _native() -> Iterator[Finding]:
    """Compile and run a kernel."""
    from tilewright import te
    from tilewright.codegen.build import build

    n = te.var("n")
    x = te.placeholder((n,), name="x")
    y = te.compute((n,), lambda i: x[i] * 2.0 + 1.0, name="y")
    run = build(te.function([n, x, y], name="doctor"), target="cpu")
    given, made = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    run(5, given, made)
    right = bool((made == given * 2 + 1).all())
    yield Finding(
        "native code",
        "a kernel compiles, runs and is right" if right else f"a kernel gave {made.tolist()}",
        OK if right else PROBLEM,
        "" if right else "please report this, with all of this table",
    )


def _gpu() -> Iterator[Finding]:
    if not DRIVER.exists():
        yield Finding("GPU", "no NVIDIA driver; kernels for GPUs run in the interpreter")
        return
    driver = DRIVER.read_text(encoding="utf-8").splitlines()[0]
    bindings = importlib.util.find_spec("cuda") is not None
    yield Finding(
        "GPU",
        driver,
        OK if bindings else NOTE,
        "" if bindings else "pip install 'tilewright[cuda]' to run kernels on it",
    )


def _extras() -> Iterator[Finding]:
    present = [name for name, package in EXTRAS.items() if importlib.util.find_spec(package)]
    missing = [name for name in EXTRAS if name not in present]
    text = f"{', '.join(present) or 'none'}; not installed: {', '.join(missing) or 'none'}"
    yield Finding("extras", text, fix="pip install 'tilewright[NAME]'" if missing else "")


def _cache() -> Iterator[Finding]:
    cached = summary()
    if cached.folder is None:
        yield Finding(
            "cache",
            "switched off (TILEWRIGHT_CACHE_DIR is empty): every model is compiled again",
            NOTE,
            "unset TILEWRIGHT_CACHE_DIR",
        )
        return
    text = f"{cached.folder}: {cached.entries} kernels, {cached.size_bytes / 1e6:.1f} MB"
    folder = next(path for path in (cached.folder, *cached.folder.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        fix = "make it writable, or set TILEWRIGHT_CACHE_DIR"
        yield Finding("cache", f"{text}; {folder} cannot be written", PROBLEM, fix)
    elif cached.folder.exists() and cached.folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Finding(
            "cache",
            f"{text}; others may write to it, and it holds code",
            PROBLEM,
            f"chmod go-w {cached.folder}",
        )
    else:
        yield Finding("cache", text)


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KB"
