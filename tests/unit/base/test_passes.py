"""Passes run in order, report what they do, and fail with a reproducer."""

from pathlib import Path

import pytest

from tilewright.base.errors import CompilerBug, UserError
from tilewright.base.passes import PassContext, parse_passes, run_passes


def add_one(program: int, ctx: PassContext) -> int:
    return program + 1


def double(program: int, ctx: PassContext) -> int:
    return program * int(ctx.option("double.factor", 2))


def keep(program: int, ctx: PassContext) -> int:
    return program


def crash(program: int, ctx: PassContext) -> int:
    return program // 0


KNOWN = {step.__name__: step for step in (add_one, double, keep, crash)}


def test_passes_run_in_order() -> None:
    assert run_passes(3, (add_one, double)) == 8
    assert run_passes(3, (double, add_one)) == 7


def test_the_context_keeps_times_and_shows_every_step() -> None:
    seen = []
    ctx = PassContext(observers=(lambda *step: seen.append(step),))
    run_passes(3, (add_one, keep), ctx)
    assert seen == [("add_one", 3, 4), ("keep", 4, 4)]
    assert list(ctx.timings) == ["add_one", "keep"]


def test_a_list_of_passes_is_read_with_its_options() -> None:
    passes, options = parse_passes("add_one, double{factor = 5}", KNOWN)
    assert run_passes(1, passes, PassContext(options=options)) == 10
    values = parse_passes('keep{a = -1, b = 2.5, c = "x", d = true}', KNOWN)[1]
    assert values == {"keep.a": -1, "keep.b": 2.5, "keep.c": "x", "keep.d": True}


def test_an_unknown_pass_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        parse_passes("nonsense", KNOWN)
    assert "add_one, double, keep, crash" in caught.value.help


def test_an_option_of_another_type_is_refused() -> None:
    with pytest.raises(UserError, match=r"double\.factor is 'x'"):
        run_passes(1, (double,), PassContext(options={"double.factor": "x"}))


def test_a_crash_leaves_a_reproducer() -> None:
    with pytest.raises(CompilerBug) as caught:
        run_passes(3, (add_one, crash, keep))
    assert caught.value.message == (
        "pass crash failed: ZeroDivisionError: integer division or modulo by zero"
    )
    path = Path(caught.value.help.split()[4])
    assert path.read_text() == "// passes: crash,keep\n4"
    path.unlink()
