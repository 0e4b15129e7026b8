"""What the generator knows of a value, and the graph it puts nodes into."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, helper, numpy_helper

CHOICES = 3  # of extents for the named dimensions

Dim = tuple[int, ...]  # the extent under each choice
Shape = tuple[Dim, ...]
INF = float("inf")

FLOATS = ("float32", "float64", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
DTYPES = (*NUMBERS, "bool")


def numpy_of(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)


def code_of(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(numpy_of(dtype)))


def fixed(extent: int) -> Dim:
    return (extent,) * CHOICES


def is_fixed(dim: Dim) -> bool:
    return len(set(dim)) == 1


@dataclass(frozen=True)
class Val:
    """A tensor. Floats are `exact` where every correct evaluation gives the same bits."""

    name: str
    dtype: str
    shape: Shape
    exact: bool = True
    bound: float = 8.0  # the largest magnitude; infinite if anything goes
    terms: int = 1  # how many terms were summed up on the way, for tolerances

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def count(self) -> int:
        """Elements, at most."""
        return max(int(np.prod([dim[k] for dim in self.shape])) for k in range(CHOICES))

    @property
    def is_ever_empty(self) -> bool:
        return any(0 in dim for dim in self.shape)


@dataclass
class Scope:
    """A graph under construction: the whole model, or a body inside it."""

    rng: random.Random
    opset: int
    names: dict[str, Dim]  # of dimensions
    count: list[int] = field(default_factory=lambda: [0])
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: dict[str, Callable[[int], Any]] = field(default_factory=dict)  # array by choice
    infos: list[onnx.ValueInfoProto] = field(default_factory=list)
    values: list[Val] = field(default_factory=list)
    outer: Scope | None = None
    depth: int = 0
    nasty: bool = False  # inputs may hold NaN, infinities, huge and tiny numbers
    main: bool = True
    ends: list[Val] = field(default_factory=list)  # results no operator may use: unknown shapes

    def inner(self) -> Scope:
        """A body; it sees the values of the graph around it."""
        return replace(
            self,
            nodes=[],
            initializers=[],
            inputs={},
            infos=[],
            values=[],
            ends=[],
            outer=self,
            depth=self.depth + 1,
            main=False,
        )

    def fresh(self, hint: str = "v") -> str:
        self.count[0] += 1
        return f"{hint}{self.count[0]}"

    def visible(self) -> list[Val]:
        """All values in sight, the newest last."""
        return [*(self.outer.visible() if self.outer else []), *self.values]

    # -------------------------------------------------------------------------------- leaves

    def input(
        self, dtype: str, shape: Shape, fill: Callable[[np.random.Generator, tuple[int, ...]], Any]
    ) -> Val:
        """A new input of the model, filled by a function of a generator and a shape."""
        top = self
        while top.outer is not None:
            top = top.outer
        name = self.fresh("x")
        seed = self.rng.randrange(1 << 30)

        def array(choice: int) -> Any:
            extents = tuple(dim[choice] for dim in shape)
            made = fill(np.random.default_rng(seed + choice), extents)
            with np.errstate(all="ignore"):
                return np.asarray(made).astype(numpy_of(dtype)).reshape(extents)

        top.inputs[name] = array
        top.infos.append(helper.make_tensor_value_info(name, code_of(dtype), self.declared(shape)))
        value = Val(name, dtype, shape)
        top.values.append(value)
        return value

    def declared(self, shape: Shape) -> list[int | str]:
        """How an input's dimensions are written: a number, or the name that has the extents."""
        dims: list[int | str] = []
        for dim in shape:
            named = [name for name, extents in self.names.items() if extents == dim]
            dims.append(named[0] if named else dim[0])
            assert named or is_fixed(dim), dim
        return dims

    def constant(self, array: Any, dtype: str = "", *, node: bool | None = None) -> Val:
        """A tensor known beforehand: an initializer or a Constant node."""
        array = np.asarray(array)
        array = array.astype(numpy_of(dtype)) if dtype else array
        dtype = dtype or array.dtype.name
        name = self.fresh("c")
        proto = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        if self.rng.random() < 0.3 if node is None else node:
            self.nodes.append(helper.make_node("Constant", [], [name], value=proto))
        else:
            self.initializers.append(proto)
        sizes = np.abs(array.astype(np.float64)) if array.size else np.zeros(1)
        shape = tuple(fixed(extent) for extent in array.shape)
        bound = float(sizes.max()) if np.isfinite(sizes).all() and sizes.max() < 1e4 else INF
        return Val(name, dtype, shape, bound=bound)

    def ints(self, values: Sequence[int], dtype: str = "int64") -> str:
        """The name of a constant list of integers."""
        return self.constant(np.array(values, dtype).reshape(len(values))).name

    # -------------------------------------------------------------------------------- nodes

    def add(
        self, op: str, inputs: Sequence[Val | str], outputs: Sequence[Val], **attributes: Any
    ) -> Val:
        """A node; its outputs are in sight from now on."""
        names = [value if isinstance(value, str) else value.name for value in inputs]
        node = helper.make_node(op, names, [value.name for value in outputs], **attributes)
        self.nodes.append(node)
        self.values.extend(value for value in outputs if value.name)
        return outputs[0]

    def end(self, op: str, inputs: Sequence[Val | str], outputs: Sequence[Val], **attr: Any) -> Val:
        """A node whose outputs have shapes that only the data tells: nothing uses them."""
        made = self.add(op, inputs, outputs, **attr)
        for value in outputs:
            self.values.remove(value)
        self.ends.extend(outputs)
        return made

    def like(self, value: Val, **changes: Any) -> Val:
        """A new value, like another but for some changes."""
        return replace(value, name=self.fresh(), **changes)

    def graph(self, name: str, outputs: Sequence[Val], infos: Sequence[Any] = ()) -> Any:
        """The graph of a body."""
        results = [helper.make_tensor_value_info(v.name, code_of(v.dtype), None) for v in outputs]
        return helper.make_graph(self.nodes, name, list(infos), results, self.initializers)


def attribute_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
