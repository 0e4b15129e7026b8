"""Attention by Hopper's warpgroups: a step over a tile of keys, with softmax and values in
registers.

    wgmma.forget / attend        reset; a step of attention, its weights in registers
    wgmma.weigh / wait / powers  the same, with GEMMs overlapping the exponentials
    role.lag                     start one warpgroup behind another
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tilewright.base.dtype import F32
from tilewright.codegen.builder import Value, i32, i64
from tilewright.codegen.handlers import Emitting
from tilewright.codegen.hopper import (
    BOTH,
    THREADS,
    assembled,
    clear,
    committed,
    known_number,
    multiplied,
    operand_descriptor,
    sum_kind,
    sum_registers,
)
from tilewright.intrin.hopper import OPERANDS, PAIR, ROW_BYTES, M
from tilewright.sym import Const, Expr, const
from tilewright.tensor.ir import Address, Buffer, Call

LOG2_E = 1.4426950408889634
TINY = 2.0**-126  # the least normal f32
PLAIN = const(1.0, "f32")  # scale of scores that are scaled already


def _forget(e: Emitting, top: Expr, total: Expr, sums: Expr, features: Expr) -> None:
    b = e.b
    for at, start in ((top, "0xFFF0000000000000"), (total, "0.0")):
        for register in _row(e, at):
            b.store(Value("float", start), register)
    clear(e, sums, features)


def _row(e: Emitting, at: Expr) -> list[Value]:
    """The addresses of a thread's two per-row numbers."""
    assert isinstance(at, Address)
    pointer = e.memories[at.buffer].pointer
    return [e.b.offset("float", pointer, i64(half)) for half in range(2)]


def _attend(
    e: Emitting,
    scores: Expr,
    values: Expr,
    top: Expr,
    total: Expr,
    sums: Expr,
    keys: Expr,
    features: Expr,
    scale: Expr = PLAIN,
) -> None:
    """Exponentials of scores relative to a running maximum, packed as the left operand of a
    `wgmma`."""
    outputs = sum_registers(e, sums, known_number(features))
    assert isinstance(values, Address)
    powers, fades = _powers_of(e, scores, top, total, known_number(keys), scale)
    _fade(e, outputs, fades)
    packed = _packed(e, powers, values.buffer)
    _weighed(e, outputs, packed, values, known_number(keys), waits=True)


def _powers_of(
    e: Emitting, scores: Expr, top: Expr, total: Expr, count: int, scale: Expr
) -> tuple[list[Value], list[Value]]:
    """Exponentials of scaled scores, and the factors that rescale both rows' earlier sums."""
    b = e.b
    assert isinstance(scale, Const)
    factor = LOG2_E * float(scale.value)
    held = [b.load("float", register) for register in sum_registers(e, scores, count)]
    powers: dict[int, Value] = {}
    fades = []
    for half, (m, l) in enumerate(zip(_row(e, top), _row(e, total), strict=True)):
        mine = [at for at in range(len(held)) if at // 2 % 2 == half]
        before = b.load("float", m)
        new = _combined(e, [before, *(held[at] for at in mine)], "llvm.maxnum.f32")
        for apart in (1, 2):
            other = _from_lane(e, new, apart)
            new = b.call("llvm.maxnum.f32", "float", new, other)
        b.store(new, m)
        none = b.compare("fcmp oeq", new, Value("float", "0xFFF0000000000000"))
        above = b.select(none, Value("float", "0.0"), new)
        low = b.compare("fcmp olt", above, _float(F32.min_finite / 2 / max(1.0, factor)))
        # A mask of the least number: the factor would take it to infinity, differences to NaN.
        by = b.select(low, _float(TINY), _float(factor))
        below = b.op("fmul", above, b.select(low, _float(-TINY), _float(-factor)))
        for at in mine:
            powers[at] = _power(e, held[at], by, below)
        fades.append(_power(e, before, by, below))
        part = _combined(e, [powers[at] for at in mine], "fadd")
        for apart in (1, 2):
            part = b.op("fadd", part, _from_lane(e, part, apart))
        b.store(b.op("fadd", b.op("fmul", b.load("float", l), fades[half]), part), l)
    return [powers[at] for at in range(len(held))], fades


def _fade(e: Emitting, outputs: list[Value], fades: list[Value]) -> None:
    b = e.b
    for at, register in enumerate(outputs):
        b.store(b.op("fmul", b.load("float", register), fades[at // 2 % 2]), register)


def _lefts(e: Emitting, left: Expr, keys: int) -> list[Value]:
    """The addresses of a thread's part of a packed left operand."""
    assert isinstance(left, Address)
    pointer = e.memories[left.buffer].pointer
    return [e.b.offset("i32", pointer, i64(at)) for at in range(keys * M // THREADS // PAIR)]


def _powers(
    e: Emitting,
    scores: Expr,
    top: Expr,
    total: Expr,
    sums: Expr,
    left: Expr,
    keys: Expr,
    features: Expr,
    scale: Expr = PLAIN,
) -> None:
    """A step of attention up to the product with values, which `weigh` issues; waits for the
    previous one after the exponentials, so that both overlap."""
    assert isinstance(left, Address)
    outputs, lefts = (
        sum_registers(e, sums, known_number(features)),
        _lefts(e, left, known_number(keys)),
    )
    powers, fades = _powers_of(e, scores, top, total, known_number(keys), scale)
    # The left operand of the previous product is in use until then.
    given = [e.b.load("float", register) for register in outputs]
    used = [e.b.load("i32", register) for register in lefts]
    held = _awaited(e, 0, [*given, *powers, *fades, *used])
    for register, value in zip(outputs, held, strict=False):
        e.b.store(value, register)
    made = held[len(given) :]
    _fade(e, outputs, made[len(powers) :])
    for register, value in zip(lefts, _packed(e, made[: len(powers)], left.buffer), strict=True):
        e.b.store(value, register)


def _wait_for(e: Emitting, tile: Expr, n: Expr, later: Expr) -> None:
    """Wait for all but the latest groups of products. With no columns, no accumulators are used
    yet, but the operands may be overwritten."""
    if not known_number(n):
        wait = f"wgmma.wait_group.sync.aligned {known_number(later)};"
        e.b.line(f'call void asm sideeffect "{wait}", "~{{memory}}"() convergent')
        return
    registers = sum_registers(e, tile, known_number(n))
    kind = sum_kind(tile)
    held = _awaited(e, known_number(later), [e.b.load(kind, register) for register in registers])
    for register, value in zip(registers, held, strict=True):
        e.b.store(value, register)


def _awaited(e: Emitting, later: int, values: list[Value]) -> list[Value]:
    """Values after a wait: earlier computations stay before it, their users after."""
    made = "{ " + ", ".join(value.type for value in values) + " }"
    names = {"float": "f", "i32": "r"}
    outputs = ",".join(f"={names[value.type]}" for value in values)
    ties = ",".join(str(at) for at in range(len(values)))
    shown = ", ".join(str(value) for value in values)
    after = e.b.value(
        made,
        f'call {made} asm sideeffect "wgmma.wait_group.sync.aligned {later};", '
        f'"{outputs},{ties},~{{memory}}"({shown}) convergent',
    )
    return [e.b.value(value.type, f"extractvalue {after}, {at}") for at, value in enumerate(values)]


def _weigh(
    e: Emitting, sums: Expr, left: Expr, values: Expr, keys: Expr, features: Expr, waits: Expr
) -> None:
    """Accumulators += left operand x values."""
    assert isinstance(values, Address)
    packed = [e.b.load("i32", register) for register in _lefts(e, left, known_number(keys))]
    outputs = sum_registers(e, sums, known_number(features))
    _weighed(e, outputs, packed, values, known_number(keys), waits=bool(known_number(waits)))


def _combined(e: Emitting, values: list[Value], op: str) -> Value:
    """All of them, in pairs: short chains."""
    while len(values) > 1:
        pairs = [values[at : at + 2] for at in range(0, len(values), 2)]
        values = [
            pair[0]
            if len(pair) == 1
            else e.b.op(op, *pair)
            if op == "fadd"
            else e.b.call(op, "float", *pair)
            for pair in pairs
        ]
    return values[0]


def _lag(e: Emitting, cycles: Expr) -> None:
    """Wait for so many cycles."""
    lines = (
        "{ .reg .u32 begun, now; .reg .pred early;",
        "mov.u32 begun, %clock;",
        "LAG${:uid}: mov.u32 now, %clock;",
        "sub.u32 now, now, begun;",
        "setp.lt.u32 early, now, $0;",
        "@early bra LAG${:uid}; }",
    )
    text = " ".join(lines)
    e.b.line(f'call void asm sideeffect "{text}", "r"(i32 {known_number(cycles)}) convergent')


def _float(value: float) -> Value:
    """A number as LLVM writes floats: the bits of the same double."""
    (rounded,) = struct.unpack("f", struct.pack("f", value))
    return Value("float", f"0x{struct.pack('>d', rounded).hex().upper()}")


def _power(e: Emitting, value: Value, factor: Value, below: Value) -> Value:
    """Two to the value times a factor, over two to what `below` stands for."""
    exponent = e.b.call("llvm.fma.f32", "float", value, factor, below)
    return e.b.value("float", f'call float asm "ex2.approx.ftz.f32 $0, $1;", "=f,f"({exponent})')


def _from_lane(e: Emitting, value: Value, apart: int) -> Value:
    name = "llvm.nvvm.shfl.sync.bfly.f32"
    return e.b.call(name, "float", i32(-1), value, i32(apart), i32(31))


def _packed(e: Emitting, values: list[Value], like: Buffer) -> list[Value]:
    """Pairs of neighbours, rounded to a buffer's type."""
    b, element = e.b, {"bf16": "bfloat", "f16": "half"}[like.dtype.name]
    packed = []
    for first, second in zip(values[::2], values[1::2], strict=True):
        pair = b.value("<2 x float>", f"insertelement <2 x float> undef, {first}, i32 0")
        pair = b.value("<2 x float>", f"insertelement {pair}, {second}, i32 1")
        rounded = b.convert("fptrunc", pair, f"<2 x {element}>")
        packed.append(b.convert("bitcast", rounded, "i32"))
    return packed


def _weighed(
    e: Emitting,
    registers: list[Value],
    packed: list[Value],
    values: Address,
    keys: int,
    *,
    waits: bool,
) -> None:
    """Sums += left operand in registers x values, whose neighbours are along n."""
    before = [e.b.load("float", register) for register in registers]
    lines, operands = _weighing(e, len(registers), 2 * len(registers), packed, values, keys)
    assembled(e, [*lines, *committed(waits)], registers, before, operands)


def _weighing(
    e: Emitting, count: int, operands_at: int, packed: list[Value], values: Address, keys: int
) -> tuple[list[str], list[Value]]:
    """The lines of a product with values, and its operands; sums are the first registers."""
    kind = OPERANDS[values.buffer.dtype.name]
    step, name = kind.depth, kind.assembler
    # Boxes of 64 columns are one behind the other; eight rows of one are 1024 bytes.
    descriptor = operand_descriptor(e, values, apart_bytes=keys * ROW_BYTES)
    sums = ", ".join(f"${at}" for at in range(count))
    op = f"wgmma.mma_async.sync.aligned.m64n{2 * count}k{step}.f32.{name}.{name}"
    lines = []
    for at in range(keys // step):
        left = ", ".join(f"${operands_at + 4 * at + part}" for part in range(4))
        down = step * ROW_BYTES * at >> 4
        lines.append(f"add.s64 b, ${operands_at + len(packed)}, {down};")
        lines.append(f"{op} {{{sums}}}, {{{left}}}, b, 1, 1, 1, 1;")
    return lines, [*packed, descriptor]


def _both(
    e: Emitting,
    sums: Expr,
    left: Expr,
    values: Expr,
    keys: Expr,
    features: Expr,
    tile: Expr,
    n: Expr,
    *operands: Expr,
) -> None:
    """Products of scores and with the last step's values as two groups, the scores' first. In one
    piece: what is between them would hold them up."""
    assert isinstance(values, Address)
    pairs = list(zip(operands[::2], operands[1::2], strict=True))
    outputs, scores = (
        sum_registers(e, sums, known_number(features)),
        sum_registers(e, tile, known_number(n)),
    )
    packed = [e.b.load("i32", register) for register in _lefts(e, left, known_number(keys))]
    before = [e.b.load("float", register) for register in outputs]
    count, at = len(outputs), 2 * len(outputs) + len(scores)
    lines, given = multiplied(e, known_number(n), count, at, pairs, starts=True)
    more, others = _weighing(e, count, at + len(given), packed, values, known_number(keys))
    whole = [*lines, *committed(False), *more, *committed(False)]
    assembled(e, whole, [*outputs, *scores], before, [*given, *others])


RULES: dict[str, Callable[..., None]] = {
    "wgmma.forget": _forget,
    "wgmma.attend": _attend,
    "wgmma.powers": _powers,
    "wgmma.weigh": _weigh,
    BOTH: _both,
    "wgmma.wait": _wait_for,
    "role.lag": _lag,
}


def emit(e: Emitting, node: Call, is_statement: bool) -> Value:
    RULES[node.op](e, *node.args)
    return Value("void", "")
