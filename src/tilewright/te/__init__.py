"""The tensor expression language: tensors defined element by element, with TVM's names.

>>> from tilewright import te
>>> n, m, k = te.var("n"), te.var("m"), te.var("k")
>>> A, B = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
>>> r = te.reduce_axis((0, k), name="r")
>>> C = te.compute((n, m), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")
>>> f = te.function([A, B, C], name="matmul")

`docs/internals/te.md` describes the language.
"""

from tilewright.te.axis import IterVar, reduce_axis, thread_axis
from tilewright.te.compute import compute, placeholder, size_var, var
from tilewright.te.extern import BufferView, call_packed, extern
from tilewright.te.function import function
from tilewright.te.intrin import decl_tensor_intrin, hardware_intrin
from tilewright.te.math import (
    abs,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bits_of,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    ceil,
    copysign,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    exp10,
    exp_nonpositive,
    expm1,
    floor,
    fma,
    fmod,
    from_bits,
    gelu,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    nearbyint,
    popcount,
    pow,
    power,
    ranged_div,
    round,
    round_tf32,
    rsqrt,
    saturating_div,
    shift_left,
    shift_right,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
)
from tilewright.te.operation import (
    ComputeOp,
    ExternOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
)
from tilewright.te.reduction import (
    Reduction,
    argmax,
    argmin,
    comm_reducer,
    max,
    min,
    prod,
    sum,
)
from tilewright.te.scalar import (
    all,
    any,
    cast,
    ceildiv,
    const,
    div,
    eq,
    floordiv,
    floormod,
    if_then_else,
    indexdiv,
    indexmod,
    infinity,
    logical_not,
    max_value,
    min_value,
    ne,
    select,
    truncdiv,
    truncmod,
)
from tilewright.te.scan import scan
