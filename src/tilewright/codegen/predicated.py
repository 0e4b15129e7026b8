"""Predicated loads and stores on NVIDIA GPUs: `select(inside, x[i], 0)`, and a guarded store,
without a branch.

    mov.b32 r, 0;  @inside ld.global.b32 r, [x + i];
    @inside st.global.b32 [y + i], r;

A branch around a load also takes in what is computed from it, and then waits: the next load is
issued only when this one has arrived. Predicated loads are all in flight together. A branch around
a store takes in what is stored: LLVM moves the last steps of a GEMM there, whose operands then wait
in registers.
"""

from __future__ import annotations

import math

from tilewright import sym
from tilewright.codegen.builder import FunctionText, Value
from tilewright.codegen.memory import Accesses, Place
from tilewright.codegen.types import memory_type, vector
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import Broadcast, If, Load, MaskedLoad, Ramp, Stmt, Store
from tilewright.tensor.regions import is_data_dependent
from tilewright.tensor.scopes import Owner
from tilewright.tensor.visit import walk

GLOBAL = "ptr addrspace(1)"
# Loads that both arms together may have: all are issued, and all their indices computed.
MOST_LOADS = 4
# Arithmetic that neither fails nor takes long.
CHEAP = (sym.Cast, sym.Select, sym.Add, sym.Sub, sym.Mul, sym.Min, sym.Max)
DIVISIONS = (sym.FloorDiv, sym.FloorMod)
# An access's bytes -> number and type of its registers, letter of their constraint.
SHAPES = {
    2: (1, "i16", "b16", "h"),
    4: (1, "i32", "b32", "r"),
    8: (2, "i32", "b32", "r"),
    16: (4, "i32", "b32", "r"),
}


def may_predicate(*arms: Expr) -> bool:
    """Whether arms of a `select` are few loads from memory, and little else."""
    found: dict[Expr, None] = {}
    stack = list(arms)
    while stack:
        node = stack.pop()
        if isinstance(node, Load):
            if not _is_plain(node):
                return False
            found[node] = None
        elif isinstance(node, Broadcast):
            if not isinstance(node.value, Const):
                return False
        elif isinstance(node, sym.Select):
            stack += [node.a, node.b]
            if is_data_dependent(node.cond):
                return False
        elif isinstance(node, CHEAP):
            stack += node.children()
        elif not isinstance(node, Const):
            return False
    return 0 < len(found) <= MOST_LOADS


def is_zero(arm: Expr) -> bool:
    """Whether an arm is zero, all bits of it."""
    number = arm.value if isinstance(arm, Broadcast) else arm
    if not isinstance(number, Const):
        return False
    return number.value == 0 and math.copysign(1.0, number.value) > 0


def is_zero_unloaded(arm: Expr) -> bool:
    """Whether an arm is zero where its load gives zeros."""
    while isinstance(arm, sym.Cast):
        (arm,) = arm.children()
    return isinstance(arm, Load)


def guarded_store(stmt: If) -> tuple[Expr, Store] | None:
    """The condition and the store, where a branch, or nested ones, have nothing but one that may be
    predicated."""
    tests, then = [stmt.cond], stmt.then
    while isinstance(then, If) and then.otherwise is None:
        tests.append(then.cond)
        then = then.then
    if not isinstance(then, Store) or stmt.otherwise is not None:
        return None
    return (sym.all_of(*tests), then) if _may_predicate_store(then) else None


def branches(kernel: Stmt) -> frozenset[Expr]:
    """Conditions that guard more than stores: where what is stored is guarded too, a branch around
    all of it is better."""
    found = [stmt for stmt in walk(kernel) if isinstance(stmt, If)]
    return frozenset([stmt.cond for stmt in found if guarded_store(stmt) is None])


def _may_predicate_store(store: Store) -> bool:
    """Whether a store to memory takes a thread's own values, few loads and no long arithmetic,
    since threads whose condition does not hold compute it too."""
    if store.mask is not None or not _is_plain(Load(store.buffer, store.index)):
        return False
    found = 0
    for node in sym.walk(store.value, *store.index):
        if isinstance(node, Load) and node.buffer.memory.owner is Owner.THREAD:
            # Any other place may be beyond the buffer without the condition.
            if not all(map(_is_constant, node.index)):
                return False
        elif isinstance(node, Load):
            found += 1
            if not _is_plain(node):
                return False
        elif isinstance(node, MaskedLoad) or _divides_by_unknown(node):
            return False
    return found <= MOST_LOADS


def _is_constant(index: Expr) -> bool:
    parts = index.children() if isinstance(index, Ramp) else (index,)
    return all(isinstance(part, Const) for part in parts)


def _divides_by_unknown(node: Expr) -> bool:
    return isinstance(node, DIVISIONS) and not isinstance(node.children()[1], Const)


def _is_plain(load: Load) -> bool:
    """Whether a load is one access, of memory that all threads share."""
    if load.buffer.memory.owner is not Owner.DEVICE:
        return False
    if load.dtype.lanes * load.buffer.dtype.size_bytes not in SHAPES:
        return False
    return not any(map(is_data_dependent, load.index))


def is_single(place: Place, lanes: int) -> bool:
    """Whether elements are adjacent and aligned for a single access."""
    size = lanes * place.element.size_bytes
    return (lanes == 1 or place.stride == 1) and place.align % size == 0


def load_if(access: Accesses, place: Place, lanes: int, test: Value) -> Value | None:
    """What is at a place, or zeros where the test does not hold; None if that takes several
    accesses."""
    if not is_single(place, lanes):
        return None
    b, size = access.b, lanes * place.element.size_bytes
    count, register, mark, letter = SHAPES[size]
    type_ = vector(memory_type(place.element), lanes)
    there = b.value(GLOBAL, f"addrspacecast {access.address(place)} to {GLOBAL}")
    names = [f"${at}" for at in range(count)]
    cleared = " ".join(f"mov.{mark} {name}, 0;" for name in names)
    wide = f".v{count}.{mark} {{{', '.join(names)}}}" if count > 1 else f".{mark} {names[0]}"
    text = f"{cleared} @${count + 1} ld.global{wide}, [${count}];"
    outputs = ",".join([f"=&{letter}"] * count)
    made = register if count == 1 else "{ " + ", ".join([register] * count) + " }"
    got = b.value(
        made, f'call {made} asm "{text}", "{outputs},l,b"({there}, {test}) memory(argmem: read)'
    )
    return access.to_register(_joined(b, got, count, register, type_), place.element)


def store_if(access: Accesses, place: Place, lanes: int, value: Value, test: Value) -> None:
    """Store a value where the test holds, by a single access."""
    b, size = access.b, lanes * place.element.size_bytes
    count, register, mark, letter = SHAPES[size]
    there = b.value(GLOBAL, f"addrspacecast {access.address(place)} to {GLOBAL}")
    whole = register if count == 1 else vector(register, count)
    words = b.convert("bitcast", access.to_memory(value, place.element), whole)
    parts = [words] if count == 1 else [
        b.value(register, f"extractelement {words}, i32 {at}") for at in range(count)
    ]  # fmt: skip
    names = [f"${at}" for at in range(count)]
    wide = f".v{count}.{mark}" if count > 1 else f".{mark}"
    given = f"{{{', '.join(names)}}}" if count > 1 else names[0]
    text = f"@${count + 1} st.global{wide} [${count}], {given};"
    inputs = ", ".join(map(str, [*parts, there, test]))
    letters = ",".join([letter] * count)
    b.line(f'call void asm sideeffect "{text}", "{letters},l,b"({inputs}) memory(argmem: write)')


def _joined(b: FunctionText, got: Value, count: int, register: str, type_: str) -> Value:
    """The registers of an access as one value."""
    if count > 1:
        words = Value(vector(register, count), "undef")
        for at in range(count):
            word = b.value(register, f"extractvalue {got}, {at}")
            words = b.value(words.type, f"insertelement {words}, {word}, i32 {at}")
        got = words
    return b.convert("bitcast", got, type_)
