"""Structures for any function: all ways to tile, fuse and parallelize its stages.

    for program in programs_of(fn, context):      little inlined, or all that is cheap
        structures(program)                       its possible structures

Each stage has alternatives: a reduction with spatial axes can be tiled and vectorized along any
suitable axis, with its operands packed or not; one with few results is factored into parts.
Elementwise stages are fused into the tile that they read, or have loops of their own; producers
that are not inlined are computed before, or inside of the tiles of their consumers. Structures are
combinations of these; each is tried once, and illegal ones are dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright import sym
from tilewright.base.errors import ScheduleError
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu import gemm_dot
from tilewright.rules.inline import inline_producers
from tilewright.rules.match.nest import block_of, can_fuse, is_expression, nest_of
from tilewright.sym import ONE
from tilewright.tensor.ir import Function, Load, Store
from tilewright.tensor.schedule import Schedule
from tilewright.tensor.visit import blocks, exprs, output_buffers
from tilewright.tune.grids import Grid
from tilewright.tune.sketch.apply import apply_structure
from tilewright.tune.sketch.fields import Registers, fields_of, groups_of, legal_of
from tilewright.tune.sketch.stage import Stage, Touch, merged, stage_of
from tilewright.tune.sketch.structure import (
    BLOCKS,
    DOT,
    FOLLOW,
    PARTS,
    PLAIN,
    ROWS,
    TILE,
    UNDER,
    Structure,
    Way,
)

MAX_STRUCTURES = 32  # of a function
BLOCKED_STEPS = 128  # least length of a reduction that may be blocked
FEW_RESULTS = 64  # per thread: with fewer, the reduction is split across threads
PACKED_REUSE = 8  # least reuse of an operand for packing to pay
TRIED_POINTS = 2  # points of a structure to build before it is offered


@dataclass(frozen=True)
class Program:
    """A function as the start of sketches, and the stages they can schedule."""

    schedule: Schedule  # with cheap producers inlined; copied, never changed
    stages: dict[str, Stage]
    context: RuleContext

    @property
    def registers(self) -> Registers:
        return Registers(self.context.target.vector_registers, self.context.threads)

    def grid(self, structure: Structure) -> Grid:
        """The decisions of a structure."""
        registers = self.registers
        return Grid(
            structure.name,
            fields_of(structure, registers),
            lambda columns: legal_of(structure, registers, columns),
            groups_of(structure),
        )


def programs_of(fn: Function, context: RuleContext) -> list[Program]:
    """The function with little inlined, so that stages can be placed; and with all that is
    cheap."""
    few, many = Schedule(fn), Schedule(fn)
    _inline_once_read(few)
    inline_producers(many)
    found = [_program(few, context)]
    if few.function != many.function:
        found.append(_program(many, context))
    return [each for program in found for each in (program, *_with_merged(program))]


def _with_merged(program: Program) -> list[Program]:
    """The program, and where the innermost axis is too short to vectorize, one with it merged into
    its neighbour."""
    if len(program.stages) != 1:
        return []
    ((name, stage),) = program.stages.items()
    nest = nest_of(program.schedule, program.schedule.get_block(name))
    if nest is None or not stage.spatial or stage.axes[stage.spatial[-1]].extent >= stage.lanes * 2:
        return []
    last = stage.spatial[-1]
    if last - 1 not in stage.spatial or not can_fuse(nest, last - 1, last):
        return []
    return [replace(program, stages={name: merged(stage, last - 1)})]


def _inline_once_read(sch: Schedule) -> None:
    """Inline copies, and stages that each consumer reads at one index."""
    for block in list(blocks(sch.function.body)):
        reference = sch.get_block(block.name)
        readers = sch.get_consumers(reference)
        if not readers or block.annotations:
            continue
        made = block_of(sch.function, block.name).writes[0].buffer
        body = block_of(sch.function, block.name).body
        is_copy = isinstance(body, Store) and isinstance(body.value, Load)
        places = [
            expr
            for reader in readers
            for expr in exprs(block_of(sch.function, reader.name).body)
            if isinstance(expr, Load) and expr.buffer is made
        ]
        if is_copy or (len(places) == 1 and not _is_reused(sch, readers[0].name, places[0])):
            sch.attempt(sch.compute_inline, reference)


def _is_reused(sch: Schedule, reader: str, place: Load) -> bool:
    """Whether a consumer reads the same element in several instances."""
    return any(
        it.extent is not ONE and not any(sym.uses_var(index, {it.var}) for index in place.index)
        for it in block_of(sch.function, reader).iters
    ) or any(len(sym.free_vars(index)) > 1 for index in place.index)


def _program(sch: Schedule, context: RuleContext) -> Program:
    stages: dict[str, Stage] = {}
    for block in blocks(sch.function.body):
        stage = stage_of(sch, block.name, context.target)
        if stage is not None and is_expression(block):
            stages[block.name] = stage
    return Program(sch, stages, context)


def structures(program: Program) -> list[Structure]:
    """Every legal combination of alternatives, the most promising kinds first."""
    found: dict[str, Structure] = {}
    for ways in itertools.islice(_combinations(program), 4 * MAX_STRUCTURES):
        structure = Structure(program.stages, ways)
        if structure.name not in found and _is_applicable(program, structure):
            found[structure.name] = structure
        if len(found) == MAX_STRUCTURES:
            break
    return list(found.values())


def find_structure(programs: Sequence[Program], name: str) -> tuple[Program, Structure] | None:
    """The structure of a name among those tried; its legality is not checked."""
    for program in programs:
        for ways in itertools.islice(_combinations(program), 4 * MAX_STRUCTURES):
            structure = Structure(program.stages, ways)
            if structure.name == name:
                return program, structure
    return None


def _combinations(program: Program) -> Iterator[dict[str, Way]]:
    """One alternative per stage: epilogues fused first, then producers placed inside, then
    separate."""
    stages, names = program.stages, list(program.stages)
    if not names:
        return
    options = {name: _ways(program, stages[name]) for name in names}
    placements = [_placed(program, True, True), _placed(program, True, False)]
    placements += [_placed(program, False, False)]
    seen: list[dict[str, str]] = []
    for placed in placements:
        if placed in seen:
            continue
        seen.append(placed)
        free = [name for name in names if name not in placed]
        needed = _with_tiles(program, placed)
        choices = [
            _only_tiled(options[name], stages[name]) if name in needed else options[name]
            for name in free
        ]
        for chosen in _diagonal(choices):
            ways = dict(zip(free, chosen, strict=True))
            ways.update({name: Way(kind) for name, kind in placed.items()})
            yield {name: ways[name] for name in names}


def _diagonal(choices: Sequence[Sequence[Way]]) -> Iterator[tuple[Way, ...]]:
    """Combinations in order of distance from the first of every list."""
    places = [range(len(each)) for each in choices]
    for index in sorted(itertools.islice(itertools.product(*places), 4096), key=sum):
        yield tuple(each[at] for each, at in zip(choices, index, strict=True))


# --------------------------------------------------------------------------- placement


def _placed(program: Program, follow: bool, under: bool) -> dict[str, str]:
    """Stages without loops of their own: fused into the tile they read, or inside of a
    consumer's."""
    sch, stages = program.schedule, program.stages
    found: dict[str, str] = {}
    for name, stage in stages.items():
        if stage.reduced or not follow:
            continue
        makers = [each.name for each in sch.get_producers(sch.get_block(name))]
        made = [each for each in makers if each in stages]
        tiled = [each for each in made if _can_tile(stages[each]) and stages[each].reduced]
        if len(made) == 1 and tiled == made and _is_element_wise(program, made[0], name):
            found[name] = FOLLOW
    if not under:
        return found
    for name in stages:
        readers = [each.name for each in sch.get_consumers(sch.get_block(name))]
        mine = block_of(sch.function, name).writes
        if name in found or not readers or any(each not in stages for each in readers):
            continue
        if any(write.buffer in output_buffers(sch.function) for write in mine):
            continue
        if any(each in found for each in readers):
            continue
        found[name] = UNDER
    return found


def _is_element_wise(program: Program, producer: str, consumer: str) -> bool:
    """Whether a stage reads each result once, at its own position."""
    made = block_of(program.schedule.function, producer).writes[0].buffer
    block = block_of(program.schedule.function, consumer)
    iterators = [it.var for it in block.iters]
    loads = [expr for expr in exprs(block.body) if isinstance(expr, Load) and expr.buffer is made]
    return bool(loads) and all(
        all(index in iterators for index in load.index)
        and len(set(load.index)) == len(load.index) == len(iterators)
        for load in loads
    )


def _with_tiles(program: Program, placed: dict[str, str]) -> set[str]:
    """Stages at which others are placed: they need tiles."""
    sch = program.schedule
    found: set[str] = set()
    for name, kind in placed.items():
        reference = sch.get_block(name)
        others = sch.get_consumers(reference) if kind == UNDER else sch.get_producers(reference)
        found.update(each.name for each in others if each.name not in placed)
    return found


# --------------------------------------------------------------------------- ways


def _can_tile(stage: Stage) -> bool:
    return bool(stage.spatial) and bool(_lane_axes(stage))


def _ways(program: Program, stage: Stage) -> list[Way]:
    """The alternatives of a stage with its own loops."""
    threads = program.context.threads
    found: list[Way] = []
    results = stage.instances
    for at in stage.reduced:
        results //= stage.axes[at].extent
    tiles = _tiles(stage)
    if stage.reduced:
        found += _dots(program, stage)
        found += tiles
        if stage.instances // max(1, results) >= BLOCKED_STEPS:
            found += [
                Way(BLOCKS, each.lanes, each.packed)
                for each in tiles
                if stage.writes[0].step(each.lanes) == 1  # partial results go to memory
            ]
        if results <= FEW_RESULTS * threads:
            found.append(Way(PARTS))
        if _reduced_lanes(stage):
            found.append(Way(ROWS))
        found.append(Way(PLAIN))
        if stage.merged:
            return tiles
    elif stage.has_windows and len(program.stages) == 1:
        found = [*tiles, Way(PLAIN)]
    else:
        found = [Way(PLAIN)]
    return found


def _dots(program: Program, stage: Stage) -> list[Way]:
    """Dot-product instructions that compute a stage's reduction."""
    sch = program.schedule
    problem = gemm_dot.match(sch, sch.get_block(stage.name), program.context)
    if problem is None:
        return []
    lanes = problem.found.n[-1]
    return [Way(DOT, lanes, intrin=problem.dot.name)] if lanes in stage.spatial else []


def _only_tiled(ways: Sequence[Way], stage: Stage) -> list[Way]:
    """The tiled alternatives, for a stage at which others are placed."""
    return [way for way in ways if way.is_tiled] or _tiles(stage)


def _tiles(stage: Stage) -> list[Way]:
    return [Way(TILE, at, packed) for at in _lane_axes(stage) for packed in _packings(stage, at)]


def _lane_axes(stage: Stage) -> list[int]:
    """Axes along which lanes are contiguous, those of the result first, or can be made so by
    packing."""
    found: list[tuple[int, int]] = []
    for at in stage.spatial:
        steps = [touch.step(at) for touch in stage.reads]
        apart = [
            touch
            for touch, step in zip(stage.reads, steps, strict=True)
            if step not in (0, 1) and not _can_pack(touch, at)
        ]
        if apart or stage.axes[at].extent * 2 < stage.lanes:
            continue
        written = stage.writes[0].step(at)
        found.append((0 if written == 1 else 1, at))
    if not found and stage.spatial:
        last = stage.spatial[-1]
        return [last]
    return [at for _, at in sorted(found)][:3]


def _can_pack(touch: Touch, axis: int) -> bool:
    return touch.is_plain and sum(dim is not None and axis in dim for dim in touch.dims) == 1


def _packings(stage: Stage, lanes: int) -> list[tuple[str, ...]]:
    """Sets of operands to pack: the necessary ones, with those that may pay."""
    needed: list[str] = []
    useful: list[str] = []
    for touch in stage.reads:
        if not touch.uses(lanes) or not _can_pack(touch, lanes):
            continue
        again = 1
        for at in stage.spatial:
            if not touch.uses(at):
                again *= stage.axes[at].extent
        if again < PACKED_REUSE and touch.step(lanes) == 1:
            continue
        (useful if touch.step(lanes) == 1 else needed).append(touch.buffer)
    names = [touch.buffer for touch in stage.touches]
    once = [name for name in (*needed, *useful) if names.count(name) == 1]
    least = tuple(dict.fromkeys(name for name in needed if name in once))
    most = tuple(dict.fromkeys(once))
    return list(dict.fromkeys([least, most])) if stage.reduced else [least]


def _reduced_lanes(stage: Stage) -> bool:
    """Whether a reduction axis is contiguous wherever it is read."""
    return any(
        all(touch.step(at) in (0, 1) for touch in stage.reads)
        and stage.axes[at].extent >= stage.lanes
        for at in stage.reduced
    )


# --------------------------------------------------------------------------- trial


def _is_applicable(program: Program, structure: Structure) -> bool:
    """Whether some points of a structure can be scheduled."""
    grid = program.grid(structure)
    rows = grid.drawn(TRIED_POINTS, np.random.default_rng(0))
    for row in rows:
        pairs = zip(grid.fields.items(), row.tolist(), strict=True)
        values = {name: candidates[at] for (name, candidates), at in pairs}
        try:
            apply_structure(program.schedule.copy(), structure, values, program.context)
        except ScheduleError:
            return False
    return bool(len(rows))
