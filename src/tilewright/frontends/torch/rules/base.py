"""The interface of rules to a node: arguments by the names of the operator's schema, and a
builder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from tilewright.base.dtype import DType
from tilewright.base.errors import UserError
from tilewright.base.loc import Loc
from tilewright.frontends.common.emit import Emitter
from tilewright.frontends.torch.sizes import Sizes
from tilewright.frontends.torch.tensors import PARTS, dtype_of
from tilewright.graph import Builder, Graph, Value
from tilewright.graph.types import TensorType, items_of
from tilewright.sym import Const, Expr

Dim = Expr | int
Scalar = (
    int | float | bool | Expr | Value
)  # a number: constant, an expression of sizes, or computed


class Bodies(Protocol):
    """The part of the importer that rules for control flow need."""

    sizes: Sizes
    numbers: dict[Expr, Value]

    def body(
        self, module: fx.GraphModule, params: Sequence[TensorType], outer: Builder
    ) -> Graph: ...

    def define(self, symbol: Any, size: Expr) -> None: ...

    def check(self, cond: Value, message: str, node: Context) -> None: ...


@dataclass
class Context(Emitter):
    """One node under translation. Its tensor arguments are already graph values."""

    node: fx.Node
    args: Mapping[str, Any]  # by the names of the schema, defaults filled in
    raw: Mapping[str, Any]  # the same with PyTorch's fake tensors, for its promotion rules
    builder: Builder
    loc: Loc
    importer: Bodies

    @property
    def op_type(self) -> str:
        return str(self.node.target).removeprefix("aten.")

    def __getitem__(self, name: str) -> Value:
        """A required tensor argument."""
        value = self.args.get(name)
        if not isinstance(value, Value):
            raise UserError("TW1106", f"{self.op_type} needs the tensor {name!r}", self.loc)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """An argument: a value, a number, an expression, a list of those; the default if absent."""
        found = self.args.get(name)
        return default if found is None else found

    def settled(self, name: str) -> int:
        """An argument as a compile-time number; a symbolic one has the value it was traced with."""
        return int(self.raw[name])

    # ------------------------------------------------------------------ results

    @property
    def results(self) -> list[torch.Tensor]:
        """The fake tensors of the results."""
        made: Any = self.node.meta.get("val")
        return list(made) if isinstance(made, (tuple, list)) else [made]

    @property
    def to(self) -> DType:
        """The element type of the first result; for complex numbers that of their parts."""
        of = self.results[0].dtype
        return dtype_of(PARTS.get(of, of))

    @property
    def out(self) -> tuple[Expr, ...]:
        """The shape of the first result."""
        return self.dims_of(self.results[0])

    def dims_of(self, fake: torch.Tensor) -> tuple[Expr, ...]:
        return tuple(self.importer.sizes.expr(dim) for dim in fake.shape)

    def wants(self, at: int) -> bool:
        """Whether result `at` of several is used."""
        return any(user.args[1] == at for user in self.node.users)

    # ------------------------------------------------------------------ promotion

    def promoted(self, *names: str) -> DType:
        """The element type that operands are promoted to before the computation."""
        operands = [self.raw[name] for name in names if self.raw.get(name) is not None]
        _, result = elementwise_dtypes(*operands, type_promotion_kind=KIND.DEFAULT)
        return dtype_of(result)

    def value(self, x: Scalar, to: DType) -> Value:
        """A tensor or number as a value of an element type."""
        if isinstance(x, Value):
            return self.cast(x, to)
        if isinstance(x, Expr) and not isinstance(x, Const):
            return self.cast(self.number(x), to)
        plain = x.value if isinstance(x, Const) else x
        with np.errstate(all="ignore"):
            return self.constant(np.asarray(plain).astype(to.numpy))

    def full(self, x: Scalar, to: DType, dims: Sequence[Dim]) -> Value:
        """A tensor filled with one number."""
        return self.emit("expand", self.value(x, to), shape=items_of(dims))

    # ------------------------------------------------------------------ arguments

    def dims(self, name: str = "self") -> tuple[Expr, ...]:
        """The shape of a tensor argument."""
        return self.shape(self[name])

    def rank(self, name: str = "self") -> int:
        return len(self.dims(name))

    def dim(self, name: str = "dim", of: str = "self") -> int:
        """A non-negative axis of a tensor argument."""
        return self.axis(int(self.args[name]), self.rank(of))

    def axes(self, name: str = "dim", of: str = "self") -> tuple[int, ...]:
        """Non-negative axes of a tensor argument; none given means all."""
        given, rank = self.args.get(name), self.rank(of)
        if given is None or given == []:
            return tuple(range(rank))
        listed = given if isinstance(given, (list, tuple)) else [given]
        return tuple(sorted({self.axis(int(axis), rank) for axis in listed})) if rank else ()


Rule = Callable[[Context], Value | Sequence[Value | None]]
