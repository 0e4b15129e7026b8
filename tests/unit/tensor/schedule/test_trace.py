"""Traces: text and JSON, exact replay, other decisions, all or nothing."""

import json
import math
from typing import Any

import numpy as np
import pytest

from tilewright import te
from tilewright.base.errors import ScheduleError, UserError, UserTypeError
from tilewright.tensor import Function, interpret, parse
from tilewright.tensor.ir import Value
from tilewright.tensor.passes import lower
from tilewright.tensor.schedule import Decision, Schedule, Trace
from tilewright.tensor.schedule.trace import PRIMITIVES


def matmul(n: int = 24, m: int = 32, k: int = 16) -> Function:
    A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
    D = te.compute((n, m), lambda i, j: C[i, j] + 1.0, name="D")
    return te.function([A, B, D], name="matmul")


def scheduled(fn: Function, seed: int = 0) -> Schedule:
    """Steps of all kinds: sampled factors, references, tuples, strings, None."""
    sch = Schedule(fn, seed=seed)
    C, D = sch.get_block("C"), sch.get_block("D")
    i, j, r = sch.get_loops(C)
    io, ii = sch.split(i, sch.sample_tile(i, n=2, max_innermost=8))
    jo, ji = sch.split(j, [None, sch.sample_choice([4, 8, 16], [1.0, 2.0, 0.5])])
    sch.reorder(io, jo, r, ii, ji)
    sch.parallel(io)
    sch.vectorize(ji)
    sch.annotate(r, "shape", (1, "two", (2.5, True)))
    sch.annotate(C, "cost", math.inf)
    sch.transform_layout(C, ("write", 0), lambda i, j: (j, i))
    sch.reverse_compute_at(D, io)
    sch.decompose_reduction(C, r)
    return sch


def test_text_and_json_read_back() -> None:
    trace = scheduled(matmul()).trace
    assert Trace.parse(str(trace)) == trace
    assert Trace.from_json(trace.to_json()) == trace
    assert hash(Trace.parse(str(trace))) == hash(trace)
    assert repr(trace) == f"<Trace of {len(trace)} steps>"
    assert isinstance(json.loads(trace.to_json()), list)


def test_text_is_as_documented() -> None:
    sch = Schedule(matmul())
    block = sch.get_block("C")
    i, _, _ = sch.get_loops(block)
    sch.split(i, sch.sample_tile(i, n=2, decision=[6, 4]))
    assert str(sch.trace) == (
        "b0 = get_block(name='C')\n"
        "l0, l1, l2 = get_loops(block=b0)\n"
        "d0, d1 = sample_tile(loop=l0, n=2, max_innermost=64) @ [6, 4]\n"
        "l3, l4 = split(loop=l0, factors=[d0, d1])\n"
    )


@pytest.mark.parametrize("seed", range(5))
def test_replay_gives_the_same_program(seed: int) -> None:
    sch = scheduled(matmul(), seed)
    for trace in (
        sch.trace,
        Trace.parse(str(sch.trace)),
        Trace.from_json(sch.trace.to_json()),
    ):
        again = Schedule(matmul(), seed=seed + 1)
        trace.apply(again)
        assert again.function == sch.function
        assert again.trace == sch.trace


def test_replay_with_other_decisions() -> None:
    sch = scheduled(matmul())
    tile, choice = sch.trace.decisions
    other = Schedule(matmul())
    sch.trace.with_decisions({tile: [3, 8], choice: [2]}).apply(other)
    assert other.trace.decisions == {tile: (3, 8), choice: (2,)}
    assert other.function != sch.function
    a, b = np.ones((24, 16), np.float32), np.ones((16, 32), np.float32)
    for fn in (other.function, lower(other.function)):
        d = np.zeros((24, 32), np.float32)
        interpret(fn, a, b, d)
        assert (d == 17).all()


def test_replay_on_another_size() -> None:
    sch = Schedule(matmul())
    i, _, _ = sch.get_loops(sch.get_block("C"))
    io, _ = sch.split(i, [None, 5])
    sch.parallel(io)
    other = Schedule(matmul(n=31))
    sch.trace.apply(other)
    assert "0..7" in str(other.function)


def test_a_refused_replay_leaves_nothing() -> None:
    sch = scheduled(matmul())
    tile, _ = sch.trace.decisions
    other = Schedule(matmul())
    block = other.get_block("D")
    before = other.trace
    with pytest.raises(ScheduleError) as caught:
        sch.trace.with_decisions({tile: [5, 5]}).apply(other)
    assert caught.value.code == "TW2112"
    assert other.function == matmul()
    assert other.trace == before
    other.parallel(other.get_loops(block)[0])  # what was handed out before is still good


def test_a_refused_primitive_leaves_nothing() -> None:
    sch = Schedule(matmul())
    _, _, r = sch.get_loops(sch.get_block("C"))
    fn, trace = sch.function, sch.trace
    with pytest.raises(ScheduleError) as caught:
        sch.parallel(r)
    assert sch.function is fn
    assert sch.trace == trace
    assert caught.value.context == (
        "@matmul, after schedule step 2: l0, l1, l2 = get_loops(block=b0), in parallel"
    )


def test_an_argument_that_cannot_be_recorded_leaves_nothing() -> None:
    sch, other = Schedule(matmul()), Schedule(matmul())
    i, _, _ = sch.get_loops(sch.get_block("C"))
    same = Schedule(sch.function)
    with pytest.raises(UserError) as caught:
        same.parallel(i)  # the loop is there, but this schedule has not handed it out
    assert caught.value.code == "TW2192"
    assert same.function is sch.function
    with pytest.raises(ScheduleError) as gone:
        other.parallel(i)
    assert gone.value.code == "TW2101"
    with pytest.raises(UserError) as caught:
        sch.annotate(i, "what", object())  # type: ignore[arg-type]
    assert caught.value.code == "TW2117"
    assert len(sch.trace) == 2
    assert sch.function is same.function


def test_numpy_numbers_are_numbers() -> None:
    sch = Schedule(matmul())
    i, _, r = sch.get_loops(sch.get_block("C"))
    sch.annotate(i, "x", (np.float64(2.5), np.int32(3)))  # type: ignore[arg-type]
    assert "[x = (2.5, 3,)]" in str(sch.function)
    sch.rfactor(r, np.int64(0))  # type: ignore[arg-type]
    again = Schedule(matmul())
    Trace.from_json(sch.trace.to_json()).apply(again)
    assert again.function == sch.function


def test_copies_and_checkpoints() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.get_loops(sch.get_block("C"))
    point = sch.checkpoint()
    copy = sch.copy()
    sch.parallel(i)
    copy.vectorize(copy.split(j, [None, 8])[1])
    assert "parallel" in str(sch.function)
    assert "parallel" not in str(copy.function)
    sch.restore(point)
    assert sch.function == matmul()
    sch.unroll(i)
    assert "unroll" in str(sch.function)


def test_decisions_are_numbers() -> None:
    sch = Schedule(matmul(), seed=3)
    i, _, _ = sch.get_loops(sch.get_block("C"))
    a, b = sch.sample_tile(i, n=2)
    assert isinstance(a, Decision)
    assert a * b == 24
    sch.split(i, [None, b + 0])  # arithmetic leaves the trace: a plain number
    assert str(sch.trace).splitlines()[-1].endswith(f"split(loop=l0, factors=[None, {int(b)}])")


def test_sampling_follows_the_seed() -> None:
    def drawn(seed: int) -> list[int]:
        sch = Schedule(matmul(), seed=seed)
        i, _, _ = sch.get_loops(sch.get_block("C"))
        return [int(x) for _ in range(4) for x in sch.sample_tile(i, n=3, max_innermost=4)]

    assert drawn(1) == drawn(1)
    assert len({tuple(drawn(seed)) for seed in range(6)}) > 1
    for seed in range(6):
        factors = drawn(seed)
        for at in range(0, 12, 3):
            assert math.prod(factors[at : at + 3]) == 24
            assert factors[at + 2] <= 4


@pytest.mark.parametrize(
    "text",
    ["split(", "x = 3", "b0 = get_block(name=open)(1)", "l0 = get_loops(block=1 + 1)", "1 @ [2]"],
)
def test_text_that_is_no_trace(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Trace.parse(text)
    assert caught.value.code == "TW2190"


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '[{"primitive": "split"}]', '[{"a": 1}]', "[[]]"]
)
def test_json_that_is_no_trace(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Trace.from_json(text)
    assert caught.value.code == "TW2190"


@pytest.mark.parametrize(
    "text",
    [
        "restore(point=1)",  # not a primitive
        "_apply(step='split')",
        "nothing(x=1)",
        "b0 = get_block()",  # an argument is missing
        "b0 = get_block(name='C', also=1)",
        "parallel(loop=l7)",  # comes from nowhere
        "b0, b1 = get_block(name='C')",  # one result, not two
        "get_block(name='C') @ [1]",  # decides nothing
    ],
)
def test_traces_that_do_not_fit(text: str) -> None:
    sch = Schedule(matmul())
    with pytest.raises(UserError) as caught:
        Trace.parse(text).apply(sch)
    assert caught.value.code == "TW2191"
    assert len(sch.trace) == 0


def test_only_scheduled_functions_are_scheduled() -> None:
    for thing in (3, lower(matmul())):
        with pytest.raises(UserTypeError) as caught:
            Schedule(thing)  # type: ignore[arg-type]
        assert caught.value.code == "TW2193"


def test_references_are_of_their_kind() -> None:
    sch = Schedule(matmul())
    block = sch.get_block("C")
    loops = sch.get_loops(block)
    for call in (
        lambda: sch.parallel(block),  # type: ignore[arg-type]
        lambda: sch.get_loops(loops[0]),  # type: ignore[arg-type]
        lambda: sch.get_loops("C"),  # type: ignore[arg-type]
        lambda: sch.tensorize("C", "x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserTypeError) as caught:
            call()
        assert caught.value.code == "TW2194"
    assert repr(block) == "<block @C>"
    assert repr(loops[0]) == "<loop %i>"


def test_an_intrinsic_goes_into_the_trace_by_name() -> None:
    w, x = te.placeholder((8, 4), name="w"), te.placeholder((4, 8), name="x")
    r = te.reduce_axis((0, 4), name="r")
    y = te.compute((8, 8), lambda i, j: te.sum(w[i, r] * x[r, j], axis=r), name="y")
    gemm = te.decl_tensor_intrin(y.op, lambda i, o: (None, None, None), name="trace_gemm")
    sch = Schedule(matmul())
    i, j, k = sch.get_loops(sch.get_block("C"))
    io, ii = sch.split(i, [None, 8])
    jo, ji = sch.split(j, [None, 8])
    ko, ki = sch.split(k, [None, 4])
    sch.reorder(io, jo, ko, ii, ji, ki)
    sch.tensorize(ii, gemm)
    assert str(sch.trace).splitlines()[-1] == (
        "tensorize(block_or_loop=l4, tensor_intrin='trace_gemm')"
    )
    again = Schedule(matmul())
    Trace.from_json(sch.trace.to_json()).apply(again)
    assert again.function == sch.function


def test_the_list_of_primitives_is_that_of_the_schedule() -> None:
    no_steps = {"apply", "attempt", "checkpoint", "copy", "function", "restore", "take_refusals"}
    no_steps |= {"abandon", "tile", "trace"}
    public = {name for name in dir(Schedule) if not name.startswith("_")}
    assert public - no_steps == PRIMITIVES


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("l = get_loops(b0)", "TW2190"),
        ("l = get_loops(**b0)", "TW2190"),
        ("l.x = get_loops(block=b0)", "TW2190"),
        ("l = get_loops(block=b0) + [1]", "TW2190"),
        ("l = foo(x=1)", "TW2191"),
        ("restore(state=1)", "TW2191"),
    ],
)
def test_lines_that_mean_nothing_are_refused_at_once(text: str, code: str) -> None:
    with pytest.raises(UserError) as caught:
        Trace.parse(text)
    assert caught.value.code == code


def test_unknown_steps_in_json_are_refused_at_once() -> None:
    with pytest.raises(UserError) as caught:
        Trace.from_json('[{"primitive": "foo", "arguments": {}, "results": []}]')
    assert caught.value.code == "TW2191"


@pytest.mark.parametrize(
    "value",
    [
        "two\nlines",
        "\r\t\x00\x85\u2028",
        'a "quote" and \\n',
        "gr\u00fcn",
        "\ud800",
        math.nan,
        -math.inf,
        (math.nan, (-math.inf, "\n")),
    ],
)
def test_any_annotation_reads_back(value: Value) -> None:
    sch = Schedule(matmul())
    sch.annotate(sch.get_block("C"), "note", value)
    assert parse(str(sch.function)) == sch.function
    assert len(str(sch.trace).splitlines()) == len(sch.trace)
    for again in (Trace.parse(str(sch.trace)), Trace.from_json(sch.trace.to_json())):
        assert again == sch.trace
        other = Schedule(matmul())
        again.apply(other)
        assert other.function == sch.function


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("a\nb", 1),
        ('a"b', 1),
        ("", 1),
        (3, 1),
        ("k", None),
        ("k", [1, None]),
        ("k", b"x"),
        ("k", np.zeros(2)),
    ],
)
def test_annotations_without_a_text_are_refused(key: Any, value: Any) -> None:
    sch = Schedule(matmul())
    with pytest.raises(ScheduleError) as caught:
        sch.annotate(sch.get_block("C"), key, value)
    assert caught.value.code == "TW2117"


def test_split_takes_any_integer_but_no_boolean() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.get_loops(sch.get_block("C"))
    sch.split(i, [None, np.int64(4)])
    assert Trace.parse(str(sch.trace)) == sch.trace
    for bad in (True, np.True_, 4.0, "4", 0):
        with pytest.raises(ScheduleError) as caught:
            sch.split(j, [None, bad])  # type: ignore[list-item]
        assert caught.value.code == "TW2104"


@pytest.mark.parametrize("memory", ["foo", "", "shared memory", "amx."])
def test_a_memory_that_nobody_has_is_refused_with_the_list(memory: str) -> None:
    sch = Schedule(matmul())
    with pytest.raises(ScheduleError) as caught:
        sch.cache_read(sch.get_block("C"), 0, memory)
    assert caught.value.code == "TW2139"
    assert "global, shared, local, warp" in caught.value.help


def test_what_was_refused_is_forgotten_with_what_was_done() -> None:
    sch = Schedule(matmul())
    i, j, _ = sch.get_loops(sch.get_block("C"))
    assert not sch.attempt(sch.split, i, [None, None])
    point = sch.checkpoint()

    def shared() -> None:
        sch.parallel(i)
        sch.split(j, [None, None])

    assert not sch.attempt(shared)
    assert sch.function == point.function, "half of it was done"
    assert [text.split(":")[0] for text in sch.copy().take_refusals()] == ["split", "shared"]
    sch.restore(point)
    sch.parallel(i)
    with pytest.raises(ScheduleError) as caught:
        sch.split(j, [None, None])
    sch.abandon(point, "columns", caught.value)
    assert sch.function == point.function
    assert [text.split(":")[0] for text in sch.take_refusals()] == ["split", "columns"]
