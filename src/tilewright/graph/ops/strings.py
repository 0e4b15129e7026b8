"""Strings. There is no native code: nodes on strings are run by these references."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, F32, I64, STR, DType
from tilewright.base.errors import UserTypeError
from tilewright.graph.op import ANY, INTEGER, OPAQUE, Attr, Call, Input, Op
from tilewright.graph.ops.rules import broadcast, check_one_dtype
from tilewright.graph.patterns import Pattern, compiled
from tilewright.graph.types import TensorType, Type

Array = np.ndarray[Any, Any]


def _check_text(call: Call, at: int = 0) -> TensorType:
    of = call.tensor(at)
    if not of.dtype.is_str:
        raise UserTypeError("TW1314", f"{call.op} takes text, not {of.dtype}", call.loc)
    return of


def each(fn: Callable[[Any], Any], x: Array, to: Any) -> Array:
    """Apply fn to every element."""
    out = np.empty(x.size, to)
    out[:] = [fn(item) for item in x.ravel().tolist()]
    return out.reshape(x.shape)


def _concat_type(call: Call) -> tuple[Type, ...]:
    _check_text(call)
    (of,) = broadcast(call)
    return (of,)


def _concat(call: Call, a: Array, b: Array) -> Array:
    made = np.asarray(a, object) + np.asarray(b, object)
    return np.asarray(made, object)


# ------------------------------------------------------------------------------------ split


def _split_type(call: Call) -> tuple[Type, ...]:
    shape = _check_text(call).shape
    parts = None if shape is None else (*shape, sym.size("parts"))
    return TensorType(STR, parts), TensorType(I64, shape)


def _split(call: Call, x: Array) -> tuple[Array, Array]:
    delimiter, most = call["delimiter"] or None, call["maxsplit"]
    parts = [text.split(delimiter, -1 if most is None else most) for text in x.ravel().tolist()]
    counts = [len(part) for part in parts]
    width = max(counts, default=0)
    out = np.full((len(parts), width), "", object)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out.reshape(*x.shape, width), np.array(counts, np.int64).reshape(x.shape)


# ------------------------------------------------------------------------------------ normalize

CASES: dict[str, Callable[[str], str]] = {"none": str, "lower": str.lower, "upper": str.upper}


def _normalize_type(call: Call) -> tuple[Type, ...]:
    _check_text(call)
    shape = call.shape(0)
    if call["case"] not in CASES:
        raise call.error("TW1315", f"normalize_text has no case {call['case']!r}")
    if len(shape) not in (1, 2):
        raise call.error("TW1304", f"normalize_text takes [C] or [1, C], not {call.tensor(0)}")
    kept = (*shape[:-1], sym.size("kept"))
    return (TensorType(STR, kept if call["stopwords"] else shape),)


def _normalize(call: Call, x: Array) -> Array:
    change = CASES[call["case"]]
    fold: Callable[[str], str] = str if call["case_sensitive"] else str.lower
    stops = {fold(word) for word in call["stopwords"]}
    words = [change(word) for word in x.ravel().tolist() if fold(word) not in stops]
    lead: tuple[int, ...] = x.shape[:-1]
    return np.array(words or [""], object).reshape(*lead, -1)


# ------------------------------------------------------------------------------------ tokens

MARKS = ("\x02", "\x03")  # start and end marks of a text


def _check_pattern(call: Call, pattern: str) -> None:
    try:
        compiled(pattern)
    except re.error as error:
        raise call.error("TW1316", f"the pattern {pattern!r}: {error}") from error


def _tokenize_type(call: Call) -> tuple[Type, ...]:
    shape = _check_text(call).shape
    for pattern in (*call["separators"], call["pattern"]):
        _check_pattern(call, pattern)
    return (TensorType(STR, None if shape is None else (*shape, sym.size("tokens"))),)


def _tokenize(call: Call, x: Array) -> Array:
    least, separators = call["least"], [compiled(each) for each in call["separators"]]
    pattern = compiled(call["pattern"])

    def tokens(text: str) -> list[str]:
        if call["pattern"]:
            return [part for part in pattern.matches(text) if len(part) >= least]
        parts = [text]
        for separator in separators:
            parts = [cut for part in parts for cut in pieces(separator, part) if len(cut) >= least]
        return parts

    found = [tokens(text) for text in x.ravel().tolist()]
    if call["mark"] and any(found):
        found = [[MARKS[0], *each, MARKS[1]] for each in found]
    width = max(map(len, found), default=0)
    out = np.full((len(found), width), call["pad"], object)
    for row, each in zip(out, found, strict=True):
        row[: len(each)] = each
    return out.reshape(*x.shape, width)


def pieces(separator: Pattern, text: str) -> list[str]:
    """The text between matches; an empty match consumes the next character."""
    found, start = [], 0
    while start <= len(text) and (match := separator.search(text, start)):
        begin, end = match
        found.append(text[start:begin])
        start = max(end, begin + 1)
    return [*found, text[start:]]


# ------------------------------------------------------------------------------------ grams


def _count_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(Call(call.op, call.types[:2], {}, loc=call.loc))
    shape = call.shape(0)
    if len(shape) != 2:
        raise call.error("TW1304", f"count_grams takes rows of items, not {call.tensor(0)}")
    return (TensorType(F32, (shape[0], sym.const(call["width"]))),)


def _count(call: Call, x: Array, pool: Array, where: Array) -> Array:
    starts, first, items = [*call["starts"], pool.size], 0, pool.tolist()
    columns: dict[tuple[Any, ...], list[int]] = {}
    sizes = []
    for size, (start, end) in enumerate(itertools.pairwise(starts), 1):
        grams = [tuple(items[at : at + size]) for at in range(start, end, size)]
        if call["least"] <= size <= call["most"] and grams:
            sizes.append(size)
            for gram, column in zip(grams, where[first:].tolist(), strict=False):
                columns.setdefault(gram, []).append(column)
        first += len(grams)
    out = np.zeros((len(x), call["width"]), np.float32)
    for counts, row in zip(out, x.tolist(), strict=True):
        for size in sizes:
            for step in range(1, call["skips"] + 2 if size > 1 else 2):  # unigrams have no gaps
                windows = zip(*(row[place * step :] for place in range(size)), strict=False)
                for window in windows:
                    for column in columns.get(window, ()):
                        counts[column] += 1
    return out


# ------------------------------------------------------------------------------------ match


def _match_type(call: Call) -> tuple[Type, ...]:
    shape = _check_text(call).shape
    _check_pattern(call, call["pattern"])
    return (TensorType(BOOL, shape),)


def _match(call: Call, x: Array) -> Array:
    return each(compiled(call["pattern"]).is_whole, x, bool)


# ------------------------------------------------------------------------------------ lookup


def _lookup_type(call: Call) -> tuple[Type, ...]:
    check_one_dtype(Call(call.op, call.types[:2], {}, loc=call.loc))
    check_one_dtype(Call(call.op, call.types[2:], {}, loc=call.loc))
    return (TensorType(call.tensor(2).dtype, call.tensor(0).shape),)


def _lookup(call: Call, x: Array, keys: Array, values: Array, default: Array) -> Array:
    if not keys.size:
        return np.broadcast_to(default.reshape(()), x.shape)
    # The last of equal keys counts: the first in reverse.
    known, first = np.unique(keys[::-1], return_index=True)
    at = np.minimum(np.searchsorted(known, x), len(known) - 1)
    hit = known[at] == x
    if known.dtype.kind == "f":
        hit |= np.isnan(known[at]) & np.isnan(x)
    return np.asarray(np.where(hit, values[::-1][first[at]], default.reshape(())))


# ------------------------------------------------------------------------------------ conversion


def text_of(array: Array) -> Array:
    """Format numbers: the shortest text that parses to the same number."""
    kind = array.dtype.kind
    if kind == "b":
        return each(lambda item: "1" if item else "0", array, object)
    if kind in "iu":
        return each(str, array, object)
    if kind != "f" or array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    return each(_float_text, np.asarray([*array.ravel()], object).reshape(array.shape), object)


def _float_text(item: Any) -> str:
    if np.isnan(item):
        return "NaN"
    if np.isinf(item):
        return "INF" if item > 0 else "-INF"
    return str(item)


def numbers_of_text(array: Array, to: DType) -> Array:
    """Parse numbers in plain or scientific notation."""
    if to.is_float:
        return each(float, array, np.float64).astype(to.numpy)
    return each(_integer, array, np.int64).astype(to.numpy)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def _text(name: str = "x") -> Input:
    return Input(name, ANY)


OPS = (
    Op(
        "string_concat",
        "Text a followed by text b.",
        (_text("a"), _text("b")),
        _concat_type,
        _concat,
        OPAQUE,
        native=False,
    ),
    Op(
        "string_split",
        "Text split at a delimiter (by default at white space), padded with empty text, and the "
        "numbers of parts.",
        (_text(),),
        _split_type,
        _split,
        OPAQUE,
        (Attr("delimiter", str, ""), Attr("maxsplit", int, None)),
        native=False,
    ),
    Op(
        "normalize_text",
        "Words except stop words, with their case changed; one empty word if none is left.",
        (_text(),),
        _normalize_type,
        _normalize,
        OPAQUE,
        (
            Attr("stopwords", tuple, ()),
            Attr("case", str, "none"),
            Attr("case_sensitive", bool, False),
        ),
        native=False,
    ),
    Op(
        "tokenize",
        "The parts of a text of a minimal length that match a pattern, or that are between "
        "separators, which are applied in order; padded, and optionally between two marks.",
        (_text(),),
        _tokenize_type,
        _tokenize,
        OPAQUE,
        (
            Attr("separators", tuple, ()),
            Attr("pattern", str, ""),
            Attr("least", int, 1),
            Attr("pad", str, ""),
            Attr("mark", bool, False),
        ),
        native=False,
    ),
    Op(
        "count_grams",
        "The number of occurrences of each n-gram of a pool per row, at the columns of `where`. "
        "Those of n items begin in the pool at starts[n - 1]; up to `skips` items are skipped "
        "between two.",
        (Input("x"), Input("pool"), Input("where", INTEGER)),
        _count_type,
        _count,
        OPAQUE,
        (
            Attr("starts", tuple, required=True),
            Attr("least", int, 1),
            Attr("most", int, 1),
            Attr("skips", int, 0),
            Attr("width", int, required=True),
        ),
        native=False,
    ),
    Op(
        "full_match",
        "Whether the whole text matches a regular expression.",
        (_text(),),
        _match_type,
        _match,
        OPAQUE,
        (Attr("pattern", str, required=True),),
        native=False,
    ),
    Op(
        "lookup",
        "For each element the value of the last key equal to it, or the default. NaN equals NaN.",
        (Input("x"), Input("keys"), Input("values"), Input("default")),
        _lookup_type,
        _lookup,
        OPAQUE,
    ),
)
