"""Numbers that were fitted by hand are few, counted, and each says what it is for.

What a constant says of a processor belongs to the machine model (`base/machine.py`,
`base/multiprocessor.py`). What is left in rules and graph passes is bounded here: whoever adds a
number takes another away. In rules every number has a name: a literal in an expression is 0, 1 or
2, or speaks of an axis. A table counts as one constant, however many candidates it lists, and so
does a name; candidates that are computed from the target's record count as none.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
FOLDERS = ("rules", "graph/passes", "graph/fusion")
LIMIT = 39  # as many as there are
GRAPH_LIMIT = 12  # of the modules that passes share, `graph/*.py`
NAMED = ("rules/*.py", "rules/match/*.py", "rules/cpu/*.py", "rules/gpu/*.py")  # without literals
PLAIN = (0, 1, 2)
AXES = ("axis", "axes", "perm")


# What a constant may be counted in: the last word of its name.
UNITS = frozenset(
    "boxes bytes channels choices chunks columns cycles draws elements kernels loads nodes "
    "operations panels parts positions ratio rows score sequences share sites slots spatial "
    "speedup stages tails tiles times turns vectors".upper().split()
)


@dataclass(frozen=True)
class Constant:
    place: str  # file:line
    name: str
    reason: str  # the comment on its line


def constants(source: str, file: str) -> Iterator[Constant]:
    """The upper-case names of a module that are bound to numbers."""
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for stmt in ast.parse(source).body:
        if not isinstance(stmt, (ast.Assign, ast.AnnAssign)) or stmt.value is None:
            continue
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
        lines = range(stmt.lineno, (stmt.end_lineno or stmt.lineno) + 1)
        reason = next((comments[line] for line in lines if line in comments), "")
        for name in _names(targets):
            if name.isupper() and _is_numeric(stmt.value):
                yield Constant(f"{file}:{stmt.lineno}", name, reason)


def _names(targets: list[ast.expr]) -> Iterator[str]:
    for target in targets:
        if isinstance(target, ast.Tuple):
            yield from _names(target.elts)
        elif isinstance(target, ast.Name):
            yield target.id


def _is_numeric(value: ast.expr) -> bool:
    """Whether an expression is a number, or made of numbers alone."""
    match value:
        case ast.Constant(value=number):
            return isinstance(number, (int, float)) and not isinstance(number, bool)
        case ast.UnaryOp(operand=operand):
            return _is_numeric(operand)
        case ast.BinOp(left=left, right=right):  # `4 * KB` is a number too
            sides = [each for each in (left, right) if not isinstance(each, ast.Name)]
            return bool(sides) and all(_is_numeric(each) for each in sides)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts):
            return bool(parts) and all(_is_numeric(part) for part in parts)
        case _:
            return False


def literals(source: str) -> Iterator[ast.Constant]:
    """Numbers in a module that have no name: neither plain ones nor axes, ranks and indices."""
    tree = ast.parse(source)
    named = [stmt for stmt in tree.body if isinstance(stmt, (ast.Assign, ast.AnnAssign))]
    passed = {id(node) for stmt in named for node in ast.walk(stmt)}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=index):
                passed |= {id(each) for each in ast.walk(index)}
            case ast.keyword(arg=name, value=value) if name in AXES:
                passed |= {id(each) for each in ast.walk(value)}
            case ast.Compare(left=ast.Call(func=ast.Name("len")), comparators=ranks):
                passed |= {id(each) for each in ranks}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or id(node) in passed:
            continue
        if isinstance(node.value, (int, float)) and node.value not in PLAIN:
            yield node


def literal_shifts(source: str) -> Iterator[ast.BinOp]:
    """Powers of two that are written as shifts, but for those with a name of the module."""
    tree = ast.parse(source)
    named = [stmt for stmt in tree.body if isinstance(stmt, (ast.Assign, ast.AnnAssign))]
    passed = {id(node) for stmt in named for node in ast.walk(stmt)}
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left=ast.Constant(), op=ast.LShift(), right=ast.Constant()):
                if id(node) not in passed:
                    yield node


@cache
def _all() -> list[Constant]:
    return _in(sorted(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py")))


def _shared() -> list[Constant]:
    """Of what graph passes have in common."""
    return _in(sorted((PACKAGE / "graph").glob("*.py")))


def _in(files: list[Path]) -> list[Constant]:
    return [
        each
        for path in files
        for each in constants(path.read_text(), str(path.relative_to(PACKAGE)))
    ]


@pytest.mark.parametrize("case", [(_all, LIMIT), (_shared, GRAPH_LIMIT)], ids=["all", "shared"])
def test_the_numeric_constants_of_rules_and_passes_are_few(case):
    find, limit = case
    found = find()
    listed = "\n".join(f"{each.place} {each.name}: {each.reason}" for each in found)
    assert len(found) <= limit, f"{len(found)} constants, {limit} allowed:\n{listed}"


def test_every_numeric_constant_says_what_it_is_for():
    found = [*_all(), *_shared()]
    silent = [f"{each.place} {each.name}" for each in found if not each.reason]
    assert not silent, "no comment on the line of " + ", ".join(silent)


def test_the_name_of_every_numeric_constant_ends_in_its_unit():
    im2col = PACKAGE / "graph/im2col.py"
    found = [*_all(), *constants(im2col.read_text(), "graph/im2col.py")]
    bare = [f"{each.place} {each.name}" for each in found if each.name.split("_")[-1] not in UNITS]
    assert not bare, "no unit at the end of " + ", ".join(bare)


def test_numbers_in_rules_have_names():
    files = sorted(path for pattern in NAMED for path in PACKAGE.glob(pattern))
    assert len(files) > 50
    found = [
        f"{path.relative_to(PACKAGE)}:{each.lineno}: {each.value}"
        for path in files
        for each in literals(path.read_text())
    ]
    assert not found, "literals without a name:\n" + "\n".join(found)


def test_no_size_in_a_pass_is_a_bare_shift():
    """Thresholds have names, which say what they count."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted((PACKAGE / "graph/passes").glob("*.py"))
        for node in literal_shifts(path.read_text())
    ]
    assert not found, "sizes without a name: " + ", ".join(found)


def test_bare_shifts_are_found():
    source = "MOST_BYTES = 1 << 20\ndef f(x, n):\n    return x > 1 << 20 or x > 1 << n\n"
    assert [each.lineno for each in literal_shifts(source)] == [3]


def test_literals_are_found_but_for_axes_ranks_and_plain_ones():
    source = (
        "LIMIT = 3\n"
        "def f(x, most=7):\n"
        "    if len(x) < 4 or x[5] > 2 * x[-6]:\n"
        "        return g(x, axes=(3,), scale=8) + 0.5\n"
        "    return 1 if True else 2\n"
    )
    assert sorted(each.value for each in literals(source)) == [0.5, 7, 8]


def test_constants_are_found_in_every_form():
    source = (
        "A = 3  # rows\n"
        "B, C = 1.5, 2\n"
        "D: int = -4 * KB  # bytes\n"
        "E = (8, 4)\n"
        "F = {2: 1, 4: (3, 5)}  # by size\n"
        "WORD, FLAG, small, RULE = 'n', True, 3, f(3)\n"
        "WORDS = ('a', 'b')\n"
        "def f():\n    INSIDE = 3\n"
    )
    found = list(constants(source, "m.py"))
    assert [(each.name, each.reason) for each in found] == [
        ("A", "rows"),
        ("B", ""),
        ("C", ""),
        ("D", "bytes"),
        ("E", ""),
        ("F", "by size"),
    ]
    assert [each.place for each in found[:3]] == ["m.py:1", "m.py:2", "m.py:2"]
