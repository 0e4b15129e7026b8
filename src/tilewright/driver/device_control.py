"""Control flow of a model on a GPU whose conditions are computed on the GPU.

`Choice` (an `if`) and `Loop` stand among the launches of a call. When a call is captured as a CUDA
graph they become conditional nodes, whose conditions small kernels set. When launches run one by
one, or the driver has no conditional nodes, the host reads the condition; the launches between two
such decisions are a graph each (`HostDecided`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from tilewright import sym
from tilewright.base.dtype import BOOL, I64, DType
from tilewright.base.errors import UserError
from tilewright.codegen.conditions import COND_AT
from tilewright.driver.device_launch import Gpu, Span, in_order, start_all
from tilewright.driver.lowering import Program
from tilewright.graph.ir import Node, Value
from tilewright.graph.memory import given_sizes
from tilewright.graph.ops.control import trip_of
from tilewright.sym import Var, free_vars

Enter = Callable[[int], None]  # runs a body by its number


@dataclass(frozen=True, slots=True)
class Choice:
    """An `if`: one of two bodies, by a condition in GPU memory."""

    gpu: Gpu
    cond: int  # address of the condition
    bodies: tuple[tuple[Any, ...], ...]  # the launches of the then-branch and of the else-branch
    label: str = "if"
    flops: int = 0
    starts_early: bool = False
    is_kernel: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        return (_span(self.cond, BOOL, False), *_spans(self.bodies))

    def start(self, stream: int, is_early: bool = False) -> None:
        if self.gpu.is_capturing(stream):
            self.gpu.record_choice(self, stream)
        else:
            self.decide(stream, lambda at: start_all(self.bodies[at], stream))

    def decide(self, stream: int, enter: Enter) -> None:
        """Let the host read the condition and run a body."""
        enter(0 if _read(self.gpu, self.cond, BOOL, stream) else 1)


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that ends when its condition fails or its iterations are done. All fields but the
    limit are addresses, 0 where the model has no such value."""

    gpu: Gpu
    limit: int
    trip: int  # the trip count, if a value of the model gives it
    begins: int  # the initial condition
    at: int  # the iteration's number, read by the body
    going: int  # the condition, read by the body: always true there
    # counters of the deciding kernels; the body copies its resulting condition behind them
    control: int
    bodies: tuple[tuple[Any, ...], ...]  # the launches of the one body
    label: str = "loop"
    flops: int = 0
    starts_early: bool = False
    is_kernel: bool = False

    @property
    def spans(self) -> tuple[Span, ...]:
        read = ((self.trip, I64), (self.begins, BOOL))
        written = ((self.at, I64), (self.going, BOOL), (self.control, I64), (self._condition, BOOL))
        return (
            *(_span(place, dtype, False) for place, dtype in read if place),
            *(_span(place, dtype, True) for place, dtype in written),
            *_spans(self.bodies),
        )

    @property
    def _condition(self) -> int:
        return self.control + COND_AT

    def start(self, stream: int, is_early: bool = False) -> None:
        if self.gpu.is_capturing(stream):
            self.gpu.record_loop(self, stream)
        else:
            self.decide(stream, lambda at: start_all(self.bodies[at], stream))

    def decide(self, stream: int, enter: Enter) -> None:
        """Let the host read the condition after every iteration."""
        gpu, limit = self.gpu, self.limit
        if self.trip:
            limit = min(limit, _read(gpu, self.trip, I64, stream))
        going = not self.begins or bool(_read(gpu, self.begins, BOOL, stream))
        count = 0
        while going and count < limit:
            gpu.copy_in(self.at, np.array(count, I64.numpy), stream)
            gpu.copy_in(self.going, np.array(True), stream)
            enter(0)
            going = bool(_read(gpu, self._condition, BOOL, stream))
            count += 1


def _read(gpu: Gpu, address: int, dtype: DType, stream: int) -> int:
    found = np.zeros((), dtype.numpy)
    gpu.copy_out(found, address, stream)
    return int(found)


def _span(address: int, dtype: DType, is_written: bool) -> Span:
    return Span(address, address + dtype.size_bytes, is_written)


def _spans(bodies: Sequence[Sequence[Any]]) -> Iterator[Span]:
    return (span for body in bodies for launch in body for span in launch.spans)


class HostDecided:
    """Launches as several graphs, with decisions of the host between them."""

    def __init__(self, gpu: Gpu, launches: Sequence[Any]) -> None:
        # graphs, and decisions with their bodies
        self.parts: list[tuple[Any, list[HostDecided]]] = []
        for is_decided, some in groupby(launches, lambda each: isinstance(each, (Choice, Loop))):
            if is_decided:
                self.parts += [
                    (each, [HostDecided(gpu, body) for body in each.bodies]) for each in some
                ]
            else:
                self.parts.append((gpu.graph(*in_order(list(some))), []))

    def launch(self, stream: int) -> None:
        for part, bodies in self.parts:
            if bodies:
                part.decide(stream, lambda at, bodies=bodies: bodies[at].launch(stream))
            else:
                part.launch(stream)


def graph_of(gpu: Gpu, launches: Sequence[Any]) -> Any:
    """The launches of a call as one graph, or as several where the host has to decide."""
    if not gpu.has_conditions() and any(isinstance(each, (Choice, Loop)) for each in launches):
        return HostDecided(gpu, launches)
    return gpu.graph(*in_order(launches))


def check_capture(gpu: Gpu, launches: Sequence[Any], stream: int) -> None:
    """Refuse capture by the caller if the host would have to decide: a capture must be one
    graph."""
    decides = any(isinstance(each, (Choice, Loop)) for each in launches)
    if decides and gpu.is_capturing(stream) and not gpu.has_conditions():
        raise refused_capture(stream, "its graphs have no conditional nodes: CUDA 12.4 has them")


def refused_capture(stream: int, why: str) -> UserError:
    return UserError(
        "TW4070",
        f"the stream {stream:#x} is being captured, and the host decides what the model launches: "
        f"{why}",
        help="call the model outside of the capture",
    )


# --------------------------------------------------------------------------- static launches


def decides_beforehand(program: Program) -> bool:
    """Whether sizes alone determine what a model launches. Control flow is allowed if its bodies
    have static launches: the GPU decides which of them run, and how often."""
    main = program.module.main
    sizes = given_sizes(main)
    known: set[Value] = set()  # values that the host computes from sizes
    for node in main.nodes:
        if node.op == "sizes" or (node.op == "require" and node.inputs[0] not in known):
            return False
        if _is_of_host(program, node):
            known.update(node.outputs)
        if node.bodies and not _is_fixed(program, node, sizes):
            return False
    return True


def _is_of_host(program: Program, node: Node) -> bool:
    return node.op == "kernel" and not program.kernels[node["function"]].device


def _is_fixed(program: Program, node: Node, sizes: dict[Var, None]) -> bool:
    """Whether the parameters and results of a node's bodies have the same sizes in every iteration,
    and none of them is computed on the host."""
    values = [*node.outputs, *(value for body in node.bodies for value in body.params)]
    inner = [each for body in node.bodies for each in body.nodes]
    values += [value for each in inner for value in each.outputs]
    if any(dim not in sizes for value in values for dim in free_vars(*(value.tensor.shape or ()))):
        return False
    if any(each.op in ("sizes", "require") or _is_of_host(program, each) for each in inner):
        return False
    if any(each.bodies and not _is_fixed(program, each, sizes) for each in inner):
        return False
    if node.op == "if":
        return all(_alike(node.outputs, body.results) for body in node.bodies)
    (body,) = node.bodies
    if node.op == "scan":
        states = int(node["states"])
        return _alike(body.params[:states], body.results[:states])
    carried = int(node["carried"])
    given, left = body.params[2 : 2 + carried], body.results[1 : 1 + carried]
    dtypes = [value.tensor.dtype for value in (*body.params[:2], body.results[0])]
    if not _alike(given, left) or dtypes != [I64, BOOL, BOOL]:
        return False
    return turns_of(node) is not None or len(node.outputs) == carried


def turns_of(node: Node) -> sym.Expr | None:
    """The trip count of a loop, if sizes alone determine it."""
    (body,) = node.bodies
    goes_on = body.results[0] is body.params[1] and node.inputs[1] is None
    return trip_of(node) if goes_on else None


def _alike(some: Sequence[Value], others: Sequence[Value]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(
        len(a.tensor.shape or ()) == len(b.tensor.shape or ())
        and all(map(sym.equal, a.tensor.shape or (), b.tensor.shape or ()))
        for a, b in pairs
    )
