"""The analytical cost of a sketch's points, and the features for learned cost models.

Every tiled stage has five levels, for which formulas give trips and bytes touched:

    step       one iteration of the innermost loop around a register tile
    tile       a register tile with its reduction (or block of it)
    middle     the register tiles that share operands in L1
    block      the tiles of a block in L2
    whole      all of a thread's work, and that of all threads

Cycles are those of the busiest thread: the maximum of arithmetic (whole tiles, with tails and idle
lanes), loads, and the latency of accumulation chains; plus lines from L2, L3 and memory where
levels do not fit, stores, loop overhead, and dispatch of chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dots import DOTS
from tilewright.base.machine import Machine
from tilewright.rules.context import RuleContext
from tilewright.rules.sharing import chunk_cycles
from tilewright.sym import Expr, Var
from tilewright.tune.features import (
    RELATION_NAMES,
    Access,
    Formulas,
    levels,
    log2,
    relation,
)
from tilewright.tune.sketch.fields import long_sum
from tilewright.tune.sketch.stage import Stage, Touch
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
from tilewright.tune.space import Column, Columns

LEVEL_NAMES = ("step", "tile", "middle", "block", "whole")
KINDS = (PLAIN, TILE, BLOCKS, ROWS, PARTS, DOT, UNDER, FOLLOW)
TERMS = ("compute", "l2", "l3", "memory", "results", "turns", "dispatch", "imbalance", "wake")
SHAPE = (
    "tile vectors",
    "registers used",
    "loads per operation",
    "unrolled operations",
    "tail waste",
    "idle lanes",
    "chunks",
    "chunks per thread",
    "packed operands",
)
TURN_CYCLES = 2.0  # overhead per iteration: count, compare, branch, addresses
OVERLAP = 0.3  # share of the shorter of arithmetic and memory time that is not hidden
SPILL_CYCLES = 1.0  # per step and spilled accumulator
PACK_CYCLES_PER_BYTE = 0.25
DOT_CYCLES = 1.0  # per dot-product instruction

FEATURE_NAMES = (
    *(f"log {name}" for name in TERMS),
    *SHAPE,
    *(f"bytes of a {name}" for name in LEVEL_NAMES),
    *(f"reuse in a {name}" for name in LEVEL_NAMES),
    *(f"trips of a {name}" for name in LEVEL_NAMES),
    *RELATION_NAMES,
    *(f"stages {kind}" for kind in KINDS),
)

# The features of each level, innermost first, by which TreeGRU finds them.
LEVEL_FEATURES = tuple(
    tuple(f"{kind} {name}" for kind in ("bytes of a", "reuse in a", "trips of a"))
    for name in LEVEL_NAMES
)


@dataclass(frozen=True)
class Described:
    """For many points: cycles by cause, and features of the nest."""

    terms: Mapping[str, Any]
    shape: Mapping[str, Any] = field(default_factory=dict)
    touched: Mapping[str, Any] = field(default_factory=dict)  # bytes of all buffers, by level
    reuse: Mapping[str, Any] = field(default_factory=dict)  # operations per byte, by level
    trips: Mapping[str, Any] = field(default_factory=dict)  # by level
    curve: Column | None = None


class StructureModel:
    """The formulas of one structure, derived once."""

    def __init__(self, structure: Structure, context: RuleContext) -> None:
        self.structure = structure
        self.context = context
        self._formulas: dict[str, Formulas] = {}
        for stage, way in structure.tiled:
            self._formulas[stage.name] = Formulas(_tile_formulas(stage, way, context))
        self.kinds = [way.kind for way in structure.ways.values()]
        self._main = max(structure.ways, key=lambda name: structure.stages[name].instances)

    @property
    def formulas(self) -> Mapping[str, Formulas]:
        """Extents, trips and bytes of every tiled stage, for inspection."""
        return self._formulas

    def describe(self, columns: Columns) -> tuple[Column, Column]:
        """Nanoseconds and features of every row."""
        rows = len(next(iter(columns.values()))) if columns else 1
        terms: dict[str, Any] = dict.fromkeys(TERMS, 0.0)
        main = Described({})
        needs: dict[str, Mapping[int, Any]] = {}
        for name in reversed(list(self.structure.ways)):
            found = self._stage(name, columns, needs)
            for key, value in found.terms.items():
                terms[key] = terms[key] + value
            if name == self._main or not main.terms:
                main = found
        memory = terms["l2"] + terms["l3"] + terms["memory"]
        inside = terms["compute"] + terms["results"] + terms["turns"]
        cycles = np.maximum(inside, memory) + OVERLAP * np.minimum(inside, memory)
        cycles = cycles + terms["dispatch"] + terms["imbalance"] + terms["wake"]
        ns = np.broadcast_to(cycles, rows) * self.context.target.machine.cycle_ns
        return ns, self._features(terms, main, rows)

    def _features(self, terms: Mapping[str, Any], main: Described, rows: int) -> Column:
        made = np.empty((rows, len(FEATURE_NAMES)), np.float32)
        at = 0
        for name in TERMS:
            made[:, at] = log2(terms[name])
            at += 1
        for name in SHAPE:
            made[:, at] = main.shape.get(name, 0.0)
            at += 1
        for source in (main.touched, main.reuse, main.trips):
            for name in LEVEL_NAMES:
                made[:, at] = log2(source.get(name, 1.0))
                at += 1
        width = len(RELATION_NAMES)
        made[:, at : at + width] = 0.0 if main.curve is None else main.curve
        at += width
        for kind in KINDS:
            made[:, at] = self.kinds.count(kind)
            at += 1
        return made

    # ------------------------------------------------------------------ one stage

    def _stage(self, name: str, columns: Columns, needs: dict[str, Mapping[int, Any]]) -> Described:
        stage, way = self.structure.stages[name], self.structure.ways[name]
        machine, threads = self.context.target.machine, self.context.threads
        if way.is_tiled:
            return self._tiled(stage, way, columns, needs)
        vectors = stage.instances / stage.lanes
        if way.kind == FOLLOW:
            return Described({"compute": vectors * stage.operations / threads})
        if way.kind == UNDER:
            return self._under(stage, columns, needs)
        bytes_moved = _whole_bytes(stage)
        memory = bytes_moved / machine.memory_bytes_per_cycle / threads
        if bytes_moved < max(machine.l3.size_bytes, machine.l2.size_bytes):
            memory = bytes_moved / _rate(machine, 2) / threads
        latency: Any = stage.chain * machine.fma_latency_cycles if stage.reduced else 0.0
        if way.kind in (ROWS, PARTS):
            latency = latency / columns[f"{name}.accumulators"]
        loads = _scattered(stage, way) / machine.loads_per_cycle
        work = vectors * np.maximum(max(stage.operations, loads), latency)
        shared = work / threads
        terms: dict[str, Any] = {
            "compute": shared,
            "memory": memory,
            "wake": machine.wake_cycles if threads > 1 else 0.0,
        }
        if f"{name}.chunks" in columns:
            chunks = columns[f"{name}.chunks"] * threads
            terms["dispatch"] = chunks / threads * chunk_cycles(machine)
            terms["imbalance"] = work / chunks / 2
            terms["turns"] = vectors / threads * TURN_CYCLES / columns[f"{name}.unroll"]
        if way.kind == PARTS:
            parts = columns[f"{name}.parts"]
            terms["dispatch"] = parts / threads * chunk_cycles(machine)
        return Described(terms)

    def _under(
        self, stage: Stage, columns: Columns, needs: dict[str, Mapping[int, Any]]
    ) -> Described:
        """A stage inside of a tile: the part that the tile needs, once per tile."""
        name = stage.name
        need = needs.get(name)
        if need is None:
            return Described({"compute": stage.instances / stage.lanes * stage.operations})
        trips, extents = need[-1], {at: size for at, size in need.items() if at >= 0}
        if f"{name}.level" in columns and -2 in need:
            outer = columns[f"{name}.level"] == "outer"
            trips = np.where(outer, need[-2], trips)
            extents = {
                at: np.where(outer, need[-3 - at], size)
                for at, size in extents.items()
                if -3 - at in need
            }
        vectors: Any = trips
        for at, axis in enumerate(stage.axes):
            size = extents.get(at, axis.extent)
            last = stage.spatial and at == stage.spatial[-1]
            vectors = vectors * (np.ceil(size / stage.lanes) if last else size)
        for touch in stage.reads:  # its own producers
            _need(
                needs,
                touch,
                {at: extents.get(at, a.extent) for at, a in enumerate(stage.axes)},
                trips,
                self.structure,
            )
        threads = self.context.threads
        loads = sum(touch.loads for touch in stage.reads)
        step = max(stage.operations, loads / self.context.target.machine.loads_per_cycle)
        return Described({"compute": vectors * step / threads})

    def _tiled(
        self, stage: Stage, way: Way, columns: Columns, needs: dict[str, Mapping[int, Any]]
    ) -> Described:
        machine, threads = self.context.target.machine, self.context.threads
        given = {
            key[len(stage.name) + 1 :]: column
            for key, column in columns.items()
            if key.startswith(f"{stage.name}.") and column.dtype.kind not in "US"
        }
        f = self._formulas[stage.name].columns(given)
        vectors, unrolled = f["vectors"], f["unrolled"]
        chain = stage.chain * machine.fma_latency_cycles if stage.reduced else 0.0
        operations_cycles = DOT_CYCLES if way.kind == DOT else stage.operations
        arithmetic = vectors * unrolled * operations_cycles
        loads = f["loads"] / machine.loads_per_cycle
        used = vectors + f["operands"] + 1
        spilled = np.maximum(0.0, used - self.context.target.vector_registers)
        step = np.maximum(np.maximum(arithmetic, loads), chain * unrolled)
        step = step + spilled * unrolled * SPILL_CYCLES
        steps = f["trips/step"]
        compute = steps * step
        turns = steps * TURN_CYCLES + f["trips/tile"] * TURN_CYCLES * 4
        results = f["trips/tile"] * vectors * len(stage.writes) / machine.stores_per_cycle
        if way.kind == BLOCKS:
            results = results * 3  # accumulators are loaded and stored again
        count = len(stage.touches)
        touched = {
            level: sum(f[f"bytes/{level}/{at}"] for at in range(count)) for level in LEVEL_NAMES
        }
        packing = sum(
            _bytes(touch) * PACK_CYCLES_PER_BYTE
            for touch in stage.reads
            if touch.buffer in way.packed
        )
        terms = self._memory(f, touched, count)
        chunks = f["chunks"]
        rounds = np.ceil(chunks / threads)
        share = rounds / np.maximum(chunks, 1.0)  # of the busiest thread
        for key, value in terms.items():
            terms[key] = value / threads
        terms["compute"] = compute * np.maximum(share, 1 / threads) + packing / threads
        terms["turns"] = turns / threads
        terms["results"] = results / threads
        terms["wake"] = machine.wake_cycles if threads > 1 else 0.0
        terms["dispatch"] = chunks / threads * chunk_cycles(machine)
        terms["imbalance"] = compute / np.maximum(chunks, 1.0) * (0.5 if threads > 1 else 0.0)
        for touch in stage.reads:
            extents = {at: f[f"tile/block/{at}"] for at in range(len(stage.axes))}
            outer = {at: f[f"tile/chunk/{at}"] for at in range(len(stage.axes))}
            _need(needs, touch, extents, f["trips/block"], self.structure, outer, chunks)
        operations = float(stage.instances)
        reuse = {
            level: operations
            / np.maximum(1.0, f[f"trips/{level}"])
            * stage.touches[0].element_bytes
            / np.maximum(1.0, touched[level])
            for level in LEVEL_NAMES
        }
        shape = {
            "tile vectors": vectors,
            "registers used": used / self.context.target.vector_registers,
            "loads per operation": f["loads"] / (vectors * unrolled),
            "unrolled operations": log2(vectors * unrolled),
            "tail waste": log2(steps * vectors * unrolled * stage.lanes / operations),
            "idle lanes": f["idle"],
            "chunks": log2(chunks),
            "chunks per thread": np.minimum(chunks / threads, 32.0),
            "packed operands": float(len(way.packed)),
        }
        rows = len(next(iter(columns.values())))
        flat_bytes, flat_reuse = [], []
        for level in LEVEL_NAMES[:-1]:
            for at, touch in enumerate(stage.touches):
                size = f[f"bytes/{level}/{at}"]
                instances = operations / np.maximum(1.0, f[f"trips/{level}"])
                flat_bytes.append(size)
                flat_reuse.append(instances * touch.element_bytes / np.maximum(1.0, size))
        trips = {level: f[f"trips/{level}"] for level in LEVEL_NAMES}
        curve = relation(flat_bytes, flat_reuse, rows)
        return Described(terms, shape, touched, reuse, trips, curve)

    def _memory(
        self, f: Mapping[str, Any], touched: Mapping[str, Any], count: int
    ) -> dict[str, Any]:
        """Lines from each level of memory: what fits a cache is loaded once."""
        machine = self.context.target.machine
        found: dict[str, Any] = {}
        caches = [("l2", machine.l1d.size_bytes, _rate(machine, 1))]
        caches.append(("l3", machine.l2.size_bytes, _rate(machine, 2)))
        if machine.l3.size_bytes:
            caches.append(("memory", machine.l3.size_bytes, machine.memory_bytes_per_cycle))
        for name, size, rate in caches:
            traffic: Any = f["trips/step"] * 0.0
            for at in range(count):
                brought: Any = f["trips/tile"] * f[f"bytes/tile/{at}"]
                for level in ("middle", "block", "whole"):
                    once = f[f"trips/{level}"] * f[f"bytes/{level}/{at}"]
                    fits = touched[level] <= 0.8 * size
                    # a single buffer may stay while others stream through
                    stays = f[f"bytes/{level}/{at}"] <= 0.4 * size
                    brought = np.where(fits | stays, np.minimum(once, brought), brought)
                traffic = traffic + brought
            found[name] = traffic / rate
        return found


def _need(
    needs: dict[str, Mapping[int, Any]],
    touch: Touch,
    extents: Mapping[int, Any],
    trips: Any,
    structure: Structure,
    outer: Mapping[int, Any] | None = None,
    chunks: Any = None,
) -> None:
    """Record what a tile needs of a stage computed inside of it: its axes, and how often."""
    for name, way in structure.ways.items():
        stage = structure.stages[name]
        if way.kind != UNDER or stage.writes[0].buffer != touch.buffer or name in needs:
            continue
        found: dict[int, Any] = {-1: trips}
        for at, dim in enumerate(stage.writes[0].dims):
            if dim is None or len(dim) != 1:
                continue
            axis = next(iter(dim))
            found[axis] = _reach(touch, at, extents, stage.axes[axis].extent)
            if outer is not None:
                found[-3 - axis] = _reach(touch, at, outer, stage.axes[axis].extent)
        if outer is not None:
            found[-2] = chunks
        needs[name] = found


def _reach(touch: Touch, dimension: int, extents: Mapping[int, Any], most: int) -> Any:
    dim = touch.dims[dimension]
    if dim is None:
        return float(most)
    reach: Any = 1.0 + touch.spans[dimension]
    for axis, step in dim.items():
        reach = reach + abs(step) * (extents.get(axis, 1.0) - 1.0)
    return np.minimum(reach, float(most))


def _scattered(stage: Stage, way: Way) -> float:
    """Loads per vector of instances: one per operand, or one per lane if strided."""
    lanes = stage.spatial[-1:] if way.kind == PLAIN else stage.reduced
    total = 0.0
    for touch in stage.reads:
        near = not lanes or any(touch.step(at) in (0, 1) for at in lanes)
        total += touch.loads * (1 if near else stage.lanes)
    return total


def _rate(machine: Machine, level: int) -> float:
    """Bytes per cycle from L2 (1) or L3 (2), where there is such a level."""
    if level == 1:
        return machine.l2.bytes_per_cycle
    return machine.l3.bytes_per_cycle if machine.l3.size_bytes else machine.memory_bytes_per_cycle


def _bytes(touch: Touch) -> int:
    total = touch.element_bytes
    for size in touch.shape:
        total *= size
    return total


def _whole_bytes(stage: Stage) -> float:
    sizes = {touch.buffer: _bytes(touch) for touch in stage.touches}
    return float(sum(sizes.values()))


# --------------------------------------------------------------------------- formulas


def _tile_formulas(stage: Stage, way: Way, context: RuleContext) -> dict[str, Expr]:
    """Tile sizes at every level, trips and bytes, as expressions of the decisions."""
    names: dict[str, Var] = {}

    def decided(name: str) -> Var:
        return names.setdefault(name, sym.var(name))

    tiles: dict[str, dict[int, Expr]] = {level: {} for level in LEVEL_NAMES}
    chunk: dict[int, Expr] = {}
    vectors: Expr = sym.const(1)
    chunks: Expr = sym.const(1)
    padded: Expr = sym.const(1)
    extents = {at: axis.extent for at, axis in enumerate(stage.axes)}
    found: dict[str, Expr] = {}
    longest = long_sum(stage)
    unrolled: Expr = sym.const(1)
    for at, axis in enumerate(stage.axes):
        whole = sym.const(axis.extent)
        if axis.is_reduced:
            unroll: Expr = sym.const(1)
            if at in stage.reduced and way.kind != DOT:
                unroll = decided(f"{axis.name}.unroll")
            elif way.kind == DOT and at == stage.reduced[-1]:
                unroll = sym.const(_dot_steps(way))
            part: Expr = whole
            if way.kind == BLOCKS and at == longest:
                part = sym.minimum(decided(f"{axis.name}.block"), axis.extent)
            unrolled = sym.mul(unrolled, 1 if way.kind == DOT else unroll)
            sizes: tuple[Expr, ...] = (unroll, part, part, whole, whole)
            chunk[at] = whole
        elif at in stage.spatial:
            inner = decided(f"{axis.name}.inner")
            vectors = sym.mul(vectors, inner)
            near: Expr = sym.mul(inner, stage.lanes) if at == way.lanes else inner
            middle = sym.mul(near, decided(f"{axis.name}.middle"))
            block = sym.mul(middle, decided(f"{axis.name}.block"))
            sizes = (near, near, sym.minimum(middle, whole), sym.minimum(block, whole), whole)
            chunks = sym.mul(chunks, sym.ceildiv(axis.extent, block))
            chunk[at] = sizes[3]
        else:
            sizes = (whole,) * 5
            chunk[at] = whole
        for level, size in zip(LEVEL_NAMES, sizes, strict=True):
            tiles[level][at] = size
        found[f"tile/block/{at}"] = sizes[3]
        found[f"tile/chunk/{at}"] = chunk[at]
        padded = sym.mul(padded, sym.mul(sym.ceildiv(axis.extent, sizes[0]), sizes[0]))
    line = context.target.machine.l1d.line_bytes
    accesses = [
        Access(touch.buffer, touch.element_bytes, touch.shape, touch.dims, touch.spans, line)
        for touch in stage.touches
    ]
    found.update(levels(accesses, tiles, extents))
    loads: Expr = sym.const(0)
    operands: Expr = sym.const(0)
    for touch in stage.reads:
        one = _loaded(stage, way, touch, tiles["step"])
        loads = sym.add(loads, one)
        if touch.uses(way.lanes) and touch.loads == 1:
            operands = sym.add(operands, _loaded(stage, way, touch, tiles["step"], single=True))
    lanes_axis = stage.axes[way.lanes].extent
    across = sym.mul(sym.ceildiv(lanes_axis, stage.lanes), stage.lanes)
    found["vectors"] = vectors
    found["unrolled"] = unrolled
    found["loads"] = loads
    found["operands"] = operands
    found["chunks"] = chunks
    found["idle"] = sym.sub(across, lanes_axis)
    return found


def _dot_steps(way: Way) -> int:
    """Reduction steps per call of the instruction."""
    return next(each.steps for each in DOTS if each.name == way.intrin)


def _loaded(
    stage: Stage, way: Way, touch: Touch, tile: Mapping[int, Expr], *, single: bool = False
) -> Expr:
    """Loads of an operand per step: a vector along the lanes, or one broadcast element."""
    total: Expr = sym.const(1 if single else touch.loads)
    step = touch.step(way.lanes)
    for at in (*stage.spatial, *stage.reduced):
        if not touch.uses(at) or (single and stage.axes[at].is_reduced):
            continue
        if way.kind == DOT and stage.axes[at].is_reduced:
            continue  # one vector of each operand per call
        size = tile[at]
        if at == way.lanes and (step in (0, 1) or touch.buffer in way.packed):
            size = sym.ceildiv(size, stage.lanes)
        total = sym.mul(total, size)
    return total
