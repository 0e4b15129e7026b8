"""ONNX Runtime's value types: tensors, sequences, sparse tensors, descriptions.

An `OrtValue` wraps a NumPy array and shares its memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtype import dtype, from_numpy
from tilewright.ort.devices import OrtDevice, OrtMemoryInfo, OrtSyncStream, check_on_cpu
from tilewright.ort.enums import OrtSparseFormat
from tilewright.ort.errors import InvalidArgument, absent
from tilewright.runtime.array import Array
from tilewright.runtime.module import Spec

NDArray = np.ndarray[Any, Any]

# ONNX's numbers and ONNX Runtime's names of element types, by Tilewright's names.
CODES = {
    "f32": 1,
    "u8": 2,
    "i8": 3,
    "u16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "str": 8,
    "bool": 9,
    "f16": 10,
    "f64": 11,
    "u32": 12,
    "u64": 13,
    "bf16": 16,
    "f8e4m3": 17,
    "f8e4m3fnuz": 18,
    "f8e5m2": 19,
    "f8e5m2fnuz": 20,
    "u4": 21,
    "i4": 22,
    "f4e2m1": 23,
    "f8e8m0": 24,
}
_ELEMENTS = {
    "f64": "double",
    "f32": "float",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8e4m3fn",
    "f8e4m3fnuz": "float8e4m3fnuz",
    "f8e5m2": "float8e5m2",
    "f8e5m2fnuz": "float8e5m2fnuz",
    "f8e8m0": "float8e8m0",
    "f4e2m1": "float4e2m1",
    "str": "string",
    "bool": "bool",
}
_KIND = re.compile(r"(?P<outer>seq|opt)<(?P<inner>.*)>")
_MAP = re.compile(r"map<(?P<key>\w+), (?P<value>\w+)>")


# --------------------------------------------------------------------------- names of types


def element_name(element: str) -> str:
    """`float` for f32."""
    if element in _ELEMENTS:
        return _ELEMENTS[element]
    return re.sub(r"^u(?=\d)", "uint", re.sub(r"^i(?=\d)", "int", element))


def tensor_name(element: str) -> str:
    """`tensor(float)` for f32."""
    return f"tensor({element_name(element)})"


def kind_name(kind: str) -> str:
    """ONNX Runtime's name of a non-tensor type."""
    outer = _KIND.fullmatch(kind)
    if outer is not None:
        word = {"seq": "seq", "opt": "optional"}[outer["outer"]]
        return f"{word}({kind_name(outer['inner'])})"
    table = _MAP.fullmatch(kind)
    if table is not None:
        return f"map({element_name(table['key'])},{tensor_name(table['value'])})"
    return tensor_name(kind.split("[", 1)[0])


def element_of(array: NDArray) -> str:
    """Tilewright's name of an array's element type."""
    return "str" if array.dtype.kind in "OUS" else str(from_numpy(array.dtype))


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """The NumPy type for a NumPy type or an ONNX type number."""
    if not isinstance(element_type, (int, np.integer)):
        named: np.dtype[Any] = np.dtype(element_type)
        return named
    names = {code: name for name, code in CODES.items()}
    name = names.get(int(element_type))
    if name is None:
        raise InvalidArgument("TW6041", f"there is no element type {element_type}")
    if name == "str":
        return np.dtype(object)
    of: np.dtype[Any] = np.dtype(dtype(name).numpy)
    return of


# --------------------------------------------------------------------------- descriptions


@dataclass(frozen=True)
class NodeArg:
    """Description of an input or output: name, shape of numbers and names, type."""

    name: str
    shape: list[int | str | None]
    type: str

    def __str__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


def node_arg(spec: Spec, declared: Sequence[int | str | None] | None = None) -> NodeArg:
    """Describe an input or output as declared in the file, with known sizes where it has none."""
    known = list(spec.shape)
    kind = kind_name(spec.kind) if spec.kind else tensor_name(str(spec.dtype))
    if declared is None:
        return NodeArg(spec.name, list(known), kind)
    if len(declared) != len(known):
        return NodeArg(spec.name, list(declared), kind)
    pairs = zip(declared, known, strict=True)
    shape = [ours if told is None and isinstance(ours, int) else told for told, ours in pairs]
    return NodeArg(spec.name, shape, kind)


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata in the model's file."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


# --------------------------------------------------------------------------- sparse


@dataclass(frozen=True)
class SparseCooView:
    """Indices of the values: flat, or one per dimension."""

    _indices: NDArray

    def indices(self) -> NDArray:
        return self._indices


@dataclass(frozen=True)
class SparseCsrView:
    """Column indices of the values, and the start of each row."""

    _inner: NDArray
    _outer: NDArray

    def inner(self) -> NDArray:
        return self._inner

    def outer(self) -> NDArray:
        return self._outer


class SparseTensor:
    """A sparse tensor. Sessions convert it to a dense one."""

    def __init__(
        self,
        shape: Sequence[int],
        values: NDArray,
        view: SparseCooView | SparseCsrView,
    ) -> None:
        self._shape = np.asarray(shape, np.int64)
        self._values = values
        self._view = view

    @classmethod
    def sparse_coo_from_numpy(
        cls,
        dense_shape: Sequence[int] | NDArray,
        values: NDArray,
        coo_indices: NDArray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        count, rank = len(values), len(dense_shape)
        indices = np.asarray(coo_indices, np.int64)
        if indices.size not in (count, count * rank):
            raise InvalidArgument(
                "TW6041", f"{indices.size} indices for {count} values of {rank} dimensions"
            )
        if indices.ndim == 1 and indices.size != count:
            indices = indices.reshape(count, rank)
        return cls([int(dim) for dim in dense_shape], values, SparseCooView(indices))

    @classmethod
    def sparse_csr_from_numpy(
        cls,
        dense_shape: Sequence[int] | NDArray,
        values: NDArray,
        inner_indices: NDArray,
        outer_indices: NDArray,
        ort_device: OrtDevice,
    ) -> SparseTensor:
        rows = int(dense_shape[0])
        inner, outer = np.asarray(inner_indices, np.int64), np.asarray(outer_indices, np.int64)
        if len(inner) != len(values) or len(outer) != rows + 1:
            raise InvalidArgument(
                "TW6041",
                f"{len(inner)} inner and {len(outer)} outer indices "
                f"for {len(values)} values in {rows} rows",
            )
        return cls([int(dim) for dim in dense_shape], values, SparseCsrView(inner, outer))

    def values(self) -> NDArray:
        return self._values

    def as_coo_view(self) -> SparseCooView:
        if not isinstance(self._view, SparseCooView):
            raise InvalidArgument("TW6041", "the sparse tensor is not in the COO format")
        return self._view

    def as_csrc_view(self) -> SparseCsrView:
        if not isinstance(self._view, SparseCsrView):
            raise InvalidArgument("TW6041", "the sparse tensor is not in the CSR format")
        return self._view

    def as_blocksparse_view(self) -> Any:
        raise absent("the block-sparse format", "make the tensor in the COO or CSR format")

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        raise absent("SparseTensor.to_cuda", "sessions run on the CPU")

    def format(self) -> OrtSparseFormat:
        is_coo = isinstance(self._view, SparseCooView)
        return OrtSparseFormat.ORT_SPARSE_COO if is_coo else OrtSparseFormat.ORT_SPARSE_CSRC

    def dense_shape(self) -> NDArray:
        return self._shape

    def data_type(self) -> str:
        return f"sparse_tensor({element_name(element_of(self._values))})"

    def device_name(self) -> str:
        return "cpu"

    def dense(self) -> NDArray:
        """The dense tensor."""
        out = np.zeros(tuple(self._shape), self._values.dtype)
        if isinstance(self._view, SparseCsrView):
            counts = np.diff(self._view.outer())
            rows = np.repeat(np.arange(len(counts)), counts)
            out[rows, self._view.inner()] = self._values
        elif self._view.indices().ndim == 1:
            out.ravel()[self._view.indices()] = self._values
        else:
            out[tuple(self._view.indices().T)] = self._values
        return out


# --------------------------------------------------------------------------- values


class OrtValue:
    """Wraps a NumPy array, a list of arrays, or a sparse tensor.

    Examples:
        >>> import numpy as np
        >>> import tilewright as ort
        >>> value = ort.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32))
        >>> value.shape(), value.data_type()
        ([3], 'tensor(float)')
    """

    def __init__(self, value: Any, numpy_obj: NDArray | None = None, session: Any = None) -> None:
        self._value: Any = value._value if isinstance(value, OrtValue) else value

    @classmethod
    def ortvalue_from_numpy(
        cls, numpy_obj: Any, /, device_type: str = "cpu", device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        check_on_cpu(device_type)
        return cls(np.asarray(numpy_obj))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: NDArray, /, onnx_element_type: int
    ) -> OrtValue:
        """Reinterpret an array's bits as elements of a type that NumPy lacks."""
        to = numpy_type(onnx_element_type)
        if to.itemsize != data.dtype.itemsize:
            raise InvalidArgument(
                "TW6041", f"elements of {data.dtype} are not {to.itemsize} bytes each, as of {to}"
            )
        return cls(data if data.dtype == to else data.view(to))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: OrtMemoryInfo | None = None,
    ) -> OrtValue:
        """Allocate an uninitialized value."""
        check_on_cpu(device_type)
        return cls(np.empty(tuple(shape), numpy_type(element_type)))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        return cls(sparse_tensor)

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """Import another library's array without a copy."""
        return cls(Array._borrow(data).numpy())

    def as_sparse_tensor(self) -> SparseTensor:
        if not isinstance(self._value, SparseTensor):
            raise InvalidArgument("TW6041", "the value is not a sparse tensor")
        return self._value

    def numpy(self) -> NDArray:
        if isinstance(self._value, SparseTensor):
            raise InvalidArgument("TW6041", "a sparse tensor is not an array: use as_sparse_tensor")
        return self._value  # type: ignore[no-any-return]  # lists of arrays too, as in ONNX Runtime

    def fed(self) -> Any:
        """The value as a model's input."""
        return self._value.dense() if isinstance(self._value, SparseTensor) else self._value

    def shape(self) -> list[int]:
        if isinstance(self._value, SparseTensor):
            return [int(dim) for dim in self._value.dense_shape()]
        return list(np.shape(self._value))

    def data_type(self) -> str:
        if isinstance(self._value, SparseTensor):
            return self._value.data_type()
        if isinstance(self._value, list):
            inner = element_of(self._value[0]) if self._value else "f32"
            return f"seq({tensor_name(inner)})"
        return tensor_name(element_of(self._value))

    def element_type(self) -> int:
        """ONNX's number of the element type."""
        if isinstance(self._value, list):
            raise InvalidArgument("TW6041", "a sequence has no element type of its own")
        array = self._value.values() if isinstance(self._value, SparseTensor) else self._value
        return CODES[element_of(array)]

    def tensor_size_in_bytes(self) -> int:
        return int(self.numpy().nbytes)

    def data_ptr(self) -> int:
        return int(self.numpy().ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray)

    def is_sparse_tensor(self) -> bool:
        return isinstance(self._value, SparseTensor)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list)

    def update_inplace(self, data: Any) -> None:
        """Overwrite the elements in place."""
        source = data.numpy() if isinstance(data, OrtValue) else np.asarray(data)
        mine = self.numpy()
        if source.shape != mine.shape or source.dtype != mine.dtype:
            raise InvalidArgument(
                "TW6041",
                f"the value holds {mine.dtype}{list(mine.shape)}, "
                f"not {source.dtype}{list(source.shape)}",
            )
        mine[...] = source

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray:
        return np.asarray(self.numpy(), *args, **kwargs)

    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any:
        return Array._borrow(self.numpy()).__dlpack__(stream=stream, **kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _get_c_value(self) -> OrtValue:
        return self


class OrtValueVector(list[OrtValue]):
    """A list of values."""

    def push_back(self, value: Any, is_bool_tensor: bool | None = None) -> None:
        """Append a value or a DLPack capsule; DLPack does not distinguish booleans from bytes."""
        if isinstance(value, OrtValue):
            self.append(value)
            return
        made = OrtValue.from_dlpack(value)
        if is_bool_tensor and made.numpy().dtype == np.uint8:
            made = OrtValue(made.numpy().view(np.bool_))
        self.append(made)

    def push_back_batch(self, tensors: Iterable[Any], *unused: Any) -> None:
        for tensor in tensors:
            self.push_back(tensor)

    def reserve(self, count: int) -> None:
        """Accepted without effect."""

    def shrink_to_fit(self) -> None:
        """Accepted without effect."""

    def dlpack_at(self, at: int) -> Any:
        return self[at].__dlpack__()

    def to_dlpacks(self, convert: Any = None) -> list[Any]:
        made = [value.__dlpack__() for value in self]
        return made if convert is None else [convert(one) for one in made]

    def element_type_at(self, at: int) -> int:
        return self[at].element_type()

    def bool_tensor_indices(self) -> list[int]:
        return [at for at, value in enumerate(self) if value.numpy().dtype == np.bool_]


def copy_tensors(
    src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: OrtSyncStream | None = None
) -> None:
    """Copy values into the memory of others."""
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)
