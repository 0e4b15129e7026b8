"""Maps from keys to numbers, as in ONNX's classical machine learning operators. No native code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import F32, I64, STR, DType
from tilewright.base.errors import UserTypeError
from tilewright.graph.op import FLOAT, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.rules import same_dim
from tilewright.graph.types import MapType, SequenceType, TensorType, Type
from tilewright.sym import ONE, const

Array = np.ndarray[Any, Any]

MOST_AT_ONCE = 15  # entries in a dict display of CPython; larger ones are merged from parts

_KEYS = Attr("keys", tuple, required=True)


def _key_type(keys: tuple[Any, ...]) -> DType:
    return STR if keys and isinstance(keys[0], str) else I64


def _map(call: Call) -> MapType:
    of = call.types[0]
    if not isinstance(of, MapType):
        raise UserTypeError("TW1319", f"{call.op} takes a map, not {of}", call.loc)
    return of


def _zip_type(call: Call) -> tuple[Type, ...]:
    shape = call.shape(0)
    same_dim(call, shape[-1], const(len(call["keys"])), "the numbers of columns and keys")
    return (SequenceType(MapType(_key_type(call["keys"]), call.tensor(0).dtype)),)


def _zip(call: Call, x: Array) -> list[dict[Any, Any]]:
    keys = call["keys"]
    rows = (x if x.ndim == 2 else x.reshape(-1, x.shape[-1])).tolist()
    if len(keys) > MOST_AT_ONCE:
        return [dict(zip(keys, row, strict=True)) for row in rows]
    return _maps_of(len(keys))(keys, rows)


@functools.cache
def _maps_of(count: int) -> Callable[[tuple[Any, ...], list[list[Any]]], list[dict[Any, Any]]]:
    """Generate a function of keys and rows that writes all entries of a map as a dict display,
    which takes half the time of constructing it from pairs."""
    keys, values = (", ".join(f"{letter}{at}" for at in range(count)) for letter in "kv")
    entries = ", ".join(f"k{at}: v{at}" for at in range(count))
    source = (
        f"lambda keys, rows: [[{{{entries}}} for [{values}] in rows] for [{keys}] in [keys]][0]"
    )
    made: Callable[..., list[dict[Any, Any]]] = eval(source)  # contains no text of the model
    return made


def _vector_type(call: Call) -> tuple[Type, ...]:
    return (TensorType(_map(call).value, (ONE, const(len(call["keys"])))),)


def _vector(call: Call, entries: dict[Any, Any]) -> Array:
    of = _map(call).value
    blank: Any = "" if of.is_str else 0
    return np.array([[entries.get(key, blank) for key in call["keys"]]]).astype(of.numpy)


def _tensor_type(call: Call) -> tuple[Type, ...]:
    _map(call)
    width = sym.size("entries") if call["width"] is None else const(call["width"])
    return (TensorType(call["to"], (ONE, width)),)


def _tensor(call: Call, entries: dict[int, Any]) -> Array:
    to: DType = call["to"]
    ranked = sorted(entries.items())
    if call["width"] is None:
        row = [_converted(value, to) for _, value in ranked]
    else:
        row = ["" if to.is_str else 0] * call["width"]
        for key, value in ranked:
            if not 0 <= key < len(row):
                raise IndexError(f"key {key} is outside a row of {len(row)}")
            row[key] = _converted(value, to)
    return np.array([row], to.numpy if row else None).astype(to.numpy).reshape(1, -1)


def _converted(value: Any, to: DType) -> Any:
    if to.is_str:
        return str(value)
    return float(value) if to.is_float else int(value)


OPS = (
    Op(
        "zip_map",
        "For each row a map from keys to its columns.",
        (Input("x", FLOAT),),
        _zip_type,
        _zip,
        OPAQUE,
        (_KEYS,),
        native=False,
    ),
    Op(
        "map_to_vector",
        "The values of keys, in order; 0 where a map has none.",
        (Input("entries"),),
        _vector_type,
        _vector,
        OPAQUE,
        (_KEYS,),
        native=False,
    ),
    Op(
        "map_to_tensor",
        "The values of a map: in order of its keys, or at the positions that the keys give.",
        (Input("entries"),),
        _tensor_type,
        _tensor,
        OPAQUE,
        (Attr("to", DType, F32), Attr("width", int, None)),
        native=False,
    ),
)
