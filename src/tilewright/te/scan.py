"""`te.scan`: a recurrence over the first dimension, with any number of states.

    X = te.placeholder((m, n), name="X")
    state = te.placeholder((m, n), name="state")
    init = te.compute((1, n), lambda _, i: X[0, i])
    update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
    total = te.scan(init, update, state, inputs=[X])        # running sums down the columns

`init` defines the first steps, `update` every later step t from steps before t. Stages between the
state and the update are computed step by step too; their first axis is time, and they are read at
t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from tilewright import sym
from tilewright.sym import Context, Expr
from tilewright.te.axis import make_axis
from tilewright.te.compute import annotations_of
from tilewright.te.operation import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    Read,
    ScanOp,
    Tensor,
)
from tilewright.te.source import clean_name, type_error, user_loc, value_error
from tilewright.tensor.ir import SCAN, Value


@overload
def scan(
    init: Tensor,
    update: Tensor,
    state_placeholder: Tensor,
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> Tensor: ...
@overload
def scan(
    init: Sequence[Tensor],
    update: Sequence[Tensor],
    state_placeholder: Sequence[Tensor],
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> tuple[Tensor, ...]: ...
def scan(
    init: Any,
    update: Any,
    state_placeholder: Any,
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
) -> Any:
    """Define a recurrence; returns its states, of the placeholders' shapes. See the module's
    example.

    `inputs` may list the other tensors that the updates read, as in TVM; they are found without it.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> x = te.placeholder((4,), name="x")
        >>> state = te.placeholder((4,), name="state")
        >>> init = te.compute((1,), lambda t: x[0], name="init")
        >>> update = te.compute((4,), lambda t: state[t - 1] + x[t], name="update")
        >>> sums = te.scan(init, update, state, name="sums")
        >>> out = np.zeros(4, np.float32)
        >>> tw.interpret(te.function([x, sums]), np.array([1, 2, 3, 4], np.float32), out)
        >>> out
        array([ 1.,  3.,  6., 10.], dtype=float32)
    """
    name, loc = clean_name(name), user_loc()
    single = isinstance(init, Tensor)
    inits = _tensors(init, "init")
    updates = _tensors(update, "update")
    states = _tensors(state_placeholder, "state_placeholder")
    for given in _tensors(inputs or (), "inputs"):
        if given in states:
            raise value_error("TW2415", f"{given.name} is a state, not an input of the scan")
    if not len(inits) == len(updates) == len(states) or not inits:
        raise value_error(
            "TW2415",
            f"a scan takes one init, update and placeholder per state, got {len(inits)}, "
            f"{len(updates)} and {len(states)}",
        )
    for what, tensors in (("update", updates), ("placeholder", states)):
        for tensor in tensors:
            if tensors.count(tensor) > 1:
                raise value_error("TW2415", f"{tensor.name} is the {what} of two states")
    for one in zip(inits, updates, states, strict=True):
        _check_state(*one)
    steps, total = inits[0].shape[0], states[0].shape[0]
    for first, state in zip(inits, states, strict=True):
        _check_same(f"the steps of {first.name}", first.shape[0], steps)
        _check_same(f"the length of {state.name}", state.shape[0], total)
    if isinstance(steps, sym.Const) and steps.value == 0:
        raise value_error(
            "TW2415", f"{inits[0].name} gives no step", help="a scan starts from at least one"
        )
    axis = make_axis("t", steps, total, SCAN)
    op = ScanOp(name, axis, inits, updates, states, annotations_of(tag, attrs), loc)
    stages = recurrent_stages(op)
    inner = {tensor for stage in stages for tensor in stage.outputs}
    for stage in stages:
        _check_recurrence(op, stage, inner)
    return op.output(0) if single else op.outputs


def _tensors(value: Any, what: str) -> tuple[Tensor, ...]:
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    for item in items:
        if not isinstance(item, Tensor):
            raise type_error(
                "TW2415", f"{what} of a scan holds {type(item).__name__}, not a tensor"
            )
    return items


def _check_state(init: Tensor, update: Tensor, state: Tensor) -> None:
    if not isinstance(state.op, PlaceholderOp):
        raise type_error("TW2415", f"the state {state.name} is not a placeholder")
    if not isinstance(update.op, ComputeOp):
        raise type_error("TW2415", f"the update {update.name} is not a te.compute")
    for tensor in (init, update):
        if tensor.dtype is not state.dtype:
            raise type_error(
                "TW2415",
                f"{tensor.name} has type {tensor.dtype}, the state {state.name} {state.dtype}",
            )
        if tensor.ndim != state.ndim or state.ndim == 0:
            raise value_error(
                "TW2415",
                f"{tensor.name} has {tensor.ndim} dimensions, the state {state.name} {state.ndim}",
                help="all have the time as first dimension",
            )
    for k in range(1, state.ndim):
        _check_same(f"dimension {k} of {init.name}", init.shape[k], state.shape[k])
    for k in range(state.ndim):
        _check_same(f"dimension {k} of {update.name}", update.shape[k], state.shape[k])


def _check_same(what: str, given: Expr, wanted: Expr) -> None:
    if not sym.equal(given, wanted):
        raise value_error("TW2415", f"{what} is {given}, expected {wanted}")


# --------------------------------------------------------------------------- the recurrence


def recurrent_stages(scan: ScanOp) -> tuple[Operation, ...]:
    """The operations executed per step, in order: those between the states and the updates."""
    depends: dict[Operation, bool] = {state.op: True for state in scan.state}
    order: list[Operation] = []
    stack: list[tuple[Operation, bool]] = [(t.op, False) for t in reversed(scan.update)]
    updates = {update.op for update in scan.update}
    while stack:
        op, inputs_done = stack.pop()
        if op in depends:
            continue
        inputs = [tensor.op for tensor in op.input_tensors]
        if not inputs_done:
            stack.append((op, True))
            stack.extend((source, False) for source in reversed(inputs) if source not in depends)
            continue
        depends[op] = op in updates or any(depends[source] for source in inputs)
        if depends[op]:
            order.append(op)
    return tuple(order)


def _check_recurrence(scan: ScanOp, stage: Operation, inner: set[Tensor]) -> None:
    """Check that states are read at earlier steps only, and stages at the current step only."""
    where = scan.loc
    if not isinstance(stage, ComputeOp):
        raise value_error(
            "TW2416",
            f"{stage.name} depends on the state of {scan.name} and is not a te.compute",
            loc=where,
        )
    total = scan.state[0].shape[0]
    if not stage.axis or not sym.equal(stage.axis[0].stop, total):
        raise value_error(
            "TW2416",
            f"{stage.name} depends on the state of {scan.name} but its first dimension is not "
            f"the time, of extent {total}",
            loc=stage.loc,
        )
    time = stage.axis[0]
    plain = sym.var(time.name)
    ctx = Context().bind(plain, scan.scan_axis.start, total)
    for part in sym.walk(*stage.body):
        if not isinstance(part, Read):
            continue
        if part.tensor in scan.state:
            at = sym.substitute(part.index[0], {time: plain})
            if not sym.prove(sym.lt(at, plain), ctx):
                raise value_error(
                    "TW2416",
                    f"{stage.name} reads {part}: not certainly a step before {time}",
                    loc=stage.loc,
                    help=f"read the state at {time.name} - 1, or at a step further back",
                )
        elif part.tensor in inner and part.index[0] is not time:
            raise value_error(
                "TW2416",
                f"{stage.name} reads {part}: a stage inside a scan can be read only at {time}",
                loc=stage.loc,
            )
