"""Pipeline of tiles through the units: load, GEMM, ALU and store run concurrently.

A kernel defines how to load, multiply, requantize and store one tile; `emit` orders the tasks and
adds tokens. With `slots=2` (double buffering) every unit fills one half of a memory while the next
one uses the other; with `slots=1` nothing overlaps. Tokens:

    load -> gemm   operands are there         gemm -> load   their slot is free
    gemm -> alu    the sums are there         alu -> gemm    their slot is free
    aux -> alu     parameters are there       alu -> aux     their slot is free
    alu -> store   the results are there      store -> alu   their slot is free

A token that frees a slot is pushed only if a later tile uses the slot, so that none is left over.
"""

from __future__ import annotations

from typing import Protocol

from tilewright.accel.build.builder import Builder
from tilewright.accel.isa.stream import MicroOp, Value
from tilewright.accel.isa.table import REQUANT_ENTRIES, depth
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry

Fields = dict[str, Value]


class Kernel(Protocol):
    """A tiled operator. Entries are in units of the respective memory."""

    def tiles(self) -> list[tuple[int, ...]]: ...
    def reductions(self) -> int:
        """Number of parts of the reduction, loaded in sequence."""

    def entries(self) -> dict[str, int]:
        """Entries of `inp`, `wgt` and `acc` per slot."""

    def output_blocks(self, tile: tuple[int, ...]) -> tuple[int, int]:
        """First block of output channels of a tile, and the number of blocks."""

    def microcode(self) -> list[MicroOp]: ...
    def loads(self, tile: tuple[int, ...], part: int) -> list[Fields]: ...
    def gemm(self, tile: tuple[int, ...], part: int) -> Fields: ...
    def requant(self, tile: tuple[int, ...]) -> Fields: ...
    def stores(self, tile: tuple[int, ...]) -> list[Fields]: ...


def emit(builder: Builder, kernel: Kernel, params: int, slots: int) -> None:
    """Append the tasks of a kernel; `params` is the base register of the parameters."""
    bases = _bases(kernel, builder.geometry, slots)
    begin, end = builder.microcode(kernel.microcode())
    builder.load_microcode(push=("gemm", "alu"))
    tiles, parts = kernel.tiles(), kernel.reductions()
    loaded = 0
    for number, tile in enumerate(tiles):
        slot, again = number % slots, number >= slots
        later = number + slots < len(tiles)
        _load_parameters(builder, kernel, tile, params, bases["params"][slot], again)
        for part in range(parts):
            half = loaded % slots
            for at, fields in enumerate(found := kernel.loads(tile, part)):
                pop = ("gemm",) if at == 0 and loaded >= slots else ()
                push = ("gemm",) if at == len(found) - 1 else ()
                sram = bases[str(fields["fmt"])][half]
                builder.task("load", **fields, sram=sram, pop=pop, push=push)
            pops = ["load"]
            if part == 0 and again:
                pops.append("alu")
            if loaded == 0:
                pops.append("aux")  # microcode
            pushes = ["alu"] if part == parts - 1 else []
            if loaded + slots < len(tiles) * parts:
                pushes.append("load")
            builder.task(
                "gemm",
                **kernel.gemm(tile, part),
                ubegin=begin,
                uend=end,
                dst0=bases["acc"][slot],
                src0=bases["inp"][half],
                aux0=bases["wgt"][half],
                init=int(part == 0),
                pop=pops,
                push=pushes,
            )
            loaded += 1
        _finish_tile(builder, kernel, tile, bases, slot, (begin, again, later, number == 0))


def _load_parameters(
    builder: Builder, kernel: Kernel, tile: tuple[int, ...], base: int, sram: int, again: bool
) -> None:
    first, count = kernel.output_blocks(tile)
    entry = REQUANT_ENTRIES * builder.geometry.entry_bytes()["acc"]
    builder.task(
        "aux",
        fmt="acc",
        base=base,
        offset=first * entry,
        sram=sram,
        x=count * REQUANT_ENTRIES,
        pop=("alu",) if again else (),
        push=("alu",),
    )


def _finish_tile(
    builder: Builder,
    kernel: Kernel,
    tile: tuple[int, ...],
    bases: dict[str, list[int]],
    slot: int,
    state: tuple[int, bool, bool, bool],
) -> None:
    """Requantize and store a tile."""
    begin, again, later, is_first = state
    if is_first:  # a task without steps takes the token of the microcode
        builder.task("alu", ubegin=begin, uend=begin, pop=("aux",))
    builder.task(
        "alu",
        **kernel.requant(tile),
        fn="requant",
        ubegin=begin,
        uend=begin + 1,
        dst0=bases["acc"][slot],
        src0=bases["acc"][slot],
        aux0=bases["params"][slot],
        pop=("gemm", "aux", "store") if again else ("gemm", "aux"),
        push=("store", "gemm", "aux") if later else ("store",),
    )
    stores = kernel.stores(tile)
    for at, fields in enumerate(stores):
        builder.task(
            "store",
            fmt="out",
            **{**fields, "sram": bases["acc"][slot] + int(str(fields["sram"]))},
            pop=("alu",) if at == 0 else (),
            push=("alu",) if later and at == len(stores) - 1 else (),
        )


def _bases(kernel: Kernel, geometry: Geometry, slots: int) -> dict[str, list[int]]:
    """First entries of every slot. Sums and parameters of a slot share its half of `acc`, so that
    ALU and GEMM use different banks."""
    needed = kernel.entries()
    if slots not in (1, 2):
        raise UserError("TW7021", f"there are 1 or 2 slots, not {slots}", help="2 overlaps units")
    needed["acc"] += (params := needed.pop("params"))
    room = {name: depth(name, geometry) // slots for name in ("inp", "wgt", "acc")}
    for name, entries in needed.items():
        if entries > room[name]:
            raise UserError(
                "TW7021",
                f"a tile takes {entries} entries of {name}, {entries - room[name]} more than a "
                f"slot has",
                help="make tiles smaller, or the memory larger",
            )
    bases = {name: [slot * size for slot in range(slots)] for name, size in room.items()}
    bases["params"] = [(slot + 1) * room["acc"] - params for slot in range(slots)]
    return bases
