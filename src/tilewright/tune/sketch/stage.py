"""What sketches derive from a block: axes, and the elements that every access touches as they vary.

    stage = stage_of(schedule, "C")
    stage.axes                  (i: spatial 512, j: spatial 512, k: reduce 256)
    stage.touches[0].dims       ({0: 1}, {2: 1}): A[i, k], steps by axis, per dimension

An index is a linear combination of axes; any other may touch every element. `Touch` gives the box
of the buffer that a tile's ranges of the axes touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.rules.cost import body_cycles, lanes_of
from tilewright.rules.match.nest import Nest, guess, nest_of
from tilewright.sym import Const, Expr, Var
from tilewright.tensor.ir import REDUCE, SPATIAL, Block, Buffer, Load, Store, Update
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.visit import exprs, walk


@dataclass(frozen=True)
class Axis:
    """An iterator of a block with a loop of its own."""

    name: str
    extent: int  # what is assumed of a dynamic one
    kind: str
    is_dynamic: bool = False
    unit: int = 1  # extent of the inner one of two merged axes

    @property
    def is_reduced(self) -> bool:
        return self.kind == REDUCE


@dataclass(frozen=True)
class Touch:
    """An access: the step of each axis in every dimension of its buffer."""

    buffer: str
    element_bytes: int
    shape: tuple[int, ...]
    dims: tuple[Mapping[int, int] | None, ...]  # None: any index of that dimension
    spans: tuple[int, ...]  # how far several loads extend in each dimension
    loads: int  # number of such loads in the body
    is_write: bool
    is_plain: bool  # every dimension is indexed by a single axis, or a constant

    def step(self, axis: int) -> int | None:
        """The stride of an axis in elements of memory; None if unknown."""
        total, stride = 0, 1
        for size, dim in zip(reversed(self.shape), reversed(self.dims), strict=True):
            if dim is None:
                return None
            total += dim.get(axis, 0) * stride
            stride *= size
        return total

    def uses(self, axis: int) -> bool:
        return any(dim is None or axis in dim for dim in self.dims)


@dataclass(frozen=True)
class Stage:
    """A block with loops of its own, as a sketch sees it."""

    name: str
    axes: tuple[Axis, ...]
    touches: tuple[Touch, ...]  # the written ones first
    outputs: int
    operations: float  # arithmetic cycles per vector of instances
    chain: int  # dependent operations per step of a reduction
    lanes: int  # of a vector of the widest type
    dtype: DType  # of the first result
    merged: tuple[tuple[int, ...], ...] = ()  # loops of each axis, with merged axes

    def positions(self, kind: str) -> list[int]:
        """Axes of a kind with an extent above 1."""
        return [at for at, axis in enumerate(self.axes) if axis.kind == kind and axis.extent > 1]

    @property
    def spatial(self) -> list[int]:
        return self.positions(SPATIAL)

    @property
    def reduced(self) -> list[int]:
        return self.positions(REDUCE)

    @property
    def reads(self) -> list[Touch]:
        return [touch for touch in self.touches if not touch.is_write]

    @property
    def writes(self) -> list[Touch]:
        return [touch for touch in self.touches if touch.is_write]

    @property
    def instances(self) -> int:
        total = 1
        for axis in self.axes:
            total *= axis.extent
        return total

    @property
    def has_windows(self) -> bool:
        """Whether neighbouring instances read overlapping or strided elements."""
        last = self.spatial[-1] if self.spatial else 0
        return any(
            touch.loads > 1
            or touch.step(last) not in (0, 1)
            or any(dim is not None and len(dim) > 1 for dim in touch.dims)
            for touch in self.reads
        )


def merged(stage: Stage, outer: int) -> Stage:
    """The stage with an axis merged with the next one, where every access allows it.

    A row of an interleaved RGB image, say, is one axis.
    """
    inner = outer + 1
    first, second = stage.axes[outer], stage.axes[inner]
    whole = Axis(
        f"{first.name}_{second.name}",
        first.extent * second.extent,
        first.kind,
        first.is_dynamic or second.is_dynamic,
        second.extent,
    )
    loops = stage.merged or tuple((at,) for at in range(len(stage.axes)))
    return replace(
        stage,
        axes=(*stage.axes[:outer], whole, *stage.axes[inner + 1 :]),
        touches=tuple(_merged_touch(touch, outer) for touch in stage.touches),
        merged=(*loops[:outer], (*loops[outer], *loops[inner]), *loops[inner + 1 :]),
    )


def _merged_touch(touch: Touch, outer: int) -> Touch:
    """An access with the dimensions of two axes merged."""
    inner = outer + 1
    near = [at for at, dim in enumerate(touch.dims) if dim is not None and inner in dim]
    dims, shape, spans = list(touch.dims), list(touch.shape), list(touch.spans)
    if near:
        at = near[0]
        size, before, here = shape[at], dims[at - 1], dims[at]
        assert before is not None
        assert here is not None
        steps = {axis: step * size for axis, step in before.items() if axis != outer}
        for axis, step in here.items():
            steps[axis] = steps.get(axis, 0) + step
        dims[at - 1 : at + 1] = [steps]
        shape[at - 1 : at + 1] = [shape[at - 1] * size]
        spans[at - 1 : at + 1] = [spans[at - 1] * size + spans[at]]
    renamed = tuple(
        None
        if dim is None
        else {axis - 1 if axis > outer else axis: step for axis, step in dim.items()}
        for dim in dims
    )
    return replace(
        touch,
        shape=tuple(shape),
        dims=renamed,
        spans=tuple(spans),
        is_plain=touch.is_plain and not near,
    )


def stage_of(sch: Schedule, name: str, target: Target) -> Stage | None:
    """The stage of a block; None where it shares loops, or they are not plain."""
    nest = nest_of(sch, sch.get_block(name))
    if nest is None or any(it.kind not in (SPATIAL, REDUCE) for it in nest.block.iters):
        return None
    block = nest.block
    axes = tuple(
        Axis(
            _plain_name(it.var),
            guess(it.extent, nest.likely),
            it.kind,
            not isinstance(it.extent, Const),
        )
        for it in block.iters
    )
    variables = [it.var for it in block.iters]
    touches = tuple(_touches(nest, variables))
    if not touches or not touches[0].is_write:
        return None
    return Stage(
        name,
        _renamed(axes),
        touches,
        len(block.writes),
        max(0.5, body_cycles(block) + _reducer_cycles(block)),
        _chain(block),
        lanes_of(target, block),
        block.writes[0].buffer.dtype,
    )


def _plain_name(variable: Var) -> str:
    """Of the loop: block iterators have a `v` in front."""
    name = variable.name
    return name[1:] if len(name) > 1 and name.startswith("v") else name


def _renamed(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Each name once."""
    found: dict[str, Axis] = {}
    for axis in axes:
        name, number = axis.name, 1
        while name in found:
            name, number = f"{axis.name}_{number}", number + 1
        found[name] = Axis(name, axis.extent, axis.kind, axis.is_dynamic)
    return tuple(found.values())


def _reducer_cycles(block: Block) -> float:
    """Cycles of the combiner, beyond an operation that fuses with the body's (FMA)."""
    return 0.5 * (_reducer_operations(block) - 1)


def _chain(block: Block) -> int:
    """Dependent operations per reduction step."""
    return max(1, min(3, _reducer_operations(block)))


def _reducer_operations(block: Block) -> int:
    for stmt in walk(block.body):
        if isinstance(stmt, Update):
            nodes = sym.walk(*stmt.reducer.result)
            return max(1, sum(1 for node in nodes if not isinstance(node, (Var, Const))))
    return 1


@dataclass(frozen=True)
class _Place:
    """One load or store: its steps and constant offset in every dimension."""

    buffer: Buffer
    dims: tuple[tuple[tuple[int, int], ...] | None, ...]
    offsets: tuple[int, ...]
    is_plain: bool


def _touches(nest: Nest, variables: Sequence[Var]) -> Iterator[Touch]:
    block = nest.block
    written: list[_Place] = []
    for stmt in walk(block.body):
        if isinstance(stmt, Store):
            written.append(_place(stmt.buffer, stmt.index, variables))
        elif isinstance(stmt, Update):
            written += [_place(buffer, stmt.index, variables) for buffer in stmt.buffers]
    yield from _merged(written, nest.likely, is_write=True)
    loads = [expr for expr in exprs(block.body) if isinstance(expr, Load)]
    read = [_place(each.buffer, each.index, variables) for each in loads]
    yield from _merged(read, nest.likely, is_write=False)


def _merged(
    places: Sequence[_Place], likely: Mapping[Var, int], *, is_write: bool
) -> Iterator[Touch]:
    """Merge accesses of one buffer with equal steps into one with a span."""
    alike: dict[tuple[Buffer, object], list[_Place]] = {}
    for place in places:
        alike.setdefault((place.buffer, place.dims), []).append(place)
    for (buffer, _), some in alike.items():
        offsets = list(zip(*(place.offsets for place in some), strict=True))
        yield Touch(
            buffer.name,
            buffer.dtype.size_bytes,
            tuple(guess(dim, likely) for dim in buffer.shape),
            tuple(None if dim is None else dict(dim) for dim in some[0].dims),
            tuple(max(each) - min(each) for each in offsets),
            len(some),
            is_write,
            all(place.is_plain for place in some) and len(some) == 1,
        )


def _place(buffer: Buffer, index: Sequence[Expr], variables: Sequence[Var]) -> _Place:
    places = {variable: at for at, variable in enumerate(variables)}
    dims: list[tuple[tuple[int, int], ...] | None] = []
    offsets: list[int] = []
    is_plain = True
    for each in index:
        is_plain = is_plain and (each in places or isinstance(each, Const))
        found = _steps(each, places)
        dims.append(None if found is None else tuple(sorted(found[0].items())))
        offsets.append(0 if found is None else found[1])
    return _Place(buffer, tuple(dims), tuple(offsets), is_plain)


def _steps(index: Expr, places: Mapping[Var, int]) -> tuple[dict[int, int], int] | None:
    """The step of each axis in an index, and its constant; None if it is not linear."""
    if any(isinstance(each, Load) for each in sym.walk(index)):
        return None
    found = sym.linear(index, places)
    if found is None or sym.uses_var(found[1], places):
        return None
    steps: dict[int, int] = {}
    for variable, step in found[0].items():
        steps[places[variable]] = int(step.value) if isinstance(step, Const) else 1
    return steps, int(found[1].value) if isinstance(found[1], Const) else 0
