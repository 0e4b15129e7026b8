"""What the tuner's processes ask each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.running import Measured, Spot, Times
from tilewright.driver.tuning.table import Built
from tilewright.graph.ir import Module
from tilewright.tune.record import TaskKey, Winner


@dataclass(frozen=True)
class Build:
    """Make a kernel; nobody runs it."""

    job: Job


@dataclass(frozen=True)
class Check:
    """Make a kernel, run it alone and compare it with the reference."""

    job: Job
    default: Built  # of the same job, without choices
    sizes: Sizes


@dataclass(frozen=True)
class Open:
    """Have a model ready to run."""

    module: Module
    setting: KernelSetting
    defaults: Mapping[str, Built]
    sizes: Sizes
    in_place: bool
    runs: int


@dataclass(frozen=True)
class Race:
    """Time candidates in place."""

    wave: Mapping[Spot, Built]
    pairs: int


@dataclass(frozen=True)
class Compare:
    """Time the whole model without tuning and with the incumbents."""

    pairs: int


@dataclass(frozen=True)
class Adopt:
    """A kernel's incumbent; None: the default."""

    spot: Spot
    candidate: Built | None


@dataclass(frozen=True)
class Whole:
    """Compile the model without tuning and with these winners, and time both in turns."""

    winners: Mapping[TaskKey, Winner]
    use_cache: bool
    pairs: int
    seconds: float  # for all of it


Question = Build | Check | Open | Race | Compare | Adopt | Whole
Answer = Built | str | Times | Sequence[Mapping[str, Measured]]  # a text says what is wrong
