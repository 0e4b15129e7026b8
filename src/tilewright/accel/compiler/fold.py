"""Fold loops and affine addresses into tasks: the last step from a function to a stream.

The program is executed loop by loop; a nest around one call becomes one task, if its fields and
microcode can express it. If not (too many loops, a tail that is no box, padding in a third
dimension), the outermost loop of the nest is executed instead and each iteration tried again.

    for i in 0..4 { for j in 0..14 { for k in 0..9 {            gemm n0=56 dst_0=1 src_0=...
      call vta_gemm.update(...) } } }                                n1=9 ... over=i1

A reset is not a task: the first update of the same entries overwrites instead of accumulating.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from tilewright import sym
from tilewright.accel.compiler.nests import Env, Linear, Nest, filled, linear, nest_of
from tilewright.accel.compiler.transfers import transfer
from tilewright.accel.intrin import blend_passes
from tilewright.accel.isa.steps import Indices
from tilewright.accel.isa.stream import Instruction, MicroOp, Value
from tilewright.accel.isa.table import AUX_FORMATS, LOOPS, REQUANT_ENTRIES, depth
from tilewright.base.errors import ScheduleError
from tilewright.base.geometry import Geometry
from tilewright.sym import Var
from tilewright.tensor.intrin import RESET
from tilewright.tensor.ir import Alloc, Buffer, For, Function, If, Seq, Stmt, TensorCall

Fields = dict[str, Value]
OPERANDS = ("dst", "src", "aux")
LEAST = -(1 << 31)
AUX = [one.name for one in AUX_FORMATS]
# Reductions on the ALU: the function, and that of the first step, which replaces the reset.
REDUCTIONS: dict[str, tuple[Fields, Fields]] = {
    "vta_add": ({"fn": "add"}, {"fn": "add", "imm": 1, "value": 0}),
    "vta_max": ({"fn": "max"}, {"fn": "max", "imm": 1, "value": LEAST}),
    "vta_mac": ({"fn": "mac"}, {"fn": "mul"}),
    "vta_dot": ({"fn": "mac"}, {"fn": "mul"}),
}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a parameter in DRAM: base register and offset in bytes."""

    base: int
    offset: int = 0


@dataclass(slots=True)
class _Dim:
    """A loop of a task: its extent, and the strides of dst, src and aux."""

    extent: int
    steps: tuple[int, ...]


class Folder:
    """The tasks of functions in order, without tokens, and their shared microcode."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.tasks: list[Instruction] = []
        self.microcode: list[MicroOp] = []
        self._resident: dict[tuple[MicroOp, ...], int] = {}  # addresses in the current contents
        self._filling = 0  # first micro-operation of the current contents
        self._marks: list[tuple[int, int]] = []  # contents: first task, first micro-operation
        self._nests: dict[int, tuple[Stmt, Nest | None]] = {}
        self._forms: dict[int, tuple[Linear, ...]] = {}
        self._reset = np.zeros(depth("acc", geometry), np.bool_)
        self._dram: Mapping[Buffer, Address] = {}
        self._fn: Function | None = None

    def add(self, fn: Function, addresses: Mapping[Buffer, Address]) -> None:
        """Append the tasks of a function whose parameters are at these addresses."""
        self._dram, self._fn = addresses, fn
        self._nests.clear()
        self._forms.clear()
        self._run(fn.body, {})
        if self._reset.any():
            raise self._refused("a reduction's start is not followed by its first step")

    # ----------------------------------------------------------------------- statements

    def _run(self, stmt: Stmt, env: dict[Var, int]) -> None:
        if isinstance(stmt, Seq):
            for child in stmt.stmts:
                self._run(child, env)
            return
        if isinstance(stmt, Alloc):
            self._run(stmt.body, env)
            return
        nest = self._nest(stmt)
        if nest is not None and self._fold(nest, env):
            return
        if isinstance(stmt, For):
            low, high = (int(sym.evaluate(e, env)) for e in (stmt.start, stmt.stop))
            for value in range(low, high):
                env[stmt.var] = value
                self._run(stmt.body, env)
            env.pop(stmt.var, None)
        elif isinstance(stmt, If) and nest is None and filled(stmt.otherwise) is None:
            chosen = stmt.then if sym.evaluate(stmt.cond, env) else stmt.otherwise
            if chosen is not None:
                self._run(chosen, env)
        else:
            raise self._refused("a statement is neither a transfer nor a step of a unit")

    def _nest(self, stmt: Stmt) -> Nest | None:
        found = self._nests.get(id(stmt))
        if found is None:
            found = self._nests[id(stmt)] = (stmt, nest_of(stmt))
        return found[1]

    def _fold(self, nest: Nest, env: Env) -> bool:
        """Append the tasks of a nest; returns whether that was possible."""
        box = nest.box(env)
        if box is None:
            return False
        if box.is_empty:
            return True
        name, forms = nest.call.intrin, self._linear(nest)
        bases = [
            form.at(env) + sum(s * low for s, (low, _) in zip(form.slopes, box.ranges, strict=True))
            for form in forms
        ]
        if name.startswith(("vta_load_", "vta_store_")):
            made = transfer(nest, env, box, forms, self._transfer_of(nest.call), self.geometry)
            if made is not None and made.format.has_neighbours and 1 not in forms[1].slopes:
                raise self._refused("a row of entries with neighbours is not loaded whole")
            if made is not None:
                self.tasks.append(made)
            return made is not None
        dims = [
            _Dim(high - low, tuple([form.slopes[at] for form in forms]))
            for at, (low, high) in enumerate(box.ranges)
            if high - low > 1
        ]
        if nest.call.phase == RESET:
            self._reset[_addresses(bases[0], [(d.extent, d.steps[0]) for d in dims])] = True
            return True
        return self._compute(name, dict(nest.call.arguments), bases, dims)

    def _linear(self, nest: Nest) -> tuple[Linear, ...]:
        """Addresses of a call's regions, in entries."""
        found = self._forms.get(id(nest))
        if found is not None:
            return found
        variables = tuple([loop.var for loop in nest.loops])
        made = []
        for region in nest.call.regions:
            index = [r.start for r in region.ranges[:-2]]
            dims = [int(dim.value) for dim in region.buffer.shape if isinstance(dim, sym.Const)]
            if len(dims) != region.buffer.rank or any(
                not isinstance(r.extent, sym.Const) or int(r.extent.value) != dim
                for r, dim in zip(region.ranges[-2:], dims[-2:], strict=True)
            ):
                raise self._refused(f"%{region.buffer.name} does not consist of whole entries")
            flat: sym.Expr = sym.ZERO
            for at, dim in zip(index, dims, strict=False):
                flat = sym.add(sym.mul(flat, dim), at)
            form = linear(flat, variables)
            if form is None:
                raise self._refused(f"the address {flat} of %{region.buffer.name} is not affine")
            made.append(form)
        self._forms[id(nest)] = tuple(made)
        return self._forms[id(nest)]

    def _transfer_of(self, call: TensorCall) -> Fields:
        """The fields of a transfer given by its intrinsic."""
        dram = call.regions[1 if call.intrin.startswith("vta_store_") else 0].buffer
        address = self._dram.get(dram)
        if address is None:
            raise self._refused(f"%{dram.name} has no address in memory")
        _, kind, name = call.intrin.split("_")
        op = "store" if kind == "store" else "aux" if name in AUX else "load"
        return {"op": op, "fmt": name, "base": address.base, "offset": address.offset}

    # ----------------------------------------------------------------------- steps

    def _compute(
        self, name: str, given: dict[str, int], bases: list[int], dims: list[_Dim]
    ) -> bool:
        if name == "vta_gemm":
            src, aux, dst = range(3)
            return self._gemm([bases[at] for at in (dst, src, aux)], _picked(dims, (dst, src, aux)))
        if name in REDUCTIONS:
            last = len(bases) - 1
            order = (last, 0, 1 if last == 2 else last)
            if name == "vta_dot":  # addressed by the last of the neighbours
                bases[0] += given["taps"] - 1
            return self._reduce(name, [bases[at] for at in order], _picked(dims, order))
        if name == "vta_blend":
            return all(
                self._alu(
                    {"fn": fn, "imm": 1, "value": value},
                    [bases[2], bases[at], 0],
                    _picked(dims, (2, at)),
                )
                for fn, at, value in blend_passes(given["a"], given["b"])
            )
        if name in ("vta_requant", "vta_rescale"):
            near = all(bases[1 + at] == bases[1] + at for at in range(REQUANT_ENTRIES))
            same = all(len({*dim.steps[1 : 1 + REQUANT_ENTRIES]}) == 1 for dim in dims)
            if not near or not same:
                raise self._refused("bias, multiplier and shift are not neighbours in vta.acc")
            fields: Fields = {"fn": name.removeprefix("vta_"), **given}
            for parameter in ("batch", "block_in", "block_out"):
                fields.pop(parameter, None)
            return self._alu(fields, [bases[4], bases[0], bases[1]], _picked(dims, (4, 0, 1)))
        raise self._refused(f"{name} is not an instruction of the accelerator")

    def _gemm(self, bases: list[int], dims: list[_Dim]) -> bool:
        dims = _merged(dims)
        loops, code = dims[:LOOPS], dims[LOOPS:]
        moving = {dim.steps[0] != 0 for dim in code}
        if len(moving) > 1:
            return False
        touched = _addresses(bases[0], [(dim.extent, dim.steps[0]) for dim in dims])
        fresh = self._reset[touched]
        if fresh.any() and not fresh.all():
            return False
        over = [f"i{at}" for at, dim in enumerate(loops) if dim.steps[0] == 0]
        over += ["u"] if code and moving != {True} else []
        init: Fields = {"init": 1, "over": over} if fresh.any() else {}
        if not self._task("gemm", init, bases, loops, code):
            return False
        self._reset[touched] = False
        return True

    def _reduce(self, name: str, bases: list[int], dims: list[_Dim]) -> bool:
        """Accumulating steps of the ALU; the first ones overwrite."""
        step, first = REDUCTIONS[name]
        touched = _addresses(bases[0], [(dim.extent, dim.steps[0]) for dim in dims])
        fresh = self._reset[touched]
        if not fresh.any():
            return self._alu(step, bases, dims)
        if not fresh.all() or not self._fits(dims):
            return False
        self._reset[touched] = False
        reducing = [at for at, dim in enumerate(dims) if dim.steps[0] == 0]
        kept = [dim for at, dim in enumerate(dims) if at not in reducing]
        done = self._alu(first, bases, kept)
        for number, at in enumerate(reducing):  # all steps except the first, as boxes
            rest = [_Dim(dims[at].extent - 1, dims[at].steps)] if dims[at].extent > 2 else []
            rest += [dims[other] for other in reducing[number + 1 :]]
            moved = [base + by for base, by in zip(bases, dims[at].steps, strict=True)]
            done = self._alu(step, moved, [*rest, *kept]) and done
        if not done:
            raise self._refused("a reduction's steps do not fit the fields of tasks")
        return True

    def _fits(self, dims: list[_Dim]) -> bool:
        """Whether loops fit one task, with at most a few steps of microcode."""
        return len(_merged(dims)) <= LOOPS and all(by >= 0 for dim in dims for by in dim.steps)

    def _alu(self, fields: Fields, bases: list[int], dims: list[_Dim]) -> bool:
        if self._reset[_addresses(bases[1], [(dim.extent, dim.steps[1]) for dim in dims])].any():
            raise self._refused("a sum is read before its first addition")
        dims = _merged(dims)
        return self._task("alu", fields, bases, dims[:LOOPS], dims[LOOPS:])

    def _task(
        self, op: str, fields: Fields, bases: list[int], loops: list[_Dim], code: list[_Dim]
    ) -> bool:
        room = depth("uop", self.geometry)
        count = int(np.prod([dim.extent for dim in code]))
        if count > room // 2 or any(by < 0 for dim in (*loops, *code) for by in dim.steps):
            return False
        steps = tuple(
            [
                MicroOp(
                    *[
                        sum(at * dim.steps[k] for at, dim in zip(index, code, strict=True))
                        for k in range(len(OPERANDS))
                    ]
                )
                for index in product(*(range(dim.extent) for dim in code))
            ]
        )
        begin = self._uops(steps)
        made: Fields = {**fields, "ubegin": begin, "uend": begin + count}
        for name, base in zip(OPERANDS, bases, strict=True):
            made[f"{name}0"] = base
        for at, dim in enumerate(loops):
            made[f"n{at}"] = dim.extent
            for name, by in zip(OPERANDS, dim.steps, strict=True):
                made[f"{name}_{at}"] = by
        self.tasks.append(Instruction.make(op, **made))
        return True

    def _uops(self, steps: tuple[MicroOp, ...]) -> int:
        """The address of these steps in microcode memory; a full memory is replaced."""
        if steps not in self._resident:
            used = len(self.microcode) - self._filling
            if not self._marks or used + len(steps) > depth("uop", self.geometry):
                self._filling = len(self.microcode)
                self._marks.append((len(self.tasks), self._filling))
                self._resident.clear()
            self._resident[steps] = len(self.microcode) - self._filling
            self.microcode += steps
        return self._resident[steps]

    def finished(self, uop_base: int) -> list[Instruction]:
        """All tasks, with loads of microcode and the end."""
        done: list[Instruction] = []
        marks = [*self._marks, (len(self.tasks), len(self.microcode))]
        done += self.tasks[: marks[0][0]]
        for (task, first), (next_task, last) in pairwise(marks):
            load: Fields = {"fmt": "uop", "base": uop_base, "offset": 8 * first, "x": last - first}
            done.append(Instruction.make("aux", **load))
            done += self.tasks[task:next_task]
        return [*done, Instruction.make("finish")]

    def loads_before(self, task: int) -> int:
        """The final index of a task, after microcode loads are inserted."""
        return task + sum(mark <= task for mark, _ in self._marks)

    def _refused(self, why: str) -> ScheduleError:
        name = "" if self._fn is None else f"@{self._fn.name}: "
        return ScheduleError(
            "TW7042",
            f"{name}{why}",
            help="copy, compute and store by tensorize with the accelerator's intrinsics alone",
        )


def _picked(dims: list[_Dim], order: tuple[int, ...]) -> list[_Dim]:
    """The loops in an order, with the strides of dst, src and aux; an absent operand has stride
    0."""
    padded = [*order, *[-1] * (len(OPERANDS) - len(order))]
    return [_Dim(d.extent, tuple([d.steps[at] if at >= 0 else 0 for at in padded])) for d in dims]


def _merged(dims: list[_Dim]) -> list[_Dim]:
    """Merge neighbouring loops with compatible strides."""
    made: list[_Dim] = []
    for dim in dims:
        if made and all(
            far == near * dim.extent for far, near in zip(made[-1].steps, dim.steps, strict=True)
        ):
            made[-1] = _Dim(made[-1].extent * dim.extent, dim.steps)
        else:
            made.append(dim)
    return made


def _addresses(base: int, dims: list[tuple[int, int]]) -> Indices:
    """The distinct addresses that loops reach."""
    found = np.array([base], np.int64)
    for extent, by in dims:
        if by:
            found = (found[:, None] + np.arange(extent, dtype=np.int64) * by).ravel()
    return np.unique(found)
