"""What the host does for a device function: kernel launches, and the control flow around them.

    for t in 0..35 { alloc T; kernel; kernel }  becomes  Repeat(t, 0, 35, Workspace(T, Launch, ...))

Steps are data: they pickle with the PTX; a Python loop or a native host program walks them, and
`launches` gives the flat list of launches for given sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.codegen.column_order import AXES, GROUP
from tilewright.codegen.hopper import TileMap
from tilewright.sym import Const, Expr, Var
from tilewright.sym.traced import Traced
from tilewright.tensor import ir
from tilewright.tensor.ir import Buffer, For, Stmt
from tilewright.tensor.visit import walk


@dataclass(frozen=True)
class Kernel:
    """A launch: the kernel's name, its arguments, and its extents as expressions of sizes."""

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]
    shared_bytes: int = 0  # dynamic shared memory
    maps: tuple[TileMap, ...] = ()  # tensor maps: its last arguments
    written: tuple[Buffer, ...] = ()  # the buffers that it writes
    can_start_early: bool = False  # whether it supports programmatic dependent launch
    is_together: bool = False  # cooperative: blocks wait for each other, so all must be resident
    multiplies: bool = False  # whether it has the node's contraction


@dataclass(frozen=True)
class Launch:
    """Launch a kernel after the previous ones."""

    kernel: Kernel


@dataclass(frozen=True)
class Repeat:
    """Steps in a loop."""

    var: Var
    start: Expr
    stop: Expr
    body: tuple[Step, ...]


@dataclass(frozen=True)
class When:
    """Steps under a condition on sizes."""

    cond: Expr
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]


@dataclass(frozen=True)
class Named:
    """A variable bound in some steps."""

    var: Var
    value: Expr
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Workspace:
    """Device memory that kernels pass values through."""

    buffer: Buffer
    body: tuple[Step, ...]


Step = Launch | Repeat | When | Named | Workspace


def steps_of(body: Stmt, emit: Callable[[For], Kernel]) -> tuple[Step, ...]:
    """The steps of a device function's body; `emit` makes the code of one kernel."""
    if isinstance(body, ir.Seq):
        return tuple([step for stmt in body.stmts for step in steps_of(stmt, emit)])
    if isinstance(body, For) and body.kind == ir.THREAD:
        return (Launch(emit(body)),)
    if isinstance(body, For) and body.kind in (ir.SERIAL, ir.UNROLL) and _launches(body):
        return (Repeat(body.var, body.start, body.stop, steps_of(body.body, emit)),)
    if isinstance(body, ir.Alloc) and _launches(body):
        return (Workspace(body.buffer, steps_of(body.body, emit)),)
    if isinstance(body, ir.Let) and _launches(body) and _is_known(body.value):
        return (Named(body.var, body.value, steps_of(body.body, emit)),)
    if isinstance(body, ir.If) and _launches(body) and _is_known(body.cond):
        otherwise = () if body.otherwise is None else steps_of(body.otherwise, emit)
        return (When(body.cond, steps_of(body.then, emit), otherwise),)
    raise Unsupported(
        "TW3051",
        "a device function is a sequence of thread loops; this statement is outside",
        body.loc,
        help="bind the loops of every block, outermost to blockIdx",
    )


def launches(
    steps: tuple[Step, ...], values: Mapping[Var, int], workspace: Callable[[Buffer, int], None]
) -> Iterator[tuple[Kernel, dict[Var, int]]]:
    """Every non-empty launch in order, with the values of variables; `workspace` is called for
    memory before its uses."""
    for step in steps:
        match step:
            case Launch(kernel):
                if not _is_empty(kernel, values):
                    yield kernel, dict(values)
            case Repeat(var, start, stop, body):
                for at in range(number(start, values), number(stop, values)):
                    yield from launches(body, {**values, var: at}, workspace)
            case When(cond, then, otherwise):
                chosen = then if number(cond, values) else otherwise
                yield from launches(chosen, values, workspace)
            case Named(var, value, body):
                yield from launches(body, {**values, var: number(value, values)}, workspace)
            case Workspace(buffer, body):
                size = buffer.dtype.size_bytes
                for dim in buffer.shape:
                    size *= number(dim, values)
                workspace(buffer, size)
                yield from launches(body, values, workspace)


def _is_empty(kernel: Kernel, values: Mapping[Var, int]) -> bool:
    """Whether the grid is empty, as for an empty batch."""
    return 0 in (number(dim, values) for dim in (*kernel.grid, *kernel.block))


def kernels_of(steps: tuple[Step, ...]) -> Iterator[Kernel]:
    """Every kernel once, in order."""
    for step in steps:
        match step:
            case Launch(kernel):
                yield kernel
            case When(_, then, otherwise):
                yield from kernels_of((*then, *otherwise))
            case Repeat(body=body) | Named(body=body) | Workspace(body=body):
                yield from kernels_of(body)


def matrix_of(made: TileMap, values: Mapping[Var, int]) -> tuple[int, ...]:
    """The rows and columns of a tensor map's matrix, with the batch first if there is one; all
    extents of images. An empty matrix, which no kernel copies from, counts as one element: there
    are no empty maps."""
    height, width = max(1, number(made.height, values)), max(1, number(made.width, values))
    whole = math.prod(number(dim, values) for dim in made.buffer.shape)
    if made.corners:
        return max(1, whole // (height * width * made.channels)), height, width, made.channels
    if not made.is_batched:
        return height, width
    return max(1, whole // (height * width)), height, width


def box_of(made: TileMap) -> tuple[int, ...]:
    """The extents of a box, in the order of `matrix_of`: of windows, pixels and channels; of
    permuted rows, groups and the axes of a group."""
    if made.corners:
        return made.rows, made.columns
    if made.is_reordered:
        return made.rows // GROUP, *AXES, made.columns
    return (1, made.rows, made.columns) if made.is_batched else (made.rows, made.columns)


def number(expr: Expr, values: Mapping[Var, int]) -> int:
    """The value of an expression of known sizes, traced if they are."""
    if isinstance(expr, Const):
        return int(expr.value)
    found: Any = sym.evaluate(expr, values)
    result: Any = found if isinstance(found, Traced) else int(found)
    return cast(int, result)


def _launches(stmt: Stmt) -> bool:
    return any(isinstance(s, For) and s.kind == ir.THREAD for s in walk(stmt))


def _is_known(expr: Expr) -> bool:
    """Whether the host can evaluate an expression: it reads no memory."""
    reads = (ir.Load, ir.MaskedLoad, ir.Call)
    return not any(isinstance(found, reads) for found in sym.walk(expr))
