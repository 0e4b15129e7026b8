"""What differential tests share: native code against the interpreter, by the tolerances."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tolerances import check_close

from tilewright.codegen.build import build
from tilewright.tensor import Function, parse
from tilewright.tensor.interp import interpret


@pytest.fixture
def agree() -> Callable[..., None]:
    """Runs a program natively and in the interpreter and compares all its arrays."""

    def check(program: str | Function, *args: Any, reduction: int = 1, target: str = "cpu") -> None:
        fn = parse(program) if isinstance(program, str) else program
        native = [np.copy(arg) for arg in args]
        reference = [np.copy(arg) for arg in args]
        build(fn, target)(*native)
        interpret(fn, *reference)
        for got, want in zip(native, reference, strict=True):
            check_close(got, want, reduction)

    return check


@pytest.fixture
def close() -> Callable[..., None]:
    """The comparison by the table of tolerances."""
    return check_close


@pytest.fixture
def narrow_weights(rng: np.random.Generator) -> Callable[..., Any]:
    """Weights of bytes whose products with other bytes ONNX Runtime adds exactly everywhere: on
    processors without VNNI it adds them in pairs that saturate at 16 bits."""
    return lambda *shape: rng.integers(-64, 64, shape, np.int8, endpoint=True)
