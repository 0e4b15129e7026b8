"""Hardware instructions: their behaviour, and the statement that calls them.

w, x = te.placeholder((8, 8)), te.placeholder((8, 8))
k = te.reduce_axis((0, 8))
y = te.compute((8, 8), lambda i, j: te.sum(w[i, k] * x[j, k], axis=k))

def lower(inputs, outputs):
    ww, xx = inputs[0].access_ptr("r"), inputs[1].access_ptr("r")
    zz = outputs[0].access_ptr("w")
    compute = te.hardware_intrin("gemm8x8", ww, xx, zz)
    reset = te.hardware_intrin("fill_zero", zz)
    update = te.hardware_intrin("fuse_gemm8x8_add", ww, xx, zz)
    return compute, reset, update

gemm8x8 = te.decl_tensor_intrin(y.op, lower)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tilewright import sym
from tilewright.base.dtype import I32, dtype
from tilewright.sym import Expr
from tilewright.te.extern import BufferView
from tilewright.te.function import function
from tilewright.te.operation import ComputeOp, Operation, PlaceholderOp
from tilewright.te.scalar import DTypeLike
from tilewright.te.source import clean_name, type_error, value_error
from tilewright.tensor import intrin as registry
from tilewright.tensor.assembly import Assembly, with_assembly
from tilewright.tensor.intrin import TensorIntrin
from tilewright.tensor.ir import Call, Eval, Stmt

_dtype = dtype


def hardware_intrin(name: str, *args: Any, dtype: DTypeLike = I32) -> Expr:
    """Call an instruction by name, with addresses and values.

    Examples:
        >>> from tilewright import te
        >>> print(te.hardware_intrin("llvm.x86.sse.sfence"))
        llvm.x86.sse.sfence:i32()
    """
    return Call(clean_name(name), tuple([sym.as_expr(arg) for arg in args]), _dtype(dtype))


def decl_tensor_intrin(
    op: Operation,
    lower: Callable[[list[BufferView], list[BufferView]], Any],
    name: str = "",
    assembly: Sequence[Assembly] = (),
) -> TensorIntrin:
    """Declare an instruction with the behaviour of `op`, for `tensorize`.

    `lower(inputs, outputs)` returns a statement or an instruction call; for a reduction a triple
    (compute, reset, update) of them, where None means the behaviour itself. A call of `asm.NAME`
    among them is inline assembly, described by `assembly`.

    Examples:
        >>> from tilewright import te
        >>> x = te.placeholder((8,), name="x")
        >>> y = te.compute((8,), lambda i: x[i] * 2.0, name="y")
        >>> def lower(inputs, outputs):
        ...     (source,), (result,) = inputs, outputs
        ...     return te.hardware_intrin("double8", source.access_ptr("r"), result.access_ptr("w"))
        ...
        >>> te.decl_tensor_intrin(y.op, lower, name="doc_double8").name
        'doc_double8'
    """
    if not isinstance(op, ComputeOp):
        raise type_error(
            "TW2419",
            f"a tensor intrinsic is declared by a te.compute, not by {type(op).__name__}",
            help="pass the operation of a computed tensor: y.op",
        )
    for tensor in op.input_tensors:
        if not isinstance(tensor.op, PlaceholderOp):
            raise value_error(
                "TW2419",
                f"the intrinsic reads {tensor.name}, which is computed",
                help="its inputs must be placeholders",
                loc=op.loc,
            )
    args = [*op.input_tensors, *op.outputs]
    for tensor in args:
        if not all(isinstance(dim, sym.Const) for dim in tensor.shape):
            raise value_error(
                "TW2419",
                f"{tensor.name} of the intrinsic has a symbolic shape",
                help="a tile has constant dimensions",
                loc=op.loc,
            )
    behavior = function(args, name=op.name)
    buffers = behavior.buffers
    inputs = buffers[: len(op.input_tensors)]
    outputs = buffers[len(op.input_tensors) :]
    lowered = lower([BufferView(b) for b in inputs], [BufferView(b) for b in outputs])
    phases = _phases(lowered, op)
    chosen = clean_name(name or _default_name(phases, op))
    behavior = with_assembly(replace(behavior, name=chosen), *assembly)
    return registry.declare(TensorIntrin(chosen, behavior, *phases))


Phases = tuple[Stmt | None, Stmt | None, Stmt | None]


def _phases(lowered: Any, op: ComputeOp) -> Phases:
    if not isinstance(lowered, (tuple, list)):
        return _statement(lowered, op), None, None
    if len(lowered) != 3:
        raise value_error(
            "TW2419",
            f"the lowering of {op.name} returns {len(lowered)} statements",
            help="return one, or (compute, reset, update)",
        )
    if op.reduction is None:
        raise value_error(
            "TW2419",
            f"the lowering of {op.name} returns reset and update, but {op.name} reduces nothing",
            help="return one statement",
        )
    compute, reset, update = (None if s is None else _statement(s, op) for s in lowered)
    return compute, reset, update


def _statement(lowered: Any, op: ComputeOp) -> Stmt:
    if isinstance(lowered, Stmt):
        return lowered
    if isinstance(lowered, Expr):
        return Eval(lowered)
    raise type_error(
        "TW2419",
        f"the lowering of {op.name} returns {type(lowered).__name__}, not a statement",
        help="return te.hardware_intrin(name, *pointers)",
    )


def _default_name(phases: Phases, op: ComputeOp) -> str:
    """The instruction's name, else that of the computation."""
    for phase in phases:
        if isinstance(phase, Eval) and isinstance(phase.value, Call):
            return phase.value.op
    return op.name
