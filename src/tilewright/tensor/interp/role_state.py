"""Happens-before state of a block's warpgroups: vector clocks, barriers, copies in flight,
tiles."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.errors import ExecutionError
from tilewright.base.loc import Loc
from tilewright.sym import Expr, Var
from tilewright.tensor.ir import Address, Buffer

Clock = dict[object, int]
Env = dict[Var, int]
Wait = Generator[tuple["Barrier | Landing", int] | None, None, None]


def value_of(expr: Expr, env: Mapping[Var, int]) -> int:
    return int(sym.evaluate(expr, env))


def buffer_of(at: Expr) -> Buffer:
    assert isinstance(at, Address)
    return at.buffer


def join(into: Clock, other: Mapping[object, int]) -> None:
    for who, at in other.items():
        if into.get(who, 0) < at:
            into[who] = at


@dataclass(eq=False)
class Barrier:
    """An mbarrier: a phase completes with its arrivals and bytes."""

    name: str
    arrivals: int
    pending: int
    bytes: int = 0
    phase: int = 0
    clock: Clock = field(default_factory=dict)  # of the current phase
    done: Clock = field(default_factory=dict)  # of completed phases
    copies: int = 0  # in flight
    maker: tuple[Agent, int] | None = None  # who initialized it, and when
    is_multicast: bool = False  # whether copies of other blocks arrive at it
    guests: dict[Agent, int] = field(default_factory=dict)  # arrivals from other blocks

    def is_over(self, parity: int) -> bool:
        return self.phase % 2 != parity

    def settle(self, loc: Loc) -> None:
        """Complete the phase if nothing is pending."""
        early = self.is_multicast and self.pending > 0  # another block's copy may come first
        if self.pending < 0 or (self.bytes < 0 and not early):
            what = "arrivals" if self.pending < 0 else "bytes"
            raise ExecutionError(
                "TW2429",
                f"more {what} come to {self.name} than its phase expects",
                loc,
                help="expect as many bytes as the copies bring, and one arrival of each warp",
            )
        if self.pending or self.bytes:
            return
        if self.copies:
            raise ExecutionError(
                "TW2429",
                f"the phase of {self.name} ends while a copy is still under way",
                loc,
                help="expect as many bytes as the copies bring",
            )
        self.phase += 1
        self.pending = self.arrivals
        join(self.done, self.clock)
        self.clock = {}


@dataclass(eq=False)
class Agent:
    """A consumer warpgroup, or the producer thread."""

    name: str
    env: Env
    clock: Clock = field(default_factory=dict)
    sums: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    groups: list[Products] = field(default_factory=list)  # issued groups of products
    is_starting: bool = False  # whether its last action was to issue one
    read: list[Tile] = field(default_factory=list)  # by the last product
    steps: Wait | None = None
    waits: tuple[Barrier | Landing, int] | None = None
    number: int = 0
    begun: list[Copy] = field(default_factory=list)  # since the last commit
    copies: list[list[Copy]] = field(default_factory=list)  # committed groups, not waited for
    landed: list[Copy] = field(default_factory=list)  # waited for, not yet released to others
    written: list[object] = field(default_factory=list)  # to shared memory, not yet fenced
    fenced: list[object] = field(default_factory=list)  # the same, not yet released to others
    kept: list[Part] = field(default_factory=list)  # for other blocks, not yet released

    def tick(self) -> int:
        self.clock[self] = self.clock.get(self, 0) + 1
        return self.clock[self]

    def retire(self, later: int = 0) -> None:
        """Complete all but so many groups of products, whose tiles are then read."""
        ended = len(self.groups) - later
        for group in self.groups[: max(0, ended)]:
            for tile in group.tiles:
                tile.reads[self] = self.clock.get(self, 0) + 1
        del self.groups[: max(0, ended)]


@dataclass(eq=False)
class Products:
    """An issued group of products: its accumulators and left operands, and its tiles."""

    uses: set[Buffer]
    tiles: list[Tile]


@dataclass(eq=False)
class Tile:
    """One box in shared memory, with its last writer and the readers since."""

    copy: Copy | None = None
    clears: dict[Agent, Clear] = field(default_factory=dict)  # if it is zeros, and no copy's
    reads: dict[Agent, float] = field(default_factory=dict)


@dataclass(eq=False)
class Clear:
    """Zeros that the threads of a warpgroup stored."""

    when: int  # in the writer's clock


@dataclass(frozen=True)
class Visible:
    """In the clock of whoever knows that asynchronous instructions see what threads wrote: a copy
    by `cp.async`, zeros, a barrier."""

    written: object


@dataclass(eq=False)
class Part:
    """Partial sums that a warpgroup stored for other blocks. In a cluster they are in the clocks of
    those who may read them; others may read them who know the writer's clock of then."""

    values: np.ndarray[Any, Any]
    writer: Agent
    when: int = 0  # in the writer's clock
    reads: dict[Agent, int] = field(default_factory=dict)


@dataclass(eq=False)
class Exchange:
    """What stream-K blocks exchange through global memory."""

    parts: dict[tuple[Buffer, int], Part] = field(default_factory=dict)
    signals: dict[tuple[Buffer, int], Barrier] = field(default_factory=dict)

    def signal(self, at: Expr, env: Mapping[Var, int]) -> Barrier:
        """It is given once; who waits for it takes it back."""
        assert isinstance(at, Address)
        key = at.buffer, value_of(at.index[0], env)
        if key not in self.signals:
            self.signals[key] = Barrier(f"%{key[0].name}[{key[1]}]", 1, 1)
        return self.signals[key]

    def ends(self) -> None:
        """The next launch finds no signal that it would take for one of its own."""
        for barrier in self.signals.values():
            if barrier.phase % 2:
                raise ExecutionError(
                    "TW2460",
                    f"{barrier.name} is given, and nobody waits for it: the next launch would take "
                    "it for one of its own",
                    help="let the block with a tile's first step wait for all others that have "
                    "steps of it",
                )


@dataclass(eq=False)
class Copy:
    """An asynchronous copy in flight."""

    buffer: Buffer
    first: int
    values: np.ndarray[Any, Any]
    barrier: Barrier | None  # that it arrives at
    clock: Clock
    loc: Loc
    is_under_way: bool = True


@dataclass(eq=False)
class Landing:
    """What completes when copies have landed."""

    copies: list[Copy]
    name: str = "copies of its own"
    done: Clock = field(default_factory=dict)

    def is_over(self, parity: int) -> bool:
        return not any(copy.is_under_way for copy in self.copies)
