"""Whose an intermediate is: one answer for schedules, checks of kernels and lowering."""

import pytest

from tilewright.base.passes import PassContext
from tilewright.tensor import ir, parse
from tilewright.tensor.ir import For
from tilewright.tensor.ownership import is_apart_along, is_shared_between, owning_memory
from tilewright.tensor.passes.bind_threads import bind_threads
from tilewright.tensor.schedule.analysis.movable import memory_used_at
from tilewright.tensor.schedule.analysis.tree import find_block
from tilewright.tensor.scopes import GLOBAL, LOCAL, SHARED, WARP, memory_of

BLOCKS, THREADS = "thread(blockIdx.x)", "thread(threadIdx.x)"

# the loops around both a writer and a reader, from the outermost in -> whose it is
CASES = [
    ((), "global"),
    (("",), "global"),
    (("parallel",), "global"),
    (("vthread",), "global"),
    ((BLOCKS,), "shared"),
    ((BLOCKS, ""), "shared"),
    ((BLOCKS, THREADS), "local"),
    ((BLOCKS, THREADS, "unroll"), "local"),
    ((BLOCKS, "vthread"), "local"),
    ((BLOCKS, "vector"), "local"),
    (("vthread", BLOCKS), "shared"),
    ((THREADS,), "local"),
]


def program(loops: tuple[str, ...]) -> ir.Function:
    text = "".join(f"for %i{at} in {kind} 0..4 {{\n" for at, kind in enumerate(loops))
    body = """
      block @B() { reads %A[0] writes %B[0] %B[0] = %A[0] }
      block @C() { reads %B[0] writes %C[0] %C[0] = %B[0] }
    """
    return parse(
        "func @f(%A: f32[1], %C: f32[1]) stage scheduled {\nalloc %B: f32[1]\n"
        + text
        + body
        + "}" * len(loops)
        + "}"
    )


def loop(thread: str) -> For:
    body = program((thread,)).body
    assert isinstance(body, For)
    return body


@pytest.mark.parametrize(("loops", "expected"), CASES)
def test_the_loops_around_all_uses_tell(loops, expected):
    fn = program(loops)
    paths = [find_block(fn, name) for name in ("B", "C")]
    assert memory_used_at(GLOBAL, paths).name == expected
    around = [stmt for stmt in paths[0] if isinstance(stmt, For)]
    assert owning_memory(GLOBAL, around).name == expected


@pytest.mark.parametrize(("loops", "expected"), CASES)
def test_lowering_moves_it_there(loops, expected):
    (buffer,) = bind_threads(program(loops), PassContext()).allocs
    assert buffer.scope == expected


def test_a_declared_scope_has_the_last_word():
    around = [loop(BLOCKS), loop(THREADS)]
    for scope in (SHARED, LOCAL, WARP):
        assert owning_memory(scope, around) is scope


def test_who_shares_a_buffer():
    blocks, threads, serial = loop(BLOCKS), loop(THREADS), loop("")
    shared = {
        scope.name: [is_shared_between(scope, each) for each in (blocks, threads, serial)]
        for scope in (GLOBAL, SHARED, LOCAL)
    }
    assert shared == {
        "global": [True, True, False],
        "shared": [False, True, False],
        "local": [False, False, False],
    }
    apart = {
        scope.name: [is_apart_along(scope, level) for level in (ir.BLOCK_LEVEL, ir.THREAD_LEVEL)]
        for scope in (GLOBAL, SHARED, LOCAL)
    }
    assert apart == {"global": [False, False], "shared": [True, False], "local": [True, True]}


def test_the_level_of_a_loop():
    assert [each.level for each in (loop(BLOCKS), loop(THREADS), loop(""))] == [
        "blockIdx",
        "threadIdx",
        "",
    ]
    assert memory_of("shared").owner is SHARED.owner
