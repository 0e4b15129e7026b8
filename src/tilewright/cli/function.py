"""Tensor functions on the command line: `tilewright run f.tw`, with or without `--interp`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.cli import common
from tilewright.runtime.module import Spec

if TYPE_CHECKING:
    from tilewright.tensor.ir import Function

Outcome = tuple[list[str], list[Any], list[Any] | None]


def run_function(
    path: Path,
    inputs: Path | None,
    dims: Sequence[str] | None,
    seed: int,
    target: str,
    threads: int,
    interp: bool,
    check: bool,
) -> Outcome:
    """Run a function; names of its outputs, their values, and the interpreter's if requested."""
    from tilewright.codegen.build import CompiledFunction, build
    from tilewright.tensor import interpret, parse
    from tilewright.tensor.visit import output_buffers

    fn = parse(common.read_text(path))
    arrays = common.make_inputs(_specs(fn), inputs, dims, seed)
    written = output_buffers(fn)
    places = [at for at, param in enumerate(fn.params) if param in written]
    names = [fn.params[at].name for at in places]

    def outputs(of: list[Any]) -> list[Any]:
        return [of[at] for at in places]

    native, reference = [np.array(a) for a in arrays], [np.array(a) for a in arrays]
    if interp or check:
        with common.progress("interpreting"):
            interpret(fn, *reference)
    if interp:
        return names, outputs(reference), None
    with common.progress(f"compiling {path.name}"):
        run = build(fn, target)
    if isinstance(run, CompiledFunction):
        run(*native, threads=threads)
    else:
        run(*native)
    return names, outputs(native), outputs(reference) if check else None


def _specs(fn: Function) -> list[Spec]:
    """Describe parameters as inputs; a scalar is an array of rank 0."""
    from tilewright.sym import Const

    made = []
    for param in fn.params:
        shape = getattr(param, "shape", ())
        dims = tuple(int(dim.value) if isinstance(dim, Const) else str(dim) for dim in shape)
        made.append(Spec(param.name, param.dtype, dims))
    return made
