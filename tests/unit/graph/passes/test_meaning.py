"""Passes keep the meaning of models: their texts, run before and after on random numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtype import F32
from tilewright.base.errors import CompilerBug, ExecutionError
from tilewright.base.passes import PassContext, parse_passes, run_passes
from tilewright.graph import interpret, passes
from tilewright.graph.parser import parse
from tilewright.graph.types import TensorType, Type
from tilewright.sym import evaluate, free_vars

FOLDER = Path(__file__).parents[3] / "ir" / "graph"
OTHERS = ("lower_precision", "recognize_integers")  # rounds; is a part of other passes
EXTENTS = (4, 3, 5)  # of sizes, in the order in which they appear


def _cases() -> Iterator[Any]:
    for file in sorted(FOLDER.glob("*.tw")):
        if file.stem in OTHERS:
            continue
        for text in file.read_text().split("// ====\n"):
            lines = text.splitlines()
            name = lines[0].removeprefix("// test:").strip()
            wanted = lines[1].removeprefix("// passes:")
            program = text.split("// ---- becomes")[0]
            yield pytest.param(program, wanted, id=f"{file.stem}: {name}")


def _argument(of: Type, sizes: dict[Any, int], rng: np.random.Generator) -> Any:
    assert isinstance(of, TensorType)
    assert of.shape is not None
    for variable in free_vars(*of.shape):
        sizes.setdefault(variable, EXTENTS[len(sizes) % len(EXTENTS)])
    shape = [evaluate(dim, sizes) for dim in of.shape]
    if of.dtype is F32:
        return rng.uniform(-1, 1, shape).astype(np.float32)
    return rng.integers(0, 2 if of.dtype.is_bool else 3, shape).astype(of.dtype.numpy)


@pytest.mark.parametrize(("program", "wanted"), list(_cases()))
def test_a_pass_keeps_the_meaning_of_its_examples(program: str, wanted: str) -> None:
    module = parse(program)
    known = {name: getattr(passes, name) for name in dir(passes)}
    chosen, options = parse_passes(wanted, known)
    changed = run_passes(module, chosen, PassContext(options=options))
    sizes: dict[Any, int] = {}
    rng = np.random.default_rng(0)
    arguments = [_argument(param.type, sizes, rng) for param in module.main.params]
    try:
        want = interpret(module, *arguments, check=True)
    except (ExecutionError, CompilerBug):  # an index out of range, another length than is declared
        pytest.skip("random numbers are no input of it")
    got = interpret(changed, *arguments, check=True)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
