"""What tests of operators share: run one, with its types checked, on numbers and on sizes."""

from typing import Any

import numpy as np
import pytest

from tilewright.base.dtype import from_numpy
from tilewright.graph import Builder, Module, TensorType, interpret
from tilewright.graph.parser import parse
from tilewright.sym import const, size


def build(
    op: str, arrays: Any, attributes: dict[str, Any], outputs: int, *, symbolic: bool
) -> tuple[Module, list[Any]]:
    """A module of one node over arrays, of known shapes or with a size for every dimension."""
    builder = Builder()
    values, given = [], []
    for at, array in enumerate(arrays):
        if array is None:
            values.append(None)
            continue
        array = np.asarray(array)
        dims = tuple(
            size(f"n{at}_{a}") if symbolic else const(d) for a, d in enumerate(array.shape)
        )
        values.append(builder.param(f"x{at}", TensorType(from_numpy(array.dtype), dims)))
        given.append(array)
    results = builder.add_many(op, *values, outputs=outputs, **attributes)
    return builder.module(*results), given


def bits(array: Any) -> Any:
    """What two equal arrays share, NaN included."""
    return array.tolist() if array.dtype == object else array.tobytes()


@pytest.fixture
def run_op():
    """Runs an operator; every result is held against its type, of numbers and of sizes.

    Sizes must not be needed where `symbolic` is off: an attribute that depends on them, say.
    """

    def run(
        op: str, *arrays: Any, outputs: int = 1, symbolic: bool = True, **attributes: Any
    ) -> Any:
        module, given = build(op, arrays, attributes, outputs, symbolic=False)
        made = interpret(module, *given, check=True)
        assert parse(str(module), module.constants) == module
        if symbolic:
            other, given = build(op, arrays, attributes, outputs, symbolic=True)
            again = interpret(other, *given, check=True)
            for one, two in zip(made, again, strict=True):
                assert one.shape == two.shape
                assert bits(one) == bits(two)
        return made[0] if outputs == 1 else made

    return run


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers, the same for a test whenever it runs."""
    return np.random.default_rng(sum(map(ord, request.node.name)))
