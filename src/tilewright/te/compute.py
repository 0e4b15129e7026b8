"""`te.var`, `te.placeholder` and `te.compute`.

A compute whose expression contains nested reductions (`te.sum(...) * 2`) is split: each becomes its
own stage, over the axes it depends on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from tilewright import sym
from tilewright.base.dtype import INDEX, dtype
from tilewright.base.loc import Loc
from tilewright.sym import TRUE, Expr, Var
from tilewright.te.axis import IterVar, spatial_axis
from tilewright.te.guards import Guards, guarded
from tilewright.te.operation import ComputeOp, PlaceholderOp, Reduce, Tensor, shape_of
from tilewright.te.scalar import DTypeLike, value_of
from tilewright.te.source import (
    clean_name,
    clean_size_name,
    type_error,
    user_loc,
    value_error,
)
from tilewright.tensor.ir import REDUCE, Annotations, Value

_dtype = dtype


def var(name: str = "tindex", dtype: DTypeLike = INDEX) -> Var:
    """Make a size (of type index, nonnegative) or, with another type, a scalar parameter.

    Examples:
        >>> from tilewright import te
        >>> te.var("n").dtype, te.var("x", "f32").dtype
        (dtype('index'), dtype('f32'))
    """
    of = _dtype(dtype)
    if of is INDEX:
        return sym.size(clean_size_name(name))
    return sym.var(clean_name(name), of)


def size_var(name: str = "size") -> Var:
    """Make a size: a nonnegative dimension variable.

    Examples:
        >>> from tilewright import te
        >>> te.size_var("n").dtype
        dtype('index')
    """
    return var(name)


def placeholder(shape: Any, dtype: DTypeLike = "f32", name: str = "placeholder") -> Tensor:
    """Make a tensor that the caller supplies.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((te.var("n"), 4), name="A")
        >>> A.ndim, A.dtype
        (2, dtype('f32'))
    """
    name = clean_name(name)
    dims = shape_of(shape, name)
    return PlaceholderOp(name, dims, _dtype(dtype), user_loc()).output(0)


@overload
def compute(
    shape: Any,
    fcompute: Callable[..., tuple[Any, ...]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> tuple[Tensor, ...]: ...
@overload
def compute(
    shape: Any,
    fcompute: Callable[..., Expr | Tensor | int | float | bool],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> Tensor: ...
def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> Any:
    """Make a tensor whose element at (i, j, ...) is `fcompute(i, j, ...)`.

    The argument names of `fcompute` become loop names; `*i` takes the remaining axes. If it returns
    a tuple, the result is several tensors of this shape.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8, 4), name="A")
        >>> te.compute((4, 8), lambda i, j: A[j, i], name="T")
        <Tensor T: f32[4, 8]>
    """
    name, loc = clean_name(name), user_loc()
    dims = shape_of(shape, name)
    names = _argument_names(fcompute, len(dims), name)
    axes = tuple([spatial_axis(n, dim) for n, dim in zip(names, dims, strict=True)])
    given = fcompute(*axes)
    several = isinstance(given, (tuple, list))
    values = tuple([_value(v, name) for v in (given if several else (given,))])
    if not values:
        raise type_error("TW2412", f"{name} computes no value", help="return an expression")
    annotations = annotations_of(tag, attrs)
    op = define(name, axes, values, annotations, loc)
    return op.outputs if several else op.output(0)


def annotations_of(tag: str, attrs: Mapping[str, Value] | None) -> Annotations:
    """The tag and attributes in the form of block attributes."""
    found = dict(attrs or {})
    if tag:
        found["tag"] = tag
    return tuple(sorted(found.items()))


def _value(value: Any, name: str) -> Expr:
    if value is None:
        raise type_error(
            "TW2412", f"{name} computes None", help="does the function end in a return?"
        )
    return value_of(value)


def _argument_names(fcompute: Callable[..., Any], rank: int, name: str) -> list[str]:
    """Axis names from the function's signature, which must accept `rank` arguments."""
    try:
        parameters = inspect.signature(fcompute).parameters.values()
    except (TypeError, ValueError):
        return _numbered("i", rank)
    kinds = inspect.Parameter
    positional = [
        p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    required = [p for p in positional if p.default is kinds.empty]
    rest = next((p for p in parameters if p.kind is kinds.VAR_POSITIONAL), None)
    most = len(positional) if rest is None else rank
    if not len(required) <= rank <= most:
        takes = f"at least {len(required)}" if rest is not None else str(len(required))
        raise value_error(
            "TW2413",
            f"{name} has {rank} dimensions, its function takes {takes} arguments",
            help="one argument per dimension, or *i for any number",
        )
    names = [clean_name(p.name) for p in positional[:rank]]
    left = rank - len(names)
    return names if rest is None else names + _numbered(clean_name(rest.name), left)


def _numbered(stem: str, count: int) -> list[str]:
    return [stem] if count == 1 else [f"{stem}{k}" for k in range(count)]


# --------------------------------------------------------------------------- definition


def define(
    name: str,
    axes: Sequence[IterVar],
    values: tuple[Expr, ...],
    annotations: Annotations,
    loc: Loc,
) -> ComputeOp:
    """The operation, with nested reductions moved to stages."""
    scope = tuple(axes)
    first = values[0]
    if isinstance(first, Reduce) and values == _components(first):
        inside = _split(name, (*scope, *first.axes), first.sources, (first.where,), loc)
        (where,) = _split(name, (*scope, *first.axes), (first.where,), (), loc)
        init = _split(name, scope, first.init, (), loc)
        _check_variables(name, (*inside, where), (*scope, *first.axes), loc)
        _check_variables(name, init, scope, loc)
        whole = Reduce(first.reducer, inside, first.axes, where, init, 0)
        values = _components(whole)
    else:
        values = _split(name, scope, values, (), loc)
        _check_variables(name, values, scope, loc)
    return ComputeOp(name, scope, values, annotations, loc)


def _components(whole: Reduce) -> tuple[Expr, ...]:
    return tuple([whole.component(k) for k in range(len(whole.sources))])


def _split(
    name: str,
    scope: tuple[IterVar, ...],
    values: tuple[Expr, ...],
    guards: Guards,
    loc: Loc,
) -> tuple[Expr, ...]:
    """Replace every reduction by a read of a new stage that computes it."""
    places: dict[Reduce, list[Guards]] = {}
    start = tuple(g for g in guards if g is not TRUE)
    for part, conditions in guarded(*values, guards=start, into_reductions=False):
        if isinstance(part, Reduce):
            places.setdefault(part.component(0), []).append(conditions)
    if not places:
        return values
    replaced: dict[Expr, Expr] = {}
    for whole, occurrences in places.items():
        tensors, index = _stage(name, scope, whole, occurrences, loc)
        for k, tensor in enumerate(tensors):
            replaced[whole.component(k)] = tensor[index]
    return tuple([sym.rewrite(value, sym.rebuild, dict(replaced)) for value in values])


def _stage(
    name: str,
    scope: tuple[IterVar, ...],
    whole: Reduce,
    occurrences: list[Guards],
    loc: Loc,
) -> tuple[tuple[Tensor, ...], tuple[Expr, ...]]:
    """Make a stage for one reduction, over the axes it depends on; returns the read that replaces
    it."""
    guard = TRUE if () in occurrences else sym.any_of(*(sym.all_of(*g) for g in occurrences))
    where = sym.logical_and(guard, whole.where)
    used = sym.free_vars(*whole.sources, where, *whole.init)
    outer = [axis for axis in scope if axis in used]
    fresh = [spatial_axis(axis.name, axis.extent) for axis in outer]
    moved: dict[Var, Expr] = {
        old: sym.add(new, old.start) for old, new in zip(outer, fresh, strict=True)
    }
    sources = tuple([sym.substitute(source, moved) for source in whole.sources])
    init = tuple([sym.substitute(value, moved) for value in whole.init])
    reduction = Reduce(whole.reducer, sources, whole.axes, sym.substitute(where, moved), init, 0)
    stage_name = f"{name}_{whole.reducer.name}"
    op = define(stage_name, fresh, _components(reduction), (), loc)
    return op.outputs, tuple([sym.sub(axis, axis.start) for axis in outer])


def _check_variables(
    name: str, values: tuple[Expr, ...], scope: tuple[IterVar, ...], loc: Loc
) -> None:
    for variable in sym.free_vars(*values):
        if not isinstance(variable, IterVar) or variable in scope:
            continue
        if variable.kind == REDUCE:
            raise value_error(
                "TW2414",
                f"{name} uses reduce axis {variable} outside of a reduction over it",
                loc=loc,
                help=f"write te.sum(..., axis={variable.name}), or another reduction",
            )
        raise value_error(
            "TW2414",
            f"{name} uses {variable}, an axis of another computation",
            loc=loc,
            help="use the arguments of this computation's function",
        )
