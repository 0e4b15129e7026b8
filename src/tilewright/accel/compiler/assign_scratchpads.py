"""Allocate entries of the accelerator's memories to buffers, by lifetime.

    for t { alloc %a: i32[4, 14, 1, 16] in vta.acc(slots=2); ... %a[i, j, 0, 0 +: 16] ... }
    alloc %acc: i32[2048, 1, 16] in vta.acc
    for t { ... %acc[t % 2 * 1024 + i * 14 + j, 0, 0 +: 16] ... }

Buffers with overlapping lifetimes get disjoint entries; others share them. A buffer with slots
rotates through them from one allocation to the next, so that filling one does not wait for readers
of the last. Slots divide the rest of the memory evenly, so that those of `acc` are in different
banks. Operands of the ALU are best in different banks: those of `vta.acc(slots=2, bank=2)`
alternate between the second and the third bank, beside others in these banks only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.accel.isa.table import ACC_BANKS, depth, entry_shape
from tilewright.base.dtype import dtype
from tilewright.base.errors import ScheduleError
from tilewright.base.geometry import Geometry
from tilewright.base.passes import PassContext
from tilewright.sym import ONE, Const, Expr, const
from tilewright.tensor.ir import (
    Alloc,
    Buffer,
    For,
    Function,
    Load,
    Range,
    Region,
    Stmt,
    Store,
    TensorCall,
)
from tilewright.tensor.visit import rewrite

Span = tuple[int, int, set[int]]  # entries from, to, of these slots
Held = dict[str, tuple[Span, ...]]
MEMORIES = {"inp": "i8", "wgt": "i8", "acc": "i32", "out": "i8"}


@dataclass(slots=True)
class _Placement:
    """Where a buffer is: `first + turn % slots * stride`."""

    memory: str
    first: int
    slots: int
    bank: int  # of the first slot, counted from 1; 0: slots divide the memory
    turn: Expr  # the number of the allocation
    strides: tuple[int, ...]  # of its dimensions, in entries


def memory_name(buffer: Buffer) -> str:
    """`acc` of a buffer in vta.acc; empty elsewhere."""
    family, _, name = buffer.memory.name.partition(".")
    return name if family == "vta" else ""


def assign_scratchpads(fn: Function, ctx: PassContext) -> Function:
    geometry = ctx.target.geometry
    plan = _Plan(geometry)
    plan.visit(fn.body, [], dict.fromkeys(MEMORIES, 0), dict.fromkeys(MEMORIES, ()))
    if not plan.lies:
        return fn
    plan.check(fn)
    wholes = {
        name: Buffer(
            name,
            tuple(map(const, (depth(name, geometry), *entry_shape(name, geometry)))),
            dtype(kind),
            f"vta.{name}",
        )
        for name, kind in MEMORIES.items()
        if any(one.memory == name for one in plan.lies.values())
    }
    body = _addressed(fn.body, plan, wholes)
    for whole in reversed(wholes.values()):
        body = Alloc(whole, body)
    return replace(fn, body=body)


class _Plan:
    """Offsets within a slot: buffers allocated inside of another's lifetime come after it."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.lies: dict[Buffer, _Placement] = {}
        self.fixed = dict.fromkeys(MEMORIES, 0)  # entries of buffers without slots
        self.turning = dict.fromkeys(MEMORIES, 0)  # entries that the largest slot needs
        self.slots = dict.fromkeys(MEMORIES, 1)

    def visit(self, stmt: Stmt, loops: list[For], fixed: dict[str, int], turning: Held) -> None:
        if isinstance(stmt, For):
            loops = [*loops, stmt]
        elif isinstance(stmt, Alloc) and (name := memory_name(stmt.buffer)):
            slots, bank = stmt.buffer.memory["slots"], stmt.buffer.memory["bank"]
            strides = _strides(stmt.buffer, entry_shape(name, self.geometry))
            lies = _Placement(name, fixed[name], slots, bank, _turn(loops), tuple(strides[1:]))
            if slots == 1 and not bank:
                fixed = {**fixed, name: fixed[name] + strides[0]}
                self.fixed[name] = max(self.fixed[name], fixed[name])
            else:
                own = {(bank - 1 + turn) % ACC_BANKS if bank else turn for turn in range(slots)}
                lies.first = _first_fit(turning[name], own, strides[0])
                behind = lies.first + strides[0]
                turning = {**turning, name: (*turning[name], (lies.first, behind, own))}
                self.turning[name] = max(self.turning[name], behind)
                self.slots[name] = max(self.slots[name], ACC_BANKS if bank else slots)
            self.lies[stmt.buffer] = lies
        for child in stmt.children():
            self.visit(child, loops, fixed, turning)

    def stride(self, name: str) -> int:
        """Entries from one slot to the next."""
        return (depth(name, self.geometry) - self.fixed[name]) // self.slots[name]

    def check(self, fn: Function) -> None:
        for name in MEMORIES:
            need = self.fixed[name] + self.slots[name] * self.turning[name]
            have = depth(name, self.geometry)
            if self.turning[name] > self.stride(name) or self.fixed[name] > have:
                held = [b.name for b, one in self.lies.items() if one.memory == name]
                raise ScheduleError(
                    "TW7040",
                    f"@{fn.name} needs {need} entries of vta.{name} at a time, {need - have} more "
                    f"than there are: %{', %'.join(held)}",
                    fn.loc,
                    help="make tiles smaller, use fewer slots, or a target with a larger memory",
                )

    def address(self, lies: _Placement, index: tuple[Expr, ...]) -> Expr:
        is_fixed = lies.slots == 1 and not lies.bank
        first = lies.first + (0 if is_fixed else self.fixed[lies.memory])
        address: Expr = const(first)
        if not is_fixed:
            turn = sym.floormod(lies.turn, const(lies.slots))
            if lies.bank:
                turn = sym.floormod(sym.add(turn, lies.bank - 1), const(ACC_BANKS))
            address = sym.add(address, sym.mul(turn, self.stride(lies.memory)))
        for at, stride in zip(index, lies.strides, strict=False):
            address = sym.add(address, sym.mul(at, stride))
        return address


def _first_fit(held: tuple[Span, ...], slots: set[int], size: int) -> int:
    """The first entry from which `size` entries are free in all of these slots."""
    at = 0
    for begin, end, others in sorted(held, key=lambda span: span[:2]):
        if slots & others and begin < at + size and at < end:
            at = end
    return at


def _strides(buffer: Buffer, entry: tuple[int, ...]) -> list[int]:
    """Total entries, and the strides in entries of the dimensions outside of an entry."""
    dims = [int(dim.value) for dim in buffer.shape if isinstance(dim, Const)]
    if len(dims) != buffer.rank or tuple(dims[-len(entry) :]) != entry:
        shape = ", ".join(map(str, buffer.shape))
        raise ScheduleError(
            "TW7041",
            f"%{buffer.name}: {buffer.dtype}[{shape}] does not consist of entries of "
            f"{buffer.memory.name}, which are {list(entry)}",
            help="the last dimensions of a buffer in that memory are those of an entry",
        )
    outer = dims[: -len(entry)]
    return [math.prod(outer[at:]) for at in range(len(outer) + 1)]


def _turn(loops: list[For]) -> Expr:
    """The flat iteration number of all enclosing loops."""
    turn: Expr = const(0)
    for loop in loops:
        extent = sym.bounds(loop.extent).upper
        extent = 1 if extent is None else extent
        turn = sym.add(sym.mul(turn, extent), sym.sub(loop.var, loop.start))
    return turn


def _addressed(body: Stmt, plan: _Plan, wholes: dict[str, Buffer]) -> Stmt:
    """Rewrite accesses to the memory as one buffer."""

    def region_rule(region: Region) -> Region:
        lies = plan.lies.get(region.buffer)
        if lies is None:
            return region
        starts = tuple([r.start for r in region.ranges])
        entry = region.ranges[len(lies.strides) :]
        at = Range(plan.address(lies, starts), ONE)
        return Region(wholes[lies.memory], (at, *entry))

    def rule(stmt: Stmt) -> Stmt:
        if isinstance(stmt, TensorCall):
            return replace(stmt, regions=tuple([region_rule(r) for r in stmt.regions]))
        if isinstance(stmt, Store) and stmt.buffer in plan.lies:
            lies = plan.lies[stmt.buffer]
            index = (plan.address(lies, stmt.index), *stmt.index[len(lies.strides) :])
            return replace(stmt, buffer=wholes[lies.memory], index=index)
        if isinstance(stmt, Alloc) and stmt.buffer in plan.lies:
            return stmt.body
        return stmt

    def expr_rule(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.buffer in plan.lies:
            lies = plan.lies[expr.buffer]
            entry = expr.index[len(lies.strides) :]
            return Load(wholes[lies.memory], (plan.address(lies, expr.index), *entry))
        return expr

    return rewrite(body, rule, expr_rule)
