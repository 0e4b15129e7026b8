"""Where the values of a model lie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.graph import ir
from tilewright.graph.ir import Graph, Node, Value
from tilewright.graph.memory import plan_memory
from tilewright.graph.types import TensorType
from tilewright.runtime import _native
from tilewright.sym import const, size


def tensor(name: str, *dims: object) -> Value:
    return Value(name, TensorType(F32, tuple(const(d) if isinstance(d, int) else d for d in dims)))


def kernel(inputs: list[Value], output: Value, **more: object) -> Node:
    return Node("kernel", tuple(inputs), (output,), ir.attributes(**more))


def chain(length: int, *dims: object) -> Graph:
    """Each value from the one before."""
    x = tensor("x", *dims)
    values = [x, *(tensor(f"v{at}", *dims) for at in range(length))]
    nodes = [kernel([a], b) for a, b in itertools.pairwise(values)]
    return Graph("main", (x,), tuple(nodes), (values[-1],))


def test_values_whose_lives_do_not_meet_share_memory():
    plan = plan_memory(chain(6, 16))
    assert plan.arena_bytes == 128 == plan.floor_bytes()


def test_results_are_computed_where_the_caller_wants_them():
    graph = chain(1, 16)
    plan = plan_memory(graph)
    assert plan.outputs == {graph.results[0]: 0}
    assert not plan.slots


def test_a_kernel_takes_the_memory_of_what_it_reads_last():
    x, a, b, c = (tensor(name, 16) for name in "xabc")
    nodes = (kernel([x], a), kernel([a], b, in_place=((0, 0),)), kernel([b], c))
    graph = Graph("main", (x,), nodes, (c,))
    assert plan_memory(graph).arena_bytes == 64
    assert plan_memory(graph).root(b) is a
    assert plan_memory(graph, in_place=False).arena_bytes == 128


@pytest.mark.parametrize("again", ["later", "twice"])
def test_an_operand_read_again_keeps_its_memory(again):
    x, a, b, c = (tensor(name, 16) for name in "xabc")
    second = [a, a] if again == "twice" else [a]
    last = [b, a] if again == "later" else [b]
    nodes = (kernel([x], a), kernel(second, b, in_place=((0, 0),)), kernel(last, c))
    plan = plan_memory(Graph("main", (x,), nodes, (c,)))
    assert plan.arena_bytes == 128


def test_sizes_of_the_inputs_are_planned_at_run_time():
    n = size("n")
    plan = plan_memory(chain(3, n, 4))
    assert plan.offsets is None
    assert [str(slot.size_bytes) for slot in plan.slots] == ["n * 16", "n * 16"]


def test_sizes_that_only_the_run_tells_are_late():
    n = size("n")
    x, a, b = tensor("x", 4), tensor("a", n), tensor("b", n)
    told = Value("told", TensorType(F32, (const(1),)))
    nodes = (
        kernel([x], told),
        Node("sizes", (told,), (), ir.attributes(sizes=(n,), label="")),
        kernel([x], a),
        kernel([a], b),
    )
    plan = plan_memory(Graph("main", (x,), nodes, (b,)))
    assert plan.late == {a}
    assert plan.last_use[a] is nodes[3]


def test_values_that_share_memory_share_its_middle():
    """Two threads halve each: what a thread writes over lies in its own core's cache."""
    sizes = (1024, 1024, 512, 512, 256)
    offsets, total = _native.plan_arena(sizes, (0, 1, 1, 2, 2, 3, 3, 4, 4, 5))
    middles = [offset + size // 2 for offset, size in zip(offsets, sizes, strict=True)]
    assert middles == [512, 1536, 512, 1536, 512]
    assert total == 2048


def test_a_middle_is_given_up_where_it_would_cost_memory():
    sizes, steps = (1024, 512, 512), (0, 1, 2, 3, 2, 3)
    offsets, total = _native.plan_arena(sizes, steps)
    assert total == 1024
    assert sorted(offsets[1:]) == [0, 512]


def test_random_plans_keep_what_is_alive_apart():
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(1, 40))
        sizes = tuple(int(s) for s in rng.integers(0, 5000, count))
        first = rng.integers(0, 50, count)
        last = first + rng.integers(0, 10, count)
        steps = tuple(int(s) for pair in zip(first, last, strict=True) for s in pair)
        offsets, total = _native.plan_arena(sizes, steps)
        for i in range(count):
            assert offsets[i] % 64 == 0
            assert offsets[i] + sizes[i] <= total
            for j in range(i):
                meet = first[i] <= last[j] and first[j] <= last[i]
                apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
                assert apart or not meet or 0 in (sizes[i], sizes[j])


def test_a_state_is_replaced_in_its_own_memory_once_nothing_reads_it():
    x, h, a, b = (tensor(name, 8) for name in "xhab")
    graph = Graph("main", (x, h), (kernel([h], a), kernel([a], b)), (a, b))
    assert plan_memory(graph, states=1).outputs == {a: 0, b: 1}


def test_a_state_that_is_read_later_is_replaced_in_the_end():
    x, h, a, b = (tensor(name, 8) for name in "xhab")
    graph = Graph("main", (x, h), (kernel([x], b), kernel([h], a)), (a, b))
    plan = plan_memory(graph, states=1)
    assert plan.outputs == {a: 0}
    assert [slot.value for slot in plan.slots] == [b]


@pytest.mark.parametrize("pairs", [(), ((1, 0),)])
def test_a_kernel_replaces_the_state_it_reads_where_it_works_in_place(pairs):
    x, h, b = (tensor(name, 8) for name in "xhb")
    graph = Graph("main", (x, h), (kernel([x, h], b, in_place=pairs),), (b,))
    assert plan_memory(graph, states=1).outputs == ({b: 0} if pairs else {})
