"""Where a run begins: at a seed of its own, so that no two runs look at the same programs.

first = begin(options.first, options.programs, console)     prints how to repeat the run
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from rich.console import Console

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
