"""`te.extern`: tensors computed by an external kernel.

    C = te.extern((n, m), [A, B], "cblas_sgemm", name="C",
                  behavior=lambda a, b, c: np.matmul(a, b, out=c))

The kernel takes whole tensors, inputs first. As in TVM, the third argument may be a function of the
input and output buffers that returns a statement, made by `te.call_packed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright import sym
from tilewright.base.dtype import DType, dtype
from tilewright.sym import Expr
from tilewright.te.compute import annotations_of
from tilewright.te.operation import ExternOp, Shape, Tensor, shape_of
from tilewright.te.scalar import DTypeLike
from tilewright.te.source import clean_name, type_error, user_loc, value_error
from tilewright.tensor import externs
from tilewright.tensor.ir import INDEPENDENT, Address, Buffer, ExternCall, Load, Stmt, Value
from tilewright.tensor.regions import whole
from tilewright.tensor.visit import written_buffers

_dtype = dtype


class BufferView:
    """The view of a buffer in `fcompute` of an extern and `lower` of an intrinsic.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8,), name="A")
        >>> def kernel(ins, outs):
        ...     print(ins[0].name, ins[0].shape, ins[0].dtype)
        ...     return te.call_packed("my_kernel", *ins, *outs)
        ...
        >>> B = te.extern((8,), [A], kernel, name="B")
        A (<Const 8>,) f32
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def shape(self) -> Shape:
        return self.buffer.shape

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def ndim(self) -> int:
        return self.buffer.rank

    def access_ptr(self, access_mask: str = "rw", *index: Any) -> Expr:
        """The address of the first element, or of the element at `index`.

        `access_mask` is the intended access, "r", "w" or "rw"; informative only, since the
        enclosing statement declares its reads and writes.
        """
        if access_mask not in ("r", "w", "rw"):
            raise value_error("TW2418", f"access_ptr takes r, w or rw, got {access_mask!r}")
        return Address(self.buffer, self._at(index or (0,) * self.ndim))

    @property
    def strides(self) -> Shape:
        """Strides in elements."""
        origin = self.access_ptr("r")
        found = []
        for axis in range(self.ndim):
            unit = [0] * self.ndim
            unit[axis] = 1
            gap = sym.sub(self.access_ptr("r", *unit), origin)
            found.append(sym.floordiv(gap, self.dtype.size_bytes))
        return tuple(found)

    def __getitem__(self, index: Any) -> Expr:
        return Load(self.buffer, self._at(index if isinstance(index, tuple) else (index,)))

    def _at(self, index: tuple[Any, ...]) -> tuple[Expr, ...]:
        if len(index) != self.ndim:
            raise value_error(
                "TW2404", f"{self.name} has {self.ndim} dimensions, indexed with {len(index)}"
            )
        return tuple([sym.as_expr(i) for i in index])

    def __repr__(self) -> str:
        return f"<view of {self.buffer!r}>"


def call_packed(symbol: str, *buffers: Any, outputs: int = 1) -> Stmt:
    """Call the kernel `symbol` on whole buffers, of which it writes the last `outputs`.

    Examples:
        >>> from tilewright import te
        >>> A = te.placeholder((8,), name="A")
        >>> def sort(ins, outs):
        ...     return te.call_packed("my_sort", *ins, *outs)
        ...
        >>> B = te.extern((8,), [A], sort, name="B")
        >>> print(te.function([A, B]), end="")
        func @main(%A: f32[8], %B: f32[8]) stage scheduled {
          block @B() {
            reads %A[0 +: 8]
            writes %B[0 +: 8]
            extern my_sort(%A[0 +: 8]) -> (%B[0 +: 8])
          }
        }
    """
    _check_symbol(symbol)
    for buffer in buffers:
        if not isinstance(buffer, BufferView):
            raise type_error(
                "TW2418",
                f"{symbol} is called with {type(buffer).__name__}, not a buffer",
                help="pass the ins and outs that the function was given",
            )
    return ExternCall(symbol, tuple([whole(view.buffer) for view in buffers]), outputs)


def extern(
    shape: Any,
    inputs: Sequence[Tensor],
    fcompute: str | Callable[..., Stmt],
    name: str = "extern",
    dtype: DTypeLike | Sequence[DTypeLike] | None = None,
    tag: str = "",
    attrs: Mapping[str, Value] | None = None,
    behavior: Callable[..., Any] | None = None,
    over: Sequence[Any] = (),
    then: Sequence[tuple[Sequence[Any], Callable[..., Stmt]]] = (),
) -> Any:
    """Make tensors computed by a kernel: one, or a tuple if there are several shapes.

    `fcompute` is the kernel's symbol, or a function (ins, outs) that returns the statement.
    `behavior` is the symbol's reference implementation on NumPy arrays: inputs, then outputs to
    fill. With extents `over` the function is (ins, outs, *at), and its statement is one of as many
    independent work items: each writes its own elements, and reads of the outputs only those.
    `then` has further extents and functions, executed after.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((4,), name="A")
        >>> def ascending(source, result):
        ...     result[...] = np.sort(source)
        ...
        >>> B = te.extern((4,), [A], "ascending", name="B", behavior=ascending)
        >>> b = np.zeros(4, np.float32)
        >>> tw.interpret(te.function([A, B]), np.array([3, 1, 4, 2], np.float32), b)
        >>> b
        array([1., 2., 3., 4.], dtype=float32)
    """
    name, loc = clean_name(name), user_loc()
    several = (
        isinstance(shape, (list, tuple)) and bool(shape) and isinstance(shape[0], (list, tuple))
    )
    shapes = [shape_of(s, name) for s in (shape if several else [shape])]
    sources = _inputs(inputs, name)
    ins = [Buffer(t.name, t.shape, t.dtype) for t in sources]
    suffix = [f"{name}.v{k}" for k in range(len(shapes))] if several else [name]
    types = _dtypes(dtype, sources, len(shapes), name)
    outs = [Buffer(n, s, of) for n, s, of in zip(suffix, shapes, types, strict=True)]
    pieces = shape_of(over, name)
    at = [sym.var(f"vi{k}") for k in range(len(pieces))]
    if isinstance(fcompute, str):
        if pieces:
            raise type_error("TW2418", f"{name} is a symbol: it computes whole tensors")
        body: Any = call_packed(
            fcompute, *(BufferView(b) for b in (*ins, *outs)), outputs=len(outs)
        )
        if behavior is not None:
            externs.register(fcompute, behavior)
    else:
        if behavior is not None:
            raise type_error("TW2418", f"{name} has a behavior but names no symbol")
        body = fcompute([BufferView(b) for b in ins], [BufferView(b) for b in outs], *at)
    more = []
    for extents, function in _checked_phases(then, name):
        each = [sym.var(f"vi{k}") for k in range(len(extents))]
        made = function([BufferView(b) for b in ins], [BufferView(b) for b in outs], *each)
        more.append((tuple(zip(each, extents, strict=True)), made))
    _check_body(name, [body, *(made for _, made in more)], ins, outs)
    op = ExternOp(
        name,
        sources,
        tuple(ins),
        tuple(outs),
        body,
        annotations_of(tag, {**(attrs or {}), **({INDEPENDENT: 1} if pieces else {})}),
        loc,
        tuple(zip(at, pieces, strict=True)),
        tuple(more),
    )
    return op.outputs if several else op.output(0)


def _inputs(inputs: Any, name: str) -> tuple[Tensor, ...]:
    sources = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    for source in sources:
        if not isinstance(source, Tensor):
            raise type_error("TW2418", f"{name} has the input {source!r}, not a tensor")
    return sources


def _dtypes(given: Any, inputs: tuple[Tensor, ...], count: int, name: str) -> list[DType]:
    if given is None:
        kinds = {tensor.dtype for tensor in inputs}
        if len(kinds) != 1:
            raise type_error(
                "TW2418",
                f"the type of {name} does not follow from its inputs",
                help='pass dtype="f32" or another',
            )
        return [inputs[0].dtype] * count
    if not isinstance(given, (tuple, list)):
        return [_dtype(given)] * count
    if len(given) != count:
        raise value_error("TW2418", f"{name} has {count} outputs and {len(given)} types")
    return [_dtype(one) for one in given]


def _checked_phases(then: Any, name: str) -> list[tuple[Shape, Callable[..., Stmt]]]:
    """Check the phases that follow."""
    found = []
    for one in then if isinstance(then, (tuple, list)) else (then,):
        if not isinstance(one, (tuple, list)) or len(one) != 2 or not callable(one[1]):
            raise type_error(
                "TW2418",
                f"what follows in {name} is {one!r}, not extents and a function",
                help="pass then=[(extents, function)]",
            )
        found.append((shape_of(one[0], name), one[1]))
    return found


def _check_symbol(symbol: Any) -> None:
    if not isinstance(symbol, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", symbol):
        raise type_error("TW2418", f"{symbol!r} is not the name of a kernel")


def _check_body(name: str, bodies: list[Any], ins: list[Buffer], outs: list[Buffer]) -> None:
    for body in bodies:
        if not isinstance(body, Stmt):
            raise type_error(
                "TW2418",
                f"the function of {name} returns {type(body).__name__}, not a statement",
                help="return te.call_packed(symbol, *ins, *outs)",
            )
    written = {buffer for body in bodies for buffer in written_buffers(body)}
    for buffer in outs:
        if buffer not in written:
            raise value_error("TW2418", f"the statement of {name} does not write {buffer.name}")
    for buffer in ins:
        if buffer in written:
            raise value_error("TW2418", f"the statement of {name} writes its input {buffer.name}")
