"""Schedule: a program, and the trace of primitives that made it.

    sch = Schedule(fn)
    i, j, k = sch.get_loops(sch.get_block("C"))
    io, ii = sch.split(i, [None, 8])
    sch.parallel(io)
    sch.function            the program now
    sch.trace               what was done, replayable on another Schedule

Every primitive is a pure function in a file of its own; the methods here resolve references,
record the step and put the step's number into a refusal. A refused primitive changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tilewright.base.errors import ScheduleError, UserError, UserTypeError
from tilewright.base.html import program
from tilewright.sym import Var
from tilewright.tensor.intrin import TensorIntrin, intrinsic
from tilewright.tensor.ir import SCHEDULED, Function, Value
from tilewright.tensor.schedule import queries
from tilewright.tensor.schedule.add_unit_loop import add_unit_loop
from tilewright.tensor.schedule.analysis.concurrency import check_shared
from tilewright.tensor.schedule.analysis.index_map import IndexMap
from tilewright.tensor.schedule.analysis.kernels import MOVING, Checked, check_kernels
from tilewright.tensor.schedule.annotate import annotate, unannotate
from tilewright.tensor.schedule.bind import bind
from tilewright.tensor.schedule.blockize import blockize
from tilewright.tensor.schedule.cache_read import cache_read
from tilewright.tensor.schedule.cache_write import cache_write
from tilewright.tensor.schedule.compute_at import compute_at
from tilewright.tensor.schedule.compute_inline import compute_inline
from tilewright.tensor.schedule.crop import crop
from tilewright.tensor.schedule.decompose_reduction import decompose_reduction
from tilewright.tensor.schedule.double_buffer import double_buffer
from tilewright.tensor.schedule.fuse import fuse
from tilewright.tensor.schedule.merge_windows import merge_windows
from tilewright.tensor.schedule.pad import pad
from tilewright.tensor.schedule.parallel import parallel
from tilewright.tensor.schedule.prefetch import prefetch
from tilewright.tensor.schedule.refs import BlockRef, Decision, LoopRef
from tilewright.tensor.schedule.reindex_read import reindex_read
from tilewright.tensor.schedule.reorder import reorder
from tilewright.tensor.schedule.reverse_compute_at import reverse_compute_at
from tilewright.tensor.schedule.reverse_compute_inline import reverse_compute_inline
from tilewright.tensor.schedule.rfactor import rfactor
from tilewright.tensor.schedule.rfactor_at import rfactor_at
from tilewright.tensor.schedule.sample import sample_choice, sample_tile
from tilewright.tensor.schedule.set_scope import set_scope
from tilewright.tensor.schedule.software_pipeline import check_plans, software_pipeline
from tilewright.tensor.schedule.specialize import specialize
from tilewright.tensor.schedule.split import split
from tilewright.tensor.schedule.storage_align import storage_align
from tilewright.tensor.schedule.tensorize import tensorize
from tilewright.tensor.schedule.trace import Recorder, Trace
from tilewright.tensor.schedule.transform_layout import find_buffer, transform_layout
from tilewright.tensor.schedule.unroll import unroll
from tilewright.tensor.schedule.vectorize import vectorize

R = TypeVar("R")


@dataclass(frozen=True)
class Checkpoint:
    """A point that a schedule can go back to."""

    function: Function
    recorder: Recorder
    refusals: tuple[str, ...]


class Schedule:
    """A tensor function under transformation. Primitives are methods.

    Examples:
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((12, 20), name="A")
        >>> B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
        >>> sch = tw.Schedule(te.function([A, B], name="add"))
        >>> i, j = sch.get_loops(sch.get_block("B"))
        >>> outer, inner = sch.split(j, [None, 4])
        >>> sch.vectorize(inner)
        >>> print(sch.function, end="")
        func @add(%A: f32[12, 20], %B: f32[12, 20]) stage scheduled {
          for %i in 0..12 {
            for %j_0 in 0..5 {
              for %j_1 in vector 0..4 {
                block @B(%vi: spatial 12 = %i, %vj: spatial 20 = %j_0 * 4 + %j_1) {
                  reads %A[%vi, %vj]
                  writes %B[%vi, %vj]
                  %B[%vi, %vj] = %A[%vi, %vj] + 1.0
                }
              }
            }
          }
        }
    """

    def __init__(self, function: Function, *, seed: int = 0) -> None:
        if not isinstance(function, Function):
            raise UserTypeError("TW2193", f"cannot schedule a {type(function).__name__}")
        if function.stage != SCHEDULED:
            raise UserTypeError("TW2193", f"cannot schedule a function at stage {function.stage}")
        self._function = function
        self._before = function  # the program before the primitive being recorded
        self._recorder = Recorder()
        self._random = random.Random(seed)
        self._refusals: list[str] = []
        self._kernels: tuple[Checked, ...] = ()

    @property
    def function(self) -> Function:
        """The program as it is now."""
        return self._function

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return Trace(self._recorder.steps)

    def _repr_html_(self) -> str:
        """The program and the trace, in notebooks."""
        name, steps = self.function.name, len(self.trace)
        title = f"schedule of @{name}, {steps} steps"
        return program(title, str(self.function)) + program("trace", str(self.trace))

    def copy(self) -> Schedule:
        """An independent schedule at the same point, with the same references."""
        other = Schedule(self._function)
        other._recorder = self._recorder.copy()
        other._refusals = list(self._refusals)
        other._random.setstate(self._random.getstate())
        other._kernels = self._kernels
        return other

    def checkpoint(self) -> Checkpoint:
        """The present point, for `restore`."""
        return Checkpoint(self._function, self._recorder.copy(), tuple(self._refusals))

    def restore(self, point: Checkpoint) -> None:
        """Go back to a checkpoint, forgetting refusals since then too."""
        self._function = self._before = point.function
        self._recorder = point.recorder.copy()
        self._refusals = list(point.refusals)

    def attempt(self, step: Callable[..., Any], *args: Any) -> bool:
        """Apply an optional step if it is legal; record a refusal."""
        point = self.checkpoint()
        try:
            step(*args)
        except ScheduleError as error:
            self.abandon(point, step.__name__, error)
            return False
        return True

    def abandon(self, point: Checkpoint, what: str, error: ScheduleError) -> None:
        """Go back to a checkpoint, recording what was refused since then."""
        self.restore(point)
        self._refusals.append(f"{what}: {error.message}")

    def take_refusals(self) -> list[str]:
        """The refusals of `attempt` and `abandon` since the last call."""
        taken, self._refusals = self._refusals, []
        return taken

    # ------------------------------------------------------------------ finding things

    def get_block(self, name: str) -> BlockRef:
        """The block called `name`."""
        found = self._run("get_block", queries.get_block, name)
        return self._record("get_block", {"name": name}, BlockRef(found))

    def get_loops(self, block: BlockRef) -> list[LoopRef]:
        """The loops around a block, outermost first."""
        found = self._run("get_loops", queries.get_loops, _name(block))
        return self._record("get_loops", {"block": block}, [LoopRef(v) for v in found])

    def get_child_blocks(self, loop: LoopRef) -> list[BlockRef]:
        """The blocks under a loop, in program order."""
        found = self._run("get_child_blocks", queries.get_child_blocks, _var(loop))
        return self._record("get_child_blocks", {"loop": loop}, [BlockRef(n) for n in found])

    def get_producers(self, block: BlockRef) -> list[BlockRef]:
        """The blocks that write what this one reads."""
        found = self._run("get_producers", queries.get_producers, _name(block))
        return self._record("get_producers", {"block": block}, [BlockRef(n) for n in found])

    def get_consumers(self, block: BlockRef) -> list[BlockRef]:
        """The blocks that read what this one writes."""
        found = self._run("get_consumers", queries.get_consumers, _name(block))
        return self._record("get_consumers", {"block": block}, [BlockRef(n) for n in found])

    def get_output_blocks(self) -> list[BlockRef]:
        """The blocks that write the function's results."""
        found = self._run("get_output_blocks", queries.get_output_blocks)
        return self._record("get_output_blocks", {}, [BlockRef(n) for n in found])

    # ------------------------------------------------------------------ decisions

    def sample_tile(
        self,
        loop: LoopRef,
        n: int,
        max_innermost: int = 64,
        decision: Sequence[int] | None = None,
    ) -> list[Decision]:
        """`n` factors of the loop's extent; drawn at random unless `decision` gives them."""
        drawn = self._run(
            "sample_tile", sample_tile, _var(loop), n, max_innermost, self._random, decision
        )
        arguments = {"loop": loop, "n": n, "max_innermost": max_innermost}
        return self._record("sample_tile", arguments, [Decision(d) for d in drawn], drawn)

    def sample_choice(
        self,
        candidates: Sequence[int],
        weights: Sequence[float] | None = None,
        decision: Sequence[int] | None = None,
    ) -> Decision:
        """One of the candidates; `decision` is its position."""
        at = self._run("sample_choice", sample_choice, candidates, weights, self._random, decision)
        arguments = {
            "candidates": list(candidates),
            "weights": None if weights is None else list(weights),
        }
        return self._record("sample_choice", arguments, Decision(candidates[at]), [at])

    def decide(self, rule: str, block: BlockRef, plan: str) -> None:
        """Record that the following steps come from a rule's plan; replay ignores it."""
        _name(block)
        self._record("decide", {"rule": rule, "block": block, "plan": plan}, None)

    # ------------------------------------------------------------------ loops

    def split(self, loop: LoopRef, factors: Sequence[int | None]) -> list[LoopRef]:
        """Split a loop into a nest; one factor may be None."""
        new = self._apply("split", split, _var(loop), factors)
        return self._record("split", {"loop": loop, "factors": factors}, _loops(new))

    def fuse(self, *loops: LoopRef) -> LoopRef:
        """Fuse a perfect nest into one loop."""
        new = self._apply("fuse", fuse, [_var(loop) for loop in loops])
        return self._record("fuse", {"loops": loops}, LoopRef(new))

    def reorder(self, *loops: LoopRef) -> None:
        """Permute loops of a perfect nest into the given order."""
        self._apply("reorder", reorder, [_var(loop) for loop in loops])
        self._record("reorder", {"loops": loops}, None)

    def add_unit_loop(self, at: LoopRef | BlockRef) -> LoopRef:
        """Wrap a loop or block in a loop of one iteration, to bind, or to move blocks under."""
        where = _var(at) if isinstance(at, LoopRef) else _name(at)
        new = self._apply("add_unit_loop", add_unit_loop, where)
        return self._record("add_unit_loop", {"at": at}, LoopRef(new))

    def tile(
        self, y: LoopRef, x: LoopRef, y_factor: int, x_factor: int
    ) -> tuple[LoopRef, LoopRef, LoopRef, LoopRef]:
        """Tile two loops: split both, then reorder."""
        yo, yi = self.split(y, [None, y_factor])
        xo, xi = self.split(x, [None, x_factor])
        self.reorder(yo, xo, yi, xi)
        return yo, xo, yi, xi

    def parallel(self, loop: LoopRef) -> None:
        """Run iterations on the threads of a pool."""
        self._apply("parallel", parallel, _var(loop))
        self._record("parallel", {"loop": loop}, None)

    def vectorize(self, loop: LoopRef) -> None:
        """Map iterations to vector lanes."""
        self._apply("vectorize", vectorize, _var(loop))
        self._record("vectorize", {"loop": loop}, None)

    def unroll(self, loop: LoopRef) -> None:
        """Repeat the body once per iteration."""
        self._apply("unroll", unroll, _var(loop))
        self._record("unroll", {"loop": loop}, None)

    def bind(self, loop: LoopRef, thread: str) -> None:
        """Map iterations to the threads of an axis: blockIdx.x, threadIdx.y, vthread, ..."""
        self._apply("bind", bind, _var(loop), thread)
        self._record("bind", {"loop": loop, "thread": thread}, None)

    def annotate(self, at: LoopRef | BlockRef, key: str, value: Value) -> None:
        """Attach a hint to a loop or block."""
        where = _var(at) if isinstance(at, LoopRef) else _name(at)
        self._apply("annotate", annotate, where, key, _value(value))
        self._record("annotate", {"at": at, "key": key, "value": value}, None)

    def unannotate(self, at: LoopRef | BlockRef, key: str) -> None:
        """Remove a hint."""
        where = _var(at) if isinstance(at, LoopRef) else _name(at)
        self._apply("unannotate", unannotate, where, key)
        self._record("unannotate", {"at": at, "key": key}, None)

    # ------------------------------------------------------------------ where things are computed

    def compute_at(self, block: BlockRef, loop: LoopRef) -> None:
        """Move a producer under a loop of its consumers, computing what they need there."""
        self._apply("compute_at", compute_at, _name(block), _var(loop))
        self._record("compute_at", {"block": block, "loop": loop}, None)

    def reverse_compute_at(self, block: BlockRef, loop: LoopRef) -> None:
        """Move a consumer under a loop of its producers, consuming what they produce there."""
        self._apply("reverse_compute_at", reverse_compute_at, _name(block), _var(loop))
        self._record("reverse_compute_at", {"block": block, "loop": loop}, None)

    def compute_inline(self, block: BlockRef) -> None:
        """Inline a producer into its consumers."""
        self._apply("compute_inline", compute_inline, _name(block))
        self._record("compute_inline", {"block": block}, None)

    def reverse_compute_inline(self, block: BlockRef) -> None:
        """Inline an elementwise consumer into its producer."""
        self._apply("reverse_compute_inline", reverse_compute_inline, _name(block))
        self._record("reverse_compute_inline", {"block": block}, None)

    def prefetch(
        self,
        block: BlockRef,
        index: int,
        loop: LoopRef,
        offset: int,
        over: LoopRef | None = None,
        beyond: bool = False,
    ) -> BlockRef:
        """Prefetch what the block's read number `index` needs `offset` iterations later.

        All at once, or spread evenly over the iterations of the inner loops down to `over`. With
        `beyond`, without a test for the last iteration.
        """
        inner = None if over is None else _var(over)
        made = self._apply(
            "prefetch", prefetch, _name(block), index, _var(loop), offset, inner, beyond
        )
        arguments: dict[str, Any] = {"block": block, "index": index, "loop": loop, "offset": offset}
        if over is not None:
            arguments["over"] = over
        if beyond:
            arguments["beyond"] = beyond
        return self._record("prefetch", arguments, BlockRef(made))

    def double_buffer(self, block: BlockRef) -> None:
        """Let the block fill its buffer for the next iteration while this one uses it."""
        self._apply("double_buffer", double_buffer, _name(block))
        self._record("double_buffer", {"block": block}, None)

    def software_pipeline(self, loop: LoopRef, stages: Sequence[int], order: Sequence[int]) -> None:
        """Run statement j of the loop's body `stages[j]` iterations late, in order `order[j]`."""
        self._apply("software_pipeline", software_pipeline, _var(loop), stages, order)
        arguments = {"loop": loop, "stages": stages, "order": order}
        self._record("software_pipeline", arguments, None)

    # ------------------------------------------------------------------ blocks

    def specialize(
        self,
        loop: LoopRef,
        slots: int,
        blocks: int = 0,
        beside: int = 1,
        resident: int = 1,
        stream_k: bool = False,
        pingpong: bool = False,
    ) -> None:
        """Assign bulk copies under the loop to a producer warp, through a ring of `slots` tiles."""
        more = (beside, resident, stream_k, pingpong)
        self._apply("specialize", specialize, _var(loop), slots, blocks, *more)
        made = {"loop": loop, "slots": slots, "blocks": blocks, "beside": beside}
        made |= {"resident": resident} if resident > 1 else {}
        made |= {"stream_k": stream_k} if stream_k else {}
        made |= {"pingpong": pingpong} if pingpong else {}
        self._record("specialize", made, None)

    def decompose_reduction(self, block: BlockRef, loop: LoopRef) -> BlockRef:
        """Make the init of a reduction a block of its own, before the loop."""
        made = self._apply("decompose_reduction", decompose_reduction, _name(block), _var(loop))
        return self._record("decompose_reduction", {"block": block, "loop": loop}, BlockRef(made))

    def rfactor(self, loop: LoopRef, factor_axis: int) -> BlockRef:
        """Factor a reduction along a loop: a partial result per iteration, combined by a block."""
        made = self._apply("rfactor", rfactor, _var(loop), factor_axis)
        return self._record("rfactor", {"loop": loop, "factor_axis": factor_axis}, BlockRef(made))

    def rfactor_at(self, block: BlockRef, loop: LoopRef) -> BlockRef:
        """Fuse a full reduction into a loop of its producer, as partial reductions."""
        made = self._apply("rfactor_at", rfactor_at, _name(block), _var(loop))
        return self._record("rfactor_at", {"block": block, "loop": loop}, BlockRef(made))

    def merge_windows(self, block: BlockRef, axis: int, other: int) -> None:
        """Compute once what overlapping windows along `axis` share at `other`."""
        self._apply("merge_windows", merge_windows, _name(block), axis, other)
        self._record("merge_windows", {"block": block, "axis": axis, "other": other}, None)

    def blockize(self, loop: LoopRef) -> BlockRef:
        """Turn the nest under a loop into an outer block around a smaller one."""
        made = self._apply("blockize", blockize, _var(loop))
        return self._record("blockize", {"loop": loop}, BlockRef(made))

    def tensorize(
        self,
        block_or_loop: BlockRef | LoopRef,
        tensor_intrin: str | TensorIntrin,
        **parameters: int,
    ) -> None:
        """Replace the computation of a block, or under a loop, by a call of an intrinsic.

        Parameters of the intrinsic are keyword arguments: `rows=14`.
        """
        at = _var(block_or_loop) if isinstance(block_or_loop, LoopRef) else _name(block_or_loop)
        if isinstance(tensor_intrin, TensorIntrin):
            parameters = {**dict(tensor_intrin.arguments), **parameters}
            tensor_intrin = tensor_intrin.name
        chosen = intrinsic(tensor_intrin, parameters.items())
        self._apply("tensorize", tensorize, at, chosen)
        kept = {key: value for key, value in parameters.items() if key in dict(chosen.arguments)}
        arguments = {"block_or_loop": block_or_loop, "tensor_intrin": chosen.name, **kept}
        self._record("tensorize", arguments, None)

    def pad(self, block: BlockRef, multiples: Sequence[int], clamp: bool = False) -> None:
        """Round the extents of the block's iterators up, on zero-padded copies of its inputs.

        With `clamp`, on the inputs in place: instances beyond the extents repeat the last one.
        """
        self._apply("pad", pad, _name(block), multiples, clamp)
        arguments: dict[str, Any] = {"block": block, "multiples": multiples}
        if clamp:
            arguments["clamp"] = True
        self._record("pad", arguments, None)

    def crop(self, block: BlockRef) -> None:
        """Restrict the block's iterators to the results that others read."""
        self._apply("crop", crop, _name(block))
        self._record("crop", {"block": block}, None)

    # ------------------------------------------------------------------ memory

    def transform_layout(
        self,
        block: BlockRef,
        buffer: Sequence[str | int] | str,
        index_map: str | Callable[..., Any],
    ) -> None:
        """Change the layout of a buffer: ("read", 0), ("write", 0) or a name."""
        where: Any = buffer if isinstance(buffer, str) else tuple(buffer)
        found = self._run("transform_layout", find_buffer, _name(block), where)
        made = (
            IndexMap.parse(index_map)
            if isinstance(index_map, str)
            else IndexMap.of(index_map, found.rank)
        )
        self._apply("transform_layout", transform_layout, _name(block), where, made)
        arguments = {"block": block, "buffer": buffer, "index_map": str(made)}
        self._record("transform_layout", arguments, None)

    def cache_read(
        self, block: BlockRef, index: int, scope: str, also: Sequence[BlockRef] = ()
    ) -> BlockRef:
        """Let the block's read number `index` go through a copy in memory `scope`.

        The later blocks in `also` read the same copy.
        """
        others = [_name(each) for each in also]
        made = self._apply("cache_read", cache_read, _name(block), index, scope, others)
        arguments: dict[str, Any] = {"block": block, "index": index, "scope": scope}
        if also:
            arguments["also"] = also
        return self._record("cache_read", arguments, BlockRef(made))

    def reindex_read(self, block: BlockRef, index: int, scope: str) -> BlockRef:
        """Let the block's read number `index` go through a copy laid out by its own iterators."""
        made = self._apply("reindex_read", reindex_read, _name(block), index, scope)
        arguments = {"block": block, "index": index, "scope": scope}
        return self._record("reindex_read", arguments, BlockRef(made))

    def cache_write(self, block: BlockRef, index: int, scope: str) -> BlockRef:
        """Let the block's write number `index` go to memory `scope`, and be copied back."""
        made = self._apply("cache_write", cache_write, _name(block), index, scope)
        arguments = {"block": block, "index": index, "scope": scope}
        return self._record("cache_write", arguments, BlockRef(made))

    def set_scope(self, block: BlockRef, index: int, scope: str) -> None:
        """Move the buffer of the block's write number `index` to memory `scope`."""
        self._apply("set_scope", set_scope, _name(block), index, scope)
        self._record("set_scope", {"block": block, "index": index, "scope": scope}, None)

    def storage_align(
        self, block: BlockRef, index: int, axis: int, factor: int, offset: int
    ) -> None:
        """Pad the buffer of write number `index`: stride of `axis` % factor == offset."""
        arguments = {"index": index, "axis": axis, "factor": factor, "offset": offset}
        self._apply("storage_align", storage_align, _name(block), *arguments.values())
        self._record("storage_align", {"block": block, **arguments}, None)

    # ------------------------------------------------------------------ machinery

    def _run(self, step: str, primitive: Callable[..., R], *args: Any) -> R:
        """Call a primitive on the program; a refusal gets the step's number in the trace."""
        try:
            return primitive(self._function, *args)
        except ScheduleError as error:
            if self._recorder.steps:
                last = self._recorder.steps[-1]
                error.context += f", after schedule step {len(self._recorder.steps)}: {last}"
            error.context += f", in {step}"
            raise

    def _apply(self, step: str, primitive: Callable[..., Any], *args: Any) -> Any:
        """Call a primitive that returns a new program, or (new program, results)."""
        self._before = self._function
        out = self._run(step, primitive, *args)
        function, results = out if isinstance(out, tuple) else (out, None)
        self._run(step, check_plans, function)
        if step in MOVING:
            kernels = self._run(step, check_kernels, function, self._kernels)
            self._run(step, check_shared, function)
            self._kernels = kernels
        self._function = function
        return results

    def _record(
        self,
        step: str,
        arguments: dict[str, Any],
        results: R,
        decision: Sequence[int] | None = None,
    ) -> R:
        try:
            self._recorder.record(step, arguments, results, decision)
        except UserError:
            self._function = self._before
            raise
        self._before = self._function
        return results


def _var(loop: LoopRef) -> Var:
    if not isinstance(loop, LoopRef):
        raise UserTypeError("TW2194", f"expected a loop, got {loop!r}")
    return loop.var


def _name(block: BlockRef) -> str:
    if not isinstance(block, BlockRef):
        raise UserTypeError("TW2194", f"expected a block, got {block!r}")
    return block.name


def _loops(variables: Sequence[Var]) -> list[LoopRef]:
    return [LoopRef(v) for v in variables]


def _value(value: Any) -> Value:
    if isinstance(value, (list, tuple)):
        return tuple(_value(item) for item in value)
    number = hasattr(value, "item") and not getattr(value, "ndim", 0)  # of NumPy
    plain: Value = value.item() if number else value
    return plain
