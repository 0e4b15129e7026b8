"""Paths of the C runtime's sources, for linking exported models."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "native"
HEADERS = ("dlpack.h", "dlpack_tensor.h", "foreign.h", "tilewright.h")


def runtime_sources() -> tuple[Path, ...]:
    """The C files that a model needs, without the Python binding. Compile them with `-I FOLDER`."""
    return tuple(sorted(p for p in FOLDER.glob("*.c") if not p.name.startswith("python_")))


def accelerator_sources() -> tuple[Path, ...]:
    """The C files of the accelerator's driver and simulators."""
    return tuple(sorted((FOLDER / "accel").glob("*.c")))
