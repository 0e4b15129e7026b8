"""Code generation for memory accesses, with the checks around every load and store.

Checked in this order: the index is in bounds; in a scheduled program, the element is in the
declared region of each enclosing block; loaded elements are initialized; no iteration of a
concurrent loop accesses what another one stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright import sym
from tilewright.base.dtype import INDEX
from tilewright.sym import ONE, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.interp.exprs import Exprs
from tilewright.tensor.interp.intervals import lies_below, lies_in
from tilewright.tensor.interp.placement import homes
from tilewright.tensor.interp.writer import tuple_text
from tilewright.tensor.ir import Block, Buffer, For, Function, Load
from tilewright.tensor.visit import walk

LOAD, STORE = "load of", "store to"
Index = tuple[Expr, ...]


@dataclass(slots=True)
class OpenBlock:
    """A block around the statement being emitted."""

    block: Block
    loops_inside: int = 0  # between the block and the current statement

    def declared(self, buffer: Buffer, what: str) -> list[ir.Region]:
        """The regions that allow an access. A reduction may read what it writes."""
        block = self.block
        regions = block.writes if what == STORE else block.reads
        if what == LOAD and (
            block.init is not None or any(it.kind == ir.REDUCE for it in block.iters)
        ):
            regions = (*regions, *block.writes)
        return [region for region in regions if region.buffer is buffer]


@dataclass(slots=True)
class OpenLoop:
    """A parallel or vector loop around the statement being emitted, with its access logs."""

    loop: For
    logs: dict[Buffer, str] = field(default_factory=dict)


class Accesses(Exprs):
    """Emits loads and stores."""

    def __init__(self, fn: Function) -> None:
        super().__init__(fn)
        self.extents: dict[Var, Expr] = {}  # variables known to lie in 0..extent
        self.blocks: list[OpenBlock] = []
        self.concurrent: list[OpenLoop] = []
        self.intermediates: set[Buffer] = set()
        self.tracked: set[Buffer] = set()  # buffers whose accesses by lanes are remembered
        self.homes = homes(fn)
        self.stamped = {
            buffer
            for stmt in walk(fn.body)
            if isinstance(stmt, (ir.Update, ir.TensorCall))
            for buffer in _accumulators(stmt)
        }

    # ------------------------------------------------------------------ scalars

    def load(self, expr: Load, mask: str) -> str:
        if self.is_dense(expr.buffer, expr.index, mask):
            return self._dense_load(expr)
        if self.is_wide(expr):
            place = self.locate(expr.buffer, expr.index, LOAD, mask)
            return self.read(expr.buffer, place)
        element = self.element(expr.buffer, expr.index, LOAD)
        self.check_written(expr.buffer, element)
        self.log_read(expr.buffer, element)
        text = f"{self.name(expr.buffer)}[{element}]"
        return f"int({text})" if expr.dtype is INDEX else text

    def element(self, buffer: Buffer, index: Index, what: str) -> str:
        """Emit the checks of an access; the text of the element's position."""
        name = self.name(buffer)
        texts = [self.expr(i) for i in index]
        if len(index) == buffer.rank:
            dims: list[Expr | None] = list(buffer.shape)
            extents = [f"n{axis}_{name}" for axis in range(buffer.rank)]
        else:  # the row-major offset
            dims, extents = [None], [f"m_{name}.size"]
        levels = [max(self.level_of(i), self.level([buffer])) for i in index]
        tests = [
            (f"0 <= {text} < {extent}", level)
            for text, i, dim, extent, level in zip(texts, index, dims, extents, levels, strict=True)
            if not (isinstance(i, Var) and self.extents.get(i) is dim)
            and not lies_below(i, dim, self.extents)
        ]
        if tests:
            args = (repr(what), f"m_{name}", tuple_text(texts))
            self.check(self.all_of(tests), "fail_bounds", *args, wide=False)
        self.check_regions(buffer, index, texts, what)
        position = self.row_major(texts, extents, levels)
        return position if position.isidentifier() or position.isdigit() else self.fresh(position)

    def row_major(self, texts: Sequence[str], extents: Sequence[str], levels: Sequence[int]) -> str:
        """The number of a place in a box; what leading indices add is computed in their scope."""
        position, level = (texts[0], levels[0]) if texts else ("0", 0)
        for text, extent, its in zip(texts[1:], extents[1:], levels[1:], strict=True):
            position = text if position == "0" else f"({position}) * {extent}"
            if position is not text:
                position = f"{self.invariant(position, level)} + {text}"
            level = max(level, its)
        return self.invariant(position, level)

    def all_of(self, tests: Iterable[tuple[str, int]]) -> str:
        """A condition: each of the tests, those of scopes further out computed there."""
        by_level: dict[int, list[str]] = {}
        for text, level in tests:
            by_level.setdefault(level, []).append(text)
        return " and ".join(
            self.invariant(" and ".join(dict.fromkeys(texts)), level, "ok")
            for level, texts in sorted(by_level.items())
        )

    def check_written(self, buffer: Buffer, element: str) -> None:
        if buffer in self.intermediates:
            name = self.name(buffer)
            self.check(
                f"w_{name}[{element}]", "fail_uninitialised", f"m_{name}", element, wide=False
            )

    def put(self, buffer: Buffer, element: str, value: str) -> None:
        """Emit a store of a scalar."""
        name = self.name(buffer)
        self.line(f"{name}[{element}] = {value}")
        if buffer in self.intermediates:
            self.line(f"w_{name}[{element}] = 1")

    # ------------------------------------------------------------------ arrays

    def locate(self, buffer: Buffer, index: Index, what: str, mask: str) -> str:
        """Emit the checks of a wide access; the variable holding its place."""
        texts = [self.expr(i) for i in index]
        place = self.fresh(
            f"{self.lanes}.locate(m_{self.name(buffer)}, {tuple_text(texts)}, {mask}, "
            f"{what!r}, {self.where()})",
            "p",
        )
        self.check_regions(buffer, index, texts, what)
        return place

    def read(self, buffer: Buffer, place: str) -> str:
        """Emit a wide load; the text of the value."""
        self._log_all(buffer, place, is_write=False)
        tracked = buffer in self.tracked
        return self.fresh(
            f"{self.lanes}.load(m_{self.name(buffer)}, {place}, {tracked}, {self.where()})"
        )

    def write(self, buffer: Buffer, place: str, value: str) -> None:
        """Emit a wide store."""
        self._log_all(buffer, place, is_write=True)
        tracked = buffer in self.tracked
        self.line(
            f"{self.lanes}.store(m_{self.name(buffer)}, {place}, {value}, {tracked}, "
            f"{self.where()})"
        )

    def _log_all(self, buffer: Buffer, place: str, *, is_write: bool) -> None:
        if not any(buffer in around.logs for around in self.concurrent):
            return
        with self.indented(f"for e in {place}.positions.tolist():"):
            (self.log_write if is_write else self.log_read)(buffer, "e")

    # ------------------------------------------------------------------ slices

    def is_dense(self, buffer: Buffer, index: Index, mask: str) -> bool:
        """Whether consecutive elements are accessed by one thread: a slice, many times faster."""
        if self.lanes != "one" or mask != "None" or self.blocks or buffer in self.stamped:
            return False
        return len(index) == 1 and isinstance(index[0], ir.Ramp) and index[0].stride is ONE

    def dense(self, buffer: Buffer, index: Index, what: str) -> tuple[str, str, int]:
        """Emit the checks of such an access; where it begins and ends, and its length."""
        (ramp,) = index
        assert isinstance(ramp, ir.Ramp)
        begin = self.expr(ramp.base)
        end = self.fresh(f"{begin} + {ramp.lanes}")
        memory = f"m_{self.name(buffer)}"
        wrong = f"({begin} if {begin} < 0 else max({begin}, {memory}.size),)"
        ok = f"0 <= {begin} and {end} <= {memory}.size"
        self.check(ok, "fail_bounds", repr(what), memory, wrong, wide=False)
        return begin, end, ramp.lanes

    def _dense_load(self, expr: Load) -> str:
        begin, end, _ = self.dense(expr.buffer, expr.index, LOAD)
        name = self.name(expr.buffer)
        if expr.buffer in self.intermediates:
            missing = f"w_{name}.index(0, {begin})"
            ok = f"0 not in w_{name}[{begin}:{end}]"
            self.check(ok, "fail_uninitialised", f"m_{name}", missing, wide=False)
        if any(expr.buffer in around.logs for around in self.concurrent):
            with self.indented(f"for e in range({begin}, {end}):"):
                self.log_read(expr.buffer, "e")
        return f"{name}[None, {begin}:{end}].copy()"

    def dense_store(self, stmt: ir.Store, value: str) -> None:
        begin, end, lanes = self.dense(stmt.buffer, stmt.index, STORE)
        name = self.name(stmt.buffer)
        if any(stmt.buffer in around.logs for around in self.concurrent):
            with self.indented(f"for e in range({begin}, {end}):"):
                self.log_write(stmt.buffer, "e")
        self.line(f"{name}[{begin}:{end}] = {value}")
        if stmt.buffer in self.intermediates:
            ones = self.constant(b"\x01" * lanes, ("ones", lanes))
            self.line(f"w_{name}[{begin}:{end}] = {ones}")

    # ------------------------------------------------------------------ checks

    def check_regions(self, buffer: Buffer, index: Index, texts: list[str], what: str) -> None:
        """The access lies in a region that every block around declares."""
        for around in self.blocks:
            regions = around.declared(buffer, what)
            if any(_is_exactly(region, index) for region in regions):
                continue
            wide = any(self.is_wide(i) for i in index)
            args = (repr(what), f"m_{self.name(buffer)}", tuple_text(texts))
            if self.lanes == "one" and not wide:
                ok = self._in_one_of(regions, index, texts)
                if ok != "True":
                    self.check(ok, "fail_region", *args, repr(around.block.name), wide=False)
                continue
            tests = []
            for region in regions:
                bounds = [(self.expr(r.start), self.expr(end_of(r))) for r in region.ranges]
                wide = wide or any(self.is_wide(r.start) for r in region.ranges)
                inside = [
                    test
                    for (low, high), text in zip(bounds, texts, strict=True)
                    for test in (f"({low} <= {text})", f"({text} < {high})")
                ]
                tests.append("(" + (" & ".join(inside) or "True") + ")")
            ok = " | ".join(tests) or "False"
            self.check(ok, "fail_region", *args, repr(around.block.name), wide=wide)

    def _in_one_of(self, regions: list[ir.Region], index: Index, texts: list[str]) -> str:
        """The condition that one number per dimension lies in one of the regions."""
        found = []
        for region in regions:
            tests = []
            for r, i, text in zip(region.ranges, index, texts, strict=True):
                if lies_in(i, r, self.extents):
                    continue
                low, high = self.expr(r.start), self.expr(end_of(r))
                level = max(self.level_of(x) for x in (r.start, end_of(r), i))
                tests.append((f"{low} <= {text} < {high}", level))
            if not tests:
                return "True"
            found.append(self.all_of(tests))
        return " or ".join(f"({each})" if len(found) > 1 else each for each in found) or "False"

    def check_box(self, region: ir.Region, starts: list[str], what: str) -> None:
        """A whole region lies in what every block around declares."""
        for around in self.blocks:
            tests = []
            for declared in around.declared(region.buffer, what):
                inside = [
                    f"({self.expr(mine.start)} >= {self.expr(r.start)}) & "
                    f"({self.expr(end_of(mine))} <= {self.expr(end_of(r))})"
                    for mine, r in zip(region.ranges, declared.ranges, strict=True)
                ]
                tests.append("(" + (" & ".join(inside) or "True") + ")")
            args = (repr(what), f"m_{self.name(region.buffer)}", tuple_text(starts))
            ok = " | ".join(tests) or "False"
            self.check(ok, "fail_region", *args, repr(around.block.name), wide=False)

    def log_read(self, buffer: Buffer, element: str) -> None:
        """No other iteration of a concurrent loop has stored what is loaded."""
        for around in self.concurrent:
            log = around.logs.get(buffer)
            if log is None:
                continue
            me = self.name(around.loop.var)
            fail = self._race(around, buffer, element, "read")
            self.line(f"if w_{log}.get({element}, {me}) != {me}:")
            self.line(f"    {fail}, ('written', w_{log}[{element}]))")
            self.line(f"if r_{log}.setdefault({element}, {me}) != {me}: q_{log}[{element}] = {me}")

    def log_write(self, buffer: Buffer, element: str) -> None:
        """No other iteration of a concurrent loop has loaded or stored what is stored."""
        for around in self.concurrent:
            log = around.logs.get(buffer)
            if log is None:
                continue
            me = self.name(around.loop.var)
            fail = self._race(around, buffer, element, "written")
            self.line(f"if w_{log}.setdefault({element}, {me}) != {me}:")
            self.line(f"    {fail}, ('written', w_{log}[{element}]))")
            self.line(f"if r_{log}.get({element}, {me}) != {me}:")
            self.line(f"    {fail}, ('read', r_{log}[{element}]))")
            self.line(f"if {element} in q_{log}:")
            self.line(f"    {fail}, ('read', q_{log}[{element}]))")

    def _race(self, around: OpenLoop, buffer: Buffer, element: str, what: str) -> str:
        loop = around.loop
        return (
            f"fail_race({self.where()}, {loop.kind!r}, {self.constant(loop.var)}, "
            f"m_{self.name(buffer)}, {element}, ({what!r}, {self.name(loop.var)})"
        )

    def iteration_number(self) -> tuple[str, str, tuple[str, ...]]:
        """The instance of the blocks around: a number, how many there are, the iterators."""
        iters = [it for around in self.blocks for it in around.block.iters]
        point = tuple(self.name(it.var) for it in iters)
        extents = [self.expr(it.extent) for it in iters]
        levels = [max(self.level_of(it.var), self.level_of(it.extent)) for it in iters]
        number = self.row_major(point, extents, levels)
        number = number if number.isidentifier() else self.fresh(number)
        return number, " * ".join(["1", *extents]), point


def end_of(r: ir.Range) -> Expr:
    return sym.add(r.start, r.extent)


def _is_exactly(region: ir.Region, index: Index) -> bool:
    return all(r.start is i and r.extent is ONE for r, i in zip(region.ranges, index, strict=True))


def _accumulators(stmt: ir.Update | ir.TensorCall) -> tuple[Buffer, ...]:
    if isinstance(stmt, ir.Update):
        return stmt.buffers
    return tuple(region.buffer for region in stmt.regions)
