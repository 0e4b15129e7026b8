"""Sequences and optionals. A sequence is a list of arrays, an absent optional is None."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, I64, DType
from tilewright.base.errors import UserTypeError
from tilewright.graph.op import INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.moves import check_axis
from tilewright.graph.types import (
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    join,
    renewed,
)
from tilewright.sym import ONE, Expr

Array = np.ndarray[Any, Any]


def joined(call: Call, a: Type, b: Type) -> Type:
    """The join of two types, or an error."""
    found = join(a, b)
    if found is None:
        raise UserTypeError(
            "TW1309", f"{call.op} needs one type of value, got {a} and {b}", call.loc
        )
    return found


def _sequence(call: Call, at: int = 0) -> SequenceType:
    of = call.types[at]
    if isinstance(of, OptionalType):
        of = of.element
    if not isinstance(of, SequenceType):
        raise UserTypeError("TW1310", f"input {at} of {call.op} is {of}, not a sequence", call.loc)
    return of


def _construct_type(call: Call) -> tuple[Type, ...]:
    of: Type = call.tensor(0)
    for at in range(1, len(call.types)):
        of = joined(call, of, call.tensor(at))
    return (SequenceType(of),)


def _insert_type(call: Call) -> tuple[Type, ...]:
    return (SequenceType(joined(call, _sequence(call).element, call.tensor(1))),)


def _position(position: Array | None, count: int, *, extra: int = 0) -> int:
    """Normalize a position; the default is the last."""
    at = count - 1 + extra if position is None else int(np.ravel(position)[0])
    if not -count <= at < count + extra:
        raise IndexError(f"position {at} is outside a sequence of {count}")
    return at + count if at < 0 else at


def _insert(call: Call, items: list[Array], x: Array, position: Array | None = None) -> list[Array]:
    at = _position(position, len(items), extra=1)
    return [*items[:at], x, *items[at:]]


def _erase(call: Call, items: list[Array], position: Array | None = None) -> list[Array]:
    at = _position(position, len(items))
    return [*items[:at], *items[at + 1 :]]


def _parts_type(call: Call) -> tuple[Type, ...]:
    shape = call.shape(0)
    axis = check_axis(call, call["axis"], len(shape))
    of = call.tensor(0).dtype
    dims: tuple[Expr, ...]
    if call.has(1):
        dims = (*shape[:axis], sym.size("part"), *shape[axis + 1 :])
    elif call["keepdims"]:
        dims = (*shape[:axis], ONE, *shape[axis + 1 :])
    else:
        dims = (*shape[:axis], *shape[axis + 1 :])
    return (SequenceType(TensorType(of, dims)),)


def _parts(call: Call, x: Array, split: Array | None = None) -> list[Array]:
    axis = call["axis"] % x.ndim
    count = x.shape[axis]
    if split is None:
        parts = np.split(x, count, axis)
        return parts if call["keepdims"] else [np.squeeze(part, axis) for part in parts]
    if np.ndim(split) == 0:
        ends = np.arange(int(split), count, int(split))
    else:
        if int(np.sum(split)) != count:
            raise ValueError(f"parts of {np.sum(split)} elements of {count}")
        ends = np.cumsum(split)[:-1]
    return list(np.split(x, ends, axis))


def _concat_type(call: Call) -> tuple[Type, ...]:
    of = renewed(_sequence(call).element)
    assert isinstance(of, TensorType)
    if of.shape is None:
        return (of,)
    shape = of.shape
    axis = check_axis(call, call["axis"], len(shape) + call["new_axis"])
    after = axis if call["new_axis"] else axis + 1
    return (TensorType(of.dtype, (*shape[:axis], sym.size("concat"), *shape[after:])),)


def _concat(call: Call, items: list[Array]) -> Array:
    if call["new_axis"]:
        return np.stack(items, axis=call["axis"])
    return np.concatenate(items, axis=call["axis"])


def _optional_type(call: Call) -> tuple[Type, ...]:
    of = call.types[0] if call.has(0) else call["of"]
    if of is None:
        raise call.error("TW1311", "an absent optional needs the type that it would have")
    return (OptionalType(of),)


def _element_type(call: Call) -> tuple[Type, ...]:
    of = call.types[0]
    assert of is not None
    return (of.element if isinstance(of, OptionalType) else of,)


def _element(x: Any) -> Any:
    if x is None:
        raise ValueError("the optional has no value")
    return x


_SCALAR = TensorType(I64, ())

OPS = (
    Op(
        "sequence",
        "A sequence of tensors.",
        (Input("items", variadic=True),),
        _construct_type,
        lambda call, *items: list(items),
        OPAQUE,
    ),
    Op(
        "sequence_empty",
        "An empty sequence.",
        (),
        lambda call: (SequenceType(TensorType(call["of"], None)),),
        lambda call: [],
        OPAQUE,
        (Attr("of", DType, required=True),),
    ),
    Op(
        "sequence_insert",
        "A sequence with a tensor before a position; by default at the end.",
        (Input("items"), Input("x"), Input("position", INTEGER, optional=True)),
        _insert_type,
        _insert,
        OPAQUE,
    ),
    Op(
        "sequence_erase",
        "A sequence without the tensor at a position; by default the last.",
        (Input("items"), Input("position", INTEGER, optional=True)),
        lambda call: (_sequence(call),),
        _erase,
        OPAQUE,
    ),
    Op(
        "sequence_at",
        "The tensor at a position.",
        (Input("items"), Input("position", INTEGER)),
        lambda call: (renewed(_sequence(call).element, name="at"),),
        lambda call, items, position: items[_position(position, len(items))],
        OPAQUE,
    ),
    Op(
        "sequence_length",
        "The number of tensors in a sequence.",
        (Input("items"),),
        lambda call: (_SCALAR,),
        lambda call, items: np.int64(len(items)),
        OPAQUE,
    ),
    Op(
        "split_to_sequence",
        "A tensor split along an axis into parts of one length, or of given lengths.",
        (Input("x"), Input("split", INTEGER, optional=True)),
        _parts_type,
        _parts,
        OPAQUE,
        (Attr("axis", int, required=True), Attr("keepdims", bool, True)),
    ),
    Op(
        "concat_from_sequence",
        "The tensors of a sequence concatenated along an axis, or stacked along a new one.",
        (Input("items"),),
        _concat_type,
        _concat,
        OPAQUE,
        (Attr("axis", int, required=True), Attr("new_axis", bool, False)),
    ),
    Op(
        "optional",
        "An optional with the value x, or without a value.",
        (Input("x", optional=True),),
        _optional_type,
        lambda call, x=None: (x,),
        OPAQUE,
        (Attr("of", (TensorType, SequenceType)),),
    ),
    Op(
        "optional_has_element",
        "Whether an optional has a value.",
        (Input("x"),),
        lambda call: (TensorType(BOOL, ()),),
        lambda call, x: np.bool_(x is not None),
        OPAQUE,
    ),
    Op(
        "optional_get_element",
        "The value of an optional, which must have one.",
        (Input("x"),),
        _element_type,
        lambda call, x: (_element(x),),
        OPAQUE,
    ),
)
