"""The types of values in a model: tensors with symbolic shapes, sequences, optionals, maps.

f32[batch, 3, 224, 224]    dimensions are integer expressions over sizes
i64[]                      a scalar
f32[*]                     a tensor of dynamic rank
seq<f32[n]>   opt<i64[]>   a sequence, an optional
map<str, f32>              a map from keys to numbers

A size that occurs only in a sequence's element type may differ between elements.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from tilewright.base.dtype import DType
from tilewright.sym import Const, Expr, Var, free_vars, size


def item_of(dim: Expr | int) -> int | Expr:
    """A dimension as an attribute item: a number if constant."""
    return int(dim.value) if isinstance(dim, Const) else dim


def items_of(dims: Iterable[Expr | int]) -> tuple[int | Expr, ...]:
    """Dimensions as attribute items."""
    return tuple(item_of(dim) for dim in dims)


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor. `shape` is None for a dynamic rank.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%x: f32[2]) { %y = neg(%x) return %y }")
        >>> print(module.main.params[0].type)
        f32[2]
    """

    dtype: DType
    shape: tuple[Expr, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The dimensions as numbers, if all are constant."""
        if self.shape is None or not all(isinstance(dim, Const) for dim in self.shape):
            return None
        return tuple(int(dim.value) for dim in self.shape if isinstance(dim, Const))

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ", ".join(str(dim) for dim in self.shape)
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type, of any length.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%m: seq<f32[2]>) { return %m }")
        >>> print(module.main.params[0].type)
        seq<f32[2]>
    """

    element: Type

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%m: opt<f32[2]>) { return %m }")
        >>> print(module.main.params[0].type)
        opt<f32[2]>
    """

    element: Type

    def __str__(self) -> str:
        return f"opt<{self.element}>"


@dataclass(frozen=True, slots=True)
class MapType:
    """A map from keys to values, both of one element type.

    Examples:
        >>> from tilewright import graph
        >>> module = graph.parse("graph @main(%m: map<i64, f32>) { return %m }")
        >>> print(module.main.params[0].type)
        map<i64, f32>
    """

    key: DType
    value: DType

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


Type = TensorType | SequenceType | OptionalType | MapType


def sizes_of(of: Type) -> dict[Var, None]:
    """The sizes in a type, in order."""
    inner = tensor_of(of)
    return free_vars(*inner.shape) if inner is not None and inner.shape else {}


def tensor_of(of: Type) -> TensorType | None:
    """The tensor type inside; None for a map."""
    while isinstance(of, (SequenceType, OptionalType)):
        of = of.element
    return of if isinstance(of, TensorType) else None


def is_tensor(of: Type) -> bool:
    """Whether values of a type are numeric tensors of known rank."""
    return isinstance(of, TensorType) and of.shape is not None and not of.dtype.is_str


def map_dims(of: Type, change: Callable[[Expr], Expr]) -> Type:
    """Map all dimensions of a type; the same object if unchanged."""
    if isinstance(of, (SequenceType, OptionalType)):
        element = map_dims(of.element, change)
        return of if element is of.element else type(of)(element)
    if isinstance(of, MapType) or of.shape is None:
        return of
    dims = tuple(change(dim) for dim in of.shape)
    return (
        of
        if all(a is b for a, b in zip(dims, of.shape, strict=True))
        else TensorType(of.dtype, dims)
    )


def renewed(of: Type, keep: Container[Var] = (), name: str = "d") -> Type:
    """Replace the dimensions of a type that contain sizes not in those of `keep` by new sizes.

    That is the type outside of the scope of the sizes: of a body, or of a sequence.
    """

    def change(dim: Expr) -> Expr:
        hidden = [variable for variable in free_vars(dim) if variable not in keep]
        return size(hidden[0].name if hidden else name) if hidden else dim

    return map_dims(of, change)


def join(a: Type, b: Type) -> Type | None:
    """The join of two types; dimensions that differ become new sizes. None if there is none."""
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):
        inner = join(
            a.element if isinstance(a, OptionalType) else a,
            b.element if isinstance(b, OptionalType) else b,
        )
        return None if inner is None else OptionalType(inner)
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        inner = join(a.element, b.element)
        return None if inner is None else SequenceType(inner)
    if isinstance(a, MapType) and a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
        return None
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype, None)
    pairs = zip(a.shape, b.shape, strict=True)
    return TensorType(a.dtype, tuple(x if x is y else size("d") for x, y in pairs))
