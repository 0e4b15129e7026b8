"""Where a run begins: at a seed of its own, so that no two runs look at the same programs.

first = begin(options.first, options.programs, console)     prints how to repeat the run
for job in until(jobs, options.seconds): ...                 as many as a time allows
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.console import Console

T = TypeVar("T")

SEEDS = 1 << 31


def begin(given: int | None, count: int, console: Console) -> int:
    """The first of `count` seeds: the one given, or a fresh one."""
    first = secrets.randbelow(SEEDS) if given is None else given
    script = Path(sys.argv[0]).name
    console.print(
        f"{script}: seeds {first} to {first + count - 1}; the same again with --first {first}, one "
        "of them with --seed N",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return first


def until(jobs: Iterable[T], seconds: float) -> Iterator[T]:
    """The jobs, as long as fewer than so many seconds have passed; 0: all of them."""
    end = time.monotonic() + seconds
    for job in jobs:
        if seconds and time.monotonic() > end:
            return
        yield job
