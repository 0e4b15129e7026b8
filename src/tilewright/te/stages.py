"""The stages of a function, in dependence order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tilewright.te.operation import Operation, PlaceholderOp, ScanOp, Tensor
from tilewright.te.scan import recurrent_stages
from tilewright.te.source import value_error


@dataclass(frozen=True, slots=True)
class Stages:
    """The operations to compute in `order`, producers first; a scan includes its inner stages."""

    order: tuple[Operation, ...]
    uses: Counter[Tensor]  # number of operations (and arguments) that use a tensor


def stages_of(args: list[Tensor]) -> Stages:
    """The stages that compute the non-placeholder arguments."""
    given = {arg.op for arg in args if isinstance(arg.op, PlaceholderOp)}
    uses: Counter[Tensor] = Counter(args)
    order: list[Operation] = []
    done: set[Operation] = set()
    stack: list[tuple[Operation, Operation | None, bool]] = [
        (arg.op, None, False) for arg in reversed(args)
    ]
    scans: list[ScanOp] = []
    while stack:
        op, reader, inputs_done = stack.pop()
        if op in done:
            continue
        if isinstance(op, PlaceholderOp):
            if op not in given:
                _refuse_placeholder(op, reader, scans)
            done.add(op)
            continue
        inputs = stage_inputs(op)
        if not inputs_done:
            if isinstance(op, ScanOp):
                scans.append(op)
            stack.append((op, reader, True))
            stack.extend((tensor.op, op, False) for tensor in reversed(inputs))
            continue
        done.add(op)
        order.append(op)
        uses.update(inputs)
    return Stages(tuple(order), uses)


def stage_inputs(op: Operation) -> tuple[Tensor, ...]:
    """The tensors needed before `op` starts; for a scan, those from outside."""
    if not isinstance(op, ScanOp):
        return op.input_tensors
    inner = recurrent_stages(op)
    inside = {tensor for stage in inner for tensor in stage.outputs} | set(op.state)
    outer = dict.fromkeys(t for stage in inner for t in stage.input_tensors if t not in inside)
    return (*op.init, *outer)


def _refuse_placeholder(op: PlaceholderOp, reader: Operation | None, scans: list[ScanOp]) -> None:
    user = "the function" if reader is None else reader.name
    loc = op.loc if reader is None else reader.loc
    for scan in scans:
        if any(state.op is op for state in scan.state):
            raise value_error(
                "TW2423",
                f"{user} reads {op.name}, the state of {scan.name}, from outside of the scan",
                loc=loc,
                help="read the scan's result instead",
            )
    raise value_error(
        "TW2423",
        f"{user} reads the placeholder {op.name}, which is not an argument",
        loc=loc,
        help=f"pass it: te.function([{op.name}, ...])",
    )
