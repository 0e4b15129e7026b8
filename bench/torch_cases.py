"""Run one entry of PyTorch's operator database (OpInfo) on its samples, for `torch_ops.py`.

A sample is traced by torch.export, imported, and run as native code or by the references of the
operators. It is right where PyTorch's own comparison, with its tolerances by element type, says so
of eager's results, or of those of eager in f64; or where eager is nearly as far from the latter.
"""

from __future__ import annotations

import collections
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._inductor import lowering
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import tilewright as tw
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.frontends.torch import import_program
from tilewright.frontends.torch.tensors import array_of
from tilewright.graph import interpret
from tilewright.graph.verify import verify

NATIVE, WRONG, REFUSED, CRASHED, UNTRACED, NONE, LEFT = (
    *("native", "wrong", "refused", "crashed", "untraced", "no samples", "not reached"),
)
INDUCTOR, HANDED = "inductor", "handed to ATen"
DTYPES = {"f32": torch.float32, "i64": torch.int64, "bool": torch.bool}
# What these give is theirs to choose: values drawn, or memory nobody has written.
FREE = ("rand", "normal", "empty", "dropout", "bernoulli", "multinomial", "uniform", "exponential")
FREE += ("cauchy", "geometric", "log_normal", "resize", "fractional", "rrelu", "pca_lowrank")
FREE += ("svd_lowrank", "multi_head_attention_forward")

FARTHER = 3.0  # than eager f32 from eager f64 ours may be
TOGETHER = 25  # samples in one model: what a trace costs at least is shared
# Of equal elements PyTorch names any: which result of these is places.
TIES = {"sort": 1, "topk": 1, "kthvalue": 1, "mode": 1, "median": 1, "nanmedian": 1, "argsort": 0}


@dataclass(frozen=True)
class Outcome:
    status: str  # the worst of the samples
    message: str = ""  # of the first sample that fared so
    counts: dict[str, int] = field(default_factory=dict)  # of samples by status
    seconds: float = 0.0  # of the processor


def names() -> list[tuple[str, int]]:
    """Every entry of the table, by its full name and its place."""
    return [(_full(op), at) for at, op in enumerate(op_db)]


def _full(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


class Call(torch.nn.Module):
    """One call of an operator; all but tensors are constants of the trace."""

    def __init__(self, op: Any, flat: list[Any], spec: Any) -> None:
        super().__init__()
        self.op, self.spec = op, spec
        self.constants = {at: x for at, x in enumerate(flat) if not isinstance(x, torch.Tensor)}
        self.count = len(flat)

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        flat = [self.constants[at] if at in self.constants else next(rest)
                for at in range(self.count)]  # fmt: skip
        first, args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return self.op(first, *args, **kwargs)


class Calls(torch.nn.Module):
    """Several calls in one model."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self.calls = torch.nn.ModuleList(calls)

    def forward(self, *given: tuple[torch.Tensor, ...]) -> list[Any]:
        return [call(*tensors) for call, tensors in zip(self.calls, given, strict=True)]


def _call(op: Any, sample: Any) -> tuple[Call, tuple[torch.Tensor, ...]]:
    """The call of a sample, and the tensors that it takes."""
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in flat]
    return Call(op.op, given, spec), tuple(x for x in given if isinstance(x, torch.Tensor))


@dataclass(frozen=True)
class Job:
    """Some samples of an entry at one element type."""

    name: str
    at: int  # the entry's place in the table
    dtype: str
    first: int
    last: int  # beyond the last sample
    engine: str = NATIVE


def count_samples(at: int, dtype: str) -> int:
    """How many samples an entry has at an element type."""
    return sum(1 for _ in _samples(at, dtype))


def _samples(at: int, dtype: str) -> Iterator[Any]:
    op, of = op_db[at], DTYPES[dtype]
    torch.manual_seed(0)
    if of in op.dtypes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from op.sample_inputs("cpu", of, requires_grad=False)


def run_part(job: Job) -> Outcome:
    """Run a part of an entry's samples, each whatever became of those before it."""
    begun = sum(os.times()[:4])
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    messages: dict[str, str] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        chosen = itertools.islice(_samples(job.at, job.dtype), job.first, job.last)
        number = job.first
        while group := list(itertools.islice(chosen, TOGETHER)):
            for sample, outcome in zip(group, _outcomes(job, group), strict=True):
                counts[outcome.status] += 1
                shown = f"sample {number}: {_brief(sample)}: {outcome.message}"
                messages.setdefault(outcome.status, shown)
                number += 1
    status = worst(counts)
    message = "" if status in (NATIVE, NONE) else messages[status]
    return Outcome(status, message, dict(counts), sum(os.times()[:4]) - begun)


def _outcomes(job: Job, samples: list[Any]) -> list[Outcome]:
    """Of samples in one model; where that is not all right, of each in a model of its own."""
    op = op_db[job.at]
    if job.engine == NATIVE and len(samples) > 1 and _are_right(op, samples):
        return [Outcome(NATIVE)] * len(samples)
    return [run_sample(op, sample, job.engine) for sample in samples]


def _are_right(op: Any, samples: list[Any]) -> bool:
    """Whether samples that are compiled together all give what PyTorch gives."""
    calls, inputs, wants = [], [], []
    for sample in samples:
        call, given = _call(op, sample)
        try:
            wants.append(call(*(x.clone() for x in given)))
        except Exception:
            return False
        calls.append(call)
        inputs.append(given)
    copies = tuple(tuple(x.clone() for x in given) for given in inputs)
    try:
        made = _native(Calls(calls), copies)
    except Exception:
        return False
    each = zip(samples, inputs, wants, made, strict=True)
    return all(_compared(op, *found).status == NATIVE for found in each)


def worst(found: Iterable[str]) -> str:
    """What becomes of an entry: the worst of its parts. Samples without a trace do not count."""
    order = (CRASHED, WRONG, REFUSED, LEFT, HANDED, NATIVE, UNTRACED)
    seen = set(found)
    return next((status for status in order if status in seen), NONE)


def _brief(sample: Any) -> str:
    def short(x: Any) -> Any:
        return list(x.shape) if isinstance(x, torch.Tensor) else x

    return str(pytree.tree_map(short, (sample.input, sample.args, sample.kwargs)))[:160]


def run_sample(op: Any, sample: Any, engine: str) -> Outcome:
    if engine == INDUCTOR:
        return _by_inductor(op, sample)
    call, inputs = _call(op, sample)
    copies = tuple(x.clone() for x in inputs)
    try:
        want = call(*(x.clone() for x in inputs))
    except Exception as error:
        return Outcome(UNTRACED, f"eager: {error}")
    try:
        made = _native(call, copies) if engine == NATIVE else _reference(call, copies)
    except Unsupported as error:
        return Outcome(REFUSED, error.message)
    except TilewrightError as error:
        refused = error.code == "TW1125" or (error.code == "TW4012" and _asserts(call, inputs))
        status = UNTRACED if refused else CRASHED
        return Outcome(status, f"{error.code} {error.message}")
    except Exception as error:
        return Outcome(CRASHED, f"{type(error).__name__}: {error}")
    outcome = _compared(op, sample, inputs, want, made)
    if outcome.status is not WRONG or not any(x.dtype is torch.float32 for x in inputs):
        return outcome
    try:  # eager itself may be off: what it computes in f64 decides
        exact = pytree.tree_map(_narrow, call(*map(_wide, inputs)))
    except Exception:
        return outcome
    same = sample.output_process_fn_grad
    near = compare(op, same(exact), same(made))
    if near.status is WRONG and _as_near(same(exact), same(want), same(made)):
        return Outcome(NATIVE)
    return near


def _as_near(exact: Any, want: Any, made: Any) -> bool:
    """Whether results are at most three times as far from the exact ones as those of eager."""
    leaves = (pytree.tree_leaves(each) for each in (exact, want, made))
    for right, eager, ours in zip(*leaves, strict=True):
        if not isinstance(right, torch.Tensor) or not right.is_floating_point():
            if not torch.equal(torch.as_tensor(right), torch.as_tensor(ours)):
                return False
            continue
        if (ours.shape, ours.dtype) != (eager.shape, eager.dtype):
            return False
        whole = eager.isfinite() & right.isfinite()
        if ours[~whole].isfinite().ne(eager[~whole].isfinite()).any():
            return False
        if not whole.any():
            continue
        off, allowed = ((x[whole] - right[whole]).abs().amax() for x in (ours, eager))
        if not off <= FARTHER * allowed:
            return False
    return True


def _compared(
    op: Any, sample: Any, inputs: tuple[torch.Tensor, ...], want: Any, made: Any
) -> Outcome:
    same = sample.output_process_fn_grad  # signs of singular vectors, say, are free
    free = bool(sample.kwargs.get("dropout_p"))
    return compare(op, same(want), same(made), inputs[0] if inputs else None, free=free)


def _by_inductor(op: Any, sample: Any) -> Outcome:
    """What inductor has no code for, and calls as it is: by its own tables, nothing is compiled."""
    call, inputs = _call(op, sample)
    try:
        graph = make_fx(functionalize(call), select_decomp_table())(*inputs).graph
    except Exception as error:
        return Outcome(UNTRACED, f"{type(error).__name__}: {error}")
    called = [x.target for x in graph.nodes if isinstance(x.target, torch._ops.OpOverload)]
    handed = [x for x in called if x not in lowering.lowerings or x in lowering.fallbacks]
    return Outcome(HANDED, ", ".join(map(str, handed))) if handed else Outcome(NATIVE)


def _asserts(call: Call, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether PyTorch's own trace of a call refuses the inputs that it was made with."""
    try:
        torch.export.export(call, inputs, strict=False).module()(*inputs)
    except Exception:
        return True
    return False


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.dtype is torch.float32 else x


def _narrow(x: Any) -> Any:
    return x.float() if isinstance(x, torch.Tensor) and x.dtype is torch.float64 else x


def _native(call: Call, inputs: tuple[torch.Tensor, ...]) -> Any:
    module = tw.compile(call, args=inputs, threads=1)
    if module.fallbacks:
        raise Unsupported("TW1101", f"not native: {', '.join(module.fallbacks)}")
    return module(*inputs)


def _reference(call: Call, inputs: tuple[torch.Tensor, ...]) -> Any:
    imported = import_program(call, inputs)
    verify(imported.module)
    given = [array_of(torch.view_as_real(x) if x.is_complex() else x) for x in inputs]
    structure = imported.structure
    arrays = [given[at] for at, which in enumerate(structure.order) if which is not None]
    made = interpret(imported.module, *arrays, check=True)
    return structure.restored([_tensor(np.array(x, order="C")) for x in made])


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.kind in "iubf" and array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def _same_places(x: torch.Tensor, one: Any, other: Any) -> bool:
    """Whether places are of the same values: of equal elements either may be named."""
    if not x.dim() or not other.numel():
        return torch.equal(one, other)
    for axis in range(x.dim()):
        fits = [each if each.dim() == x.dim() else each.unsqueeze(axis) for each in (one, other)]
        shapes = zip(fits[1].shape, x.shape, strict=True)
        if all(a == b or at == axis for at, (a, b) in enumerate(shapes)):
            want, found = (torch.nan_to_num(x.gather(axis, each % x.shape[axis])) for each in fits)
            if torch.equal(want, found) and _are_distinct(fits[1], axis):
                return True
    return False


def _are_distinct(places: torch.Tensor, axis: int) -> bool:
    """Whether no place is named twice along an axis."""
    return not (places.sort(axis).values.diff(dim=axis) == 0).any()


def compare(op: Any, want: Any, made: Any, given: Any = None, *, free: bool = False) -> Outcome:
    """Whether results are the same; of `free` ones only types and shapes."""
    wants, mades = pytree.tree_leaves(want), pytree.tree_leaves(made)
    if len(wants) != len(mades):
        return Outcome(WRONG, f"{len(mades)} results, not {len(wants)}")
    free = free or any(word in op.name for word in FREE)
    for at, (one, other) in enumerate(zip(wants, mades, strict=True)):
        if not isinstance(one, torch.Tensor):
            if one != (other.item() if isinstance(other, torch.Tensor) else other):
                return Outcome(WRONG, f"{other}, not {one}")
            continue
        if one.shape != other.shape or one.dtype is not other.dtype:
            have, asked = f"{other.dtype}{list(other.shape)}", f"{one.dtype}{list(one.shape)}"
            return Outcome(WRONG, f"{have}, not {asked}")
        if free or (at == TIES.get(op.name) and _same_places(given, one, other)):
            continue
        try:
            torch.testing.assert_close(other, one, equal_nan=True)
        except AssertionError as error:
            return Outcome(WRONG, " ".join(str(error).split())[:200])
    return Outcome(NATIVE)
