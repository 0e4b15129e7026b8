"""Declarations of operators, the single source of all their properties.

    RELU = Op(
        "relu", "max(x, 0).", inputs=(Input("x", NUMBER),), infer=same_type,
        reference=lambda call, x: np.maximum(x, 0), pattern=ELEMENTWISE,
    )

`infer` returns the output types; `reference` is the semantics, on NumPy arrays. Both get a `Call`:
the attributes (with defaults), the input types, and, where known at compile time, the contents of
small integer inputs as expressions, for operators such as reshape whose output shape depends on a
value. There is one file per family in `ops/`, and one table of all in `ops/__init__.py`.

An input that `folds` is a scalar or list that is usually known at compile time, such as the axes of
a reduction. Then the node has an attribute of the same name instead, whose items are numbers or,
for integers, expressions of sizes; rules and references see an input either way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.base.dtype import F64, I64, DType
from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.base.loc import UNKNOWN, Loc
from tilewright.graph.ir import Attribute, Graph
from tilewright.graph.types import TensorType, Type
from tilewright.sym import Const, Expr, as_expr, const

# Access patterns of operators, for fusion and lowering.
ELEMENTWISE = "elementwise"  # out[i] from in[i]
BROADCAST = "broadcast"  # out[i] from in[some of i]
INJECTIVE = "injective"  # out[i] from in[f(i)]: transpose, slice, concat, gather
REDUCTION = "reduction"  # out[i] from in[i, *]
COMPLEX = "complex"  # matmul, conv: element-wise epilogues can be fused
OPAQUE = "opaque"  # never fused: sort, control flow, sequences

AXES = ("axis", "axes", "layout")  # attributes that refer to axes

MAX_RANK = 64  # of tensors, as in NumPy

FLOAT, INTEGER, NUMBER, BOOLEAN, ANY = "float", "integer", "number", "boolean", "any"

Known = tuple[Expr, ...]  # the elements of a small integer tensor, flattened


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter of an operator."""

    name: str
    kind: str = ANY  # permitted dtypes: FLOAT, INTEGER, NUMBER, BOOLEAN, ANY
    optional: bool = False
    variadic: bool = False  # the last input may repeat
    folds: bool = False  # known contents become the attribute of this name


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute; REQUIRED has no default."""

    name: str
    kind: type | tuple[type, ...]
    default: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One use of an operator, the argument of its functions."""

    op: str
    types: tuple[Type | None, ...]
    attributes: Mapping[str, Any]
    known: tuple[Known | None, ...] = ()  # contents of inputs, where known
    bodies: tuple[Graph, ...] = ()
    loc: Loc = UNKNOWN
    outputs: int = 1  # number of outputs requested
    data: tuple[np.ndarray[Any, Any] | None, ...] = ()  # contents in numbers, where known

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def tensor(self, at: int) -> TensorType:
        """The type of input `at`, which must be a tensor."""
        found = self.types[at] if at < len(self.types) else None
        if not isinstance(found, TensorType):
            raise self.error("TW1003", f"input {at} of {self.op} is not a tensor")
        return found

    def shape(self, at: int) -> tuple[Expr, ...]:
        """The shape of input `at`; its rank must be known."""
        shape = self.tensor(at).shape
        if shape is None:
            raise Unsupported(
                "TW1004", f"{self.op} of a tensor whose number of dimensions is not known", self.loc
            )
        return shape

    def has(self, at: int) -> bool:
        """Whether input `at` is given."""
        return at < len(self.types) and self.types[at] is not None

    def value(self, at: int) -> Known | None:
        """The elements of input `at`, if known at compile time."""
        return self.known[at] if at < len(self.known) else None

    def array(self, at: int) -> np.ndarray[Any, Any] | None:
        """The contents of input `at` in numbers, if known at compile time."""
        return self.data[at] if at < len(self.data) else None

    def ints(self, at: int) -> tuple[int, ...] | None:
        """The elements of input `at` as numbers, if all are constant."""
        value = self.value(at)
        if value is None or not all(isinstance(x, Const) for x in value):
            return None
        return tuple(int(x.value) for x in value if isinstance(x, Const))

    def error(self, code: str, message: str, help: str = "") -> UserError:
        return UserError(code, message, self.loc, help=help)


Infer = Callable[[Call], Sequence[Type]]
Reference = Callable[..., Any]  # (call, *arrays) -> array or tuple of arrays


@dataclass(frozen=True, slots=True)
class Op:
    """The declaration of an operator."""

    name: str
    doc: str
    inputs: tuple[Input, ...]
    infer: Infer
    reference: Reference
    pattern: str = OPAQUE
    attributes: tuple[Attr, ...] = ()
    # The contents of an integer output from those of inputs: shape arithmetic.
    evaluate: Callable[[Call], Known | None] | None = None
    native: bool = True  # False: on strings or sequences of strings, run as a fallback
    pure: bool = True  # False: not constant-folded, even if all inputs are known
    aliases: tuple[str, ...] = field(default=())

    @property
    def variadic(self) -> bool:
        return bool(self.inputs) and self.inputs[-1].variadic

    @property
    def is_map(self) -> bool:
        """Whether each element depends only on those at its position in the (broadcast)
        operands."""
        return self.pattern in (ELEMENTWISE, BROADCAST)

    @property
    def names_axes(self) -> bool:
        """Whether an attribute selects axes, so that the computation depends on them."""
        return any(attr.name in AXES for attr in self.attributes)

    @property
    def foldable(self) -> dict[str, int]:
        """Positions of the inputs that may be attributes."""
        return {spec.name: at for at, spec in enumerate(self.inputs) if spec.folds}

    def gives(self, call: Call) -> list[Type]:
        """The output types, checked for rank and countable sizes."""
        types = list(self.infer(call))
        for of in types:
            shape = (of.shape or ()) if isinstance(of, TensorType) else ()
            if len(shape) > MAX_RANK:
                message = f"{call.op} gives a tensor of {len(shape)} dimensions"
                help = f"tensors have at most {MAX_RANK}, as NumPy's arrays do"
                raise Unsupported("TW1019", message, call.loc, help=help)
            check_countable(of, call.loc)
        return types

    def fill(self, given: Mapping[str, Attribute], loc: Loc = UNKNOWN) -> dict[str, Any]:
        """The attributes with defaults; unknown or missing ones are errors."""
        known = {attr.name: attr for attr in self.attributes}
        for name in given:
            if name not in known:
                raise UserError("TW1001", f"{self.name} has no attribute {name!r}", loc)
        out: dict[str, Any] = {}
        for attr in self.attributes:
            if attr.name in given:
                out[attr.name] = self._checked(attr, given[attr.name], loc)
            elif attr.required:
                raise UserError("TW1002", f"{self.name} needs the attribute {attr.name!r}", loc)
            else:
                out[attr.name] = attr.default
        return out

    def _checked(self, attr: Attr, value: Any, loc: Loc) -> Any:
        kinds = attr.kind if isinstance(attr.kind, tuple) else (attr.kind,)
        fits = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
        if isinstance(value, bool) and bool not in kinds:
            fits = False
        if not fits and not (value is None and not attr.required and attr.default is None):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UserTypeError(
                "TW1008", f"attribute {attr.name!r} of {self.name} is {value!r}, not {names}", loc
            )
        return value


def check_countable(of: Type, loc: Loc = UNKNOWN) -> None:
    """Reject a tensor whose known sizes exceed a 64-bit count."""
    if not isinstance(of, TensorType):
        return
    known = [int(dim.value) for dim in of.shape or () if isinstance(dim, Const)]
    if any(size >= 1 << 63 for size in known):
        raise UserError("TW1018", f"a dimension does not fit 64 bits: {max(known)}", loc)
    if prod(known) * of.dtype.size_bytes >= 1 << 63:
        raise UserError("TW1018", f"{of} has more bytes than fit 64 bits", loc)


Item = int | float | Expr
Items = Item | tuple[Item, ...]  # a folded input, as an attribute


def attribute_input(items: Items) -> tuple[TensorType, Known | None, np.ndarray[Any, Any] | None]:
    """The type, contents and numbers represented by an attribute in place of an input."""
    several = items if isinstance(items, tuple) else (items,)
    shape = (const(len(several)),) if isinstance(items, tuple) else ()
    if any(isinstance(x, float) for x in several):
        return TensorType(F64, shape), None, np.array(items, np.float64)
    contents = tuple(as_expr(x) for x in several)
    numbers = [int(x.value) for x in contents if isinstance(x, Const)]
    data = None
    if len(numbers) == len(contents):
        if any(not -(1 << 63) <= number < 1 << 63 for number in numbers):
            raise UserError("TW1018", f"a dimension does not fit 64 bits: {max(numbers)}")
        data = np.array(numbers, np.int64).reshape(-1 if shape else ())
    return TensorType(I64, shape), contents, data


def accepts(kind: str, of: DType) -> bool:
    """Whether a dtype belongs to an input kind."""
    return {
        FLOAT: of.is_float,
        INTEGER: of.is_int,
        NUMBER: of.is_float or of.is_int,
        BOOLEAN: of.is_bool,
        ANY: True,
    }[kind]


def as_arrays(result: Any) -> tuple[Any, ...]:
    """A reference's result as a tuple of outputs; a list is one output, a sequence."""
    if isinstance(result, tuple):
        return result
    return (result if result is None or isinstance(result, list) else np.asarray(result),)
