"""The analytical cost of a sketch's points.

Formulas give trips and bytes of every tiled stage (`formulas.py`). Cycles are those of the busiest
thread: the maximum of arithmetic (whole tiles, with tails and idle lanes), loads, and the latency
of accumulation chains; plus lines from L2, L3 and memory where levels do not fit, stores, loop
overhead, and dispatch of chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.base.machine import Machine
from tilewright.rules.context import RuleContext
from tilewright.rules.sharing import chunk_cycles
from tilewright.tune.features import Formulas, log2, relation
from tilewright.tune.sketch.features import TERMS, Described, features
from tilewright.tune.sketch.formulas import LEVEL_NAMES, tile_formulas
from tilewright.tune.sketch.stage import Stage, Touch
from tilewright.tune.sketch.structure import (
    BLOCKS,
    DOT,
    FOLLOW,
    PARTS,
    PLAIN,
    ROWS,
    UNDER,
    Structure,
    Way,
)
from tilewright.tune.space import Column, Columns

TURN_CYCLES = 2.0  # overhead per iteration: count, compare, branch, addresses
OVERLAP = 0.3  # share of the shorter of arithmetic and memory time that is not hidden
SPILL_CYCLES = 1.0  # per step and spilled accumulator
PACK_CYCLES_PER_BYTE = 0.25
DOT_CYCLES = 1.0  # per dot-product instruction


@dataclass(frozen=True)
class Need:
    """What a tile needs of a stage that is computed inside of it."""

    trips: Any  # how often
    extents: Mapping[int, Any]  # of the stage's axes, each time
    outer_trips: Any = None  # the same where it is computed per chunk, if it may be
    outer_extents: Mapping[int, Any] = field(default_factory=dict)


class StructureModel:
    """The formulas of one structure, derived once."""

    def __init__(self, structure: Structure, context: RuleContext) -> None:
        self.structure = structure
        self.context = context
        self._formulas: dict[str, Formulas] = {}
        for stage, way in structure.tiled:
            self._formulas[stage.name] = Formulas(tile_formulas(stage, way, context))
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
        needs: dict[str, Need] = {}
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
        return ns, features(terms, main, self.kinds, rows)

    # ------------------------------------------------------------------ one stage

    def _stage(self, name: str, columns: Columns, needs: dict[str, Need]) -> Described:
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

    def _under(self, stage: Stage, columns: Columns, needs: dict[str, Need]) -> Described:
        """A stage inside of a tile: the part that the tile needs, once per tile."""
        name = stage.name
        need = needs.get(name)
        if need is None:
            return Described({"compute": stage.instances / stage.lanes * stage.operations})
        trips, extents = need.trips, dict(need.extents)
        if f"{name}.level" in columns and need.outer_trips is not None:
            outer = columns[f"{name}.level"] == "outer"
            trips = np.where(outer, need.outer_trips, trips)
            extents = {
                at: np.where(outer, need.outer_extents[at], size) for at, size in extents.items()
            }
        vectors: Any = trips
        for at, axis in enumerate(stage.axes):
            size = extents.get(at, axis.extent)
            last = stage.spatial and at == stage.spatial[-1]
            vectors = vectors * (np.ceil(size / stage.lanes) if last else size)
        for touch in stage.reads:  # its own producers
            whole = {at: extents.get(at, a.extent) for at, a in enumerate(stage.axes)}
            _record(needs, touch, Need(trips, whole), self.structure)
        threads = self.context.threads
        loads = sum(touch.loads for touch in stage.reads)
        step = max(stage.operations, loads / self.context.target.machine.loads_per_cycle)
        return Described({"compute": vectors * step / threads})

    def _tiled(self, stage: Stage, way: Way, columns: Columns, needs: dict[str, Need]) -> Described:
        given = {
            key[len(stage.name) + 1 :]: column
            for key, column in columns.items()
            if key.startswith(f"{stage.name}.") and column.dtype.kind not in "US"
        }
        f = self._formulas[stage.name].columns(given)
        for touch in stage.reads:
            extents = {at: f[f"tile/block/{at}"] for at in range(len(stage.axes))}
            outer = {at: f[f"tile/chunk/{at}"] for at in range(len(stage.axes))}
            need = Need(f["trips/block"], extents, f["chunks"], outer)
            _record(needs, touch, need, self.structure)
        count = len(stage.touches)
        touched = {
            level: sum(f[f"bytes/{level}/{at}"] for at in range(count)) for level in LEVEL_NAMES
        }
        rows = len(next(iter(columns.values())))
        return Described(
            self._tile_terms(stage, way, f, touched),
            self._tile_shape(stage, way, f),
            touched,
            _reuse(stage, f, touched),
            {level: f[f"trips/{level}"] for level in LEVEL_NAMES},
            _reuse_curve(stage, f, rows),
        )

    def _tile_terms(
        self, stage: Stage, way: Way, f: Mapping[str, Any], touched: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Cycles by cause."""
        machine, threads = self.context.target.machine, self.context.threads
        vectors, unrolled, chunks = f["vectors"], f["unrolled"], f["chunks"]
        chain = stage.chain * machine.fma_latency_cycles if stage.reduced else 0.0
        operations_cycles = DOT_CYCLES if way.kind == DOT else stage.operations
        arithmetic = vectors * unrolled * operations_cycles
        loads = f["loads"] / machine.loads_per_cycle
        spilled = np.maximum(0.0, _registers(f) - self.context.target.vector_registers)
        step = np.maximum(np.maximum(arithmetic, loads), chain * unrolled)
        step = step + spilled * unrolled * SPILL_CYCLES
        compute = f["trips/step"] * step
        turns = f["trips/step"] * TURN_CYCLES + f["trips/tile"] * TURN_CYCLES * 4
        results = f["trips/tile"] * vectors * len(stage.writes) / machine.stores_per_cycle
        if way.kind == BLOCKS:
            results = results * 3  # accumulators are loaded and stored again
        packing = sum(
            _bytes(touch) * PACK_CYCLES_PER_BYTE
            for touch in stage.reads
            if touch.buffer in way.packed
        )
        memory = self._memory(f, touched, len(stage.touches))
        share = np.ceil(chunks / threads) / np.maximum(chunks, 1.0)  # of the busiest thread
        return {
            **{level: cycles / threads for level, cycles in memory.items()},
            "compute": compute * np.maximum(share, 1 / threads) + packing / threads,
            "turns": turns / threads,
            "results": results / threads,
            "wake": machine.wake_cycles if threads > 1 else 0.0,
            "dispatch": chunks / threads * chunk_cycles(machine),
            "imbalance": compute / np.maximum(chunks, 1.0) * (0.5 if threads > 1 else 0.0),
        }

    def _tile_shape(self, stage: Stage, way: Way, f: Mapping[str, Any]) -> dict[str, Any]:
        """The features of a register tile and of the chunks."""
        vectors, unrolled, chunks = f["vectors"], f["unrolled"], f["chunks"]
        computed = f["trips/step"] * vectors * unrolled * stage.lanes
        return {
            "tile vectors": vectors,
            "registers used": _registers(f) / self.context.target.vector_registers,
            "loads per operation": f["loads"] / (vectors * unrolled),
            "unrolled operations": log2(vectors * unrolled),
            "tail waste": log2(computed / float(stage.instances)),
            "idle lanes": f["idle"],
            "chunks": log2(chunks),
            "chunks per thread": np.minimum(chunks / self.context.threads, 32.0),
            "packed operands": float(len(way.packed)),
        }

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


def _record(needs: dict[str, Need], touch: Touch, need: Need, structure: Structure) -> None:
    """Record the need of the stage that computes a buffer inside of a tile, if there is one, along
    its own axes; `need` has those of the reader."""
    for name, way in structure.ways.items():
        stage = structure.stages[name]
        if way.kind != UNDER or stage.writes[0].buffer != touch.buffer or name in needs:
            continue
        extents, outer_extents = {}, {}
        for at, dim in enumerate(stage.writes[0].dims):
            if dim is None or len(dim) != 1:
                continue
            axis = next(iter(dim))
            most = stage.axes[axis].extent
            extents[axis] = _reach(touch, at, need.extents, most)
            outer_extents[axis] = _reach(touch, at, need.outer_extents, most)
        needs[name] = replace(need, extents=extents, outer_extents=outer_extents)


def _registers(f: Mapping[str, Any]) -> Any:
    """Vector registers in a register tile: accumulators, operands, and one to broadcast."""
    return f["vectors"] + f["operands"] + 1


def _reuse(stage: Stage, f: Mapping[str, Any], touched: Mapping[str, Any]) -> dict[str, Any]:
    """Operations per byte of all buffers, by level."""
    size = stage.touches[0].element_bytes
    return {
        level: float(stage.instances)
        / np.maximum(1.0, f[f"trips/{level}"])
        * size
        / np.maximum(1.0, touched[level])
        for level in LEVEL_NAMES
    }


def _reuse_curve(stage: Stage, f: Mapping[str, Any], rows: int) -> Column:
    """The reuse attainable within so many bytes, over all buffers and levels."""
    touched, reuse = [], []
    for level in LEVEL_NAMES[:-1]:
        instances = float(stage.instances) / np.maximum(1.0, f[f"trips/{level}"])
        for at, touch in enumerate(stage.touches):
            size = f[f"bytes/{level}/{at}"]
            touched.append(size)
            reuse.append(instances * touch.element_bytes / np.maximum(1.0, size))
    return relation(touched, reuse, rows)


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
