"""Loads and stores: contiguous, strided and scattered vectors, under masks.

A vector index that is base, base + 1, ... becomes one vector access; other constant strides one
wide load and a shuffle; lanes in a few runs one load each and a shuffle; lanes within one aligned
part of a buffer one load of it and a shuffle; the rest are gathers and scatters. Stores to a few
runs are one shuffle and store each. A mask keeps lanes from touching memory; one that is known
leaves their elements out of the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tilewright.base.dtype import DType
from tilewright.codegen.builder import FunctionText, Value, i64, splat
from tilewright.codegen.machine import Machine
from tilewright.codegen.types import mangled, memory_type, vector

WIDEST_SHUFFLE = 4  # strides up to this are loaded whole and shuffled
ODD_STRIDE = 3  # at which shuffles of bytes and words are slow: there is no narrowing conversion
PIECE_BITS = 128  # what byte shuffles work on
MAX_RUNS = 4  # lanes in more runs of contiguous elements are gathered


@dataclass(frozen=True, slots=True)
class Memory:
    """The address of a buffer, and what LLVM may assume about it."""

    pointer: Value
    align: int  # of the first element, in bytes
    alias: str = ""  # metadata of every access


@dataclass(frozen=True, slots=True)
class Place:
    """An access: an index in elements, with a divisor of it."""

    memory: Memory
    index: Value
    divisor: int
    element: DType
    stride: int | None = None  # between lanes when constant
    offsets: tuple[int, ...] = ()  # static offsets of the lanes; () if the index is a vector
    part: int = 1  # divides the index and the buffer: so many elements are all in bounds, or none
    beyond: int = 0  # constant offset from the index to the place; the divisor is of their sum
    is_short: bool = False  # the index and its byte offset are non-negative and fit 32 bits
    origin: Value | None = None  # the base of a vector of indices; None: the buffer's start
    rows: tuple[int, ...] = ()  # per lane, the row its offset is relative to; () if all are in one
    pitch: Value | None = None  # elements between rows, non-negative

    @property
    def lines(self) -> dict[int, tuple[int, ...]]:
        """The offsets of lanes in each row, in the order of rows."""
        rows = self.rows or (0,) * len(self.offsets)
        pairs = list(zip(rows, self.offsets, strict=True))
        return {row: tuple(x for each, x in pairs if each == row) for row in sorted(set(rows))}

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """The ranges of consecutive elements that lanes cover, each with its row."""
        return [(row, *run) for row, offsets in self.lines.items() for run in _runs(offsets)]

    @property
    def has_runs(self) -> bool:
        """Whether lanes are loaded as a few contiguous runs."""
        runs = self.runs
        return len(runs) <= MAX_RUNS and any(stop - start > 1 for _, start, stop in runs)

    def of_lanes(self, active: tuple[bool, ...]) -> Place:
        """The same place for active lanes; each other one goes where the active one before it does,
        or the first."""
        near, nearest = active.index(True), []
        for lane, is_active in enumerate(active):
            near = lane if is_active else near
            nearest.append(near)
        rows = tuple([self.rows[lane] for lane in nearest]) if self.rows else ()
        return replace(self, offsets=tuple([self.offsets[lane] for lane in nearest]), rows=rows)

    @property
    def is_scattered(self) -> bool:
        """Whether nothing is known of where lanes are."""
        return self.stride is None and not self.offsets

    @property
    def is_injective(self) -> bool:
        """Whether no two lanes are at the same offset of a row."""
        return sum(len(set(offsets)) for offsets in self.lines.values()) == len(self.offsets)

    @property
    def align(self) -> int:
        size = self.element.size_bytes
        known = math.gcd(self.memory.align, self.divisor * size)
        return known & -known or 1


class Accesses:
    """Memory accesses written to one function."""

    def __init__(self, builder: FunctionText, machine: Machine) -> None:
        self.b = builder
        self.machine = machine

    def address(self, place: Place) -> Value:
        element, pointer = memory_type(place.element), place.memory.pointer
        if place.is_short:
            size = Value("i32", str(place.element.size_bytes))
            distance = self.b.convert("zext", self.b.op("mul nuw nsw", place.index, size), "i64")
            near = self.b.pure("ptr", f"getelementptr i8, {pointer}, {distance}")
        elif place.beyond:
            near = self.b.pure("ptr", f"getelementptr {element}, {pointer}, {place.index}")
        else:
            near = self.b.offset(element, pointer, place.index)
        if not place.beyond:
            return near
        return self.b.pure("ptr", f"getelementptr {element}, {near}, i64 {place.beyond}")

    # ------------------------------------------------------------------ loads

    def load(self, place: Place, lanes: int, mask: Value | None = None) -> Value:
        """`lanes` elements from a place; lanes whose mask is false are zero."""
        if lanes == 1:
            loaded = self._load_one(place)
        elif place.stride is None:
            loaded = self._load_pattern(place, lanes, mask)
        elif place.stride == 0:
            loaded = self._load_equal(place, lanes, mask)
        elif place.stride == 1:
            loaded = self._load_run(place, lanes, mask)
        elif 0 < abs(place.stride) <= WIDEST_SHUFFLE and not self._is_gathered(place, lanes, mask):
            loaded = self._load_strided(place, place.stride, lanes, mask)
        else:
            loaded = self._gather(place, lanes, mask)
        return self.to_register(loaded, place.element)

    def has_slow_masks(self, place: Place, lanes: int) -> bool:
        """Whether a mask makes nearby lanes be accessed one by one, for lack of masked
        instructions. Lanes in several runs always are: masks go with gathers."""
        if lanes > 1 and place.stride is None and place.has_runs:
            return True
        is_near = place.stride is not None and 0 < place.stride <= WIDEST_SHUFFLE
        return lanes > 1 and is_near and place.element.bits < self.machine.masked_bits

    def _is_gathered(self, place: Place, lanes: int, mask: Value | None) -> bool:
        """Whether a mask rules out one wide load of strided lanes and what is between them."""
        is_near = place.stride is not None and place.stride > 0
        return mask is not None and (not is_near or self.has_slow_masks(place, lanes))

    def load_whole(self, place: Place, lanes: int, mask: Value, count: Value) -> Value:
        """Load masked lanes by one unmasked load, if a buffer of `count` elements contains the
        whole vector."""
        first, last = self._ends(place, lanes)
        inside = self.b.op(
            "and",
            self.b.compare("icmp sge", first, i64(0)),
            self.b.compare("icmp slt", last, self._wide(count)),
        )
        with self.b.branch(inside) as (then, otherwise):
            with then:
                whole = self.load(place, lanes)
                whole = self.b.select(mask, whole, Value(whole.type, "zeroinitializer"))
            with otherwise:
                one_by_one = self.load(place, lanes, mask)
        return self.b.phi((whole, then.end), (one_by_one, otherwise.end))

    def _ends(self, place: Place, lanes: int) -> tuple[Value, Value]:
        """The first and last element of a place."""
        if place.stride is not None:
            first = self._moved(place.index, place.beyond)
            return first, self._moved(first, (lanes - 1) * place.stride)
        rows = list(place.lines)
        return (
            self._moved(self._row(place, rows[0]), min(place.offsets)),
            self._moved(self._row(place, rows[-1]), max(place.offsets)),
        )

    def _load_one(self, place: Place) -> Value:
        extra = place.memory.alias
        return self.b.load(
            memory_type(place.element), self.address(place), align=place.align, extra=extra
        )

    def _load_equal(self, place: Place, lanes: int, mask: Value | None) -> Value:
        """Broadcast one element, loaded from a safe address where no lane is active."""
        if mask is None:
            return self.b.splat(self._load_one(place), lanes)
        element = memory_type(place.element)
        some = self.b.call(f"llvm.vector.reduce.or.{mangled(mask.type)}", "i1", mask)
        pointer = self.b.select(some, self.address(place), self.b.module.zeros())
        align = place.element.size_bytes & -place.element.size_bytes
        one = self.b.load(element, pointer, align=align, extra=place.memory.alias)
        nothing = Value(vector(element, lanes), "zeroinitializer")
        return self.b.select(mask, self.b.splat(one, lanes), nothing)

    def _load_run(self, place: Place, lanes: int, mask: Value | None) -> Value:
        type_ = vector(memory_type(place.element), lanes)
        pointer, alias = self.address(place), place.memory.alias
        if mask is None:
            return self.b.load(type_, pointer, align=place.align, extra=alias)
        callee = self.b.module.declare(
            type_, f"llvm.masked.load.{mangled(type_)}.p0", ["ptr", mask.type, type_]
        )
        where = f"ptr align {place.align} {pointer.text}"
        return self.b.value(
            type_, f"call {type_} {callee}({where}, {mask}, {type_} zeroinitializer){alias}"
        )

    def _load_strided(
        self, place: Place, stride: int, lanes: int, mask: Value | None = None
    ) -> Value:
        """Load everything from the first to the last lane, then shuffle. A mask leaves out what is
        between the lanes: it may be beyond the buffer."""
        few = PIECE_BITS // place.element.bits
        if (
            mask is None
            and stride == ODD_STRIDE
            and lanes % few == 0
            and lanes >= few > WIDEST_SHUFFLE
        ):
            return self._load_pieces(place, stride, lanes, few)
        span = (lanes - 1) * abs(stride) + 1
        picks = [lane * abs(stride) for lane in range(lanes)]
        first = place.index
        if stride < 0:
            picks.reverse()
            first = self._moved(first, (lanes - 1) * stride)
        own = mask
        if mask is not None:
            span = lanes * stride
            apart = [lanes if at % stride else at // stride for at in range(span)]
            nothing = Value(mask.type, "zeroinitializer")
            own = self.b.shuffle(self.b.concat(mask, nothing), apart)
        here = replace(place, index=first, divisor=1, stride=1)
        return self.b.shuffle(self._load_run(here, span, own), picks)

    def _load_pieces(self, place: Place, stride: int, lanes: int, few: int) -> Value:
        """Strided bytes or words, `few` of them from as many 128-bit pieces as the stride: LLVM
        takes a shuffle of more apart, lane by lane. The last piece ends with the last lane."""
        parts: list[Value] = []
        reach = (few - 1) * stride + 1
        starts = [*range(0, (stride - 1) * few, few), reach - few]
        piece_of = [max(i for i, at in enumerate(starts) if at <= x) for x in range(reach)]
        for begin in range(0, lanes * stride, few * stride):
            whole: Value | None = None
            for i, at in enumerate(starts):
                first = self._moved(place.index, begin + at)
                run = self._load_run(replace(place, index=first, divisor=1, stride=1), few, None)
                picks = [
                    few + lane * stride - at if piece_of[lane * stride] == i else lane
                    for lane in range(few)
                ]
                whole = self.b.shuffle(self.b.concat(run if whole is None else whole, run), picks)
            assert whole is not None
            parts.append(whole)
        while len(parts) > 1:
            pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
            parts = [self.b.concat(*pair) for pair in pairs]
        return parts[0]

    def _load_pattern(self, place: Place, lanes: int, mask: Value | None) -> Value:
        """Lanes at static offsets: load the few runs that contain them, then shuffle."""
        runs = place.runs
        width = max((stop - start for _, start, stop in runs), default=1)
        if mask is None and not place.rows and (width == 1 or len(runs) > MAX_RUNS):
            runs = [(0, *run) for run in _part(place.offsets, place.part)] or runs
            width = runs[0][2] - runs[0][1] if len(runs) == 1 else 1
        if mask is not None or width == 1 or len(runs) > MAX_RUNS:
            return self._gather(place, lanes, mask)
        element = memory_type(place.element)
        align = place.element.size_bytes & -place.element.size_bytes
        parts: list[Value] = []
        where: dict[tuple[int, int], int] = {}
        for at, (row, start, stop) in enumerate(runs):
            first = self._moved(self._row(place, row), start)
            pointer = self.b.offset(element, place.memory.pointer, first)
            type_ = vector(element, stop - start)
            run = self.b.load(type_, pointer, align=align, extra=place.memory.alias)
            parts.append(self.b.widen(run, width))
            where.update({(row, start + i): at * width + i for i in range(stop - start)})
        while len(parts) > 1:
            pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
            parts = [self.b.concat(*pair) for pair in pairs]
        picked = zip(place.rows or (0,) * lanes, place.offsets, strict=True)
        return self.b.shuffle(parts[0], [where[lane] for lane in picked])

    def _row(self, place: Place, row: int) -> Value:
        """The index that offsets of a row are relative to."""
        if place.pitch is None or not row:
            return place.index
        far = self.b.op("mul nsw", self._wide(place.pitch), i64(row))
        return self.b.op("add nsw", self._wide(place.index), far)

    def _gather(self, place: Place, lanes: int, mask: Value | None) -> Value:
        place = self._apart(place, lanes)
        type_ = vector(memory_type(place.element), lanes)
        if mask is None and not self.machine.has_gather:
            # Extracted lane by lane, indices are scalars that LLVM can hoist out of loops.
            numbers = (self.b.extract(place.index, lane) for lane in range(lanes))
            return self._load_each((self._pointers(place, at) for at in numbers), place, type_)
        pointers = self._pointers(place, place.index)
        if mask is not None and not self._gathers(place.element):
            pointers = self.b.select(mask, pointers, self.b.splat(self.b.module.zeros(), lanes))
            each = (self.b.extract(pointers, lane) for lane in range(lanes))
            return self._load_each(each, place, type_)
        mask = mask or splat(vector("i1", lanes), "true")
        name = f"llvm.masked.gather.{mangled(type_)}.v{lanes}p0"
        callee = self.b.module.declare(type_, name, [pointers.type, mask.type, type_])
        align = place.element.size_bytes & -place.element.size_bytes
        where = f"{pointers.type} align {align} {pointers.text}"
        return self.b.value(
            type_,
            f"call {type_} {callee}({where}, {mask}, {type_} zeroinitializer){place.memory.alias}",
        )

    def _gathers(self, element: DType) -> bool:
        """Whether there are gather instructions; without, every masked lane is a branch."""
        return self.machine.has_gather and element.bits >= 32

    def load_lanes(self, place: Place, indices: Iterable[Value]) -> Value:
        """An element per index, relative to the origin of a place."""
        pointers = [self._pointers(place, at) for at in indices]
        loaded = self._load_each(pointers, place, vector(memory_type(place.element), len(pointers)))
        return self.to_register(loaded, place.element)

    def _load_each(self, pointers: Iterable[Value], place: Place, type_: str) -> Value:
        """Load lane by lane, without gather instructions."""
        element, loaded = memory_type(place.element), Value(type_, "poison")
        align, extra = place.element.size_bytes & -place.element.size_bytes, place.memory.alias
        for lane, pointer in enumerate(pointers):
            one = self.b.load(element, pointer, align=align, extra=extra)
            loaded = self.b.pure(type_, f"insertelement {loaded}, {one}, i64 {lane}")
        return loaded

    def _pointers(self, place: Place, indices: Value) -> Value:
        """The addresses of indices relative to the origin."""
        element, start = memory_type(place.element), place.memory.pointer
        if place.origin is None:
            return self.b.offset(element, start, indices)
        start = self.b.pure("ptr", f"getelementptr {element}, {start}, {place.origin}")
        type_ = vector("ptr", indices.lanes) if indices.lanes > 1 else "ptr"
        return self.b.pure(type_, f"getelementptr {element}, {start}, {indices}")

    # ------------------------------------------------------------------ stores

    def store(self, value: Value, place: Place, lanes: int, mask: Value | None = None) -> None:
        """Store lanes; those whose mask is false are left alone."""
        value = self.to_memory(value, place.element)
        alias = place.memory.alias
        if lanes == 1:
            self.b.store(value, self.address(place), align=place.align, extra=alias)
        elif place.stride == 1:
            self._store_run(value, place, mask)
        elif place.stride == -1 and mask is None:
            reversed_value = self.b.shuffle(value, range(lanes - 1, -1, -1))
            first = self._moved(place.index, 1 - lanes)
            self._store_run(reversed_value, Place(place.memory, first, 1, place.element, 1), None)
        elif place.stride is None and place.has_runs and place.is_injective:
            self._store_runs(value, place, mask)
        else:
            self._scatter(value, place, mask)

    def store_part(self, value: Value, place: Place, lanes: range) -> None:
        """Store some contiguous lanes.

        With a constant mask LLVM 22 for AVX-512 narrows the value after type legalization: for one
        lane it stores truncated values at the old width, over their neighbours, and for eight it
        fails to round to bf16.
        """
        whole, first = self.to_memory(value, place.element), lanes.start
        part = self._lanes(whole, lanes)
        index = self._moved(place.index, first) if first else place.index
        here = replace(place, index=index, divisor=math.gcd(place.divisor, first))
        self.b.store(part, self.address(here), align=here.align, extra=place.memory.alias)

    def store_first(self, value: Value, place: Place, left: Value) -> None:
        """Store the first `left` lanes of a run."""
        value, left = self.to_memory(value, place.element), self._wide(left)
        with self.b.branch(self.b.compare("icmp sge", left, i64(value.lanes))) as (then, otherwise):
            with then:
                self._store_run(value, place, None)
            with otherwise, self.b.when(self.b.compare("icmp sgt", left, i64(0))):
                self._store_some(value, place, left)

    def _store_some(self, value: Value, place: Place, left: Value) -> None:
        """Store fewer than all lanes: one half if that many are left, then part of the other."""
        half = value.lanes // 2
        low, high = (self._lanes(value, range(at, at + half)) for at in (0, half))
        is_left = self.b.compare("icmp ne", self.b.op("and", left, i64(half)), i64(0))
        with self.b.when(is_left):
            self.b.store(low, self.address(place), align=place.align, extra=place.memory.alias)
        if half > 1:
            behind = self._moved(place.index, half)
            index = self.b.select(is_left, behind, self._wide(place.index))
            rest = self.b.select(is_left, high, low)
            self._store_some(rest, replace(place, index=index, divisor=1, is_short=False), left)

    def _lanes(self, value: Value, lanes: range) -> Value:
        """Some contiguous lanes."""
        if len(lanes) == 1:
            return self.b.extract(value, lanes.start)
        return self.b.shuffle(value, lanes)

    def _store_run(self, value: Value, place: Place, mask: Value | None) -> None:
        pointer, alias = self.address(place), place.memory.alias
        if mask is None:
            self.b.store(value, pointer, align=place.align, extra=alias)
            return
        name = f"llvm.masked.store.{mangled(value.type)}.p0"
        callee = self.b.module.declare("void", name, [value.type, "ptr", mask.type])
        where = f"ptr align {place.align} {pointer.text}"
        self.b.line(f"call void {callee}({value}, {where}, {mask}){alias}")

    def _store_runs(self, value: Value, place: Place, mask: Value | None) -> None:
        """Store the lanes of each run of consecutive elements together."""
        rows = place.rows or (0,) * len(place.offsets)
        lanes = {where: lane for lane, where in enumerate(zip(rows, place.offsets, strict=True))}
        for row, start, stop in place.runs:
            picks = [lanes[row, offset] for offset in range(start, stop)]
            index = self._moved(self._row(place, row), start)
            here = Place(place.memory, index, 1, place.element, 1)
            own = None if mask is None else self.b.shuffle(mask, picks)
            self._store_run(self.b.shuffle(value, picks), here, own)

    def _scatter(self, value: Value, place: Place, mask: Value | None) -> None:
        lanes = value.lanes
        place = self._apart(place, lanes)
        pointers = self._pointers(place, place.index)
        mask = mask or splat(vector("i1", lanes), "true")
        name = f"llvm.masked.scatter.{mangled(value.type)}.v{lanes}p0"
        callee = self.b.module.declare("void", name, [value.type, pointers.type, mask.type])
        align = place.element.size_bytes & -place.element.size_bytes
        where = f"{pointers.type} align {align} {pointers.text}"
        self.b.line(f"call void {callee}({value}, {where}, {mask}){place.memory.alias}")

    # ------------------------------------------------------------------ pieces

    def _wide(self, index: Value) -> Value:
        """An index of 32 bits or more in 64."""
        return self.b.convert("sext", index, vector("i64", index.lanes))

    def _moved(self, index: Value, by: int) -> Value:
        """An index plus a constant, which may exceed 32 bits."""
        return self.b.op("add nsw", self._wide(index), i64(by))

    def _apart(self, place: Place, lanes: int) -> Place:
        """The place with an index of every lane."""
        offsets = place.offsets
        if place.stride is not None:
            offsets = tuple(lane * place.stride for lane in range(lanes))
        if not offsets:
            return place
        index = self._constants(offsets)
        if place.pitch is not None:
            pitch = self.b.splat(self._wide(place.pitch), lanes)
            index = self.b.op("add", self.b.op("mul", pitch, self._constants(place.rows)), index)
        return replace(place, index=index, origin=place.index)

    def _constants(self, numbers: tuple[int, ...]) -> Value:
        shown = ", ".join(f"i64 {number}" for number in numbers)
        return Value(vector("i64", len(numbers)), f"<{shown}>")

    def to_register(self, value: Value, of: DType) -> Value:
        """A loaded value as computations take it."""
        if of.bits < 8:  # the upper bits of the byte are undefined
            rest = splat(value.type, str(8 - of.bits))
            high = self.b.op("shl", value, rest)
            return self.b.op("ashr" if of.kind == "int" else "lshr", high, rest)
        if not of.is_bool:
            return value
        return self.b.compare("icmp ne", value, splat(value.type, "0"))

    def to_memory(self, value: Value, of: DType) -> Value:
        """A computed value as it is stored; few bits with zeros above, as ml_dtypes does."""
        if of.bits < 8 and of.kind == "int":
            return self.b.op("and", value, splat(value.type, str((1 << of.bits) - 1)))
        if not of.is_bool:
            return value
        return self.b.convert("zext", value, vector("i8", value.lanes))


def _runs(offsets: tuple[int, ...]) -> list[tuple[int, int]]:
    """The ranges of consecutive elements in the offsets."""
    runs: list[tuple[int, int]] = []
    for offset in sorted(set(offsets)):
        if runs and offset == runs[-1][1]:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs


def _part(offsets: tuple[int, ...], part: int) -> list[tuple[int, int]]:
    """The smallest aligned range that contains all offsets, if it is at most a few times their
    number. All of it may be read, since its size divides that of a part."""
    for size in range(1, WIDEST_SHUFFLE * len(offsets) + 1):
        first = {offset // size for offset in offsets}
        if part % size == 0 and len(first) == 1:
            start = first.pop() * size
            return [(start, start + size)]
    return []
