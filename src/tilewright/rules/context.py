"""What rules know besides the program: the target, the threads, which parameters are constants."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.target import Target


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Where the code will run, and which parameters are weights."""

    target: Target
    threads: int = 1
    constants: frozenset[str] = frozenset()  # names of parameters that never change between calls
