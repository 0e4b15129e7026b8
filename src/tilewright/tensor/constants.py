"""Hoist work on constants, such as weight packing, out of a function into a packer that runs once.

    split = split_constant_blocks(sch.function)
    split.packer    func @NAME_constants(weights..., packed...), or None
    split.kernel    the function without that work; it takes the packer's results

A rule marks a block `constant` (`sch.annotate(block, "constant", True)`) that reads only weights
and results of other such blocks. Its nest moves to the packer if it is at the root of the function;
one that a schedule has moved into other loops stays.

Layouts may have gaps that no block writes, so the packer's buffers are zeroed before: the packed
bytes are then deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.sym import Var, free_vars
from tilewright.tensor.ir import (
    Address,
    Annotations,
    Block,
    Buffer,
    For,
    Function,
    Let,
    Seq,
    Stmt,
    Value,
    annotation,
    seq,
)
from tilewright.tensor.visit import OUTPUTS, blocks, exprs, output_buffers, walk, written_buffers

CONSTANT = "constant"
UNPACKS = (
    "unpacks"  # annotation of a block that makes numbers of packed weights, for a rule to place
)
Param = Buffer | Var


@dataclass(frozen=True, slots=True)
class Given:
    """A parameter of the kernel that the original function has too."""

    position: int  # among the parameters of the original function


@dataclass(frozen=True, slots=True)
class Packed:
    """A parameter of the kernel that the packer writes."""

    position: int  # among the results of the packer


@dataclass(frozen=True, slots=True)
class Split:
    """A function in two: what runs once, what runs at every call."""

    packer: Function | None  # takes weights, then its results
    weights: tuple[int, ...]  # positions, in the original function, of what the packer takes
    kernel: Function
    params: tuple[Given | Packed, ...]  # what each parameter of the kernel is

    @property
    def results(self) -> tuple[Buffer, ...]:
        """What the packer writes, in its order."""
        return () if self.packer is None else self.packer.buffers[len(self.weights) :]


def split_constant_blocks(fn: Function) -> Split:
    """Take the constant nests at the root of a scheduled function apart from the rest."""
    nests = fn.body.stmts if isinstance(fn.body, Seq) else (fn.body,)
    moved = _constant_nests(fn, nests)
    rest = [nest for nest in nests if nest not in moved]
    if not moved or not rest:
        given = tuple(Given(at) for at in range(len(fn.params)))
        return Split(None, (), fn, given)
    made = written_buffers(seq(*moved))
    needed = _read_buffers(rest) | _addressed_buffers(rest)
    packed = [buffer for buffer in made if buffer in needed]
    weights = [p for p in fn.params if isinstance(p, Buffer) and p in _read_buffers(moved)]
    packer = Function(
        f"{fn.name}_constants",
        (*weights, *packed),
        seq(*moved),
        allocs=tuple(b for b in fn.allocs if b in made and b not in packed),
        loc=fn.loc,
    )
    params = _kernel_params(fn, weights, packed, needed)
    kernel = replace(
        fn,
        params=params,
        body=seq(*rest),
        allocs=tuple(b for b in fn.allocs if b not in made),
        attrs=_moved_outputs(fn, params),
    )
    whence = tuple(Packed(packed.index(p)) if p in packed else _given(fn, p) for p in params)
    return Split(packer, tuple(fn.params.index(w) for w in weights), kernel, whence)


def _given(fn: Function, param: Param) -> Given:
    return Given(fn.params.index(param))


def _constant_nests(fn: Function, nests: tuple[Stmt, ...]) -> list[Stmt]:
    """The nests of constant blocks alone that can run before all others."""
    # What may be read: weights, that is parameters which are not results, and what nests made.
    results = output_buffers(fn)
    known = {p for p in fn.params if isinstance(p, Buffer) and p not in results}
    constant = [nest for nest in nests if _is_constant(nest)]
    others = written_buffers(seq(*(n for n in nests if n not in constant)))
    moved = []
    for nest in constant:
        made = written_buffers(nest)
        if not all(buffer in known for buffer in _read_buffers([nest]) if buffer not in made):
            continue
        if any(buffer in results or buffer in others or buffer.align for buffer in made):
            continue
        moved.append(nest)
        known.update(made)
    return moved


def _is_constant(nest: Stmt) -> bool:
    """Every block is marked, and no size of a call is mentioned."""
    found = list(blocks(nest))
    if not found or not all(b.writes and annotation(b, CONSTANT, False) for b in found):
        return False
    bound: set[Var] = set()
    for stmt in walk(nest):
        if isinstance(stmt, (For, Let)):
            bound.add(stmt.var)
        elif isinstance(stmt, Block):
            bound.update(it.var for it in stmt.iters)
    used = free_vars(*(expr for stmt in walk(nest) for expr in stmt.exprs()))
    shapes = free_vars(*(dim for buffer in written_buffers(nest) for dim in buffer.shape))
    return not shapes and all(var in bound for var in used)


def _read_buffers(nests: list[Stmt]) -> set[Buffer]:
    return {region.buffer for nest in nests for block in blocks(nest) for region in block.reads}


def _addressed_buffers(nests: list[Stmt]) -> set[Buffer]:
    """What is named by address alone, as a prefetch does, which reads nothing."""
    return {node.buffer for nest in nests for node in exprs(nest) if isinstance(node, Address)}


def _kernel_params(
    fn: Function, weights: list[Buffer], packed: list[Buffer], needed: set[Buffer]
) -> tuple[Param, ...]:
    """A weight that nobody reads any more gives its place to the first of what replaces it.

    One packed buffer takes the place of one weight, in order; more of them stand in front of the
    first result.
    """
    unused = [weight for weight in weights if weight not in needed]
    places = dict(zip(unused, packed, strict=False))
    further = packed[len(unused) :]
    results = output_buffers(fn)
    params: list[Param] = []
    for param in fn.params:
        if isinstance(param, Buffer) and param in results:
            params += further
            further = []
        if not isinstance(param, Buffer) or param not in unused:
            params.append(param)
        elif param in places:
            params.append(places[param])
    return (*params, *further)


def _moved_outputs(fn: Function, params: tuple[Param, ...]) -> Annotations:
    """The attribute that names results by position, for the new parameters."""
    moved: list[tuple[str, Value]] = []
    for key, value in fn.attrs:
        if key == OUTPUTS:
            assert isinstance(value, tuple)
            value = tuple(params.index(fn.params[at]) for at in value if isinstance(at, int))
        moved.append((key, value))
    return tuple(moved)
