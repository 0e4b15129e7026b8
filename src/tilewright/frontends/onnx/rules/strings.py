"""String operators: split, concatenate, match, map, count; and image decoding."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tilewright.base.dtype import F32
from tilewright.frontends.onnx.rules.base import Context, Rule, Skip
from tilewright.graph import Value
from tilewright.graph.types import items_of
from tilewright.sym import Const

MAX_WIDTH = 1 << 24  # limit of sizes given by a single number


def _string_split(node: Context) -> tuple[Value, ...]:
    made = {"delimiter": node.attr("delimiter", ""), "maxsplit": node.attr("maxsplit")}
    return node.emit_many("string_split", node[0], outputs=2, **made)


def _string_normalizer(node: Context) -> Value:
    return node.emit(
        "normalize_text",
        node[0],
        stopwords=tuple(node.attr("stopwords", ())),
        case=node.attr("case_change_action", "NONE").lower(),
        case_sensitive=bool(node.attr("is_case_sensitive", 0)),
    )


def _tfidf(node: Context) -> Value:
    """The weighted number of occurrences of each n-gram of a pool per row."""
    strings, integers = node.attr("pool_strings"), node.attr("pool_int64s")
    pool = np.asarray(integers, np.int64) if strings is None else np.asarray(strings, object)
    x, rank = node[0], node.rank()
    if rank == 1:
        x = node.unsqueeze(x, 0)
    if strings is None and x.tensor.dtype.bits < 64:
        pool = pool.astype(x.tensor.dtype.numpy)
    where = node.attr("ngram_indexes")
    width = max(where) + 1
    if width > MAX_WIDTH:
        raise Skip(f"TfIdfVectorizer with {width} columns")
    length = node.dims(x)[1]
    if strings is None and isinstance(length, Const):
        counts = _compared(node, x, pool, int(length.value), width)
    else:
        given = {"starts": node.attr("ngram_counts"), "skips": node.attr("max_skip_count")}
        given |= {"least": node.attr("min_gram_length"), "most": node.attr("max_gram_length")}
        columns = node.constant(np.asarray(where, np.int64))
        counts = node.emit("count_grams", x, node.constant(pool), columns, width=width, **given)
    scaled = _weighted(node, counts, where, width)
    return node.reshape(scaled, (width,)) if rank == 1 else scaled


def _compared(node: Context, x: Value, pool: Any, length: int, width: int) -> Value:
    """The number of occurrences of each n-gram per row, by comparing all windows with all
    n-grams."""
    starts, where = [*node.attr("ngram_counts"), len(pool)], node.attr("ngram_indexes")
    least, most = node.attr("min_gram_length"), node.attr("max_gram_length")
    skips, first, parts, targets = node.attr("max_skip_count"), 0, [], []
    for size, (start, end) in enumerate(itertools.pairwise(starts), 1):
        grams = pool[start:end].reshape(-1, size)
        indexes, first = where[first : first + len(grams)], first + len(grams)
        if not least <= size <= most or not len(grams):
            continue
        parts.append(_gram_counts(node, x, length, grams, skips))
        targets.extend(indexes)
    (rows,) = items_of(node.dims(x)[:1])
    blank = node.emit("expand", node.constant(np.float32(0)), shape=(rows, width))
    if not parts:
        return blank
    counts = node.emit("concat", *parts, axis=1)
    index = node.constant(np.asarray(targets, np.int64).reshape(1, -1))
    index = node.emit("expand", index, shape=items_of(node.dims(counts)))
    return node.emit("scatter_elements", blank, index, counts, axis=1, reduction="add")


def _gram_counts(node: Context, x: Value, length: int, grams: Any, skips: int) -> Value:
    """The number of occurrences of each n-gram, f32[rows, grams]; unigrams have no gaps."""
    size = grams.shape[1]
    total: Value | None = None
    for skip in range(skips + 1 if size > 1 else 1):
        step = skip + 1
        count = length - (size - 1) * step
        if count <= 0:
            break
        hits: Value | None = None
        for place in range(size):
            start = place * step
            window = node.emit("slice", x, starts=(start,), ends=(start + count,), axes=(1,))
            words = node.constant(np.ascontiguousarray(grams[:, place]).reshape(-1, 1))
            same = node.emit("equal", node.unsqueeze(window, 1), words)
            hits = same if hits is None else node.emit("logical_and", hits, same)
        assert hits is not None
        found = node.emit("cast", hits, to=F32)
        found = node.emit("reduce_sum", found, axes=(2,), keepdims=False)
        total = found if total is None else node.emit("add", total, found)
    if total is not None:
        return total
    shape = (*items_of(node.dims(x)[:1]), len(grams))
    return node.emit("expand", node.constant(np.float32(0)), shape=shape)


def _weighted(node: Context, counts: Value, where: tuple[int, ...], width: int) -> Value:
    mode = node.attr("mode")
    if mode == "TF":
        return counts
    if mode == "IDF":
        counts = node.emit("minimum", counts, 1.0)
    weights = np.ones(width, np.float32)
    given = node.attr("weights")
    if given is not None:
        weights[list(where)] = given
    return node.emit("mul", counts, node.constant(weights))


def lookup(node: Context, x: Value, keys: Any, values: Any, default: Any) -> Value:
    """Map elements of x from keys to values."""
    parts = [np.ravel(keys), np.ravel(values), np.asarray(default).reshape(())]
    return node.emit("lookup", x, *(node.constant(part) for part in parts))


def _regex(node: Context) -> Value:
    return node.emit("full_match", node[0], pattern=node.attr("pattern"))


def _image_decoder(node: Context) -> Value:
    return node.emit("decode_image", node[0], pixels=node.attr("pixel_format", "RGB"))


RULES: dict[str, Rule] = {
    "StringConcat": lambda node: node.emit("string_concat", node[0], node[1]),
    "StringSplit": _string_split,
    "StringNormalizer": _string_normalizer,
    "RegexFullMatch": _regex,
    "TfIdfVectorizer": _tfidf,
    "ImageDecoder": _image_decoder,
}
