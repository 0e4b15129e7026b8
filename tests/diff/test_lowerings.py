"""Every operator as a tensor expression, interpreted and as native code, against its reference."""

import zlib
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import sym
from tilewright.base.dtype import dtype, from_numpy
from tilewright.codegen.build import build
from tilewright.graph import interpret
from tilewright.graph.build import Builder
from tilewright.graph.op import BROADCAST, ELEMENTWISE
from tilewright.graph.ops import OPS
from tilewright.graph.passes.decompose import DECOMPOSITIONS
from tilewright.graph.types import TensorType
from tilewright.lower import LOWERINGS
from tilewright.lower.graph import lower_graph, sizes_of
from tilewright.lower.sizes import fresh_sizes, lower_sizes
from tilewright.tensor import interpret as run_tensor

BF16 = ml_dtypes.bfloat16

# Control flow, checks, sequences and optionals: what the model's main does, not a kernel; and
# kernels of several nodes.
BY_THE_HOST = {
    "concat_from_sequence",
    "fused",
    "if",
    "loop",
    "optional",
    "optional_get_element",
    "optional_has_element",
    "require",
    "scan",
    "sequence",
    "sequence_at",
    "sequence_empty",
    "sequence_erase",
    "sequence_insert",
    "sequence_length",
    "split_to_sequence",
    "switch",
}


# Operators that are always made of others, whatever their operands.
BY_OTHERS = {"non_max_suppression"}


def test_only_known_operators_lack_a_lowering() -> None:
    without = {name for name, op in OPS.items() if op.native} - set(LOWERINGS)
    assert without == BY_THE_HOST | BY_OTHERS
    assert set(DECOMPOSITIONS) >= BY_OTHERS
    assert set(LOWERINGS) <= set(OPS)


@dataclass
class Case:
    """A use of an operator on arrays; None is an absent input."""

    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    reduction: int = 1  # how many terms are summed up, for the tolerance
    fixed: tuple[int, ...] = ()  # inputs whose shapes stay numbers in the symbolic run
    note: str = ""
    symbolic: bool = True  # whether shapes may be expressions at all

    def __str__(self) -> str:
        kind = "-".join("x" if x is None else _shown(x) for x in self.inputs)
        return f"{self.op}-{kind}{'-' if self.note else ''}{self.note}"


def _shown(x: Any) -> str:
    return f"{from_numpy(x.dtype)}[{','.join(map(str, x.shape))}]"


CASES: list[Case] = []


def case(
    op: str,
    *inputs: Any,
    outputs: int = 1,
    reduction: int = 1,
    fixed: Any = (),
    note: str = "",
    symbolic: bool = True,
    settings: dict[str, Any] | None = None,  # attributes, where a name is taken
    **attributes: Any,
) -> None:
    """Add a case."""
    attributes |= settings or {}
    CASES.append(Case(op, inputs, attributes, outputs, reduction, tuple(fixed), note, symbolic))


def rand(*shape: int, of: Any = np.float32, low: float = -3, high: float = 3, seed: int = 0) -> Any:
    """Random values of a type, the same in every run."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, str(of), seed)).encode()))
    of = np.dtype(of)
    if of.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if of.kind in "iu":
        least = 0 if of.kind == "u" else int(low)
        return rng.integers(least, int(high), shape, endpoint=True).astype(of)
    return rng.uniform(low, high, shape).astype(of)


OPTIMIZED = 4  # one in so many cases


def build_case(case: Case, symbolic: bool) -> tuple[Any, Any]:
    """The module of one node, and its main graph."""
    builder = Builder()
    sizes: dict[int, Any] = {}
    values = []
    for at, x in enumerate(case.inputs):
        if x is None:
            values.append(None)
            continue
        free = symbolic and at not in case.fixed
        dims = tuple(
            sizes.setdefault(n, sym.size(f"n{n}")) if free and n != 1 else sym.const(n)
            for n in x.shape
        )
        values.append(builder.param(f"x{at}", TensorType(from_numpy(x.dtype), dims)))
    made = builder.add_many(case.op, *values, outputs=case.outputs, **case.attributes)
    module = builder.module(*made)
    return module, module.main


def check(case: Case, close: Any, symbolic: bool) -> None:
    module, graph = build_case(case, symbolic)
    inputs = [x for x in case.inputs if x is not None]
    want = interpret(module, *inputs, check=True)
    function = lower_graph(graph, "k")
    found: dict[Any, int] = {}
    arrays = [*inputs, *want]
    for value, array in zip([*graph.params, *graph.results], arrays, strict=True):
        pairs = zip(value.tensor.shape, array.shape, strict=True)
        found.update((dim, extent) for dim, extent in pairs if isinstance(dim, sym.Size))
    sizes = [found[size] for size in sizes_of(graph)]
    check_sizes(graph.nodes[-1], inputs, found)
    runs = [lambda *args: run_tensor(function, *args)]
    if symbolic or not case.symbolic or OPS[case.op].pattern not in (ELEMENTWISE, BROADCAST):
        # Elementwise loops are the same for known sizes. LLVM's optimizer, to which plain loops are
        # ten times the work of scheduled ones, sees one function in a few.
        seen = zlib.crc32(str(case).encode()) % OPTIMIZED == 0
        runs.append(build(function, "cpu", optimize=seen))
    for run in runs:
        made = [np.full(array.shape, 7).astype(array.dtype) for array in want]
        run(*[np.copy(x) for x in inputs], *made, *sizes)
        for got, expected in zip(made, want, strict=True):
            close(got, expected, case.reduction)


def check_sizes(node: Any, inputs: Any, found: Any) -> None:
    """The sizes that only the data tells, as their own function computes them."""
    fresh = fresh_sizes(node)
    function = lower_sizes(node)
    if function is None:
        assert not fresh
        return
    scalars = [found[param] for param in function.params if isinstance(param, sym.Size)]
    for run in (lambda *args: run_tensor(function, *args), build(function, "cpu")):
        out = np.full(len(fresh), -7, np.int64)
        run(*[np.copy(x) for x in inputs], out, *scalars)
        assert out.tolist() == [found[size] for size in fresh]


# ---------------------------------------------------------------------------- elementwise

for _of in (np.float32, np.float16, BF16, np.float64, np.int32, np.int8, np.uint8, np.int64):
    _a, _b = rand(3, 5, of=_of), rand(3, 5, of=_of, seed=1)
    for _op in ("add", "sub", "mul", "minimum", "maximum"):
        case(_op, _a, _b)
    _nonzero = np.where(_b == 0, np.ones((), _b.dtype), _b)
    for _op in ("div", "floordiv", "mod", "fmod"):
        case(_op, _a, _nonzero)
    for _op in ("relu", "abs", "sign", "neg"):
        case(_op, _a)
    for _op in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
        case(_op, _a, rand(5, of=_of, seed=2))
case("add", rand(3, 1, 4), rand(5, 1), note="broadcast")
case("add", rand(0, 4), rand(1, 4), note="empty")
case("mul", rand(), rand(2, 2), note="scalar")
for _op in (
    *("exp", "sigmoid", "erf", "floor", "ceil", "round", "trunc", "sin", "cos", "tan", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "expm1", "exp2", "reciprocal"),
):
    case(_op, rand(37))
    case(_op, rand(5, of=np.float16))
for _op in ("log", "sqrt", "rsqrt", "log1p", "log2"):
    case(_op, rand(37, low=0.01))
    case(_op, rand(5, of=BF16, low=0.01))
for _op in ("asin", "acos", "atanh"):
    case(_op, rand(37, low=-0.99, high=0.99))
case("acosh", rand(37, low=1.1))
case("isnan", np.array([1, np.nan, np.inf], np.float32))
case(
    "mod",
    np.array([-0.0, 0, 3, -3, 7, -7, 1e9, 1, -1, np.inf, 1, np.nan], np.float32),
    np.array([2, -2, 3, 3, np.inf, np.inf, 7, -np.inf, np.inf, 2, 0, 1], np.float32),
    note="edges",
)
case("atan2", rand(9), rand(9, seed=1))
case("pow", rand(9, low=0.1), rand(9, seed=1))
case("pow", rand(9, of=np.int32), rand(9, of=np.int32, low=0))
case("pow", rand(9, of=np.int64), rand(9, of=np.int64), note="negative")
for _of in (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64):
    _a, _b = rand(4, 3, of=_of, low=-99, high=99), rand(3, of=_of, seed=1, low=-2, high=99)
    for _op in ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"):
        case(_op, _a, _b)
    case("bit_not", _a)
for _op in ("logical_and", "logical_or", "logical_xor"):
    case(_op, rand(4, 3, of=bool), rand(3, of=bool))
case("logical_not", rand(7, of=bool))
for _of in (np.float32, np.int64, bool, np.float16):
    case("where", rand(4, 3, of=bool), rand(3, of=_of), rand(4, 1, of=_of, seed=1))
case("clip", rand(9), np.float32(-1), np.float32(1))
case("clip", rand(9), None, np.float32(1))
case("clip", rand(9, of=np.int8), np.int8(-1))
case("clip", rand(9))

# ---------------------------------------------------------------------------- casts

_EXTREME = np.array(
    [
        0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -1.5,
        300,
        -300,
        1e6,
        -1e6,
        3e9,
        -3e9,
        1e20,
        -1e20,
        np.inf,
        -np.inf,
        np.nan,
        65504,
        65520,
        1e-8,
        448,
        500,
        57344,
        60000,
    ],
    np.float32,
)
_TYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")
for _to in (*_TYPES, "f8e4m3", "f8e5m2", "i4", "u4"):
    case("cast", _EXTREME, to=dtype(_to), note=_to)
    case("cast", _EXTREME.astype(BF16), to=dtype(_to), note=_to)
    for _of in (np.int64, np.uint8, np.int8, bool):
        case("cast", rand(9, of=_of, low=-99, high=99), to=dtype(_to), note=_to)
for _to in ("f8e4m3fnuz", "f8e5m2fnuz", "f4e2m1", "i2", "u2"):
    _few = np.arange(4 if _to[0] in "iu" else 16 if _to[:2] == "f4" else 256, dtype=np.uint8)
    case("cast", _few.view(dtype(_to).numpy), to=dtype("f32"), note="all")
    case("cast", _EXTREME, to=dtype(_to), note=_to)
    case("cast", _EXTREME, to=dtype(_to), saturate=False, note=f"{_to} as it is")
    case("cast", np.arange(1 << 16, dtype=np.uint16).view(np.float16), to=dtype(_to), note=_to)
    case("cast", rand(9, of=np.int64, low=-99, high=99), to=dtype(_to), note=_to)
_POWERS = np.array([0, -1, 1, 1.4, 1.5, 3, 1e-40, 3e38, np.inf, np.nan, 2**-127, 0.1], np.float32)
for _mode in ("up", "down", "nearest"):
    for _saturate in (True, False):
        case(
            "cast",
            _POWERS,
            to=dtype("f8e8m0"),
            round_mode=_mode,
            saturate=_saturate,
            note=f"{_mode} {_saturate}",
        )
case("cast", np.arange(256, dtype=np.uint8).view(dtype("f8e8m0").numpy), to=dtype("f32"))
for _have, _to in (
    (np.float32, "i32"),
    (np.int32, "f32"),
    (np.float64, "u64"),
    (np.uint8, "i8"),
    (np.float16, "u16"),
    (np.uint16, "f16"),
):
    case("bitcast", rand(9, of=_have), to=dtype(_to), note=_to)

# ---------------------------------------------------------------------------- shapes

_X = rand(2, 3, 4)
case("shape", _X)
case("dims", values=(3, 4), note="list")
case("dims", values=5, to=dtype("i32"), note="scalar")
for _shape in ((6, 4), (24,), (2, 12), (4, 3, 2), (2, -1), (1, 2, 3, 1, 4), (8, 3), (2, 3, 2, 2)):
    case("reshape", _X, shape=_shape, fixed=(0,), note="x".join(map(str, _shape)))
case("reshape", rand(5, 8), shape=(-1, 2, 4), note="split")
case("reshape", rand(0, 3), shape=(0, 3), fixed=(0,), note="empty")
case("reshape", rand(1), shape=(), note="scalar")
case("reshape", rand(6, 4), np.array([3, 8]), fixed=(1,), note="at run time")
case("reshape", rand(0, 3, 4), np.array([3, 4, 0]), fixed=(0, 1), note="empty at run time")
case("expand", rand(3, 1), shape=(2, 3, 4), fixed=(0,))
case("expand", rand(3, 1), shape=(1, 5), note="column")
case("expand", rand(3, 1), np.array([2, 1, 4]), fixed=(1,), note="at run time")
case("tile", rand(2, 3), repeats=(2, 1), note="rows")
case("tile", rand(2, 3), repeats=(1, 3), note="columns")
case("tile", rand(2, 3), np.array([2, 2]), fixed=(1,), note="at run time")
for _perm in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)):
    case("transpose", _X, perm=_perm, note="".join(map(str, _perm)))
case("concat", rand(2, 3), rand(2, 5), rand(2, 0), axis=1)
case("concat", rand(2, 3), rand(4, 3), axis=-2, note="negative")
case("concat", rand(2, 0), rand(2, 0), axis=1, note="empty")
case("concat", rand(3), axis=0, note="one")
case("interleave", rand(2, 3), rand(2, 3, seed=1), axes=(1,), factors=(2,), sizes=(6,))
_PARTS = [rand(2, 3, 2, seed=at) for at in range(6)]
case("interleave", *_PARTS, axes=(0, 1), factors=(2, 3), sizes=(3, 8), fixed=range(6))
_S = rand(7, 6)
case("slice", _S, starts=(1,), ends=(5,))
case("slice", _S, starts=(-3,), ends=(100,), axes=(1,))
case("slice", _S, starts=(5, 1), ends=(0, 6), axes=(0, 1), steps=(-2, 2))
case("slice", _S, starts=(-1,), ends=(-100,), axes=(0,), steps=(-1,), note="flip")
case("slice", _S, starts=(-99,), ends=(-100,), axes=(0,), steps=(-1,), note="the first")
case("slice", _S, starts=(4,), ends=(2,), note="empty")
case("slice", _S, starts=(0,), ends=(7,), steps=(3,), axes=(0,))
case("slice", _S, np.array([1, -4]), np.array([6, 100]), fixed=(1, 2), note="at run time")
case("slice", _S, np.array([5]), np.array([-7]), None, np.array([-2]), fixed=(1, 2, 4), note="back")
for _mode in ("constant", "edge", "reflect", "wrap"):
    case("pad", rand(4, 5), pads=(1, 2, 3, 0), mode=_mode, note=_mode)
    case("pad", rand(4, 5), pads=(-1, 2, 1, -2), mode=_mode, note=f"{_mode} crop")
case("pad", rand(4, 5), pads=(1, 1), axes=(-1,), note="one axis")
case("pad", rand(4, 5), None, np.float32(9), pads=(1, 0, 2, 0), note="value")
case("pad", rand(4, 5, of=np.int64), pads=(0, 0, 0, 0), note="nothing")
case("pad", rand(4, 5), np.array([1, 0, 2, -1]), fixed=(1,), note="at run time")
case(
    "slice",
    _S,
    np.array([-1, 1]),
    np.array([-99, 4]),
    np.array([1, -2]),
    np.array([-2, 1]),
    fixed=(1, 2, 3, 4),
    note="axes at run time",
)
for _mode in ("constant", "reflect"):
    case(
        "pad",
        rand(4, 5),
        np.array([1, 2]),
        None,
        np.array([-1]),
        mode=_mode,
        fixed=(1, 3),
        note=f"{_mode} axes at run time",
    )
for _limits in ((2, 11, 3), (11, 2, -4), (2, 2, 1), (5, 2, 1)):
    _scalars = [np.array(number) for number in _limits]
    case("range", *_scalars, to=dtype("i64"), note=str(_limits))
    _scalars = [np.array(number, np.float32) for number in _limits]
    case("range", *_scalars, to=dtype("f32"), note=str(_limits))
case("range", start=2, limit=11, delta=3, to=dtype("i64"))
case(
    "range",
    np.array(0.5, np.float32),
    np.array(3, np.float32),
    np.array(0.3, np.float32),
    to=dtype("f32"),
    note="floats",
)

# ---------------------------------------------------------------------------- indexing

_I = np.array([[0, -1, 2], [1, -3, 0]])
for _axis in (0, 1, -1):
    case("gather", rand(3, 4, 3), _I, axis=_axis, note=f"axis {_axis}")
    case("gather", rand(3, 4, 3), _I[0], axis=_axis, note=f"axis {_axis}")
case("gather", rand(3, 4, of=np.int8), np.array(-1, np.int32), axis=0, note="scalar")
case("gather", rand(3, 4, of=bool), np.zeros((0,), np.int64), axis=0, note="empty")
case("gather_elements", rand(3, 4), _I, axis=0)
case("gather_elements", rand(3, 4), _I, axis=-1)
case("gather_nd", rand(3, 4, 2), np.array([[0, -1], [2, 3]]), fixed=(1,))
case("gather_nd", rand(3, 4, 2), np.array([[[0]], [[-1]], [[3]]]), fixed=(1,), batch_dims=1)
case("gather_nd", rand(3, 4), np.array([2, -1]), fixed=(1,))

# ---------------------------------------------------------------------------- reductions

for _of in (np.float32, np.float16, BF16, np.int32, np.int8, np.float64, np.uint8):
    for _op in ("reduce_sum", "reduce_prod", "reduce_mean", "reduce_max", "reduce_min"):
        case(_op, rand(3, 5, 4, of=_of), axes=(1,), reduction=5)
for _op in ("reduce_sum", "reduce_mean", "reduce_max"):
    case(_op, rand(3, 5, 4), reduction=60, note="all")
    case(_op, rand(3, 5, 4), axes=(-1, 0), keepdims=False, reduction=12, note="two")
    case(_op, rand(3, 5, 4), axes=(), note="none")
    case(_op, rand(1, 1), axes=(1,), note="one")
case("reduce_max", rand(3, 4, of=bool), axes=(1,))
case("reduce_min", rand(3, 4, of=bool), axes=(1,), keepdims=False)
case("reduce_max", np.array([[1, np.nan, 2], [3, 1, 2]], np.float32), axes=(1,), note="nan")
for _op in ("reduce_sum", "reduce_prod", "reduce_max"):
    case(_op, rand(3, 0), axes=(1,), note="empty", symbolic=False)
for _op in ("arg_max", "arg_min"):
    case(_op, rand(4, 9, of=np.int32), axis=1)
    case(_op, rand(4, 9, of=np.int32), axis=-1, last=True, keepdims=False, note="last")
    case(_op, rand(4, 9, of=np.float16), axis=0)
    case(_op, np.array([[1, np.nan, 2, np.nan]], np.float32), axis=1, note="nan")
for _op in ("cumsum", "cumprod"):
    case(_op, rand(3, 5), axis=1, reduction=5)
    case(_op, rand(3, 5), axis=0, exclusive=True, reduction=5, note="exclusive")
    case(_op, rand(3, 5, of=np.int32), axis=-1, reverse=True, reduction=5, note="reverse")
    case(_op, rand(5), axis=0, reverse=True, exclusive=True, reduction=5, note="both")
    for _flags in (
        {},
        {"exclusive": True},
        {"reverse": True},
        {"reverse": True, "exclusive": True},
    ):
        _note = " ".join(("at run time", *_flags))
        case(_op, rand(3, 5), np.array(-2), fixed=(1,), reduction=5, note=_note, settings=_flags)
for _op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"):
    for _keep in (True, False):
        case(
            _op,
            rand(3, 5, 4),
            np.array([0, -1]),
            keepdims=_keep,
            fixed=(1,),
            reduction=12,
            note=f"at run time {_keep}",
        )
case("reduce_mean", rand(3, 5, of=np.int8), np.array([1]), fixed=(1,), note="at run time")
case("reduce_max", rand(3, 5, of=bool), np.array([1]), fixed=(1,), note="at run time")
case("reduce_sum", rand(3, 5, of=np.float16), np.array(1), fixed=(1,), note="at run time")
case("cumsum", rand(0, 3), axis=0, note="empty")
case("cumsum", rand(7, of=np.float16), axis=0, reduction=7)

# ---------------------------------------------------------------------------- linear algebra

for _of in (np.float32, np.float16, BF16, np.int32, np.float64):
    case("matmul", rand(4, 6, of=_of), rand(6, 5, of=_of), reduction=6)
case("matmul", rand(2, 4, 6), rand(2, 6, 5), reduction=6)
case("matmul", rand(3, 1, 4, 6), rand(2, 6, 5), reduction=6, note="broadcast")
case("matmul", rand(6), rand(6), reduction=6)
case("matmul", rand(6), rand(3, 6, 5), reduction=6)
case("matmul", rand(3, 4, 6), rand(6), reduction=6)
case("matmul", rand(1, 1), rand(1, 1), note="one")
for _k, _length, _parts in ((32, 32, 1), (21, 32, 1), (40, 32, 2), (70, 24, 3)):
    case("bf16_pieces", rand(2, 5, _k), length=_length, parts=_parts, symbolic=False)
case("bf16_pieces", np.float32([[0, -0.0, 1e30, -1 / 3, 1e-30, 7]]), length=6, symbolic=False)
for _stack in ((), (2,)):
    _pieces = [(*_stack, 4, 3, 40), (*_stack, 3, 40, 5)]
    case("matmul_pieces", *(rand(*s, of=BF16) for s in _pieces), reduction=240, symbolic=False)
case("matmul", rand(3, 0), rand(0, 2), note="empty sum", symbolic=False)
case("matmul", rand(0, 3), rand(3, 2), note="empty")
case(
    "matmul_integer",
    rand(4, 6, of=np.uint8, high=255),
    rand(6, 5, of=np.int8, low=-128, high=127),
    np.uint8(120),
    np.int8(-3),
    fixed=(2, 3),
)
case(
    "matmul_integer",
    rand(4, 6, of=np.uint8, high=255),
    rand(6, 5, of=np.uint8, high=255),
    rand(4, 1, of=np.uint8),
    rand(5, of=np.uint8),
)
case("matmul_integer", rand(4, 6, of=np.int8), rand(6, 5, of=np.int8))
for _eq, _shapes in {
    "ab,bc->ac": ((3, 4), (4, 5)),
    "abc->ca": ((2, 3, 4),),
    "ii->i": ((3, 3),),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "a,b,c->abc": ((2,), (3,), (4,)),
    "ab->": ((3, 4),),
}.items():
    case("einsum", *(rand(*s) for s in _shapes), equation=_eq, reduction=12, note=_eq)

# ---------------------------------------------------------------------------- convolutions


def window(kernel: Any, stride: int = 1, pad: Any = 0, dilation: int = 1) -> dict[str, Any]:
    rank = len(kernel)
    pads = (pad,) * (2 * rank) if isinstance(pad, int) else tuple(pad)
    return {"strides": (stride,) * rank, "pads": pads, "dilations": (dilation,) * rank}


for _of in (np.float32, np.float16, BF16, np.float64):
    case(
        "conv",
        rand(2, 3, 6, 7, of=_of),
        rand(4, 3, 3, 3, of=_of),
        rand(4, of=_of),
        **window((3, 3), 1, 1),
        fixed=(1, 2),
        reduction=27,
    )
for _stride, _pad, _dilation in ((1, 0, 1), (2, 1, 1), (2, (0, 1, 2, 0), 2), (3, 2, 1)):
    case(
        "conv",
        rand(2, 4, 9, 8),
        rand(6, 2, 3, 2),
        **window((3, 2), _stride, _pad, _dilation),
        groups=2,
        fixed=(1,),
        reduction=24,
        note=f"{_stride} {_pad} {_dilation}",
    )
case("conv", rand(2, 3, 9), rand(4, 3, 3), rand(4), **window((3,), 2, 1), fixed=(1, 2), reduction=9)
case("conv", rand(2, 4, 9), rand(0, 2, 3), **window((3,), 1, 1), groups=2, fixed=(1,), note="none")
case(
    "conv",
    rand(1, 2, 4, 5, 4),
    rand(3, 2, 2, 3, 2),
    **window((2, 3, 2), 1, 1),
    fixed=(1,),
    reduction=24,
)
case(
    "conv",
    rand(2, 4, 5, 5),
    rand(4, 1, 3, 3),
    **window((3, 3), 1, 1),
    groups=4,
    fixed=(1,),
    reduction=9,
    note="depthwise",
)
case(
    "conv",
    rand(1, 1, 5, 5),
    rand(2, 1, 3, 3),
    **window((3, 3), 1, (-1, 1, 0, -1)),
    fixed=(1,),
    reduction=9,
    note="negative pads",
)
case("conv", rand(0, 3, 6, 7), rand(4, 3, 3, 3), **window((3, 3), 1, 1), fixed=(1,), note="empty")
case(
    "conv_integer",
    rand(2, 3, 5, 5, of=np.uint8, high=255),
    rand(4, 3, 3, 3, of=np.int8, low=-99),
    np.uint8(7),
    rand(4, of=np.int8),
    rand(4, of=np.int32),
    **window((3, 3), 1, 1),
    fixed=(1, 2, 3, 4),
)
case(
    "conv_integer",
    rand(2, 4, 5, of=np.uint8, high=255),
    rand(4, 2, 3, of=np.int8, low=-99),
    groups=2,
    **window((3,), 2),
    fixed=(1,),
)
for _kernel in (1, 2):  # strides that step over all of a narrow image
    case(
        "conv_integer",
        rand(1, 4, 3, 1, of=np.uint8, high=255),
        rand(4, 4, 2, _kernel, of=np.int8, low=-99),
        strides=(1, 3),
        pads=(0, 2, 0, 2),
        dilations=(1, 1),
        fixed=(1,),
    )
for _stride, _pad, _dilation, _more in (
    (1, 0, 1, 0),
    (2, 1, 1, 1),
    (2, 0, 2, 0),
    (3, 1, 2, 2),
    (4, 1, 1, 0),
    (4, 0, 6, 1),
):
    case(
        "conv_transpose",
        rand(2, 4, 5, 4),
        rand(4, 3, 3, 4),
        rand(6),
        groups=2,
        fixed=(1, 2),
        **window((3, 4), _stride, _pad, _dilation),
        output_padding=(_more, _more),
        reduction=24,
        note=f"{_stride} {_pad} {_dilation} {_more}",
    )
case(
    "conv_transpose",
    rand(1, 2, 5),
    rand(2, 3, 3),
    **window((3,), 2),
    output_padding=(0,),
    fixed=(1,),
    reduction=6,
)
case(
    "conv_transpose",
    rand(1, 2, 3, 3, 2),
    rand(2, 2, 2, 2, 2),
    **window((2, 2, 2), 2),
    output_padding=(0, 0, 0),
    fixed=(1,),
    reduction=16,
)
case(
    "col2im",
    rand(2, 12, 12),
    image_shape=(5, 4),
    block_shape=(2, 2),
    strides=(1, 1),
    pads=(0, 0, 0, 0),
    dilations=(1, 1),
    fixed=(0,),
    reduction=4,
)

for _strides, _pads in (((1, 1), (0, 0, 0, 0)), ((2, 1), (1, 0, 0, 1))):
    case(
        "col2im",
        rand(2, 12, 12),
        np.array([5, 4]),
        np.array([2, 2]),
        strides=_strides,
        pads=_pads,
        dilations=(1, 1),
        fixed=(1, 2),
        reduction=4,
        note=f"at run time {_strides}",
    )

# ---------------------------------------------------------------------------- pooling

for _op in ("max_pool", "avg_pool", "lp_pool"):
    for _stride, _pad, _dilation, _up in (
        (2, 0, 1, False),
        (2, 1, 1, True),
        (1, 1, 2, False),
        (3, (0, 1, 2, 0), 1, True),
    ):
        case(
            _op,
            rand(2, 3, 7, 8),
            kernel=(3, 2),
            **window((3, 2), _stride, _pad, _dilation),
            ceil_mode=_up,
            reduction=6,
            note=f"{_stride} {_pad} {_dilation} {_up}",
        )
    for _size, _stride, _dilation in ((3, 2, 1), (5, 1, 1), (3, 1, 2), (3, 2, 2), (2, 3, 1)):
        case(  # rows of several vectors, and one that is not whole
            _op,
            rand(2, 2, 7, 43),
            kernel=(_size, _size),
            **window((_size, _size), _stride, _size // 2, _dilation),
            reduction=_size**2,
            note=f"rows {_size} {_stride} {_dilation}",
        )
    case(_op, rand(2, 3, 9, of=np.float16), kernel=(3,), **window((3,), 2), reduction=3)
    case(_op, rand(1, 2, 4, 4, 4), kernel=(2, 2, 2), **window((2, 2, 2), 2), reduction=8)
    case(_op, rand(1, 1, 1, 1), kernel=(1, 1), **window((1, 1)), note="one")
case("max_pool", rand(2, 3, 7, of=np.int8), kernel=(3,), **window((3,), 2, 1))
case(
    "max_pool", rand(2, 3, 6, 70, of=np.uint8), kernel=(3, 3), **window((3, 3), 1, 1), note="bytes"
)
case(
    "max_pool", np.array([[[1, np.nan, 2, 3]]], np.float32), kernel=(2,), **window((2,)), note="nan"
)
case("max_pool", rand(2, 3, 7, 8), kernel=(3, 2), **window((3, 2), 2, 1), outputs=2)
case(  # the first of equals, be they NaN or as small as what surrounds the image
    "max_pool",
    np.array([[[1, np.nan, np.nan, 3, 3, -np.inf, -np.inf, -np.inf]]], np.float32),
    kernel=(3,),
    **window((3,), 2, 1),
    outputs=2,
    note="equals",
)
case(
    "max_pool",
    np.full((1, 2, 4, 5), -128, np.int8),
    kernel=(3, 3),
    **window((3, 3), 2, 1),
    outputs=2,
    note="least",
)
case(  # some windows see nothing of the image
    "max_pool",
    rand(2, 3, 3, 4),
    kernel=(2, 2),
    **window((2, 2), 2, 2),
    outputs=2,
    note="padding",
)
case(
    "max_pool",
    rand(2, 3, 7, 8, of=np.int8),
    kernel=(3, 2),
    **window((3, 2), 2, 1),
    outputs=2,
    column_major=True,
    note="columns",
)
case(
    "avg_pool",
    rand(2, 3, 7, 8),
    kernel=(3, 2),
    **window((3, 2), 2, 1),
    include_pad=True,
    ceil_mode=True,
    reduction=6,
    note="with pads",
)
case("lp_pool", rand(2, 3, 7), kernel=(3,), **window((3,), 2, 1), p=3, reduction=3, note="3")
case("lp_pool", rand(2, 3, 7), kernel=(3,), **window((3,), 2, 1), p=1, reduction=3, note="1")

# ---------------------------------------------------------------------------- normalization

for _of in (np.float32, np.float16, BF16, np.float64):
    for _op in ("softmax", "log_softmax"):
        case(_op, rand(3, 9, of=_of), axes=(1,), reduction=9)
    case(
        "layer_norm",
        rand(3, 9, of=_of),
        rand(9, of=_of),
        rand(9, of=_of, seed=1),
        axis=1,
        reduction=9,
    )
    case("rms_norm", rand(3, 9, of=_of), rand(9, of=_of), axis=1, reduction=9)
    case(
        "batch_norm",
        rand(2, 3, 4, of=_of),
        rand(3, of=_of),
        rand(3, of=_of, seed=1),
        rand(3, of=_of, seed=2),
        rand(3, of=_of, low=0.5, seed=3),
        reduction=4,
    )
    case(
        "group_norm",
        rand(2, 4, 5, of=_of),
        rand(4, of=_of),
        rand(4, of=_of, seed=1),
        groups=2,
        reduction=10,
    )
case("softmax", rand(2, 3, 4), axes=(1, 2), reduction=12)
case("softmax", rand(2, 3, 4), axes=(0,), reduction=3)
case("softmax", rand(2, 1), axes=(1,), note="one")
case("softmax", rand(0, 3), axes=(1,), note="empty")
case("softmax", np.array([[-np.inf, 1, 2], [100, -100, 1000]], np.float32), axes=(1,), note="big")
case("hardmax", rand(3, 9, of=np.float16, low=0, high=2), axes=(1,))
case("hardmax", rand(2, 3, 4), axes=(0, 2))
case("layer_norm", rand(2, 3, 4), axis=1, outputs=3, reduction=12)
case("layer_norm", rand(2, 3, 4), rand(3, 4), axis=1, epsilon=0.1, reduction=12)
case("rms_norm", rand(2, 3, 4, of=np.float16), rand(4), axis=2, reduction=4)
case("batch_norm", rand(4), rand(1), rand(1), rand(1), rand(1, low=0.5), note="one axis")
case("group_norm", rand(2, 4, 3, 5), rand(4), rand(4, seed=1), groups=4, reduction=15)
case("lrn", rand(2, 5, 3, 3), size=3, reduction=3)
case("lrn", rand(2, 5, 3), size=4, alpha=0.1, beta=0.5, bias=2.0, reduction=4)

# ---------------------------------------------------------------------------- quantization

for _to in ("u8", "i8", "i16", "u16", "i4", "u2", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f4e2m1"):
    _zero = np.ones((), dtype(_to).numpy)
    case(
        "quantize", rand(3, 5, low=-300, high=300), np.float32(1.7), _zero, to=dtype(_to), note=_to
    )
    case(
        "dequantize",
        rand(3, 5, of=np.int8).astype(_zero.dtype),
        np.float32(1.7),
        _zero,
        to=dtype("f32"),
        note=_to,
    )
case(
    "quantize",
    rand(3, 4, low=-300, high=300),
    rand(4, low=0.5),
    rand(4, of=np.uint8, high=200),
    to=dtype("u8"),
    axis=1,
    note="axis",
)
case(
    "quantize",
    rand(4, 6, low=-9, high=9),
    rand(4, 3, low=0.5),
    to=dtype("i8"),
    axis=1,
    block_size=2,
    note="blocks",
)
case("quantize", rand(3, 4, of=np.float16, low=-300, high=300), np.float16(0.3), to=dtype("u8"))
case("dequantize", rand(3, 4, of=np.int8), rand(3), rand(3, of=np.int8), to=dtype("f16"), axis=0)
case(
    "dequantize",
    rand(4, 6, of=np.uint8),
    rand(4, 3),
    to=dtype("f32"),
    axis=1,
    block_size=2,
    note="blocks",
)
case("dequantize", rand(4, 6, of=np.int32, high=1 << 30), np.float32(0.1), to=dtype("f32"))
for _of in ("u8", "i8", "f32"):
    _table = rand(256, low=0, high=99).astype(dtype(_of).numpy)
    case("lookup_bytes", rand(5, 37, of=np.uint8, low=0, high=256), _table, fixed=(1,))
case(
    "requantize",
    rand(2, 3, 4, of=np.int32, low=-(1 << 20), high=1 << 20),
    rand(3, 1, of=np.int32, low=-1000, high=1000),
    rand(3, 1, of=np.int32, low=1 << 29, high=1 << 30),
    np.array([[44], [45], [62]], np.int32),
    zero=-3,
    low=-100,
)
case("requantize", rand(5, of=np.int32), *(np.int32(one) for one in (1, 1, 0)), high=5)

# ---------------------------------------------------------------------------- attention

_Q, _K, _V = rand(2, 4, 3, 6), rand(2, 4, 5, 6, seed=1), rand(2, 4, 5, 7, seed=2)
case("attention", _Q, _K, _V, reduction=12)
case(
    "attention",
    _Q,
    _K[:, :2],
    _V[:, :2],
    rand(3, 5),
    reduction=12,
    fixed=(0, 1, 2),
    causal=True,
    past=2,
    note="shared heads",
)
case(
    "attention",
    _Q,
    _K,
    _V,
    rand(2, 1, 3, 5, of=bool),
    np.array([5, 3]),
    scale=0.3,
    softcap=2.0,
    window=(1, 1),
    reduction=12,
    note="everything",
)
for _shows in ("raw", "capped", "masked", "weights"):
    case(
        "attention",
        _Q,
        _K,
        _V,
        softcap=3.0,
        causal=True,
        scores=_shows,
        outputs=2,
        reduction=12,
        note=_shows,
    )
case("attention", *(x.astype(np.float16) for x in (_Q, _K, _V)), reduction=12)
case("attention", _Q, _K, _V, np.zeros((3, 5), bool), reduction=12, note="nothing")
_L = rand(2, 4, 5, 6)
case("linear_attention", _L, _K, _V, outputs=2, reduction=36)
case(
    "linear_attention",
    _L,
    _K[:, :2],
    _V[:, :2],
    rand(2, 2, 6, 7),
    rand(2, 2, 5, 6, high=0),
    rand(2, 1, 5, 1, low=0, high=1),
    outputs=2,
    reduction=36,
    fixed=(0, 1, 2, 3, 4, 5),
    note="delta",
)

# ---------------------------------------------------------------------------- recurrence

_ONE, _TWO = (("tanh", 0.0, 0.0),), (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0))
_THREE = (*_TWO, ("tanh", 0.0, 0.0))
_LENGTHS = np.array([4, 2, 1], np.int32)
for _reverse in (False, True):
    _note = "reverse" if _reverse else ""
    case(
        "rnn",
        rand(4, 3, 5),
        rand(5, 5),
        _LENGTHS,
        rand(3, 5),
        activations=_ONE,
        outputs=2,
        reverse=_reverse,
        reduction=20,
        note=_note,
    )
    for _linear in (False, True):
        case(
            "gru",
            rand(4, 3, 15),
            rand(15, 5),
            rand(15),
            _LENGTHS,
            rand(3, 5),
            activations=_TWO,
            outputs=2,
            reverse=_reverse,
            linear_before_reset=_linear,
            reduction=20,
            fixed=(0, 1, 2),
            note=f"{_note} {_linear}",
        )
    case(
        "lstm",
        rand(4, 3, 20),
        rand(20, 5),
        _LENGTHS,
        rand(3, 5),
        rand(3, 5, seed=1),
        rand(15),
        activations=_THREE,
        outputs=3,
        reverse=_reverse,
        fixed=(1, 5),
        reduction=20,
        clip=1.5,
        note=_note,
    )
case(
    "quantized_lstm",
    rand(4, 3, 20),
    rand(20, 5, low=-128, high=128, of=np.int8),
    np.full(20, 0.01, np.float32),
    rand(20, low=-500, high=500, of=np.int32),
    rand(20, low=-3, high=4, of=np.int8),
    _LENGTHS,
    rand(3, 5),
    rand(3, 5, seed=1),
    activations=_THREE,
    outputs=3,
    reverse=True,
    fixed=(1, 2, 3, 4),
    reduction=20,
)
case("rnn", rand(4, 3, 5), rand(5, 5), activations=_ONE, reduction=20)
case(
    "gru",
    rand(4, 3, 15, of=np.float16),
    rand(15, 5, of=np.float16),
    activations=_TWO,
    reduction=20,
    fixed=(1,),
)
case("lstm", rand(1, 1, 4), rand(4, 1), activations=_THREE, input_forget=True, reduction=4)
for _name in (
    "relu",
    "sigmoid",
    "affine",
    "leaky_relu",
    "thresholded_relu",
    "scaled_tanh",
    "hard_sigmoid",
    "elu",
    "softsign",
    "softplus",
):
    case(
        "rnn", rand(2, 2, 3), rand(3, 3), activations=((_name, 0.3, 0.4),), reduction=6, note=_name
    )

# ---------------------------------------------------------------------------- random

case("random_bits", shape=(3, 50), seed=7)
case("random_bits", np.array([2, 3]), seed=-1 & 0xFFFFFFFF, fixed=(0,), note="at run time")

# ---------------------------------------------------------------------------- scatter

_PLACES = np.array([[0, -1, 1], [2, 0, 2]])
for _how in ("add", "mul", "max", "min"):
    for _of in (np.float32, np.float16, np.int8, bool):
        case(
            "scatter_elements",
            rand(3, 4, of=_of),
            _PLACES,
            rand(2, 3, of=_of, seed=1),
            settings={"axis": 1, "reduction": _how},
            reduction=3,
            note=_how,
        )
    case(
        "scatter_nd",
        rand(3, 4),
        np.array([[1], [-1], [1]]),
        rand(3, 4, seed=1),
        fixed=(1,),
        settings={"reduction": _how},
        reduction=3,
        note=_how,
    )
for _of in (np.float32, BF16, np.int64, bool):
    case("scatter_elements", rand(3, 4, of=_of), _PLACES[:, :2], rand(2, 2, of=_of, seed=1), axis=0)
    case("scatter_nd", rand(3, 4, of=_of), np.array([[1, 2], [-1, 0]]), rand(2, of=_of), fixed=(1,))
case("scatter_elements", rand(3, 4), np.zeros((0, 4), np.int64), rand(0, 4), axis=0, note="empty")
for _how in ("add", "mul", "max", "min"):
    for _of in (np.float32, BF16, np.int64, bool):
        case(
            "segment_reduce",
            rand(6, 4, of=_of),
            np.array([2, 0, 2, -1, 5, 0]),
            count=5,
            settings={"reduction": _how},
            note=_how,
        )
case("segment_reduce", rand(3, 2), np.array([1, 1, 0]), np.array(2), fixed=(2,), note="open")
case(
    "gather_slices",
    rand(4, 7),
    np.array([[0, 1], [9, 5], [-1, -3]]),
    fixed=(0, 1),
    sizes=(2, 4),
    axes=(1, 0),
)
case(
    "gather_slices",
    rand(4, 7),
    np.array([[0, 1], [9, 5]]),
    fixed=(1,),
    sizes=(2, 4),
    axes=(1, 0),
    note="open",
)
case(
    "gather_slices",
    rand(4, 7),
    np.array([[[5], [2]]]),
    fixed=(0, 1),
    sizes=(1, 7),
    axes=(0,),
    collapsed=(0,),
    note="rows",
)

# ---------------------------------------------------------------------------- images

_P = rand(1, 2, 4, 5)
_UP = np.array([2.0, 1.6], np.float32)
for _mode in ("nearest", "linear", "cubic"):
    for _places in (
        "half_pixel",
        "pytorch_half_pixel",
        "half_pixel_symmetric",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
    ):
        case(
            "resize",
            _P,
            None,
            _UP,
            axes=(2, 3),
            mode=_mode,
            coordinates=_places,
            fixed=(0, 2),
            reduction=16,
            note=f"{_mode} {_places}",
        )
    case("resize", _P, axes=(2, 3), sizes=(3, 9), mode=_mode, reduction=16, note=f"{_mode} sizes")
    case(
        "resize",
        _P,
        np.array([0.1, 0.2, 1.2, 0.9], np.float32),
        None,
        np.array([3, 6]),
        mode=_mode,
        axes=(2, 3),
        coordinates="tf_crop_and_resize",
        crop=True,
        extrapolation=9.0,
        fixed=(1, 3),
        reduction=16,
        note=f"{_mode} crop",
    )
case("resize", rand(1, 2, 8, of=np.uint8, high=200), axes=(2,), sizes=(5,), fixed=(0,))
for _mode in ("linear", "cubic"):
    case(
        "resize",
        _P,
        axes=(2, 3),
        sizes=(2, 3),
        mode=_mode,
        antialias=True,
        fixed=(0,),
        reduction=36,
        note=f"{_mode} antialias",
    )
    case(
        "resize",
        _P,
        None,
        np.array([0.6, 0.6], np.float32),
        axes=(2, 3),
        mode=_mode,
        antialias=True,
        fixed=(0, 2),
        reduction=36,
        note=f"{_mode} antialias scales",
    )
    case(
        "resize",
        _P,
        axes=(2, 3),
        sizes=(7, 7),
        mode=_mode,
        exclude_outside=True,
        fixed=(0,),
        reduction=36,
        note=f"{_mode} inside",
    )
for _rounding in ("round_prefer_ceil", "floor", "ceil", "round_even"):
    case("resize", _P, axes=(2, 3), sizes=(7, 7), nearest=_rounding, fixed=(0,), note=_rounding)
    for _places in ("half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"):
        case(
            "resize",
            _P,
            axes=(2, 3),
            sizes=(8, 15),
            nearest=_rounding,
            coordinates=_places,
            fixed=(0,),
            note=f"{_rounding} {_places} whole factors",
        )
for _policy in ("not_larger", "not_smaller"):
    case(
        "resize",
        _P,
        axes=(2, 3),
        sizes=(7, 7),
        mode="linear",
        policy=_policy,
        fixed=(0,),
        reduction=4,
        note=_policy,
    )
for _mode in ("nearest", "linear", "cubic"):
    for _padding in ("zeros", "border", "reflection"):
        for _corners in (False, True):
            case(
                "grid_sample",
                rand(2, 2, 4, 5),
                rand(2, 3, 3, 2, low=-1.5, high=1.5),
                mode=_mode,
                padding=_padding,
                align_corners=_corners,
                fixed=(1,),
                reduction=16,
                note=f"{_mode} {_padding} {_corners}",
            )
case(
    "grid_sample", rand(1, 2, 3, 3, 3), rand(1, 2, 2, 2, 3, low=-1, high=1), fixed=(1,), reduction=8
)
for _corners in (False, True):
    case(
        "affine_grid",
        rand(2, 2, 3),
        size=(2, 3, 4, 5),
        align_corners=_corners,
        fixed=(0,),
        reduction=3,
        note=str(_corners),
    )
case(
    "affine_grid", rand(1, 3, 4), size=(1, 3, 2, 1, 3), align_corners=True, fixed=(0,), reduction=4
)

# ---------------------------------------------------------------------------- selection

for _of in (np.float32, np.float16, np.int8):
    for _largest in (True, False):
        case(
            "top_k",
            rand(3, 7, of=_of),
            k=(3,),
            axis=1,
            largest=_largest,
            outputs=2,
            note=str(_largest),
        )
case("top_k", rand(4, 3, 2, of=np.int64), k=(4,), axis=0, outputs=2, note="all")
case(
    "top_k", np.array([1, np.nan, 3, np.nan, 0], np.float32), k=(5,), axis=0, outputs=2, note="nan"
)
case("top_k", rand(3, 7), k=(0,), axis=1, outputs=2, note="none")
for _largest in (True, False):
    _many = rand(3, 70, 2, of=np.int8, seed=2)
    case("top_k", _many, k=(50,), axis=1, largest=_largest, outputs=2, note=f"many {_largest}")
case(
    "top_k",
    np.where(rand(50, of=bool), rand(50), np.nan).astype(np.float32),
    k=(40,),
    axis=0,
    outputs=2,
    note="many nan",
)
case("top_k", rand(3, 7), np.array([2]), axis=1, outputs=2, fixed=(1,), note="at run time")
_many = rand(2, 70, of=np.int8, seed=2)
case("top_k", _many, np.array([40]), axis=1, outputs=2, fixed=(1,), note="many at run time")
case(
    "max_unpool",
    rand(1, 1, 2, 2),
    np.array([[[[0, 3], [9, 10]]]]),
    kernel=(2, 2),
    fixed=(0, 1),
    strides=(2, 2),
    pads=(0,) * 4,
    dilations=(1, 1),
)
case(
    "max_unpool",
    rand(1, 1, 2, 2),
    np.array([[[[0, 3], [9, 10]]]]),
    kernel=(2, 2),
    fixed=(0, 1),
    shape=(1, 1, 5, 6),
    strides=(2, 2),
    pads=(0,) * 4,
    dilations=(1, 1),
    note="larger",
)
for _of in (np.float32, np.int64):
    for _told, _rows in (({}, 6), ({"depth": 2, "modes": (0, 3, 4)}, 6), ({"depth": 2}, 40)):
        case(
            "tree_leaves",
            rand(_rows, 2, of=_of),
            np.array([0, 1, 1]),
            rand(3, of=_of),
            np.array([0, 3, 4]),
            np.array([[2, 1], [-2, -1], [-4, -3]]),
            np.array([True, False, True]),
            np.array([0, 1] * 10),  # more than are walked side by side
            **_told,
            note=f"{_rows} rows, {sorted(_told)}",
        )

# ---------------------------------------------------------------------------- search

for _of in (np.float32, np.int8, bool):
    case("nonzero", rand(3, 5, of=_of, low=-1, high=1))
case("nonzero", np.float32(3), note="scalar")
case("nonzero", rand(0, 3), note="empty")
for _sorted in (True, False):
    case("unique", rand(40, of=np.int8), sorted=_sorted, outputs=4, note=str(_sorted))
    case("unique", np.rint(rand(5, 7)), sorted=_sorted, outputs=4, note=str(_sorted))
    case("unique", rand(2, 9, 3, of=bool), axis=1, sorted=_sorted, outputs=4, note=str(_sorted))
case("unique", rand(9, 2, of=np.int64, low=0, high=2), axis=0, outputs=2)
case("unique", np.array([np.nan, 1, np.nan, 0], np.float32), note="nan")
case("unique", rand(0), outputs=4, note="empty")
case("unique", rand(6, 0, of=np.int64), outputs=4, note="empty rows")
_ROWS = np.sort(np.rint(rand(2, 3, 7, low=-4, high=4)), -1)
for _right in (True, False):
    case("search_sorted", _ROWS, np.rint(rand(2, 3, 5)), right=_right, note=str(_right))
    case("search_sorted", np.sort(rand(8, of=np.int8)), rand(2, 9, of=np.int8), right=_right)
case("search_sorted", np.array([0, 1, np.nan], np.float32), np.array([np.nan, 2], np.float32))
case("search_sorted", rand(0), rand(3), note="empty")
for _op in ("cummax", "cummin"):
    case(_op, np.rint(rand(4, 5, 3)), axis=1, outputs=2)
    case(_op, rand(9, of=np.int64), axis=0, outputs=2)
    case(_op, np.array([1, np.nan, 3, 0], np.float32), axis=-1, outputs=2, note="nan")
_BOXES, _SCORES = rand(2, 9, 4, low=0, high=4), rand(2, 3, 9, low=0, high=1)
_LIMIT, _OVERLAP = np.array([3]), np.array([0.2], np.float32)
_LEAST = np.array([0.3], np.float32)
_SOME = (_BOXES, _SCORES, _LIMIT, _OVERLAP)
case("suppress_boxes", *_SOME, _LEAST, outputs=2, fixed=(0, 2, 3, 4))
case("suppress_boxes", *_SOME, _LEAST, capacity=3, outputs=2, fixed=(0, 2, 3, 4), note="capacity")
case("suppress_boxes", *_SOME, center=True, outputs=2, fixed=(0, 2, 3))
case("suppress_boxes", _BOXES, 0 * _SCORES, np.int64(2), outputs=2, fixed=(0,), note="equal")
case("suppress_boxes", _BOXES, _SCORES, outputs=2, fixed=(0,), note="none")
case(
    "suppress_boxes",
    _BOXES.astype(np.float64),
    _SCORES.astype(np.float64),
    _LIMIT,
    outputs=2,
    fixed=(0, 2),
)
case(
    "suppress_boxes",
    rand(1, 150, 4, low=0, high=40),
    rand(1, 2, 150, seed=1).round(1),
    np.array([70]),
    np.array([0.5], np.float32),
    outputs=2,
    fixed=(0, 2, 3),
    note="many",
)
case(
    "list_boxes", rand(2, 3, 4, of=np.int64, high=9), np.array([[0, 4, 2], [1, 0, 0]]), fixed=(0, 1)
)
case(
    "list_boxes",
    rand(2, 3, 4, of=np.int64, high=9),
    np.zeros((2, 3), np.int64),
    fixed=(0, 1),
    note="none",
)

for _of in (np.float32, np.int64):
    case(
        "lookup",
        rand(3, 4, of=_of).round(),
        np.array([1, 2, 1, -3], _of),
        rand(4, of=np.int32, seed=1),
        np.array([9], np.int32),
        fixed=(1, 2, 3),
    )
case(
    "lookup",
    np.array([1, np.nan, 2], np.float32),
    np.array([np.nan, 2], np.float32),
    rand(2),
    rand(),
    note="nan",
)

# ---------------------------------------------------------------------------- regions

_ROIS = np.array([[0, 0, 3.5, 4.2], [1, 1, 2, 2], [-3, 2, 9, 9], [5, 5, 1, 1]], np.float32)
_WHICH = np.array([0, 1, 1, 0])
for _mode in ("avg", "max"):
    for _ratio in (0, 2):
        for _half in (True, False):
            case(
                "roi_align",
                rand(2, 3, 6, 7),
                _ROIS,
                _WHICH,
                size=(2, 3),
                scale=0.7,
                sampling_ratio=_ratio,
                mode=_mode,
                half_pixel=_half,
                fixed=(0, 1, 2),
                reduction=16,
                note=f"{_mode} {_ratio} {_half}",
            )
case(
    "max_roi_pool",
    rand(2, 3, 6, 7),
    np.concatenate([_WHICH[:, None].astype(np.float32), _ROIS], axis=1),
    size=(2, 3),
    scale=0.7,
    fixed=(0, 1),
)
case("det", rand(3, 3), reduction=9)
case("det", rand(2, 4, 4, of=np.float16), reduction=9)
case("det", rand(2, 5, 5, of=np.float64), reduction=32)
case("det", np.array([[0, 2], [3, 0]], np.float32), note="pivot")
case("det", np.ones((3, 3), np.float32), note="singular")
case("det", rand(0, 0), note="empty")
_SQUARES = rand(2, 5, 5)
_POSITIVE = _SQUARES @ _SQUARES.transpose(0, 2, 1) + np.eye(5, dtype=np.float32)
for _matrices, _note in ((_POSITIVE, ""), (_POSITIVE[0].astype(np.float16), ""), (rand(0, 0), "0")):
    case("cholesky", _matrices, outputs=2, note=_note)
    case("eigh", _matrices, outputs=2, note=_note)
for _shape in ((5, 5), (2, 4, 3), (3, 5), (0, 3)):
    case("lu", rand(*_shape), outputs=3)
    case("householder", rand(*_shape), outputs=2)
case("lu", np.array([[0, 2], [3, 0]], np.float32), outputs=3, note="pivot")
case("lu", np.ones((3, 3), np.float32), outputs=3, note="singular")
case("householder", np.eye(3, dtype=np.float32), outputs=2, note="nothing to reflect")
case("row_order", np.array([[2, 2, 3], [1, 3, 3]], np.int32), np.int64(4), fixed=(1,))
case("row_order", np.array([3, 3], np.int32), np.int64(3), fixed=(1,))
case("householder_product", rand(2, 5, 3), rand(2, 3))
case("householder_product", rand(4, 4), rand(2))
for _lower in (True, False):
    for _unit in (True, False):
        _sides = rand(2, 4, 4) + 3 * np.eye(4, dtype=np.float32)
        case("triangular_solve", _sides, rand(2, 4, 3), lower=_lower, unit=_unit, reduction=16)
for _shape in ((4, 4), (2, 6, 3), (3, 1), (2, 0)):
    case("svd", rand(*_shape), outputs=3)
for _groups, _shared, _mask in ((1, 1, False), (2, 2, True), (1, 2, True)):
    case(
        "deform_conv",
        rand(2, 4, 5, 6),
        rand(6, 4 // _groups, 3, 2),
        rand(2, _shared * 12, 5, 7),
        rand(6),
        rand(2, _shared * 6, 5, 7) if _mask else None,
        strides=(1, 1),
        dilations=(1, 1),
        pads=(1, 1, 1, 1),
        groups=_groups,
        offset_groups=_shared,
        fixed=(0, 1, 2, 4),
        reduction=96,
        note=f"{_groups} {_shared}",
    )

# ---------------------------------------------------------------------------- signals

for _inverse in (False, True):
    case("dft", rand(2, 6, 2), axis=1, inverse=_inverse, reduction=12, note=str(_inverse))
    case("dft", rand(2, 6, 3, 1), axis=-3, inverse=_inverse, reduction=12, note=str(_inverse))
    case(
        "dft",
        rand(2, 6, 2),
        axis=1,
        length=9,
        inverse=_inverse,
        reduction=18,
        fixed=(0,),
        note=f"{_inverse} longer",
    )
case("dft", rand(2, 6, 1), axis=1, onesided=True, reduction=12, note="one side")
case("dft", rand(2, 4, 2), axis=1, onesided=True, inverse=True, reduction=12, note="from one side")
case(
    "dft",
    rand(2, 4, 2),
    axis=1,
    length=5,
    onesided=True,
    inverse=True,
    reduction=12,
    fixed=(0,),
    note="odd",
)
for _how in ({}, {"inverse": True}, {"onesided": True}, {"onesided": True, "inverse": True}):
    _note = " ".join(("axis at run time", *_how))
    _signal = rand(2, 6, 1 if _how == {"onesided": True} else 2)
    case("dft", _signal, None, np.array(1), fixed=(2,), reduction=18, note=_note, settings=_how)
    _note = " ".join(("length at run time", *_how))
    case(
        "dft",
        _signal,
        np.array(9),
        axis=1,
        fixed=(1,),
        reduction=18,
        note=_note,
        settings=_how,
    )
case("stft", rand(2, 16, 1), np.array(3), rand(6), fixed=(1,), reduction=12, note="run-time step")
for _onesided in (False, True):
    case(
        "stft",
        rand(2, 16, 2 - _onesided),
        None,
        None,
        np.array(5),
        step=4,
        onesided=_onesided,
        fixed=(3,),
        reduction=16,
        note=f"run-time length {_onesided}",
    )
_MEL = (np.array(8000), np.array(0.0, np.float32), np.array(4000.0, np.float32))
case("mel_weights", None, None, *_MEL, bands=8, length=16)
case("mel_weights", np.array(8), np.array(17), *_MEL, to=dtype("f64"), note="at run time")
case("stft", rand(2, 16, 1), None, rand(6), step=3, reduction=12)
case("stft", rand(2, 16, 2), step=4, length=8, onesided=False, reduction=16)


# ---------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_lowering(case: Case, close: Any, symbolic: bool) -> None:
    if symbolic and not case.symbolic:
        pytest.skip("the shape must be numbers")
    check(case, close, symbolic)


@pytest.mark.parametrize("of", ["f32", "f16"])
def test_what_no_update_is_added_to_keeps_its_sign(of: str) -> None:
    b = Builder()
    given = np.full((3, 4), -0.0), np.array([[1], [1]]), np.ones((2, 4))
    arrays = [given[0].astype(dtype(of).numpy), given[1], given[2].astype(dtype(of).numpy)]
    params = [
        b.param(name, TensorType(from_numpy(each.dtype), tuple(map(sym.const, each.shape))))
        for name, each in zip("xiu", arrays, strict=True)
    ]
    made = b.module(b.add("scatter_nd", *params, reduction="add", by_results=True))
    out = np.zeros_like(arrays[0])
    run_tensor(lower_graph(made.main, "f"), *arrays, out)
    np.testing.assert_array_equal(out, interpret(made, *arrays)[0])
    assert np.signbit(out).tolist() == [[True] * 4, [False] * 4, [True] * 4]
