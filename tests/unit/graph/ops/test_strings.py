"""Text."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.base.dtype import F32, I64, STR
from tilewright.base.errors import UserError, UserTypeError


def text(*words):
    return np.array(words, object)


def test_concat_broadcasts(run_op):
    made = run_op("string_concat", text("a", "b").reshape(2, 1), text("x", "yz"))
    assert made.tolist() == [["ax", "ayz"], ["bx", "byz"]]
    with pytest.raises(UserTypeError, match="TW1314"):
        run_op("string_concat", np.zeros(2), np.zeros(2))


def test_split_pads_with_nothing(run_op):
    parts, counts = run_op("string_split", text("a,b,c", "d", ""), outputs=2, delimiter=",")
    assert parts.tolist() == [["a", "b", "c"], ["d", "", ""], ["", "", ""]]
    assert counts.tolist() == [3, 1, 1]
    parts, counts = run_op("string_split", text("  a  b ", ""), outputs=2)
    assert parts.tolist() == [["a", "b"], ["", ""]]
    assert counts.tolist() == [2, 0]
    parts, _ = run_op("string_split", text("a,b,c"), outputs=2, delimiter=",", maxsplit=1)
    assert parts.tolist() == [["a", "b,c"]]


def test_normalize(run_op):
    words = text("Monday", "tuesday", "WEDNESDAY")
    made = run_op("normalize_text", words, stopwords=("monday",), case="upper")
    assert made.tolist() == ["TUESDAY", "WEDNESDAY"]
    made = run_op("normalize_text", words, stopwords=("monday",), case_sensitive=True)
    assert made.tolist() == words.tolist()
    made = run_op("normalize_text", words[None], stopwords=tuple(words.tolist()), symbolic=False)
    assert made.tolist() == [[""]]
    for attributes in ({"case": "title"}, {}):
        x = words if attributes else words.reshape(1, 1, 3)
        with pytest.raises(UserError):
            run_op("normalize_text", x, **attributes)


def test_match(run_op):
    made = run_op("full_match", text("abb", "ab!", ""), pattern="ab*")
    assert made.tolist() == [True, False, False]
    with pytest.raises(UserError, match="TW1316"):
        run_op("full_match", text("a"), pattern="(")


def test_lookup(run_op):
    made = run_op("lookup", text("b", "z"), text("a", "b"), np.array([4, 5]), np.array(-1))
    assert made.tolist() == [5, -1]
    x = np.array([1.0, np.nan, 3.0])
    made = run_op("lookup", x, np.array([np.nan, 1.0]), text("none", "one"), np.array("?", object))
    assert made.tolist() == ["one", "none", "?"]


def test_of_equal_keys_the_last_counts(run_op):
    made = run_op("lookup", np.array([1, 2]), np.array([1, 1]), np.array([5, 6]), np.array(0))
    assert made.tolist() == [6, 0]
    none = run_op("lookup", np.array([1]), np.zeros(0, np.int64), np.zeros(0), np.array(7.0))
    assert none.tolist() == [7.0]


def test_numbers_become_text_and_back(run_op):
    x = np.array([0.1, -2.0, np.inf, -np.inf, np.nan, 1e-30], np.float32)
    made = run_op("cast", x, to=STR)
    assert made.tolist() == ["0.1", "-2.0", "INF", "-INF", "NaN", "1e-30"]
    np.testing.assert_array_equal(run_op("cast", made, to=F32), x)
    assert run_op("cast", np.array([7, -8]), to=STR).tolist() == ["7", "-8"]
    assert run_op("cast", np.array([True, False]), to=STR).tolist() == ["1", "0"]
    small = np.array([1.5], ml_dtypes.bfloat16)
    assert run_op("cast", small, to=STR).tolist() == ["1.5"]
    assert run_op("cast", text("12", " 3.9 ", "1e2"), to=I64).tolist() == [12, 3, 100]


def test_moving_text(run_op):
    x = text("a", "b", "c", "d")
    assert run_op("gather", x, np.array([2, 0]), axis=0).tolist() == ["c", "a"]
    assert run_op("reshape", x, shape=(2, 2)).tolist() == [["a", "b"], ["c", "d"]]
    assert run_op("concat", x, x[:1], axis=0).tolist() == ["a", "b", "c", "d", "a"]
    assert run_op("equal", x, text("b")).tolist() == [False, True, False, False]
    assert run_op("where", x == "b", x, text("-")).tolist() == ["-", "b", "-", "-"]


def test_tokens_are_matches_or_what_separators_leave(run_op):
    words = text("a bc,d", "", "e")
    made = run_op("tokenize", words, separators=(" ", ","), pad="#", symbolic=False)
    assert made.tolist() == [["a", "bc", "d"], ["#", "#", "#"], ["e", "#", "#"]]
    made = run_op("tokenize", words, pattern="[a-z]+", least=2, mark=True, symbolic=False)
    assert made.tolist() == [["\x02", "bc", "\x03"], ["\x02", "\x03", ""], ["\x02", "\x03", ""]]
    assert run_op("tokenize", words, separators=("x*",), symbolic=False).shape == (3, 0)
    with pytest.raises(UserError, match="TW1316"):
        run_op("tokenize", words, pattern="(")


def test_counting_grams_skips_items_between(run_op):
    x = text("a", "b", "c", "a", "c").reshape(1, 5)
    pool, where = text("a", "c", "a", "c"), np.array([2, 0, 1])
    grams = {"starts": (0, 2), "most": 2, "width": 3}
    assert run_op("count_grams", x, pool, where, **grams).tolist() == [[2, 1, 2]]
    assert run_op("count_grams", x, pool, where, skips=1, **grams).tolist() == [[2, 2, 2]]
    with pytest.raises(UserError, match="TW1304"):
        run_op("count_grams", x[0], pool, where, **grams)
