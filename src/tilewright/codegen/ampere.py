"""Instructions of Ampere: asynchronous copies and warp-level `mma`.

    cp.async.run         4, 8 or 16 contiguous bytes, by one thread
    cp.async.tile        a box of 128-byte rows, swizzled, distributed over the threads of a block
    cp.async.commit      commit the copies issued since the last commit as a group
    cp.async.wait        wait until at most so many groups are in flight
    mma.tile             accumulators of 64 x n += a product, by ldmatrix and mma.sync

Each of four warps has 16 rows of the result. A thread holds the left operand as `ldmatrix` returns
four 8 x 8 matrices: rows from 0 or 8, columns from 0 or 8.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright import sym
from tilewright.codegen.builder import Value, i1, i32, i64
from tilewright.codegen.handlers import Emitting
from tilewright.codegen.hopper import known_number, shared_pointer, sum_registers
from tilewright.intrin.hopper import OPERANDS, ROW_BYTES
from tilewright.sym import Expr
from tilewright.tensor.ir import Address, Call, Stmt
from tilewright.tensor.visit import exprs

PIECE_BYTES = 16  # per copy, and per row of an ldmatrix matrix
PIECES = ROW_BYTES // PIECE_BYTES  # per row of a tile
STEP = 16  # k of one mma
SHARED, GLOBAL = "ptr addrspace(3)", "ptr addrspace(1)"
FOUR = "{ i32, i32, i32, i32 }"
SUMS = "{ float, float, float, float }"


def uses_mma(root: Stmt) -> bool:
    """Whether a kernel has warp-level `mma`."""
    return any(isinstance(node, Call) and node.op == "mma.tile" for node in exprs(root))


def emit(e: Emitting, node: Call, is_statement: bool) -> Value:
    RULES[node.op](e, *node.args)
    return Value("void", "")


def _thread(e: Emitting, axis: str) -> Value:
    return e.b.call(f"llvm.nvvm.read.ptx.sreg.tid.{axis}", "i32")


# --------------------------------------------------------------------------- copies


def _copy(
    e: Emitting,
    tile: Expr,
    source: Expr,
    rows: Expr,
    width: Expr,
    height: Expr,
    row: Expr,
    threads: Expr,
    is_whole: Expr,
) -> None:
    """Thread t copies piece t % 8 of row t // 8, and on in steps of all threads: rows of a step are
    at the same distance from a multiple of eight, so the swizzle is the same."""
    assert isinstance(source, Address)
    b, size = e.b, source.buffer.dtype.size_bytes
    count, among = known_number(rows) * PIECES, known_number(threads)
    thread = b.op("add", b.op("shl", _thread(e, "y"), i32(7)), _thread(e, "x"))
    piece, down = b.op("and", thread, i32(PIECES - 1)), b.op("lshr", thread, i32(3))
    apart = b.op("xor", piece, b.op("and", down, i32(PIECES - 1)))
    place = b.op("add", b.op("shl", down, i32(7)), b.op("shl", apart, i32(4)))
    target = _moved(e, SHARED, shared_pointer(e, tile), b.convert("zext", place, "i64"))
    first = b.op("add", e.expr(row), b.convert("zext", down, "i64"))
    pitch = e.expr(width)
    start = b.op("shl", b.convert("zext", piece, "i64"), i64(PIECE_BYTES.bit_length() - 1))
    base = _moved(e, "ptr", e.pointer(source), start)
    step = among // PIECES  # row stride of a thread
    checked = not known_number(is_whole)
    inside = i1(True)
    if checked:
        column = e.expr(sym.floormod(source.index[0], width))
        reach = b.op("add", b.op("mul", column, i64(size)), start)
        inside = b.compare("icmp slt", reach, b.op("mul", pitch, i64(size)))
    for at in range(-(-count // among)):
        own = b.op("add", first, i64(at * step))
        there = inside
        if checked:
            there = b.op("and", inside, b.compare("icmp slt", own, e.expr(height)))
        far = b.op("mul", b.op("mul", own, pitch), i64(size))
        near = _moved(e, "ptr", base, far)
        given = b.value(GLOBAL, f"addrspacecast {near} to {GLOBAL}")
        to = _moved(e, SHARED, target, i64(at * among * PIECE_BYTES))
        if (at + 1) * among <= count:
            _start(e, to, given, there, checked)
        else:  # fewer pieces are left than threads
            with b.when(b.compare("icmp ult", thread, i32(count - at * among))):
                _start(e, to, given, there, checked)


def _moved(e: Emitting, kind: str, pointer: Value, by_bytes: Value) -> Value:
    return e.b.value(kind, f"getelementptr i8, {pointer}, {by_bytes}")


def _start(e: Emitting, to: Value, given: Value, there: Value, checked: bool) -> None:
    """Copy sixteen bytes, zero-filled where out of bounds."""
    name = "llvm.nvvm.cp.async.cg.shared.global.16"
    if not checked:
        e.b.call(name, "void", to, given)
        return
    e.b.call(f"{name}.s", "void", to, given, e.b.select(there, i32(PIECE_BYTES), i32(0)))


def _run(e: Emitting, target: Expr, source: Expr, count: Expr) -> None:
    """Sixteen bytes bypass L1; fewer bring the rest of their line along."""
    assert isinstance(source, Address)
    size = known_number(count) * source.buffer.dtype.size_bytes
    cached = "cg" if size == PIECE_BYTES else "ca"
    given = e.b.value(GLOBAL, f"addrspacecast {e.pointer(source)} to {GLOBAL}")
    name = f"llvm.nvvm.cp.async.{cached}.shared.global.{size}"
    e.b.call(name, "void", shared_pointer(e, target), given)


def _commit(e: Emitting) -> None:
    e.b.call("llvm.nvvm.cp.async.commit.group", "void")


def _wait(e: Emitting, newer: Expr) -> None:
    e.b.call("llvm.nvvm.cp.async.wait.group", "void", i32(known_number(newer)))


# --------------------------------------------------------------------------- products


def _tile(e: Emitting, tile: Expr, a: Expr, b: Expr, n: Expr, along_n: Expr) -> None:
    """Multiply over all of a tile's depth. The right operand is contiguous along k, or along n in
    boxes of a row's length: then its matrices are loaded transposed."""
    assert isinstance(a, Address)
    width, turned = known_number(n), bool(known_number(along_n))
    size, kind = a.buffer.dtype.size_bytes, OPERANDS[a.buffer.dtype.name].assembler
    registers = sum_registers(e, tile, width)
    sums = [e.b.load("float", register) for register in registers]
    places = _Places(e, turned)
    left, right = shared_pointer(e, a), shared_pointer(e, b)
    depth = ROW_BYTES // size
    for step in range(depth // STEP):
        ours = _matrices(e, left, places.left(step), False)
        for pair in range(width // 16):
            theirs = _matrices(e, right, places.right(step, pair, depth), turned)
            for half in range(2):
                first = 8 * pair + 4 * half
                sums[first : first + 4] = _product(
                    e, kind, ours, theirs[2 * half : 2 * half + 2], sums[first : first + 4]
                )
    for value, register in zip(sums, registers, strict=True):
        e.b.store(value, register)


class _Places:
    """Byte offsets of the rows that a lane addresses in an ldmatrix of its warp."""

    def __init__(self, e: Emitting, turned: bool) -> None:
        self.e, self.turned = e, turned
        b, thread = e.b, _thread(e, "x")
        lane, warp = b.op("and", thread, i32(31)), b.op("lshr", thread, i32(5))
        self.swizzle = b.op("and", lane, i32(7))
        upper = b.op("and", b.op("lshr", lane, i32(3)), i32(1))  # of each pair of matrices
        second = b.op("lshr", lane, i32(4))  # of the two pairs
        row = b.op("add", self.swizzle, b.op("shl", upper, i32(3)))
        own = b.op("add", b.op("shl", warp, i32(4)), row)
        self.left_row, self.left_half = b.op("shl", own, i32(7)), second
        if turned:  # rows along k, columns 0 and 8 on
            self.right_row, self.right_half = b.op("shl", row, i32(7)), second
        else:  # rows along n, the two halves of k side by side
            across = b.op("add", self.swizzle, b.op("shl", second, i32(3)))
            self.right_row, self.right_half = b.op("shl", across, i32(7)), upper

    def left(self, step: int) -> Value:
        return self._at(self.left_row, self.left_half, 2 * step, 0)

    def right(self, step: int, pair: int, depth: int) -> Value:
        if not self.turned:
            return self._at(self.right_row, self.right_half, 2 * step, 16 * pair * ROW_BYTES)
        box, column = divmod(16 * pair, depth)
        down = box * depth + STEP * step
        return self._at(self.right_row, self.right_half, column // 8, down * ROW_BYTES)

    def _at(self, row: Value, half: Value, piece: int, down_bytes: int) -> Value:
        b = self.e.b
        apart = b.op("xor", b.op("add", half, i32(piece)), self.swizzle)
        return b.op("add", b.op("add", row, b.op("shl", apart, i32(4))), i32(down_bytes))


def _matrices(e: Emitting, tile: Value, place: Value, turned: bool) -> list[Value]:
    """Load four 8 x 8 matrices, one register per thread for each."""
    form = "x4.trans" if turned else "x4"
    at = _moved(e, SHARED, tile, e.b.convert("zext", place, "i64"))
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.{form}.b16.p3"
    found = e.b.call(name, FOUR, at)
    return [e.b.value("i32", f"extractvalue {found}, {each}") for each in range(4)]


def _product(
    e: Emitting, kind: str, left: list[Value], right: list[Value], sums: list[Value]
) -> list[Value]:
    """A warp's 16 x 8 accumulators += 16 x 16 by 16 x 8."""
    text = (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    )
    shown = ", ".join(str(value) for value in (*left, *right, *sums))
    made = e.b.value(
        SUMS, f'call {SUMS} asm "{text}", "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"({shown}) convergent'
    )
    return [e.b.value("float", f"extractvalue {made}, {at}") for at in range(4)]


RULES: dict[str, Callable[..., None]] = {
    "cp.async.run": _run,
    "cp.async.tile": _copy,
    "cp.async.commit": _commit,
    "cp.async.wait": _wait,
    "mma.tile": _tile,
}
