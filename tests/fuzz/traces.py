"""Random legal traces: primitives of all kinds are tried, those accepted are kept.

    outcome = random_trace(function, seed)
    outcome.schedule        the schedule with its trace
    outcome.applied         how often each primitive was accepted
    outcome.refused         how often each was refused

A refusal must be a `ScheduleError` (or a `UserError` of an argument) and leave no mark; anything
else that is raised is a bug and passes through.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from programs import DECLARED, declare_intrinsics

from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.rules import Choice, schedule
from tilewright.rules.space import plan_text
from tilewright.sym import Const, Expr
from tilewright.tensor.constants import CONSTANT
from tilewright.tensor.ir import (
    ALTERNATING,
    REDUCE,
    Block,
    Buffer,
    For,
    Function,
    Load,
    Region,
    Stmt,
    Store,
    Update,
    Value,
)
from tilewright.tensor.passes.cut_sums import PART_TERMS
from tilewright.tensor.passes.interleave_loops import GUEST, HOST, INTERLEAVE
from tilewright.tensor.passes.tails import TAILS
from tilewright.tensor.roles import rings, role_plan
from tilewright.tensor.schedule import BlockRef, LoopRef, Schedule, Trace
from tilewright.tensor.schedule.analysis.tree import find_block, find_loop
from tilewright.tensor.visit import blocks, written_buffers


@dataclass
class Outcome:
    schedule: Schedule
    applied: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)


class Nothing(Exception):
    """The move finds nothing to try in this program."""


def random_trace(
    fn: Function, seed: int, wanted: int = 12, attempts: int = 80, style: str | None = None
) -> Outcome:
    """A schedule of `fn` with at least `wanted` primitives applied, if so many are found."""
    declare_intrinsics()
    rng = random.Random(seed)
    style = style or rng.choice(("cpu", "cpu", "cpu", "gpu"))
    out = Outcome(Schedule(fn, seed=seed))
    if any(_is_half(buffer) for buffer in fn.buffers):
        roles = decided(fn, rng, small_gpu(rng))
        if any(step.primitive == "specialize" for step in roles.steps):
            roles.apply(out.schedule)
            if rng.random() < 0.5:
                Moves(out.schedule, rng).specialize()
            count_steps(out)
            return out  # other primitives would take roles apart
    goal = wanted + rng.randint(0, 8)
    if style == "cpu" and rng.random() < RULED:
        decided(fn, rng).apply(out.schedule)
        count_steps(out)
        goal += sum(out.applied.values())
    # Some find what they fit in fresh programs only.
    early = rng.choice(EARLY) if rng.random() < 0.4 else None
    for attempt in range(attempts):
        if sum(out.applied.values()) >= goal:
            break
        weights = [weight for _, weight in MOVES[style].values()]
        name = rng.choices(list(MOVES[style]), weights)[0]
        if early is not None and attempt < 8 and not out.applied[early]:
            name = early
        move, _ = MOVES[style][name]
        point = out.schedule.checkpoint()
        steps = len(out.schedule.trace)
        try:
            move(Moves(out.schedule, rng))
        except Nothing:
            out.schedule.restore(point)
        except UserError as error:
            out.schedule.restore(point)
            out.refused[name] += 1
            out.codes[error.code] += 1
        else:
            if iterations(out.schedule.function) > MAX_ITERATIONS:  # splits that cover too much
                out.schedule.restore(point)
                continue
            count_steps(out, steps)
    return out


def count_steps(out: Outcome, first: int = 0) -> None:
    """Add the steps of the trace from one on to what was applied."""
    names = [step.primitive for step in out.schedule.trace.steps[first:]]
    out.applied.update(name for name in names if not name.startswith("get_"))


RULED = 0.15  # of the schedules for CPUs: begin with what rules decide


def small_gpu(rng: random.Random) -> Target:
    """One whose kernels have warp roles; of few multiprocessors, at times just one cluster."""
    target = Target.parse("cuda -arch=sm_90a")
    return replace(target, machine=replace(target.machine, cores=rng.choice((8, 12, 132))))


def decided(fn: Function, rng: random.Random, target: str | Target = "cpu") -> Trace:
    """What the rules for a target do, one block by a plan drawn from its space."""
    threads = rng.choice((1, 2))
    inputs = [buffer.name for buffer in fn.buffers]
    constants = rng.sample(inputs, rng.randint(0, len(inputs)))
    made = schedule(fn, target, threads=threads, constants=constants)
    offers = [offer for offer in made.offers if offer.is_open]
    if not offers:
        return made.schedule.trace
    offer = rng.choice(offers)
    space = offer.space
    drawn = space.sample(1, np.random.default_rng(rng.getrandbits(32)))
    plans = [plan_text(space.plan_at(drawn, at)) for at in range(len(next(iter(drawn.values()))))]
    for plan in plans:
        given = {offer.block: Choice(offer.rule.name, plan)}
        try:
            made = schedule(fn, target, threads=threads, constants=constants, choices=given)
        except UserError:
            continue  # the space is that of the block as rules before had left it
    return made.schedule.trace


EARLY = (
    "tensorize",
    "tensorize",
    "reindex_read",
    "pad",
    "crop",
    "interleave",
    "part_terms",
    "rows",
    "merge_windows",
)
MAX_ITERATIONS = 50_000  # of all blocks together: what the interpreter does in a second


def iterations(fn: Function) -> int:
    """About how often blocks run; symbolic extents count as ten."""
    total = 0
    stack: list[tuple[Stmt, int]] = [(fn.body, 1)]
    while stack:
        stmt, times = stack.pop()
        if isinstance(stmt, Block):
            total += times
        if isinstance(stmt, For):
            extent = stmt.extent
            times *= int(extent.value) if isinstance(extent, Const) else 10
        stack.extend((child, times) for child in stmt.children())
    return total


class Moves:
    """Draws the arguments of primitives from the present program."""

    def __init__(self, sch: Schedule, rng: random.Random) -> None:
        self.sch = sch
        self.rng = rng

    # ------------------------------------------------------------------ drawing

    def block(self, test: Callable[[Block], bool] = lambda block: True) -> BlockRef:
        found = [block.name for block in blocks(self.sch.function.body) if test(block)]
        if not found:
            raise Nothing
        return self.sch.get_block(self.rng.choice(found))

    def at(self, ref: BlockRef) -> Block:
        path = find_block(self.sch.function, ref.name)
        assert path is not None
        block = path[-1]
        assert isinstance(block, Block)
        return block

    def extent(self, ref: LoopRef) -> int | None:
        path = find_loop(self.sch.function, ref.var)
        assert path is not None
        loop = path[-1]
        assert isinstance(loop, For)
        return int(loop.extent.value) if isinstance(loop.extent, Const) else None

    def loops(self, block: BlockRef | None = None) -> list[LoopRef]:
        found = self.sch.get_loops(self.block() if block is None else block)
        if not found:
            raise Nothing
        return found

    def loop(self) -> LoopRef:
        return self.rng.choice(self.loops())

    def factor(self) -> int:
        return self.rng.choice((1, 2, 2, 3, 4, 4, 5, 8))

    def index(self, count: int) -> int:
        if not count:
            raise Nothing
        return self.rng.randrange(count)

    # ------------------------------------------------------------------ loops

    def split(self) -> None:
        loop = self.loop()
        parts = self.rng.choice((2, 2, 2, 3))
        factors: list[int | None] = [self.factor() for _ in range(parts)]
        if self.rng.random() < 0.9:
            factors[self.rng.randrange(parts)] = None
        self.sch.split(loop, factors)

    def fuse(self) -> None:
        loops = self.loops()
        if len(loops) < 2:
            raise Nothing
        first = self.rng.randrange(len(loops) - 1)
        self.sch.fuse(*loops[first : first + self.rng.choice((2, 2, 3))])

    def reorder(self) -> None:
        loops = self.loops()
        if len(loops) < 2:
            raise Nothing
        count = self.rng.randint(2, len(loops))
        self.sch.reorder(*self.rng.sample(loops, count))

    def tile(self) -> None:
        loops = self.loops()
        if len(loops) < 2:
            raise Nothing
        at = self.rng.randrange(len(loops) - 1)
        self.sch.tile(loops[at], loops[at + 1], self.factor(), self.factor())

    def add_unit_loop(self) -> None:
        self.sch.add_unit_loop(self.loop() if self.rng.random() < 0.5 else self.block())

    def parallel(self) -> None:
        self.sch.parallel(self.loop())

    def small(self) -> LoopRef:
        """A loop of few iterations."""
        found = [loop for loop in self.loops() if (self.extent(loop) or 99) <= 16]
        if not found:
            raise Nothing
        return self.rng.choice(found)

    def vectorize(self) -> None:
        self.sch.vectorize(self.small())

    def unroll(self) -> None:
        self.sch.unroll(self.small())

    def vthread(self) -> None:
        self.sch.bind(self.small(), "vthread")

    def bind(self) -> None:
        axis = self.rng.choice(
            ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.x", "threadIdx.y")
        )
        self.sch.bind(self.loop(), axis)

    def hint(self) -> None:
        """An annotation that means something to a pass or to the code generator."""
        key, values = self.rng.choice(HINTS)
        self.sch.annotate(self.loop(), key, self.rng.choice(values))

    def nonsense(self) -> None:
        """The same with a value that means nothing: refused, or harmless."""
        key, _ = self.rng.choice(HINTS)
        at = self.loop() if self.rng.random() < 0.5 else self.block()
        self.sch.annotate(at, key, self.rng.choice((-1, 0, 2.5, "text", (1, "two"), False)))

    def tails(self) -> None:
        """A loop over rows of a register tile, cut to each number of rows that may be left."""
        outer, inner = self.sch.split(self.loop(), [None, self.rng.choice((2, 3, 4))])
        self.sch.unroll(inner)
        self.sch.annotate(self.rng.choice((outer, outer, outer, inner)), TAILS, True)

    def part_terms(self) -> None:
        """Sums in registers, of one element or several, that are added up part by part."""
        block = self.block(lambda b: any(it.kind == REDUCE for it in b.iters))
        count = sum(it.kind != REDUCE for it in self.at(block).iters)
        loops = self.loops(block)
        if not 0 < count < len(loops):
            raise Nothing
        result, place = self.sch.cache_write(block, 0, "local"), loops[count - 1]
        if self.rng.random() < 0.6:
            place, inner = self.sch.split(place, [None, self.rng.choice((2, 4))])
            self.sch.reorder(*loops[count:], inner)
            self.rng.choice((self.sch.unroll, self.sch.vectorize))(inner)
        self.sch.reverse_compute_at(result, place)
        self.sch.annotate(self.rng.choice(loops[count:]), PART_TERMS, self.factor())

    def interleave(self) -> None:
        """Two loops, the second between the iterations of the first where nothing forbids it."""
        results = self.sch.get_output_blocks()
        if len(results) > 1 and self.rng.random() < 0.8:
            host, guest = results[:2]
        else:
            host, guest = self.block(), self.block()
        self.sch.annotate(self.rng.choice(self.loops(host)), INTERLEAVE, HOST)
        guests = self.loops(guest)
        outermost = guests[0] if self.rng.random() < 0.8 else self.rng.choice(guests)
        self.sch.annotate(outermost, INTERLEAVE, GUEST)

    def alternating(self) -> None:
        """The threads of a parallel loop take their iterations in alternating direction."""
        loop = self.loop()
        self.sch.parallel(loop)
        self.sch.annotate(loop, ALTERNATING, True)
        if self.rng.random() < 0.5:
            self.sch.annotate(loop, "threads", self.rng.choice((0, 1, 2)))

    def constant(self) -> None:
        """Work on inputs alone, which may run before the first call."""
        made = written_buffers(self.sch.function.body)
        block = self.block(lambda b: not any(region.buffer in made for region in b.reads))
        self.sch.annotate(block, CONSTANT, True)

    def packed_constant(self) -> None:
        """A copy of an input in another layout, marked as such work."""
        block = self.block()
        copy = self.sch.cache_read(block, self.index(len(self.at(block).reads)), "global")
        self.sch.transform_layout(copy, ("write", 0), self.index_map(self.at(copy).writes[0]))
        self.sch.annotate(copy, CONSTANT, True)

    def annotate(self) -> None:
        at = self.loop() if self.rng.random() < 0.5 else self.block()
        key = self.rng.choice(("note", "level", "shape"))
        self.sch.annotate(at, key, self.rng.choice((1, 2.5, "text", (1, "two", 3.0))))
        if self.rng.random() < 0.3:
            self.sch.unannotate(at, key)

    def sample_tile(self) -> None:
        loop = self.loop()
        factors = self.sch.sample_tile(loop, self.rng.choice((2, 3)))
        self.sch.split(loop, factors)

    def sample_choice(self) -> None:
        loop = self.loop()
        self.sch.split(loop, [None, self.sch.sample_choice([1, 2, 4, 3])])

    # ------------------------------------------------------------------ where to compute

    def compute_at(self) -> None:
        self.sch.compute_at(self.block(), self.loop())

    def compute_at_consumer(self) -> None:
        block = self.block()
        consumers = self.sch.get_consumers(block)
        if not consumers:
            raise Nothing
        self.sch.compute_at(block, self.rng.choice(self.loops(self.rng.choice(consumers))))

    def reverse_compute_at(self) -> None:
        block = self.block()
        producers = self.sch.get_producers(block)
        if not producers:
            raise Nothing
        self.sch.reverse_compute_at(block, self.rng.choice(self.loops(self.rng.choice(producers))))

    def rows(self) -> None:
        """All stages at the first loop of the last, which may keep what they compute to itself."""
        *stages, last = [block.name for block in blocks(self.sch.function.body)]
        loop, *_ = self.loops(self.sch.get_block(last))
        for name in reversed(stages):
            block = self.sch.get_block(name)
            self.sch.compute_at(block, loop)
            if self.rng.random() < 0.5:
                self.sch.set_scope(block, 0, "local")

    def compute_inline(self) -> None:
        self.sch.compute_inline(self.block())

    def reverse_compute_inline(self) -> None:
        self.sch.reverse_compute_inline(self.block())

    # ------------------------------------------------------------------ what blocks compute

    def decompose_reduction(self) -> None:
        block = self.block(lambda b: b.init is not None)
        self.sch.decompose_reduction(block, self.rng.choice(self.loops(block)))

    def rfactor(self) -> None:
        block = self.block(lambda b: any(it.kind == REDUCE for it in b.iters))
        self.sch.rfactor(self.rng.choice(self.loops(block)), self.rng.choice((0, 0, 1, -1)))

    def rfactor_at(self) -> None:
        block = self.block(lambda b: all(it.kind == REDUCE for it in b.iters))
        producers = self.sch.get_producers(block)
        loops = [loop for each in producers for loop in self.loops(each)]
        if not loops:
            raise Nothing
        self.sch.rfactor_at(block, self.rng.choice(loops))

    def merge_windows(self) -> None:
        block = self.block(lambda b: any(it.kind == REDUCE for it in b.iters))
        rank = len(self.at(block).writes[0].ranges)
        if not rank:
            raise Nothing
        sums = sum(it.kind == REDUCE for it in self.at(block).iters)  # innermost at first
        parts = self.sch.rfactor(self.rng.choice(self.loops(block)[-sums:]), rank)
        self.sch.merge_windows(parts, self.rng.randrange(rank), rank)

    def split_rfactor(self) -> None:
        block = self.block(lambda b: any(it.kind == REDUCE for it in b.iters))
        loops = self.loops(block)
        parts = self.sch.split(self.rng.choice(loops), [None, self.factor()])
        self.sch.rfactor(self.rng.choice(parts), 0)

    def blockize(self) -> None:
        self.sch.blockize(self.loop())

    def tensorize(self) -> None:
        name, tile = self.rng.choice(DECLARED)
        if name == "fuzz_copy4":
            block = self.block(lambda b: isinstance(b.body, Store) and _is_load(b.body.value))
        elif name == "fuzz_sum4":
            block = self.block(lambda b: isinstance(b.body, Update) and _is_load(*b.body.values))
        else:
            block = self.block(lambda b: isinstance(b.body, Update) and len(b.iters) >= 3)
        if self.rng.random() < 0.6:
            self.sch.pad(block, [4] * len(self.at(block).iters))
        loops = self.loops(block)
        if len(loops) < len(tile):
            raise Nothing
        if self.rng.random() < 0.3 and isinstance(self.at(block).body, Update):
            self.sch.decompose_reduction(block, self.rng.choice(loops))
        outer, inner = [], []
        for loop, size in zip(loops[-len(tile) :], tile, strict=True):
            o, i = self.sch.split(loop, [None, size])
            outer.append(o)
            inner.append(i)
        self.sch.reorder(*outer, *inner)
        self.sch.tensorize(inner[0], name)

    def pad(self) -> None:
        block = self.block()
        count = len(self.at(block).iters)
        multiples = [self.rng.choice((1, 2, 4)) for _ in range(count)]
        clamp = self.rng.random() < 0.4
        if clamp and self.rng.random() < 0.8:  # it serves iterators of results alone
            kinds = [it.kind for it in self.at(block).iters]
            multiples = [1 if k == REDUCE else m for k, m in zip(kinds, multiples, strict=True)]
        self.sch.pad(block, multiples, clamp)

    def crop(self) -> None:
        self.sch.crop(self.block())

    # ------------------------------------------------------------------ memory

    def cache_read(self) -> None:
        block = self.block()
        self.sch.cache_read(block, self.index(len(self.at(block).reads)), self.scope())

    def reindex_read(self) -> None:
        block = self.block()
        self.sch.reindex_read(block, self.index(len(self.at(block).reads)), self.scope())

    def cache_write(self) -> None:
        block = self.block()
        self.sch.cache_write(block, self.index(len(self.at(block).writes)), self.scope())

    def set_scope(self) -> None:
        block = self.block()
        self.sch.set_scope(block, self.index(len(self.at(block).writes)), self.scope())

    def scope(self) -> str:
        return self.rng.choice(("global", "local", "shared"))

    def storage_align(self) -> None:
        block = self.block()
        at = self.index(len(self.at(block).writes))
        rank = self.at(block).writes[at].buffer.rank
        self.sch.storage_align(block, at, self.index(rank), self.factor(), self.rng.choice((0, 1)))

    def transform_layout(self) -> None:
        block = self.block()
        which = self.rng.choice(("write", "write", "read"))
        regions = self.at(block).writes if which == "write" else self.at(block).reads
        at = self.index(len(regions))
        self.sch.transform_layout(block, (which, at), self.index_map(regions[at]))

    def index_map(self, region: Region) -> str:
        """Dimensions in another order, one of them in two parts at times."""
        names = [f"i{axis}" for axis in range(region.buffer.rank)]
        places = list(names)
        self.rng.shuffle(places)
        if places and self.rng.random() < 0.5:
            axis, factor = self.rng.randrange(len(places)), self.rng.choice((2, 4))
            name = places[axis]
            places[axis : axis + 1] = [f"{name} // {factor}", f"{name} % {factor}"]
            if self.rng.random() < 0.5:
                self.rng.shuffle(places)
        return f"({', '.join(names)}) -> ({', '.join(places)})"

    def double_buffer(self) -> None:
        self.sch.double_buffer(self.block())

    def software_pipeline(self) -> None:
        loop = self.loop()
        path = find_loop(self.sch.function, loop.var)
        assert path is not None
        count = len(getattr(path[-1].children()[0], "stmts", (0,)))
        stages = sorted(self.rng.choice((0, 0, 1)) for _ in range(count))
        self.sch.software_pipeline(loop, stages, list(range(count)))

    def specialize(self) -> None:
        """The ring of a producer and its consumers, with other sizes."""
        found = rings(self.sch.function.body)
        if not found:
            raise Nothing
        loop = self.rng.choice(found)
        plan = role_plan(loop)
        slots, beside = self.rng.randint(2, 6), self.rng.choice((1, 1, 2, 3))
        more = (plan.resident, bool(plan.stream_k), bool(plan.pingpong))
        self.sch.specialize(LoopRef(loop.var), slots, plan.blocks, beside, *more)

    def prefetch(self) -> None:
        block = self.block()
        at = self.index(len(self.at(block).reads))
        loops = self.loops(block)
        place = self.rng.randrange(len(loops))
        spread = None
        if self.rng.random() < 0.5:
            below = loops[place + 1 :] if self.rng.random() < 0.9 else loops
            spread = self.rng.choice(below) if below else None
        offset, beyond = self.rng.choice((0, 1, 1, 2, 3)), self.rng.random() < 0.5
        self.sch.prefetch(block, at, loops[place], offset, spread, beyond)


# Annotations of loops that are read by a pass or by the code generator, with what they may say.
HINTS: tuple[tuple[str, tuple[Value, ...]], ...] = (
    ("unroll", (1, 2, 3, 4)),
    ("threads", (0, 1, 2)),
    (ALTERNATING, (True,)),
    (TAILS, (True,)),
    (PART_TERMS, (1, 2, 3, 4, 8)),
    (INTERLEAVE, (HOST, GUEST)),
)


def _is_half(buffer: Buffer) -> bool:
    return buffer.dtype.is_float and buffer.dtype.bits == 16


def _is_load(*values: Expr) -> bool:
    return len(values) == 1 and isinstance(values[0], Load)


Move = Callable[[Moves], None]
COMMON: dict[str, tuple[Move, int]] = {
    "split": (Moves.split, 10),
    "fuse": (Moves.fuse, 5),
    "reorder": (Moves.reorder, 8),
    "tile": (Moves.tile, 2),
    "unroll": (Moves.unroll, 2),
    "annotate": (Moves.annotate, 1),
    "hint": (Moves.hint, 2),
    "nonsense": (Moves.nonsense, 1),
    "add_unit_loop": (Moves.add_unit_loop, 1),
    "tails": (Moves.tails, 3),
    "part_terms": (Moves.part_terms, 3),
    "interleave": (Moves.interleave, 2),
    "constant": (Moves.constant, 1),
    "packed_constant": (Moves.packed_constant, 1),
    "sample_tile": (Moves.sample_tile, 2),
    "sample_choice": (Moves.sample_choice, 1),
    "compute_at": (Moves.compute_at, 2),
    "compute_at_consumer": (Moves.compute_at_consumer, 6),
    "reverse_compute_at": (Moves.reverse_compute_at, 6),
    "rows": (Moves.rows, 2),
    "compute_inline": (Moves.compute_inline, 3),
    "reverse_compute_inline": (Moves.reverse_compute_inline, 3),
    "cache_read": (Moves.cache_read, 4),
    "reindex_read": (Moves.reindex_read, 2),
    "cache_write": (Moves.cache_write, 4),
    "set_scope": (Moves.set_scope, 2),
    "storage_align": (Moves.storage_align, 1),
    "transform_layout": (Moves.transform_layout, 4),
    "pad": (Moves.pad, 3),
    "crop": (Moves.crop, 2),
    "rfactor": (Moves.rfactor, 2),
    "rfactor_at": (Moves.rfactor_at, 2),
    "merge_windows": (Moves.merge_windows, 2),
    "split_rfactor": (Moves.split_rfactor, 3),
    "decompose_reduction": (Moves.decompose_reduction, 4),
    "blockize": (Moves.blockize, 3),
    "tensorize": (Moves.tensorize, 4),
    "double_buffer": (Moves.double_buffer, 2),
    "software_pipeline": (Moves.software_pipeline, 2),
    "prefetch": (Moves.prefetch, 3),
}
MOVES: dict[str, dict[str, tuple[Move, int]]] = {
    "cpu": {
        **COMMON,
        "parallel": (Moves.parallel, 5),
        "alternating": (Moves.alternating, 2),
        "vectorize": (Moves.vectorize, 5),
        "vthread": (Moves.vthread, 1),
    },
    "gpu": {
        **COMMON,
        "bind": (Moves.bind, 14),
        "vthread": (Moves.vthread, 2),
        "vectorize": (Moves.vectorize, 2),
    },
}
