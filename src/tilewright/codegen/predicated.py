"""Predicated loads on NVIDIA GPUs: `select(inside, x[i], 0)` without a branch.

    mov.b32 r, 0;  @inside ld.global.b32 r, [x + i];

A branch around a load also takes in what is computed from it, and then waits: the next load is
issued only when this one has arrived. Predicated loads are all in flight together.
"""

from __future__ import annotations

import math

from tilewright import sym
from tilewright.codegen.builder import FunctionText, Value
from tilewright.codegen.memory import Accesses, Place
from tilewright.codegen.types import memory_type, vector
from tilewright.sym import Const, Expr
from tilewright.tensor.ir import Broadcast, Load
from tilewright.tensor.scopes import Owner

GLOBAL = "ptr addrspace(1)"
WORD_BYTES = 4
# Loads that both arms together may have: all are issued, and all their indices computed.
MOST_LOADS = 4
# Arithmetic that neither fails nor takes long.
CHEAP = (sym.Cast, sym.Select, sym.Add, sym.Sub, sym.Mul, sym.Min, sym.Max)
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
            if any(isinstance(each, Load) for each in sym.walk(node.cond)):
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


def _is_plain(load: Load) -> bool:
    """Whether a load is one access, of memory that all threads share."""
    of = load.buffer.dtype
    if load.buffer.memory.owner is not Owner.DEVICE or of.is_bool or of.bits % 8:
        return False
    if load.dtype.lanes * of.size_bytes not in SHAPES:
        return False
    return not any(isinstance(node, Load) for at in load.index for node in sym.walk(at))


def load_if(access: Accesses, place: Place, lanes: int, test: Value) -> Value | None:
    """What is at a place, or zeros where the test does not hold; None if that takes several
    accesses."""
    b, size = access.b, lanes * place.element.size_bytes
    if (lanes > 1 and place.stride != 1) or place.align % size:
        return None
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
    return _joined(b, got, count, register, type_)


def _joined(b: FunctionText, got: Value, count: int, register: str, type_: str) -> Value:
    """The registers of an access as one value."""
    if count > 1:
        words = Value(vector(register, count), "undef")
        for at in range(count):
            word = b.value(register, f"extractvalue {got}, {at}")
            words = b.value(words.type, f"insertelement {words}, {word}, i32 {at}")
        got = words
    return b.convert("bitcast", got, type_)
