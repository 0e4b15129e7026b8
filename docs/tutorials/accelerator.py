"""Adding an accelerator of your own.

A fictitious machine: *Octo* multiplies tiles of 8 x 8 floats. One unit copies, another computes, and
each has a queue. We declare its instructions, schedule for it, turn the lowered program into
instructions with dependence tokens between the queues, and run them on a simulator written here.
Nothing in Tilewright changes for that. `docs/internals/accelerators.md` describes a complete
accelerator, down to hardware.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

import tilewright as tw
from tilewright import sym, te
from tilewright.base.passes import run_passes
from tilewright.tensor import ir
from tilewright.tensor.intrin import RESET, TensorIntrin, declare
from tilewright.tensor.passes import (
    compact_buffers,
    expand_updates,
    lower_blocks,
    lower_inits,
    place_allocations,
    remove_no_ops,
)
from tilewright.tensor.scopes import MemoryScope, Owner, declare_scope
from tilewright.tensor.visit import replace_buffers

# ## Declare it
#
# Three memories, each with room for some tiles. A *scope* is a memory that schedules place buffers
# into; ordinary loads and stores cannot access these.

SIDE, TILES = 8, {"octo.a": 4, "octo.b": 4, "octo.sum": 2}
for name in TILES:
    declare_scope(MemoryScope(name, Owner.UNIT, is_addressable=False))

# The behaviour of an instruction is a tensor function whose operands are in these memories.

TILE = (SIDE, SIDE)


def octo(function: ir.Function, *scopes: str) -> TensorIntrin:
    """An intrinsic whose parameters lie in these memories."""
    moved = {
        buffer: replace(buffer, scope=scope)
        for buffer, scope in zip(function.buffers, scopes, strict=True)
    }
    body = replace_buffers(function.body, moved)
    return declare(
        TensorIntrin(function.name, replace(function, params=tuple(moved.values()), body=body))
    )


def copy(name: str, source: str, target: str) -> TensorIntrin:
    x = te.placeholder(TILE, name="x")
    y = te.compute(TILE, lambda i, j: x[i, j], name="y")
    return octo(te.function([x, y], name=name), source, target)


a, b = (te.placeholder(TILE, name=name) for name in "ab")
k = te.reduce_axis((0, SIDE), name="k")
product = te.compute(TILE, lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
MULTIPLY = octo(te.function([a, b, product], name="octo_mma"), "octo.a", "octo.b", "octo.sum")
LOAD_A = copy("octo_load_a", "global", "octo.a")
LOAD_B = copy("octo_load_b", "global", "octo.b")
STORE = copy("octo_store", "octo.sum", "global")

# ## Schedule for it
#
# Copies into the memories are stages of the computation. We tile the result, copy the matching
# tiles of the operands in each step of the reduction, and tensorize every stage.

M, N, K = 32, 24, 40


def matmul() -> ir.Function:
    A, B = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    a = te.compute((M, K), lambda i, j: A[i, j], name="a")
    b = te.compute((K, N), lambda i, j: B[i, j], name="b")
    k = te.reduce_axis((0, K), name="k")
    total = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="total")
    C = te.compute((M, N), lambda i, j: total[i, j], name="C")
    return te.function([A, B, C], name="matmul")


def scheduled() -> tw.Schedule:
    sch = tw.Schedule(matmul())
    i, j = sch.get_loops(sch.get_block("C"))
    io, ii = sch.split(i, [None, SIDE])
    jo, ji = sch.split(j, [None, SIDE])
    sch.reorder(io, jo, ii, ji)
    sch.compute_at(sch.get_block("total"), jo)
    ti, tj, tk = sch.get_loops(sch.get_block("total"))[-3:]
    ko, ki = sch.split(tk, [None, SIDE])
    sch.reorder(ko, ti, tj, ki)
    for name in ("a", "b"):
        sch.compute_at(sch.get_block(name), ko)
    for stage, scope in (("a", "octo.a"), ("b", "octo.b"), ("total", "octo.sum")):
        sch.set_scope(sch.get_block(stage), 0, scope)
    for stage, intrin in (("a", LOAD_A), ("b", LOAD_B), ("C", STORE)):
        sch.tensorize(sch.get_loops(sch.get_block(stage))[-2], intrin)
    sch.tensorize(ti, MULTIPLY)
    return sch


sch = scheduled()
print(sch.function)

# The interpreter executes it by the declared behaviour, before there is a compiler or a machine.

rng = np.random.default_rng(0)
A, B = (rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
C = np.empty((M, N), np.float32)
tw.interpret(sch.function, A, B, C)
np.testing.assert_allclose(C, A @ B, rtol=1e-4, atol=1e-4)

# ## Lower it
#
# The passes are those of any target, in a list of our own.

LOWER_OCTO = (
    lower_inits,
    lower_blocks,
    expand_updates,
    place_allocations,
    compact_buffers,
    remove_no_ops,
)
lowered = run_passes(sch.function, LOWER_OCTO)
print(lowered)

# ## From the program to instructions
#
# An instruction names the tiles it accesses, of a memory or of a matrix in DRAM. Buffers alternate
# between the tiles of their memory, so that a load can fill one while another is read.


@dataclass
class Instruction:
    op: str
    reads: list[tuple[str, tuple[int, ...]]]
    writes: list[tuple[str, tuple[int, ...]]]
    first: bool = False  # a product that overwrites
    pops: int = 0  # tokens of the other queue that it waits for
    pushes: int = 0

    @property
    def queue(self) -> str:
        return "compute" if self.op == "octo_mma" else "copy"


class Emitter:
    """Runs the loops of a lowered program, and writes down what it calls."""

    def __init__(self) -> None:
        self.made: list[Instruction] = []
        self.turns = dict.fromkeys(TILES, -1)
        self.tile: dict[ir.Buffer, int] = {}
        self.reset: set[tuple[str, tuple[int, ...]]] = set()

    def run(self, stmt: ir.Stmt, env: dict[sym.Var, int]) -> None:
        if isinstance(stmt, ir.For):
            for value in range(sym.evaluate(stmt.start, env), sym.evaluate(stmt.stop, env)):
                self.run(stmt.body, {**env, stmt.var: value})
        elif isinstance(stmt, ir.Alloc):
            scope = stmt.buffer.scope
            self.turns[scope] = (self.turns[scope] + 1) % TILES[scope]
            self.tile[stmt.buffer] = self.turns[scope]
            self.run(stmt.body, env)
        elif isinstance(stmt, ir.TensorCall):
            self.call(stmt, [self.place(region, env) for region in stmt.regions])
        else:
            for child in stmt.children():
                self.run(child, env)

    def place(self, region: ir.Region, env: dict[sym.Var, int]) -> tuple[str, tuple[int, ...]]:
        if region.buffer in self.tile:
            return region.buffer.scope, (self.tile[region.buffer],)
        starts = tuple(sym.evaluate(r.start, env) // SIDE for r in region.ranges)
        return region.buffer.name, starts

    def call(self, stmt: ir.TensorCall, places: list[tuple[str, tuple[int, ...]]]) -> None:
        *reads, to = places
        if stmt.phase == RESET:  # no instruction: the first product overwrites
            self.reset.add(to)
            return
        first = to in self.reset
        self.reset.discard(to)
        self.made.append(Instruction(stmt.intrin, reads, [to], first))


def tokens(program: list[Instruction]) -> list[Instruction]:
    """Let an instruction wait for the last one of the other queue that touches what it touches."""
    met = {"copy": -1, "compute": -1}  # how far each queue has seen the other
    for number, one in enumerate(program):
        for earlier in range(number - 1, met[one.queue], -1):
            other = program[earlier]
            clash = {*one.writes} & {*other.writes, *other.reads} or {*one.reads} & {*other.writes}
            if other.queue != one.queue and clash:
                other.pushes, one.pops = other.pushes + 1, one.pops + 1
                met[one.queue] = earlier
                break
    return program


emitter = Emitter()
emitter.run(lowered.body, {})
program = tokens(emitter.made)
print(len(program), "instructions; the first ones:")
for one in program[:6]:
    print(one)

# ## The machine
#
# Each queue runs in order, but their relative speed is random here: tokens must give the same answer
# under any timing.


@dataclass
class Octo:
    dram: dict[str, np.ndarray]
    memory: dict[str, np.ndarray] = field(
        default_factory=lambda: {n: np.full((t, *TILE), np.nan) for n, t in TILES.items()}
    )

    def tile(self, place: tuple[str, tuple[int, ...]]) -> np.ndarray:
        name, at = place
        if name in self.memory:
            return self.memory[name][at[0]]
        i, j = at
        return self.dram[name][i * SIDE : (i + 1) * SIDE, j * SIDE : (j + 1) * SIDE]

    def execute(self, one: Instruction) -> None:
        operands, target = [self.tile(place) for place in one.reads], self.tile(one.writes[0])
        if one.op == "octo_mma":
            target[...] = operands[0] @ operands[1] + (0 if one.first else target)
        else:
            target[...] = operands[0]

    def run(self, program: list[Instruction], seed: int) -> None:
        random = np.random.default_rng(seed)
        queues = {q: deque(one for one in program if one.queue == q) for q in ("copy", "compute")}
        waiting = dict.fromkeys(queues, 0)  # tokens for each queue
        while any(queues.values()):
            ready = [q for q, queue in queues.items() if queue and queue[0].pops <= waiting[q]]
            assert ready, "the program does not end"
            chosen = str(random.choice(ready))
            one = queues[chosen].popleft()
            waiting[chosen] -= one.pops
            self.execute(one)
            waiting["compute" if chosen == "copy" else "copy"] += one.pushes


for seed in range(10):
    machine = Octo({"A": A, "B": B, "C": np.zeros((M, N), np.float32)})
    machine.run(program, seed)
    np.testing.assert_allclose(machine.dram["C"], A @ B, rtol=1e-4, atol=1e-4)
print("10 timings, one answer")

# Without tokens the program is wrong, and the machine shows it: it multiplies tiles that have not
# arrived yet.

bare = [replace(one, pops=0, pushes=0) for one in program]
answers = []
for seed in range(10):
    machine = Octo({"A": A, "B": B, "C": np.zeros((M, N), np.float32)})
    machine.run(bare, seed)
    answers.append(np.allclose(machine.dram["C"], A @ B, rtol=1e-4, atol=1e-4))
assert not all(answers)
print("without tokens:", answers.count(False), "of 10 answers are wrong")
