"""Boxes that are certain: exactly what is written, neither more nor less."""

import itertools

import pytest

from tilewright import sym
from tilewright.sym.evaluate import evaluate
from tilewright.tensor import parse
from tilewright.tensor.schedule.analysis.intervals import at_most, written_box
from tilewright.tensor.schedule.analysis.sites import scope_of
from tilewright.tensor.schedule.analysis.tree import find_block

# The loops, the first of which stands still; the two indices written; the predicate.
BOXES = {
    "a loop per dimension": ("y 0..1, i 0..8, j 0..m", "%i, %j", ""),
    "a split loop": ("y 0..4, i 0..2, k 0..4", "%y * 8 + %i * 4 + %k, 0", ""),
    "a tail": ("y 0..4, i 0..3, k 0..4", "%y * 8 + (%i * 4 + %k), 0", "%i * 4 + %k < 10"),
    "a tail outside": ("y 0..(n + 7) // 8, i 0..8", "%y * 8 + %i, 0", "%y * 8 + %i < n"),
    "cut on both sides": (
        "y 0..n, i 0..3",
        "%y - 1 + %i, 0",
        "0 <= %y - 1 + %i and %y - 1 + %i < n",
    ),
    "two tails": (
        "y 0..(n + 1) // 2, i 0..2, k 0..(m + 2) // 3, l 0..3",
        "%y * 2 + %i, %k * 3 + %l",
        "%y * 2 + %i < n and %k * 3 + %l < m",
    ),
    "a fused loop": ("y 0..2, f 0..12", "%y * 3 + %f // 4, %f % 4", ""),
    "a loop that starts elsewhere": ("y 0..3, i 2..7", "%y * 5 + %i, 1", ""),
    "a loop that drives nothing": ("y 0..3, i 0..4, r 0..5", "%i, %y", ""),
}
NO_BOXES = {
    "a part of a fused loop": ("y 0..3, f 0..4", "(%y * 4 + %f) // 6, (%y * 4 + %f) % 6", ""),
    "a diagonal": ("y 0..3, i 0..4", "%i, %i", ""),
    "gaps": ("y 0..3, i 0..4, k 0..2", "%i * 3 + %k, 0", ""),
    "another condition": ("y 0..3, i 0..4", "%i, 0", "%i % 2 == 0"),
    "a condition on the loop outside": ("y 0..3, i 0..4", "%i, 0", "%y < 2"),
    "a triangle": ("y 0..3, i 0..4, k 0..%i", "%i, %k", ""),
}


def site(loops, index, where):
    """A block under loops that writes an element."""
    heads = [f"for %{name} in {span} {{" for name, span in (x.split(" ", 1) for x in loops)]
    first, second = index.split(", ")
    text = f"""
    func @f(%T: f32[n, m]) stage scheduled {{
      {" ".join(heads)}
      block @T(%u: spatial n = {first}, %v: spatial m = {second}) {{
        {f"where {where}" if where else ""}
        writes %T[%u, %v]
        %T[%u, %v] = 0.0
      }}
      {"}" * len(heads)}
    }}
    """
    path = find_block(parse(text), "T")
    return scope_of(path).site("T")


def found_box(at):
    first, *inner = at.loops
    ctx = sym.EMPTY.bind(first.var, first.start, first.stop)
    return written_box(at.block, at.block.writes[0], inner, ctx)


def points(loops, env):
    """Every assignment of the loops' variables."""
    if not loops:
        yield env
        return
    first, *rest = loops
    for value in range(evaluate(first.start, env), evaluate(first.stop, env)):
        yield from points(rest, {**env, first.var: value})


@pytest.mark.parametrize("name", BOXES)
def test_a_box_is_what_is_written(name):
    text, index, where = BOXES[name]
    made = site(text.split(", "), index, where)
    loops, block = made.loops, made.block
    box = found_box(made)
    assert box is not None
    sizes = block.writes[0].buffer.shape
    for amounts in itertools.product((1, 5, 9, 40), repeat=len(sizes)):
        env = dict(zip(sizes, amounts, strict=True))
        for around in points(loops[:1], env):
            written = {
                tuple(evaluate(value, point) for value in block.bindings)
                for point in points(loops[1:], around)
                if evaluate(block.predicate, point)
            }
            if any(
                at >= size for element in written for at, size in zip(element, amounts, strict=True)
            ):
                continue  # no such buffer
            ranges = []
            for r in box.ranges:
                start, extent = evaluate(r.start, around), evaluate(r.extent, around)
                ranges.append(range(start, start + extent))
            assert written == set(itertools.product(*ranges))


@pytest.mark.parametrize("name", NO_BOXES)
def test_anything_else_is_no_box(name):
    loops, index, where = NO_BOXES[name]
    assert found_box(site(loops.split(", "), index, where)) is None


def test_ends_of_clipped_boxes_compare_case_by_case():
    n, j = sym.size("n"), sym.var("j")
    ctx = sym.EMPTY.bind(j, 0, (n + 3) // 4)
    a = sym.minimum(j * 4 + 6, n + 2)
    b = j * 4 + sym.minimum(6, n + 2 - j * 4)
    assert at_most(a, b, ctx)
    assert at_most(b, a, ctx)
    assert not at_most(b + 1, a, ctx)
    assert not at_most(sym.maximum(n, j), n - 1, ctx)


@pytest.mark.parametrize("tile", [2, 3, 5, 8])
def test_tiles_of_a_size_that_strided_windows_leave_contain_it(tile):
    """Convolutions one behind the other: sizes are maxima of quotients of maxima of quotients."""
    n = sym.var("n")
    length = sym.maximum(n // 5 - 1, 0)
    size = sym.maximum((length + 3) // 4 - 1, 0) + 1
    tiles = (size + (tile - 1)) // tile * tile
    ctx = sym.Context().bind(n, 0, 1 << 40)
    assert at_most(size, sym.simplify(tiles, ctx), ctx)
    assert not at_most(size, sym.simplify(tiles - tile, ctx), ctx)
    fits = [evaluate(size, {n: at}) <= evaluate(tiles - 1, {n: at}) for at in range(200)]
    assert not all(fits)
    assert not at_most(size, sym.simplify(tiles - 1, ctx), ctx)
