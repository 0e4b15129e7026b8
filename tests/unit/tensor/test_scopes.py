"""Memory scopes: declarations, parameters, text."""

import pytest

from tilewright.base.errors import TilewrightError
from tilewright.tensor import Schedule, parse, verify
from tilewright.tensor.parameters import Parameter
from tilewright.tensor.scopes import (
    GLOBAL,
    LOCAL,
    SHARED,
    MemoryScope,
    Owner,
    declare_scope,
    known_scopes,
    memory_of,
)

BANK = declare_scope(
    MemoryScope(
        "scopes_test.bank",
        Owner.UNIT,
        is_addressable=False,
        capacity_bytes=4096,
        alignment_bytes=32,
        parameters=(Parameter("rows", 1, 16, default=16), Parameter("side", 0, 1, default=0)),
    )
)


def refused(text: str) -> TilewrightError:
    with pytest.raises(TilewrightError) as caught:
        memory_of(text)
    return caught.value


def test_what_every_target_has_is_declared():
    assert known_scopes()[:4] == ("global", "shared", "local", "warp")
    assert [memory_of(name) for name in ("global", "shared", "local")] == [GLOBAL, SHARED, LOCAL]


def test_a_member_has_its_parameters():
    member = memory_of("scopes_test.bank(rows=14)")
    assert (member["rows"], member["side"]) == (14, 0)
    assert member.owner is Owner.UNIT
    assert member == BANK.member(rows=14)
    assert member != BANK


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("scopes_test.bank(rows=16)", "scopes_test.bank"),
        ("scopes_test.bank(side=1, rows=2)", "scopes_test.bank(rows=2, side=1)"),
        ("scopes_test.bank()", "scopes_test.bank"),
    ],
)
def test_every_member_has_one_text(text, canonical):
    assert memory_of(text).reference == canonical
    assert memory_of(canonical).reference == canonical


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("lake", "TW2012", "no memory named lake"),
        ("scopes_test.bank14", "TW2012", "no memory named scopes_test.bank14"),
        ("scopes_test.bank(rows=17)", "TW2011", "scopes_test.bank has no member of rows=17"),
        ("scopes_test.bank(rows=0)", "TW2011", "scopes_test.bank has no member of rows=0"),
        ("scopes_test.bank(depth=2)", "TW2011", "scopes_test.bank has no parameter depth"),
        ("shared(rows=2)", "TW2011", "shared has no parameter rows"),
    ],
)
def test_what_is_not_declared_is_refused(text, code, message):
    error = refused(text)
    assert (error.code, error.message) == (code, message)


def test_a_memory_is_declared_once():
    assert declare_scope(BANK) is BANK
    with pytest.raises(TilewrightError, match="declared twice") as caught:
        declare_scope(MemoryScope(BANK.name, Owner.THREAD))
    assert caught.value.code == "TW2012"
    assert memory_of(BANK.name) == BANK


PROGRAM = """
func @f(%A: f32[8], %C: f32[8]) stage scheduled {
  alloc %B: f32[8]
  for %i in 0..8 {
    block @B(%v: spatial 8 = %i) { reads %A[%v] writes %B[%v] %B[%v] = %A[%v] + 1.0 }
  }
  for %j in 0..8 {
    block @C(%w: spatial 8 = %j) { reads %B[%w] writes %C[%w] %C[%w] = %B[%w] * 2.0 }
  }
}
"""


def test_programs_and_traces_name_members():
    sch = Schedule(parse(PROGRAM))
    sch.set_scope(sch.get_block("B"), 0, "scopes_test.bank(side=1, rows=16)")
    made = sch.function
    (buffer,) = made.allocs
    assert buffer.scope == "scopes_test.bank(side=1)"
    assert parse(str(made)) == made
    verify(made)
    again = Schedule(parse(PROGRAM))
    type(sch.trace).parse(str(sch.trace)).apply(again)
    assert str(again.function) == str(made)


def test_copies_are_named_after_the_memory_alone():
    sch = Schedule(parse(PROGRAM))
    copy = sch.cache_read(sch.get_block("C"), 0, "scopes_test.bank(rows=3)")
    assert copy.name == "B_scopes_test.bank"
    assert parse(str(sch.function)) == sch.function


def test_text_that_names_no_memory_says_where():
    with pytest.raises(TilewrightError) as caught:
        parse(PROGRAM.replace("alloc %B: f32[8]", "alloc %B: f32[8] in lake"))
    assert caught.value.code == "TW2012"
    assert "3:" in str(caught.value.loc)


@pytest.mark.parametrize("wrong", ["(rows=2, rows=3)", "(rows)", "(rows=x)", "(2)", "(rows=2"])
def test_parameters_are_numbers_by_name(wrong):
    with pytest.raises(TilewrightError) as caught:
        parse(PROGRAM.replace("alloc %B: f32[8]", f"alloc %B: f32[8] in scopes_test.bank{wrong}"))
    assert caught.value.code == "TW0201"
