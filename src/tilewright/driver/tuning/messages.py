"""Messages between the tuner and its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.driver.kernels import Job, KernelSetting
from tilewright.driver.tuning.inputs import Sizes
from tilewright.driver.tuning.running import Measured, SizedKernel, Times
from tilewright.driver.tuning.table import Built
from tilewright.graph.ir import Module
from tilewright.tune.record import TaskKey, Winner


@dataclass(frozen=True)
class Build:
    """Build a kernel without running it."""

    job: Job


@dataclass(frozen=True)
class Check:
    """Build a kernel, run it in isolation and compare it with the reference."""

    job: Job
    default: Built  # the kernel of the same job without choices
    sizes: Sizes


@dataclass(frozen=True)
class Open:
    """Build a model and get it ready to run."""

    module: Module
    setting: KernelSetting
    defaults: Mapping[str, Built]
    sizes: Sizes
    in_place: bool
    runs: int


@dataclass(frozen=True)
class Race:
    """Time candidates in place."""

    wave: Mapping[SizedKernel, Built]
    pairs: int


@dataclass(frozen=True)
class Compare:
    """Time the whole model untuned and with the incumbents."""

    pairs: int


@dataclass(frozen=True)
class Adopt:
    """Set a kernel's incumbent; None: the default."""

    sized: SizedKernel
    candidate: Built | None


@dataclass(frozen=True)
class Whole:
    """Compile the model untuned and with these winners, and time both alternately."""

    winners: Mapping[TaskKey, Winner]
    use_cache: bool
    pairs: int
    seconds: float  # for everything


Question = Build | Check | Open | Race | Compare | Adopt | Whole
Answer = Built | str | Times | Sequence[Mapping[str, Measured]]  # a str is an error message
