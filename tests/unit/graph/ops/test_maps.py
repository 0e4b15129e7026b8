"""Maps from keys to numbers."""

import numpy as np
import pytest

from tilewright.base.dtype import F32, I64, STR
from tilewright.base.errors import ExecutionError, UserError
from tilewright.graph import Builder, MapType, SequenceType, interpret, parse
from tilewright.graph.ops.maps import MOST_AT_ONCE
from tilewright.graph.verify import verify


def run(op, of, value, **attributes):
    builder = Builder()
    made = builder.add(op, builder.param("x", of), **attributes)
    module = builder.module(made)
    verify(module)
    assert parse(str(module)) == module
    (result,) = interpret(module, value, check=True)
    return result


def test_rows_become_maps(run_op):
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert run_op("zip_map", x, keys=("a", "b"), symbolic=False) == [
        {"a": 1.0, "b": 2.0},
        {"a": 3.0, "b": 4.0},
    ]
    with pytest.raises(UserError, match="TW1015"):
        run_op("zip_map", x, keys=("a",), symbolic=False)


def test_maps_become_rows():
    words, numbers = MapType(STR, F32), MapType(I64, F32)
    made = run("map_to_vector", words, {"a": 4.0, "c": 8.0}, keys=("a", "c", "b"))
    assert made.tolist() == [[4.0, 8.0, 0.0]]
    entries = {3: 2.5, 1: 7.0}
    assert run("map_to_tensor", numbers, entries).tolist() == [[7.0, 2.5]]
    assert run("map_to_tensor", numbers, entries, width=5).tolist() == [[0, 7.0, 0, 2.5, 0]]
    assert run("map_to_tensor", numbers, entries, to=I64).tolist() == [[7, 2]]
    assert run("map_to_tensor", numbers, entries, to=STR).tolist() == [["7.0", "2.5"]]
    with pytest.raises(ExecutionError, match="TW1017"):
        run("map_to_tensor", numbers, entries, width=2)


def test_maps_have_a_type():
    assert str(SequenceType(MapType(STR, F32))) == "seq<map<str, f32>>"


@pytest.mark.parametrize("count", [1, MOST_AT_ONCE, MOST_AT_ONCE + 1, 1000])
def test_maps_of_few_keys_and_of_many(run_op, count):
    x = np.arange(2 * count, dtype=np.float32).reshape(2, count)
    keys = tuple(range(100, 100 + count))
    made = run_op("zip_map", x, keys=keys, symbolic=False)
    assert made == [{100 + at: float(row[at]) for at in range(count)} for row in x]
