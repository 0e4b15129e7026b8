"""Families of intrinsics: parameters instead of numbers inside names."""

import numpy as np
import pytest

from tilewright.base.errors import TilewrightError
from tilewright.tensor import Schedule, Trace, interpret, lower, parse
from tilewright.tensor.intrin import TensorIntrin, declare_family, intrinsic
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope


def _copy(n: int, by: int) -> TensorIntrin:
    return TensorIntrin(
        "intrin_test.copy",
        parse(
            f"""
            func @copy(%X: f32[{n}], %Y: f32[{n}]) stage scheduled {{
              for %i in 0..{n} {{
                block @Y(%v: spatial {n} = %i) {{
                  reads %X[%v]
                  writes %Y[%v]
                  %Y[%v] = %X[%v] * {by}.0
                }}
              }}
            }}
            """
        ),
    )


declare_family(
    "intrin_test.copy", (Parameter("n", 1, 64), Parameter("by", 1, None, default=1)), _copy
)

PROGRAM = """
func @f(%A: f32[16], %C: f32[16]) stage scheduled {
  for %i in 0..16 {
    block @C(%v: spatial 16 = %i) { reads %A[%v] writes %C[%v] %C[%v] = %A[%v] * 1.0 }
  }
}
"""


def scheduled(**parameters: int) -> Schedule:
    sch = Schedule(parse(PROGRAM))
    (i,) = sch.get_loops(sch.get_block("C"))
    _, inner = sch.split(i, [None, 4])
    sch.tensorize(inner, "intrin_test.copy", **parameters)
    return sch


def test_a_member_is_made_once():
    assert intrinsic("intrin_test.copy", n=4) is intrinsic("intrin_test.copy", by=1, n=4)
    assert intrinsic("intrin_test.copy", n=4) is not intrinsic("intrin_test.copy", n=5)
    assert intrinsic("intrin_test.copy", n=4, by=2).reference == "intrin_test.copy(n=4, by=2)"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "intrin_test.copy needs its parameter n"),
        ({"n": 0}, "intrin_test.copy has no member of n=0"),
        ({"n": 65}, "intrin_test.copy has no member of n=65"),
        ({"n": 4, "m": 1}, "intrin_test.copy has no parameter m"),
    ],
)
def test_other_parameters_are_refused(parameters, message):
    with pytest.raises(TilewrightError) as caught:
        intrinsic("intrin_test.copy", **parameters)
    assert (caught.value.code, caught.value.message) == ("TW2011", message)
    assert "n: 1..64; by: 1 or more (default 1)" in caught.value.help


def test_a_family_replaces_nothing():
    with pytest.raises(TilewrightError, match="is declared already") as caught:
        declare_family("intrin_test.copy", (), _copy)
    assert caught.value.code == "TW2013"


def test_numbers_may_come_in_steps():
    width = Parameter("n", 8, 24, multiple=8)
    assert [n for n in range(40) if width.allows(n)] == [8, 16, 24]
    assert str(width) == "n: 8..24 in steps of 8"


def test_text_names_the_member():
    made = scheduled(n=4, by=1).function
    assert "call intrin_test.copy(n=4).compute(%A[" in str(made)
    assert parse(str(made)) == made
    assert str(parse(str(made))) == str(made)


@pytest.mark.parametrize(
    "call", ["intrin_test.copy(n=4)", "intrin_test.copy(n=4).sum", "intrin_test.copy(n=).compute"]
)
def test_text_of_a_call_is_checked(call):
    text = str(scheduled(n=4).function)
    with pytest.raises(TilewrightError) as caught:
        parse(text.replace("intrin_test.copy(n=4).compute", call))
    assert caught.value.code == "TW0201"


def test_the_trace_keeps_parameters():
    sch = scheduled(n=4, by=1)
    assert "tensor_intrin='intrin_test.copy', n=4)" in str(sch.trace)
    for again in (Trace.parse(str(sch.trace)), Trace.from_json(sch.trace.to_json())):
        replayed = Schedule(parse(PROGRAM))
        again.apply(replayed)
        assert replayed.function == sch.function
        assert again == sch.trace


def test_a_parameter_may_be_a_decision():
    sch = Schedule(parse(PROGRAM))
    (i,) = sch.get_loops(sch.get_block("C"))
    outer, inner = sch.sample_tile(i, 2, 16, decision=[2, 8])
    _, vector = sch.split(i, [outer, inner])
    sch.tensorize(vector, "intrin_test.copy", n=inner)
    (step,) = [line for line in str(sch.trace).splitlines() if line.startswith("tensorize")]
    assert step.endswith("n=d1)")
    (sampled,) = sch.trace.decisions
    replayed = Schedule(parse(PROGRAM))
    sch.trace.with_decisions({sampled: (4, 4)}).apply(replayed)
    assert "copy(n=4).compute" in str(replayed.function)


def test_a_trace_with_a_parameter_that_does_not_exist_is_refused():
    sch = scheduled(n=4)
    with pytest.raises(TilewrightError) as caught:
        Trace.parse(str(sch.trace).replace("n=4)", "n=4, m=2)")).apply(Schedule(parse(PROGRAM)))
    assert caught.value.code == "TW2011"


def test_a_member_that_does_something_else_does_not_match():
    with pytest.raises(TilewrightError, match=r"with intrin_test.copy\(n=4, by=3\)"):
        scheduled(n=4, by=3)


def test_interpreter_and_lowering_take_the_member():
    x = np.arange(16, dtype=np.float32)
    for fn in (scheduled(n=4).function, lower(scheduled(n=4).function, "cpu")):
        y = np.zeros(16, np.float32)
        interpret(fn, x, y)
        np.testing.assert_array_equal(y, x)


def test_an_intrinsic_on_memory_takes_no_registers_of_a_unit():
    declare_scope(MemoryScope("intrin_test.registers", Owner.UNIT, is_addressable=False))
    declare_scope(MemoryScope("intrin_test.buffer", Owner.UNIT))
    for scope, matches in (("intrin_test.buffer", True), ("intrin_test.registers", False)):
        sch = Schedule(parse(PROGRAM))
        block = sch.get_block("C")
        sch.cache_read(block, 0, scope)
        (i,) = sch.get_loops(block)
        _, inner = sch.split(i, [None, 4])
        if matches:
            sch.tensorize(inner, "intrin_test.copy", n=4)
            continue
        with pytest.raises(TilewrightError, match=r"is in intrin_test\.registers memory"):
            sch.tensorize(inner, "intrin_test.copy", n=4)
