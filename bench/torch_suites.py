"""PyTorch's own tests of modules, control flow and export, run on Tilewright.

    python bench/torch_suites.py [--suites modules,flow,programs] [--filter REGEX] [--jobs 2]
                                 [--failures] [--journal FILE] [--stop-after SECONDS]

modules: every entry of `module_db`, outputs and gradients, under torch.compile, as one graph where
torch can trace it so, fallbacks refused. flow: every entry of `hop_db`, outputs. programs: the
examples of torch's export database through `tw.compile`; what torch.export itself refuses counts.
Each in a worker process.
"""

from __future__ import annotations

import argparse
import collections
import copy
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import journal
import report
import torch
from journal import Journal
from report import Figure
from torch.utils import _pytree as pytree

import tilewright as tw
from tilewright.base.errors import TilewrightError
from tilewright.plugins.torch import tilewright

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "fuzz"))

from workers import Lost, run_jobs

RIGHT, WRONG, REFUSED, CRASHED, NONE = "right", "wrong", "refused", "crashed", "no samples"
TORCH = "not as eager by torch's own trace"
SECONDS = 600.0  # for one entry
WANT = {"modules": 100, "flow": 10, "programs": 36}
REFUSE = {"fallback": "error", "threads": 1}
NOT_WHOLE = (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError)  # dynamo's refusals
Outcome = tuple[str, str]


def _entries(suite: str) -> list[str]:
    if suite == "modules":
        from torch.testing._internal.common_modules import module_db

        return [f"{at}:{info.module_cls.__name__}" for at, info in enumerate(module_db)]
    if suite == "flow":
        from torch.testing._internal.hop_db import hop_db

        return [f"{at}:{op.name}" for at, op in enumerate(hop_db)]
    from torch._export.db.examples import all_examples

    return list(all_examples())


def run_entry(job: tuple[str, str]) -> Outcome:
    suite, name = job
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RUNS[suite](name)


def _number(name: str) -> int:
    return int(name.partition(":")[0])


def _run_module(name: str) -> Outcome:
    from torch.testing._internal.common_modules import module_db

    info = module_db[_number(name)]
    count = 0
    given = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=False
    )
    for sample in given:
        if sample.forward_input is None:
            continue
        built = sample.constructor_input
        module = info.module_cls(*built.args, **built.kwargs).eval()
        called = sample.forward_input
        status, message = _compiled_as_eager(module, called.args, called.kwargs, gradients=True)
        if status != RIGHT:
            return status, f"sample {count}: {message}"
        count += 1
    return (RIGHT if count else NONE), ""


def _run_flow(name: str) -> Outcome:
    from torch.testing._internal.hop_db import hop_db

    op = hop_db[_number(name)]
    count = 0
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
        args = (sample.input, *sample.args)
        status, message = _compiled_as_eager(op.op, args, sample.kwargs, gradients=False)
        if status != RIGHT:
            return status, f"sample {count}: {message}"
        count += 1
    return (RIGHT if count else NONE), ""


def _run_program(name: str) -> Outcome:
    from torch._export.db.examples import all_examples

    case = all_examples()[name]
    args, kwargs = case.example_args, case.example_kwargs
    model = case.model if isinstance(case.model, torch.nn.Module) else _Wrapped(case.model)
    try:
        compiled = tw.compile(model, args=args, kwargs=kwargs, threads=1)
        made = compiled(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    except TilewrightError as error:
        if error.code == "TW1125":
            return RIGHT, "torch.export refuses it"
        return REFUSED, error.message
    except Exception as error:
        return CRASHED, f"{type(error).__name__}: {error}"
    return _compared(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)), made)


class _Wrapped(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _compiled_as_eager(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, gradients: bool
) -> Outcome:
    """Outputs and, where wanted, gradients of all that has some, compiled and in eager."""
    try:
        want = _called(function, args, kwargs, gradients=gradients)
    except Exception as error:
        return NONE, f"eager: {error}"
    try:
        try:
            made = _called(_compiled(function, whole=True), args, kwargs, gradients=gradients)
        except NOT_WHOLE:  # graphs with Python in between
            made = _called(_compiled(function, whole=False), args, kwargs, gradients=gradients)
    except TilewrightError as error:
        return REFUSED, error.message
    except NOT_WHOLE as error:
        return REFUSED, f"dynamo: {str(error)[:120]}"
    except Exception as error:
        inner = error.__cause__ or error
        if isinstance(inner, TilewrightError):
            return REFUSED, inner.message
        return CRASHED, f"{type(error).__name__}: {error}"
    outcome = _compared(want, made)
    if outcome[0] == WRONG and not _is_traced_rightly(function, args, kwargs, want, gradients):
        return TORCH, outcome[1]
    return outcome


def _is_traced_rightly(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], want: Any, gradients: bool
) -> bool:
    """Whether what torch traces, run by torch itself, is as eager."""
    torch._dynamo.reset()
    traced = torch.compile(function, backend="aot_eager")
    return _compared(want, _called(traced, args, kwargs, gradients=gradients))[0] == RIGHT


def _compiled(function: Any, *, whole: bool) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=tilewright, options=REFUSE, fullgraph=whole)


def _called(function: Any, args: Any, kwargs: Any, *, gradients: bool) -> Any:
    flat, spec = pytree.tree_flatten((args, kwargs))
    flat = [x.detach().clone().requires_grad_(gradients and x.requires_grad)
            if isinstance(x, torch.Tensor) else x for x in flat]  # fmt: skip
    given, named = pytree.tree_unflatten(flat, spec)
    made = function(*given, **named)
    if not gradients:
        return made
    results = [x for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]
    total = sum(x.sum() for x in results if x.requires_grad)
    module = getattr(function, "_orig_mod", function)
    leaves = [x for x in flat if isinstance(x, torch.Tensor) and x.requires_grad]
    leaves += list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    found: Any = ()
    if isinstance(total, torch.Tensor) and leaves:
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [x.detach() for x in results], list(found)


def _compared(want: Any, made: Any) -> Outcome:
    wants, mades = pytree.tree_leaves(want), pytree.tree_leaves(made)
    if len(wants) != len(mades):
        return WRONG, f"{len(mades)} results, not {len(wants)}"
    for one, two in zip(wants, mades, strict=True):
        if not isinstance(one, torch.Tensor):
            if one != two:
                return WRONG, f"{two}, not {one}"
            continue
        try:
            torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5, equal_nan=True)
        except AssertionError as error:
            return WRONG, " ".join(str(error).split())[:160]
    return RIGHT, ""


RUNS: dict[str, Callable[[str], Outcome]] = {
    "modules": _run_module,
    "flow": _run_flow,
    "programs": _run_program,
}


def measure(options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    kept = Journal.of(options)
    for suite in options.suites.split(","):
        entries = _entries(suite)
        names = [name for name in entries if re.search(options.filter, name)]
        jobs = [(suite, name) for name in names if f"{suite}/{name}" not in kept.found]
        ends = run_jobs("torch_suites", "run_entry", jobs, workers=options.jobs, seconds=SECONDS)
        for (_, name), end in report.tracked(kept.limited(ends), suite, len(jobs)):
            status, message = (CRASHED, end.why) if isinstance(end, Lost) else end
            kept.add(f"{suite}/{name}", status=status, message=message)
            if status in (WRONG, CRASHED) or (options.failures and status != RIGHT):
                print(f"{suite}/{name}: {status}: {message[:300]}", flush=True)
        found = [kept.found.get(f"{suite}/{name}") for name in names]
        total = collections.Counter(each["status"] for each in found if each is not None)
        want = WANT[suite] if len(names) == len(entries) else 0
        figures += [
            Figure(f"{suite}", len(names), "entries"),
            report.at_least(f"{suite} {RIGHT}", total[RIGHT], "entries", want),
            report.at_most(f"{suite} {WRONG}", total[WRONG], "entries", 0),
            report.at_most(f"{suite} {CRASHED}", total[CRASHED], "entries", 0),
            *(Figure(f"{suite} {kind}", total[kind], "entries") for kind in (REFUSED, TORCH, NONE)),
            Figure(f"{suite} not reached", found.count(None), "entries"),
        ]
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suites", default=",".join(RUNS), help="which of them")
    parser.add_argument("--filter", default="", help="a regular expression on names")
    parser.add_argument("--jobs", type=int, default=2, help="entries run at a time")
    journal.arguments(parser)
    parser.add_argument("--failures", action="store_true", help="say why an entry is not right")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
