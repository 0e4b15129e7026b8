"""Every public name has an example in its docstring, and it runs as written."""

import doctest
import importlib
import inspect
import sys
from dataclasses import fields
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))

import primitives  # noqa: E402
from names import PARTS, names_of  # noqa: E402

NAMES = [(PARTS[part][2], name) for part in PARTS for name in names_of(part)]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[f"{m}.{n}" for m, n in NAMES])
def test_a_name_has_an_example_that_runs(module, name):
    value = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(value) or ""
    assert "\nExamples:\n" in text
    example = text.partition("\nExamples:\n")[2]
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, None)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_name_of_the_package_is_on_a_page():
    front = importlib.import_module("tilewright")
    modules = {name for name in front.__all__ if inspect.ismodule(getattr(front, name))}
    assert not set(front.__all__) - modules - {name for _, name in NAMES}


def test_every_option_of_compile_is_documented():
    from tilewright.driver.compile import compile
    from tilewright.driver.options import Options

    said = inspect.getdoc(compile)
    taken = inspect.signature(compile).parameters
    assert not [f.name for f in fields(Options) if f.name not in taken and f"`{f.name}" not in said]


def test_every_primitive_has_a_program_before_and_after_it():
    from tilewright.tensor import Schedule, parse

    queries = {"function", "trace", "copy", "checkpoint", "restore", "attempt", "abandon"}
    queries |= {"take_refusals"}
    queries |= {name for name in vars(Schedule) if name.startswith(("_", "get_"))} | {"decide"}
    assert set(vars(Schedule)) - queries == set(primitives.names())
    for name in primitives.names():
        _, calls, before, after = primitives.example(name)
        assert f"sch.{name}(" in calls
        assert parse(before) != parse(after) or name == "unannotate"
