"""Instructions of Hopper: bulk tensor copies (TMA), mbarriers, `wgmma`.

    tma.load(tile, source, rows, ..)     copy a box of 128-byte rows, swizzled, by one thread
    tma.prefetch(tile, source, ..)       the same, to L2 only
    tma.multicast(.., blocks)            the same, to all blocks of a cluster
    tma.window(tile, image, pixels, ..)  the same for one kernel position of an image's windows
    tile.clear(tile, filled, rows, ..)   zero rows that no copy fills, by all threads
    tile.low(tile, rows)                 declares that a left operand has so few rows; no code
    mbarrier.init / fence / wait / expect / arrive
    fence.async()                        asynchronous instructions see what the thread wrote
    registers.give / take                setmaxnreg: move registers between warpgroups
    wgmma.clear / tile / round           accumulators of 64 x n: zero, add a product, store
    wgmma.rows                           accumulators exchanged, for an epilogue

A thread of warp w and lane l holds, of a 64 x n tile, in register 4 j + 2 h + e the element of row
16 w + l / 4 + 8 h and column 8 j + 2 (l % 4) + e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import BOOL
from tilewright.base.errors import Unsupported
from tilewright.codegen import wgmma
from tilewright.codegen.builder import Value, i1, i32, i64
from tilewright.codegen.column_order import AXES, GROUP, reordered
from tilewright.codegen.handlers import Emitting
from tilewright.intrin.hopper import HELD, OPERANDS, QUAD, ROW_BYTES, RUN, M
from tilewright.sym import Const, Expr, Var
from tilewright.tensor.ir import Address, Buffer, Call, Eval, Stmt
from tilewright.tensor.proxies import CLEAR, FENCE, INIT, INIT_FENCE
from tilewright.tensor.roles import PREFETCH
from tilewright.tensor.visit import exprs

THREADS = 128  # of a warpgroup
REGISTERS = 65536  # of a multiprocessor
SHARED = "ptr addrspace(3)"
MAP_TYPE = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
# Consecutive products of one accumulator: (sum, n, along_n, starts, a, b, a, b, ...).
JOINED = {"wgmma.tile": "wgmma.tiles", "wgmma.start": "wgmma.started_tiles"}

# An L2 policy that evicts the copied lines first.
EVICT_FIRST = 'call i64 asm "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", "=l"()'
SUMS = {"f32": "float", "i32": "i32"}  # LLVM types of accumulators
BOTH = "wgmma.start_both"  # (sum, left, values, keys, features, sum, n, a, b, a, b, ...)


@dataclass(frozen=True)
class TileMap:
    """A tensor map: matrices in global memory from which boxes of rows are copied."""

    buffer: Buffer
    rows: int  # of a box
    columns: int
    height: Expr  # of a matrix
    width: Expr
    is_batched: bool  # whether there are several matrices
    channels: int = 0  # per pixel, of channels-last images
    corners: tuple[int, ...] = ()  # im2col mode: bounding box corners and strides
    is_reordered: bool = False  # rows of a box are permuted as in `column_order`


def tile_maps(root: Stmt) -> tuple[TileMap, ...]:
    """The distinct tensor maps of a kernel."""
    found: dict[TileMap, None] = {}
    moved = reordered(root)
    for node in exprs(root):
        if isinstance(node, Call) and node.op in ("tma.load", "tma.multicast"):
            found[_map_of(moved, *node.args)] = None
        elif isinstance(node, Call) and node.op == "tma.window":
            found[_windows_of(*node.args)] = None
    return tuple(found)


def _windows_of(tile: Expr, source: Expr, pixels: Expr, *rest: Expr) -> TileMap:
    """The tensor map of images in im2col mode, for one kernel position of some pixels at a time."""
    assert isinstance(source, Address)
    columns = ROW_BYTES // source.buffer.dtype.size_bytes
    height, width, channels, pad_y, pad_x, *others = rest[7:]
    upper_y, upper_x, step_y, step_x = (known_number(other) for other in others)
    corners = (-known_number(pad_y), -known_number(pad_x), upper_y, upper_x, step_y, step_x)
    buffer, many = source.buffer, known_number(channels)
    return TileMap(buffer, known_number(pixels), columns, height, width, True, many, corners)


def _map_of(
    moved: frozenset[Buffer], tile: Expr, source: Expr, rows: Expr, width: Expr, *rest: Expr
) -> TileMap:
    """The tensor map of a copy. The matrix has the row stride of the box, whatever is between
    rows."""
    assert isinstance(source, Address)
    if len(rest) == 1:  # only an eviction policy
        raise Unsupported(
            "TW3055",
            f"the copy of %{source.buffer.name} has no barrier to arrive at",
            help="specialize the loop around it: sch.specialize(loop, slots)",
        )
    columns = ROW_BYTES // source.buffer.dtype.size_bytes
    _, height, *_ = rest
    whole: Expr = sym.ONE
    for dim in source.buffer.shape:
        whole = sym.mul(whole, dim)
    is_batched = sym.simplify(whole) is not sym.simplify(sym.mul(height, width))
    made = TileMap(source.buffer, known_number(rows), columns, height, width, is_batched)
    assert isinstance(tile, Address)
    return replace(made, is_reordered=True) if tile.buffer in moved else made


def gives_registers(root: Stmt) -> bool:
    """Whether warpgroups of the kernel reallocate registers."""
    return any(isinstance(n, Call) and n.op.startswith("registers.") for n in exprs(root))


def resident_blocks(root: Stmt, threads: int) -> int:
    """Blocks per multiprocessor by registers, after reallocation between warpgroups."""
    counts: dict[str, int] = {}
    for node in exprs(root):
        if isinstance(node, Call) and node.op.startswith("registers."):
            counts[node.op] = known_number(node.args[0])
    given, taken = counts["registers.give"], counts["registers.take"]
    return REGISTERS // (given * THREADS + taken * (threads - THREADS))


def emit(e: Emitting, node: Call, is_statement: bool) -> Value:
    RULES[node.op](e, *node.args)
    return Value("void", "")


def known_number(expr: Expr) -> int:
    found = sym.simplify(expr)
    if not isinstance(found, Const):
        raise Unsupported(
            "TW3054",
            f"{found} is not known when compiling",
            help="unroll the loops that choose between tiles",
        )
    return int(found.value)


def shared_pointer(e: Emitting, at: Expr) -> Value:
    """An address in shared memory."""
    return e.b.value(SHARED, f"addrspacecast {e.pointer(at)} to {SHARED}")


def narrow(e: Emitting, value: Expr) -> Value:
    return e.b.convert("trunc", e.index(value), "i32")


def _is_first_lane(e: Emitting, mask: int) -> Value:
    thread = e.b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    low = e.b.op("and", thread, i32(mask))
    return e.b.compare("icmp eq", low, i32(0))


def _is_first_thread(e: Emitting) -> Value:
    first = _is_first_lane(e, THREADS - 1)
    row = e.b.call("llvm.nvvm.read.ptx.sreg.tid.y", "i32")
    return e.b.op("and", first, e.b.compare("icmp eq", row, i32(0)))


# --------------------------------------------------------------------------- barriers


def _init(e: Emitting, barriers: Expr, slots: Expr, arrivals: Expr) -> None:
    """By the first thread of a block."""
    base = shared_pointer(e, barriers)
    with e.b.when(_is_first_thread(e)):
        for slot in range(known_number(slots)):
            at = e.b.value(SHARED, f"getelementptr i64, {base}, i64 {slot}")
            e.b.call("llvm.nvvm.mbarrier.init.shared", "void", at, i32(known_number(arrivals)))


def _init_fence(e: Emitting) -> None:
    """By the thread that initialized them: copies, and other blocks, see the barriers."""
    with e.b.when(_is_first_thread(e)):
        e.b.line('call void asm sideeffect "fence.mbarrier_init.release.cluster;", "~{memory}"()')


def _fence(e: Emitting) -> None:
    e.b.line(wgmma.FENCE)


def _wait(e: Emitting, barrier: Expr, phase: Expr) -> None:
    wait_for(e, barrier, phase, "cta")


def wait_for(e: Emitting, barrier: Expr, phase: Expr, scope: str) -> None:
    """Wait until the phase completes, acquiring writes of those that arrived in the scope."""
    at, parity = shared_pointer(e, barrier), narrow(e, phase)
    name = f"llvm.nvvm.mbarrier.try.wait.parity.scope.{scope}.space.cta"

    def waiting() -> Value:
        return e.b.op("xor", e.b.call(name, "i1", at, parity), i1(True))

    with e.b.repeat(waiting):
        pass


def _expect(e: Emitting, barrier: Expr, size: Expr) -> None:
    name = "llvm.nvvm.mbarrier.arrive.expect.tx.scope.cta.space.cta"
    e.b.call(name, "i64", shared_pointer(e, barrier), i32(known_number(size)))


def _arrive(e: Emitting, barrier: Expr) -> None:
    """Arrive once per warp."""
    at = shared_pointer(e, barrier)
    with e.b.when(_is_first_lane(e, 31)):
        e.b.call("llvm.nvvm.mbarrier.arrive.scope.cta.space.cta", "i64", at, i32(1))


def _registers(direction: str) -> Callable[[Emitting, Expr], None]:
    def set_registers(e: Emitting, count: Expr) -> None:
        name = f"llvm.nvvm.setmaxnreg.{direction}.sync.aligned.u32"
        e.b.call(name, "void", i32(known_number(count)))

    return set_registers


# --------------------------------------------------------------------------- copies


def _load(e: Emitting, tile: Expr, source: Expr, rows: Expr, width: Expr, *rest: Expr) -> None:
    """Copy into the block's own memory, or also to the same address in all blocks of a cluster."""
    assert isinstance(source, Address)
    made = _map_of(e.reordered, tile, source, rows, width, *rest)
    barrier, _, _, evict_first, *cluster = rest
    everywhere = (1 << known_number(cluster[0])) - 1 if cluster else 0
    places = _places_of(made, source, width, *rest)
    remote = e.b.value(
        "ptr addrspace(7)", f"addrspacecast {shared_pointer(e, tile)} to ptr addrspace(7)"
    )
    leaves_first = bool(known_number(evict_first))
    policy = e.b.value("i64", EVICT_FIRST) if leaves_first else i64(0)
    e.b.call(
        f"llvm.nvvm.cp.async.bulk.tensor.g2s.tile.{len(places)}d",
        "void",
        remote,
        shared_pointer(e, barrier),
        e.tile_maps[made],
        *(narrow(e, sym.simplify(place)) for place in places),
        Value("i16", str(everywhere)),
        policy,
        i1(bool(cluster)),
        i1(leaves_first),
        i32(0),
    )


def _prefetch(e: Emitting, tile: Expr, source: Expr, rows: Expr, width: Expr, *rest: Expr) -> None:
    """Copy to L2 only."""
    assert isinstance(source, Address)
    made = _map_of(e.reordered, tile, source, rows, width, *rest)
    places = _places_of(made, source, width, *rest)
    e.b.call(
        f"llvm.nvvm.cp.async.bulk.tensor.prefetch.tile.{len(places)}d",
        "void",
        e.tile_maps[made],
        *(narrow(e, sym.simplify(place)) for place in places),
        i64(0),
        i1(False),
    )


def _places_of(made: TileMap, source: Address, width: Expr, *rest: Expr) -> list[Expr]:
    """The coordinates of a box, innermost axis first."""
    _, height, row, *_ = rest
    (index,) = source.index
    places = [sym.floormod(index, width), row]
    if made.is_reordered:
        places[1:] = [*[sym.ZERO] * len(AXES), sym.floordiv(row, GROUP)]
    if made.is_batched:
        places.append(sym.floordiv(index, sym.mul(height, width)))
    return places


def _clear_rows(
    e: Emitting, tile: Expr, filled: Expr, rows: Expr, boxes: Expr, threads: Expr
) -> None:
    """Zero sixteen bytes per thread at a time."""
    b, wide, there = e.b, 16, known_number(threads)
    each = (known_number(rows) - known_number(filled)) * ROW_BYTES // wide  # of a box
    whole = each * known_number(boxes)
    row = b.call("llvm.nvvm.read.ptx.sreg.tid.y", "i32")
    lane = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    thread = b.op("add", b.op("mul", row, i32(THREADS)), lane)
    base = shared_pointer(e, tile)
    zeros = Value("<4 x i32>", "zeroinitializer")
    for turn in range(-(-whole // there)):
        at = b.op("add", thread, i32(turn * there))
        box, inner = b.op("udiv", at, i32(each)), b.op("urem", at, i32(each))
        skipped = b.op("mul", box, i32(known_number(rows) * ROW_BYTES))
        place = b.op("add", b.op("mul", inner, i32(wide)), i32(known_number(filled) * ROW_BYTES))
        offset = b.op("add", skipped, place)
        target = b.value(SHARED, f"getelementptr i8, {base}, {offset}")
        with b.when(b.compare("icmp ult", at, i32(whole))):
            b.line(f"store {zeros}, {target}, align {wide}")


def _low(e: Emitting, tile: Expr, rows: Expr) -> None:
    """No code: the rows that a `wgmma` reads beyond give sums that are never stored."""


def _load_window(e: Emitting, tile: Expr, source: Expr, pixels: Expr, *rest: Expr) -> None:
    barrier, *places = rest[:7]
    remote = e.b.value(
        "ptr addrspace(7)", f"addrspacecast {shared_pointer(e, tile)} to ptr addrspace(7)"
    )
    numbers = [narrow(e, sym.simplify(place)) for place in places]
    offsets = [e.b.convert("trunc", number, "i16") for number in numbers[4:]]
    e.b.call(
        "llvm.nvvm.cp.async.bulk.tensor.g2s.im2col.4d",
        "void",
        remote,
        shared_pointer(e, barrier),
        e.tile_maps[_windows_of(tile, source, pixels, *rest)],
        *numbers[:4],
        *offsets,
        Value("i16", "0"),
        i64(0),
        i1(False),
        i1(False),
        i32(0),
    )


# --------------------------------------------------------------------------- products


def sum_registers(e: Emitting, tile: Expr, n: int) -> list[Value]:
    """The addresses of a thread's part of an accumulator tile."""
    assert isinstance(tile, Address)
    (index,) = tile.index
    offset = known_number(index)
    assert offset % (64 * n) == 0
    pointer = e.memories[tile.buffer].pointer
    first = offset // THREADS
    return [e.b.offset("float", pointer, i64(first + at)) for at in range(n // 2)]


def sum_kind(tile: Expr) -> str:
    """The LLVM type of an accumulator."""
    assert isinstance(tile, Address)
    return SUMS[tile.buffer.dtype.name]


def clear(e: Emitting, tile: Expr, n: Expr) -> None:
    for register in sum_registers(e, tile, known_number(n)):
        e.b.store(Value(sum_kind(tile), "0.0" if sum_kind(tile) == "float" else "0"), register)


def operand_descriptor(e: Emitting, operand: Expr, apart_bytes: int = 16) -> Value:
    """The descriptor of a tile of swizzled 128-byte rows, eight of which are 1024 bytes. For rows
    along k, `apart_bytes` is the stride between boxes of columns."""
    address = e.b.value("i32", f"ptrtoint {shared_pointer(e, operand)} to i32")
    start = e.b.op("lshr", e.b.op("and", address, i32(0x3FFFF)), i32(4))
    layout = apart_bytes >> 4 << 16 | (8 * ROW_BYTES >> 4) << 32 | 1 << 62
    return e.b.op("or", e.b.convert("zext", start, "i64"), i64(layout))


def joined(stmts: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Merge consecutive products of one accumulator, so that they wait once; a preceding clear
    becomes a start from zero."""
    done: list[Stmt] = []
    for stmt in stmts:
        call, last = _eval_of(stmt), _eval_of(done[-1]) if done else None
        one = None if call is None or last is None else _one_of(last, call)
        if one is None:
            done.append(stmt)
        else:
            done[-1] = Eval(one)
    return tuple(done)


def _one_of(last: Call, call: Call) -> Call | None:
    """Two consecutive instructions merged into one, where that is equivalent."""
    if call.op in JOINED:
        _, a, b, *_ = call.args
        before = _before(last, call)
        return None if before is None else Call(JOINED[call.op], (*before, a, b), BOOL)
    if call.op == "wgmma.weigh" and last.op == JOINED["wgmma.start"]:
        tile, n, along_n, along_m, starts, *operands = last.args
        *weighed, waits = call.args
        if starts is sym.ONE and along_n is along_m is waits is sym.ZERO:
            return Call(BOTH, (*weighed, tile, n, *operands), BOOL)
    return None


def _before(last: Call, call: Call) -> tuple[Expr, ...] | None:
    """The arguments of products that a further one of the same accumulator and form can join."""
    sums, _, _, *form = call.args
    match last.op, last.args:
        case "wgmma.clear", (cleared, *_) if cleared is sums:
            return (sums, *form, sym.ONE)
        case op, (summed, a, b, *rest) if op == call.op and summed is sums and rest == form:
            return (sums, *form, sym.ZERO, a, b)
        case op, (summed, *rest) if op == JOINED[call.op] and summed is sums:
            return last.args if rest[: len(form)] == form else None
    return None


def _eval_of(stmt: Stmt) -> Call | None:
    value = stmt.value if isinstance(stmt, Eval) else None
    return value if isinstance(value, Call) else None


def _tile(*, waits: bool) -> Callable[..., None]:
    def emit_tile(e: Emitting, tile: Expr, a: Expr, b: Expr, *form: Expr) -> None:
        """All of a tile's depth in one asm block: nothing may touch the accumulators in between."""
        _products(e, tile, form, [(a, b)], starts=False, waits=waits)

    return emit_tile


def _tiles(*, waits: bool) -> Callable[..., None]:
    def emit_tiles(
        e: Emitting, tile: Expr, n: Expr, along_n: Expr, along_m: Expr, starts: Expr, *of: Expr
    ) -> None:
        """Several products of an accumulator, the first of which may start it from zero."""
        pairs = list(zip(of[::2], of[1::2], strict=True))
        first = bool(known_number(starts))
        _products(e, tile, (n, along_n, along_m), pairs, starts=first, waits=waits)

    return emit_tiles


def _products(
    e: Emitting,
    tile: Expr,
    form: tuple[Expr, ...],
    pairs: list[tuple[Expr, Expr]],
    *,
    starts: bool,
    waits: bool,
) -> None:
    """Accumulators += A B. B is contiguous along k, or along n in boxes of a row's length; A along
    k, or along m in one such box."""
    width, *along = map(known_number, form)
    along_n, along_m = map(bool, along)
    registers = sum_registers(e, tile, width)
    kind = sum_kind(tile)
    before = [] if starts else [e.b.load(kind, register) for register in registers]
    at = len(registers) + len(before)
    lines, operands = multiplied(
        e, width, 0, at, pairs, starts=starts, along_n=along_n, along_m=along_m
    )
    assembled(e, [*lines, *committed(waits)], registers, before, operands, kind)


def multiplied(
    e: Emitting,
    width: int,
    sums_at: int,
    operands_at: int,
    pairs: list[tuple[Expr, Expr]],
    *,
    starts: bool,
    along_n: bool = False,
    along_m: bool = False,
) -> tuple[list[str], list[Value]]:
    """The assembly lines of the products, and their operands; accumulators and operands by
    number."""
    (source, _), *_ = pairs
    assert isinstance(source, Address)
    kind = OPERANDS[source.buffer.dtype.name]
    step, size, depth = kind.depth, kind.bytes, kind.columns
    sums = ", ".join(f"${sums_at + at}" for at in range(width // 2))
    made = {"f32": "f32", "i32": "s32"}[kind.sums]
    types = f"{made}.{kind.assembler}.{kind.assembler}"
    op = f"wgmma.mma_async.sync.aligned.m64n{width}k{step}.{types}"
    signs = ", 1, 1" if kind.sums == "f32" else ""
    turned = f", {int(along_m)}, {int(along_n)}" if kind.is_half else ""  # of A, of B
    lines: list[str] = []
    operands: list[Value] = []
    goes_on = 0 if starts else 1
    aparts = [depth * ROW_BYTES if turns else 16 for turns in (along_m, along_n)]
    for pair in pairs:
        left = operands_at + len(operands)
        operands += [operand_descriptor(e, *each) for each in zip(pair, aparts, strict=True)]
        for at in range(depth // step):
            move, down = step * size * at >> 4, step * ROW_BYTES * at >> 4
            lines.append(f"add.s64 a, ${left}, {down if along_m else move};")
            lines.append(f"add.s64 b, ${left + 1}, {down if along_n else move};")
            lines.append(f"{op} {{{sums}}}, a, b, {goes_on}{signs}{turned};")
            goes_on = 1
    return lines, operands


def committed(waits: bool) -> list[str]:
    """Commit a group of products; with `waits`, wait for all groups."""
    wait = ["wgmma.wait_group.sync.aligned 0;"] if waits else []
    return ["wgmma.commit_group.sync.aligned;", *wait]


def assembled(
    e: Emitting,
    lines: list[str],
    registers: list[Value],
    before: list[Value],
    operands: list[Value],
    kind: str = "float",
) -> None:
    """Inline assembly that updates accumulators: old values in, new values out. Those that start
    from zero come last."""
    lines = ["{ .reg .b64 a, b;", "wgmma.fence.sync.aligned;", *lines, "}"]
    count = len(registers)
    made = "{ " + ", ".join([kind] * count) + " }"
    outputs = ",".join(["=f" if kind == "float" else "=r"] * count)
    ties = [str(at) for at in range(len(before))]
    given = ",".join([*ties, *({"i64": "l", "i32": "r"}[value.type] for value in operands)])
    shown = ", ".join(str(value) for value in (*before, *operands))
    after = e.b.value(
        made,
        f'call {made} asm sideeffect "{" ".join(lines)}", '
        f'"{outputs},{given},~{{memory}}"({shown}) convergent',
    )
    for at, register in enumerate(registers):
        e.b.store(e.b.value(kind, f"extractvalue {after}, {at}"), register)


def _round(e: Emitting, tile: Expr, memory: Expr, row_stride: Expr, n: Expr) -> None:
    """Round and store: pairs of neighbours, or sixteen bytes per thread."""
    assert isinstance(memory, Address)
    if memory.buffer.dtype.size_bytes == 2 and known_number(n) % 32 == 0:
        _round_wide(e, tile, memory, row_stride, known_number(n))
        return
    b, kind = e.b, sum_kind(tile)
    element = {"bf16": "bfloat", "f16": "half"}.get(memory.buffer.dtype.name, kind)
    thread = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    warp, lane = b.op("lshr", thread, i32(5)), b.op("and", thread, i32(31))
    row = b.op("add", b.op("shl", warp, i32(4)), b.op("lshr", lane, i32(2)))
    column = b.op("shl", b.op("and", lane, i32(3)), i32(1))
    base, stride = e.pointer(memory), e.expr(row_stride)
    registers = sum_registers(e, tile, known_number(n))
    for h in range(2):
        down = b.convert("zext", b.op("add", row, i32(8 * h)), "i64")
        start = b.op("add", b.op("mul", down, stride), b.convert("zext", column, "i64"))
        line = b.offset(element, base, start)
        for j in range(known_number(n) // 8):
            pair = Value(f"<2 x {kind}>", "undef")
            for at in range(2):
                value = b.load(kind, registers[4 * j + 2 * h + at])
                pair = b.value(pair.type, f"insertelement {pair}, {value}, i32 {at}")
            if element != kind:
                pair = b.convert("fptrunc", pair, f"<2 x {element}>")
            place = b.offset(element, line, i64(8 * j))
            b.line(f"store {pair}, {place}, align {2 * memory.buffer.dtype.size_bytes}")


def _round_wide(e: Emitting, tile: Expr, memory: Address, row_stride: Expr, n: int) -> None:
    """Four threads that hold pairs of four groups of eight columns exchange them so that each
    stores a whole group: two exchanges of halves, a 4 x 4 transpose."""
    b, element = e.b, {"bf16": "bfloat", "f16": "half"}[memory.buffer.dtype.name]
    thread = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    warp, lane = b.op("lshr", thread, i32(5)), b.op("and", thread, i32(31))
    row = b.op("add", b.op("shl", warp, i32(4)), b.op("lshr", lane, i32(2)))
    column = b.op("shl", b.op("and", lane, i32(3)), i32(3))
    bits = [b.compare("icmp ne", b.op("and", lane, i32(1 << at)), i32(0)) for at in range(2)]
    base, stride = e.pointer(memory), e.expr(row_stride)
    registers = sum_registers(e, tile, n)
    for h in range(2):
        down = b.convert("zext", b.op("add", row, i32(8 * h)), "i64")
        start = b.op("add", b.op("mul", down, stride), b.convert("zext", column, "i64"))
        line = b.offset(element, base, start)
        for group in range(n // 32):
            first = 16 * group + 2 * h
            pairs = [_pair(e, registers[first + 4 * at :], element) for at in range(4)]
            for bit in range(0 if _is_in_place(e, tile) else 2):
                pairs = _exchanged(e, pairs, bit, bits[bit])
            vector = Value("<4 x i32>", "undef")
            for at, pair in enumerate(pairs):
                vector = b.value("<4 x i32>", f"insertelement {vector}, {pair}, i32 {at}")
            b.line(f"store {vector}, {b.offset(element, line, i64(32 * group))}, align 16")


def _pair(e: Emitting, registers: list[Value], element: str) -> Value:
    """Two rounded sums packed into one register."""
    b = e.b
    pair = Value("<2 x float>", "undef")
    for at in range(2):
        value = b.load("float", registers[at])
        pair = b.value("<2 x float>", f"insertelement {pair}, {value}, i32 {at}")
    return b.convert("bitcast", b.convert("fptrunc", pair, f"<2 x {element}>"), "i32")


def _exchanged(e: Emitting, values: list[Value], bit: int, is_set: Value) -> list[Value]:
    """Swap one bit of the thread index with one of the position, within groups of four."""
    b, step = e.b, 1 << bit
    result = list(values)
    for at in range(4):
        if at & step:
            continue
        x, y = values[at], values[at + step]
        given = b.value("i32", f"select {is_set}, {x}, {y}")
        taken = b.call("llvm.nvvm.shfl.sync.bfly.i32", "i32", i32(-1), given, i32(step), i32(31))
        result[at] = b.value("i32", f"select {is_set}, {taken}, {x}")
        result[at + step] = b.value("i32", f"select {is_set}, {y}, {taken}")
    return result


def _is_in_place(e: Emitting, sums: Expr) -> bool:
    """Whether permuted copies already gave each thread contiguous columns."""
    return isinstance(sums, Address) and sums.buffer in e.reordered


def _rows(e: Emitting, tile: Expr, rows: Expr, n: Expr) -> None:
    """Accumulators exchanged so that each thread has runs of eight contiguous columns."""
    assert isinstance(rows, Address)
    b, width = e.b, known_number(n)
    lane = b.call("llvm.nvvm.read.ptx.sreg.tid.x", "i32")
    bits = [b.compare("icmp ne", b.op("and", lane, i32(1 << at)), i32(0)) for at in range(2)]
    registers, pointer = sum_registers(e, tile, width), e.memories[rows.buffer].pointer
    for h in range(2):
        for group in range(width // 32):
            first = 16 * group + 2 * h
            halves = []
            for element in range(2):
                words = [b.load("i32", registers[first + 4 * at + element]) for at in range(4)]
                for bit in range(0 if _is_in_place(e, tile) else 2):
                    words = _exchanged(e, words, bit, bits[bit])
                halves.append(words)
            for at in range(RUN):
                place = h * (width // QUAD) + RUN * group + at
                b.store(halves[at % 2][at // 2], b.offset("i32", pointer, i64(place)))


def lanes_context(thread: Var) -> sym.Context:
    """The range of a warpgroup's thread index."""
    return sym.EMPTY.bind_all({thread: (sym.ZERO, sym.const(THREADS))})


def place_of(buffer: Buffer, index: Expr, thread: Var, holds: tuple[Expr, ...]) -> Expr:
    """The register that holds an element of a warpgroup's tile; it must be the thread's own
    wherever the given conditions hold."""
    held = HELD[buffer.memory.name]
    (size,) = (int(str(dim)) for dim in buffer.shape)
    n = size // M
    row, column = sym.floordiv(index, n), sym.floormod(index, n)
    known = lanes_context(thread)
    every = known
    for cond in holds:
        every = every.assume(cond)
    # A proof may need one condition, and be hidden by what another one makes of the index.
    contexts = (known, *(known.assume(cond) for cond in holds), every)
    ctx = next((each for each in contexts if held.is_own(thread, row, column, each)), None)
    if ctx is None:
        raise Unsupported(
            "TW3056",
            f"element {index} of %{buffer.name} may be in another thread's registers",
            help="give thread 32 w + 4 r + q of a warpgroup the rows 16 w + 8 h + r, and the "
            f"columns {held.columns * QUAD} g + {held.columns} q + v of a tile in {buffer.scope}",
        )
    return sym.simplify(held.register(row, column, n), ctx)


RULES: dict[str, Callable[..., None]] = {
    INIT: _init,
    INIT_FENCE: _init_fence,
    FENCE.op: _fence,
    "mbarrier.wait": _wait,
    "mbarrier.expect": _expect,
    "mbarrier.arrive": _arrive,
    "registers.give": _registers("dec"),
    "registers.take": _registers("inc"),
    CLEAR: _clear_rows,
    "tile.low": _low,
    "tma.load": _load,
    PREFETCH: _prefetch,
    "tma.multicast": _load,
    "tma.window": _load_window,
    "wgmma.clear": clear,
    "wgmma.tile": _tile(waits=True),
    "wgmma.start": _tile(waits=False),
    JOINED["wgmma.tile"]: _tiles(waits=True),
    JOINED["wgmma.start"]: _tiles(waits=False),
    "wgmma.round": _round,
    "wgmma.rows": _rows,
}
