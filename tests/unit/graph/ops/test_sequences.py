"""Sequences and optionals."""

import numpy as np
import pytest

from tilewright.base.dtype import F32, I64
from tilewright.base.errors import ExecutionError, UserError, UserTypeError
from tilewright.graph import Builder, SequenceType, TensorType, interpret
from tilewright.graph.types import OptionalType, join, renewed, sizes_of
from tilewright.sym import const, size

A, B = np.arange(3.0, dtype=np.float32), np.arange(2.0, dtype=np.float32)
VECTOR = TensorType(F32, (size("k"),))


def run(op, *arguments, **attributes):
    """One operator over sequences (lists), arrays and None."""
    builder, values, given = Builder(), [], []
    for at, argument in enumerate(arguments):
        if argument is None:
            values.append(None)
            continue
        of = SequenceType(VECTOR)
        if not isinstance(argument, list):
            argument = np.asarray(argument)
            of = TensorType(
                I64 if argument.dtype == np.int64 else F32, tuple(map(const, argument.shape))
            )
        values.append(builder.param(f"x{at}", of))
        given.append(argument)
    made = builder.add(op, *values, **attributes)
    (result,) = interpret(builder.module(made), *given, check=True)
    return result


def lists(value):
    return [item.tolist() for item in value]


def test_making_and_asking():
    made = run("sequence", A, B)
    assert lists(made) == [A.tolist(), B.tolist()]
    assert run("sequence_length", made) == 2
    assert run("sequence_at", made, np.int64(-1)).tolist() == B.tolist()
    assert run("sequence_empty", of=F32) == []


@pytest.mark.parametrize(
    ("position", "want"), [(None, [0, 1, 9]), (0, [9, 0, 1]), (-1, [0, 9, 1]), (2, [0, 1, 9])]
)
def test_insertion(position, want):
    items = [np.full(1, n, np.float32) for n in (0, 1)]
    at = None if position is None else np.int64(position)
    made = run("sequence_insert", items, np.full(1, 9, np.float32), at)
    assert [int(item[0]) for item in made] == want


@pytest.mark.parametrize(("position", "want"), [(None, [0, 1]), (0, [1, 2]), (-2, [0, 2])])
def test_removal(position, want):
    items = [np.full(1, n, np.float32) for n in (0, 1, 2)]
    at = None if position is None else np.int64(position)
    assert [int(item[0]) for item in run("sequence_erase", items, at)] == want


def test_positions_outside_are_faults():
    for op, position in (("sequence_at", 2), ("sequence_erase", -3)):
        with pytest.raises(ExecutionError, match="TW1017"):
            run(op, [A, B], np.int64(position))
    with pytest.raises(ExecutionError, match="TW1017"):
        run("sequence_insert", [A], B, np.int64(2))


def test_cutting():
    x = np.arange(5.0, dtype=np.float32)
    assert lists(run("split_to_sequence", x, axis=0)) == [[n] for n in range(5)]
    assert [item.shape for item in run("split_to_sequence", x, axis=0, keepdims=False)] == [()] * 5
    assert lists(run("split_to_sequence", x, np.int64(2), axis=0)) == [[0, 1], [2, 3], [4]]
    assert lists(run("split_to_sequence", x, np.array([1, 4]), axis=0)) == [[0], [1, 2, 3, 4]]
    with pytest.raises(ExecutionError, match="TW1017"):
        run("split_to_sequence", x, np.array([1, 1]), axis=0)


def test_joining():
    np.testing.assert_array_equal(run("concat_from_sequence", [A, B], axis=0), [0, 1, 2, 0, 1])
    stacked = run("concat_from_sequence", [A, A + 1], axis=-1, new_axis=True)
    np.testing.assert_array_equal(stacked, np.stack([A, A + 1], -1))


def test_a_sequence_has_one_type():
    with pytest.raises(UserTypeError, match="TW1309"):
        run("sequence", A, np.array([1]))
    with pytest.raises(UserTypeError, match="TW1310"):
        run("sequence_at", A, np.int64(0))


def test_sizes_of_elements_stay_inside():
    builder = Builder()
    items = builder.param("items", SequenceType(VECTOR))
    one, two = (builder.add("sequence_at", items, builder.constant(np.int64(n))) for n in (0, 1))
    assert not sizes_of(one.type).keys() & sizes_of(two.type).keys()


# ------------------------------------------------------------------------------------ optionals


def test_optionals_hold_or_not():
    builder = Builder()
    x = builder.param("x", TensorType(F32, (const(3),)))
    full, empty = builder.add("optional", x), builder.add("optional", of=TensorType(F32, None))
    asked = [builder.add("optional_has_element", value) for value in (full, empty)]
    got = builder.add("optional_get_element", full)
    assert got.type == x.type
    yes, no, value = interpret(builder.module(*asked, got), A, check=True)
    assert yes
    assert not no
    np.testing.assert_array_equal(value, A)


def test_nothing_cannot_be_taken_out():
    builder = Builder()
    empty = builder.add("optional", of=TensorType(F32, (const(3),)))
    with pytest.raises(ExecutionError, match="TW1017"):
        interpret(builder.module(builder.add("optional_get_element", empty)))
    with pytest.raises(UserError, match="TW1311"):
        Builder().add("optional")


# ------------------------------------------------------------------------------------ types


def test_join_covers_both():
    n = size("n")
    a, b = TensorType(F32, (n, const(2))), TensorType(F32, (n, const(3)))
    both = join(a, b)
    assert both.shape[0] is n
    assert both.shape[1] not in (const(2), const(3))
    assert join(a, a) == a
    assert join(a, TensorType(F32, (n,))) == TensorType(F32, None)
    assert join(a, TensorType(I64, (n, const(2)))) is None
    assert join(SequenceType(a), a) is None
    assert join(OptionalType(a), a) == OptionalType(a)
    assert join(SequenceType(a), SequenceType(a)) == SequenceType(a)


def test_renewed_hides_sizes():
    n, m = size("n"), size("m")
    of = TensorType(F32, (n, m, n + m, const(4)))
    made = renewed(of, keep={n: None})
    assert made.shape[0] is n
    assert made.shape[3] == const(4)
    assert m not in sizes_of(made)
