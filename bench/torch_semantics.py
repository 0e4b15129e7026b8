"""Comparison of programs under torch.compile with eager mode.

    python bench/torch_semantics.py [--filter REGEX] [--jobs 2] [--backend tilewright]

Each program of `torch_programs.py` runs in eager and under `torch.compile`, in a process of its
own. All that can be seen must be the same: values, element types, shapes, strides, which results
share memory with which inputs and results, what became of the inputs.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
import torch
from report import Figure
from torch.utils import _pytree as pytree
from torch_programs import PROGRAMS

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from workers import Lost, run_jobs

from tilewright.plugins.torch import tilewright

OURS = "tilewright"  # by its function: an entry point needs the package to be installed
SECONDS = 300.0  # for one program
SAME = "as eager"


def run_program(job: tuple[str, str]) -> str:
    """What one program does otherwise than in eager; SAME where nothing."""
    name, backend = job
    program = {each.__name__: each for each in PROGRAMS}[name]
    torch.set_num_threads(2)
    want = program(lambda fn: fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            chosen = tilewright if backend == OURS else backend
            made = program(lambda fn: torch.compile(fn, backend=chosen))
        except Exception as error:
            text = " ".join(str(error).split())
            return f"{type(error).__name__}: {text[:200]}"
    return difference(want, made)


def difference(want: Any, made: Any) -> str:
    """The first thing in which two structures of results differ."""
    wants, spec = pytree.tree_flatten(want)
    mades, other = pytree.tree_flatten(made)
    if spec != other:
        return f"results in the structure {other}, not {spec}"
    for at, (one, two) in enumerate(zip(wants, mades, strict=True)):
        found = _differs(one, two)
        if found:
            return f"result {at}: {found}"
    sharing, shared = _sharing(wants), _sharing(mades)
    return SAME if sharing == shared else f"memory is shared as {shared}, not {sharing}"


def _differs(want: Any, made: Any) -> str:
    if not isinstance(want, torch.Tensor):
        return "" if want == made and type(want) is type(made) else f"{made!r}, not {want!r}"
    for what in ("dtype", "shape", "requires_grad"):
        one, two = getattr(want, what), getattr(made, what)
        if one != two:
            return f"{what} {two}, not {one}"
    if _strides(want) != _strides(made):
        return f"strides {made.stride()}, not {want.stride()} of {list(want.shape)}"
    try:
        torch.testing.assert_close(made, want, equal_nan=True, rtol=2e-5, atol=2e-5)
    except AssertionError as error:
        if want.dtype is torch.bfloat16 and torch.allclose(made, want, rtol=2e-2, atol=2e-2):
            return ""
        return " ".join(str(error).split())[:160]
    return ""


def _strides(x: torch.Tensor) -> tuple[int, ...]:
    """Strides along axes of more than one element: of others they say nothing."""
    if x.numel() == 0:
        return ()
    return tuple(step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1)


def _sharing(leaves: Sequence[Any]) -> list[tuple[int, int]]:
    """For each tensor, the first on the same memory, and how far behind it this one begins."""
    firsts: dict[int, int] = {}
    found: list[tuple[int, int]] = []
    for at, x in enumerate(leaves):
        if isinstance(x, torch.Tensor) and x.numel():
            first = firsts.setdefault(x.untyped_storage().data_ptr(), at)
            found.append((first, x.storage_offset() if first != at else 0))
    return found


def measure(options: argparse.Namespace) -> list[Figure]:
    names = [each.__name__ for each in PROGRAMS if re.search(options.filter, each.__name__)]
    jobs = [(name, options.backend) for name in names]
    ends = run_jobs("torch_semantics", "run_program", jobs, workers=options.jobs, seconds=SECONDS)
    same = 0
    for (name, _), end in report.tracked(ends, "programs", len(jobs)):
        outcome = end.why if isinstance(end, Lost) else end
        same += outcome == SAME
        if outcome != SAME:
            print(f"{name}: {outcome}", flush=True)
    whole = len(names) == len(PROGRAMS)
    return [
        Figure("programs", len(names), "programs"),
        report.at_least(SAME, same, "programs", len(PROGRAMS) if whole else len(names)),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", default="", help="a regular expression on names of programs")
    parser.add_argument("--jobs", type=int, default=2, help="programs run at a time")
    parser.add_argument("--backend", default=OURS, help="another backend to compare with")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
