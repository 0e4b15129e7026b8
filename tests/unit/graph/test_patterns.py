"""Patterns that match as RE2's do."""

import re

import pytest

from tilewright.graph.patterns import compiled


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"\w+", "été_1", ["t", "_1"]),
        (r"[^\W\d]+", "a1é", ["a"]),
        (r"\S+", "a\u00a0b c", ["a\u00a0b", "c"]),
        (r"\b.", "aé", ["a", "é"]),
        ("[[:upper:][:digit:]]+", "aB1", ["B1"]),
        ("[]a]+", "b]a", ["]a"]),
        ("[:alph]+", "xal:", ["al:"]),
        (r"[\]]", "]", ["]"]),
        ("b$", "b\n", []),
        ("(?m)b$", "b\nb", ["b", "b"]),
        ("a|ab", "aab", ["a", "ab"]),
        (r"ab?\b|a", "abc", ["a"]),
        (r"\|a?", "|a", ["|a"]),
        ("a+?", "aaa", ["aaa"]),
        ("(?i)a|ab", "AB", ["AB"]),
        ("x*", "ax", ["", "x", ""]),
    ],
)
def test_matches(pattern, text, found):
    assert list(compiled(pattern).matches(text)) == found


def test_a_whole_text_is_matched():
    assert compiled("a|ab").is_whole("ab")
    assert not compiled(r"\w").is_whole("é")
    assert not compiled("a$").is_whole("a\n")


@pytest.mark.parametrize("pattern", ["(", "[a", "[[:word", "[[:letters:]]", r"\pL", "\\"])
def test_what_is_none_is_told(pattern):
    with pytest.raises(re.error):
        compiled(pattern)
