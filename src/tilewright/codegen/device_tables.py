"""A GPU model's launches as constant data for the C runtime: `tw_cuda_model` of tilewright.h.

    define i32 @NAME_main(ptr call, ptr inputs, i32 n) { return tw_cuda_run(call, @table, ...) }
    define i32 @NAME_on_stream(ptr args, i32 n, ptr stream) { NAME(args, n), on that stream }

PTX, names, scalars and addresses are constants of an object file; the runtime's `cuda.c` walks
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.codegen import llvm
from tilewright.codegen.artifact import on_stream_name
from tilewright.codegen.build import new_module
from tilewright.codegen.builder import ModuleText

# As in native/tilewright.h.
NUMBER, ARENA, WEIGHT, INPUT, OUTPUT, MAP = range(6)
COPY, CHOICE, LOOP = -1, -2, -3
ARGUMENT = "{ i32, i32, i64 }"
KERNEL = "{ ptr, i32, i32 }"
SIZE = "{ ptr, i32, i32 }"
MATRIX = f"{{ {ARGUMENT}, i64, i64, i64, i64, i32, i32, i32, i32, [6 x i32], i32 }}"
LAUNCH = "{ i32, [3 x i32], [3 x i32], i32, i32, i32, i32, i32, i32, i32 }"
BODY = "{ i32, i32 }"
VARIANT = f"{{ {', '.join(['ptr'] * 8)}, i32, i32, i32 }}"
MODEL = f"{{ {', '.join(['ptr'] * 8)}, i64, i64, {', '.join(['i32'] * 7)} }}"

MAP_TYPES = {"u8": 0, "i8": 0, "f8e4m3": 0, "f16": 6, "f32": 7, "bf16": 9}  # CUtensorMapDataType


@dataclass(frozen=True)
class Argument:
    """An argument of a launch: a scalar, or an offset in some memory."""

    kind: int
    value: int
    which: int = 0  # index of the input or output


@dataclass(frozen=True)
class Matrix:
    """The operand of a tensor map: a matrix, a batch of them (batch first), or channels-last images
    in im2col mode, with corners and strides."""

    base: Argument
    shape: tuple[int, ...]
    dtype: DType
    box: tuple[int, ...]
    corners: tuple[int, ...] = ()


@dataclass(frozen=True)
class Start:
    """A launch of a kernel by its index, or another step: a copy (to, from, bytes), or a
    conditional or loop, whose bodies are in the variant's list from `first_body` on."""

    kernel: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    waits: tuple[int, ...] = ()  # launches that it depends on
    starts_early: bool = False  # programmatic dependent launch, if its only dependence precedes it
    is_together: bool = False  # cooperative: all blocks must be resident
    first_body: int = 0


@dataclass(frozen=True)
class Started:
    """A kernel used by launches."""

    name: str
    module: int
    shared_bytes: int


@dataclass(frozen=True)
class Body:
    """A range of launches in a variant's list."""

    first: int
    count: int


@dataclass(frozen=True)
class Told:
    """A dynamic size, and the input's dimension that determines it."""

    name: str
    input: int
    dimension: int


@dataclass
class Variant:
    """The launches of a model for one set of sizes."""

    sizes: tuple[int, ...] = ()
    bodies: list[Body] = field(default_factory=list)  # the model's main body first
    launches: list[Start] = field(default_factory=list)
    maps: list[Matrix] = field(default_factory=list)
    input_bytes: list[int] = field(default_factory=list)
    output_bytes: list[int] = field(default_factory=list)
    output_shapes: list[tuple[int, ...]] = field(default_factory=list)
    arena_bytes: int = 0


@dataclass
class Tables:
    """All that runs a model on a GPU, except its weights."""

    ptx: list[str] = field(default_factory=list)
    deciding: str = ""  # PTX of the condition kernels, where there is control flow
    kernels: list[Started] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    sizes: list[Told] = field(default_factory=list)
    numbers: list[Any] = field(default_factory=list)  # arrays stored after the weights
    weights_bytes: int = 0  # of both
    n_states: int = 0  # the last inputs

    @property
    def arena_bytes(self) -> int:
        return max((variant.arena_bytes for variant in self.variants), default=0)


def device_object(name: str, main: str, tables: Tables, target: Target) -> bytes:
    """The object with a model's main and tables; its weights are at the symbol NAME_weights."""
    machine = llvm.machine_of(target)
    module = new_module(machine)
    module.global_lines.append(f"@{name}.on_device = internal global ptr null")
    module.global_lines.append(f"@{name}_weights = external hidden constant i8")
    table = module.constant(f"{name}.device", MODEL, _model(module, name, tables))
    params = (("ptr", "call"), ("ptr", "inputs"), ("i32", "n_inputs"))
    with module.function("i32", main, params) as (b, (call, inputs, count)):
        b.ret(b.call("tw_cuda_run", "i32", call, table, inputs, count))
    params = (("ptr", "args"), ("i32", "n_args"), ("ptr", "stream"))
    with module.function("i32", on_stream_name(name), params) as (b, (args, count, stream)):
        b.call("tw_cuda_enter", "void", stream)
        code = b.call(name, "i32", args, count)
        b.call("tw_cuda_leave", "void")
        b.ret(code)
    return llvm.to_object(llvm.parse(module.text()), machine)


def _model(module: ModuleText, name: str, tables: Tables) -> str:
    listed = partial(_listed, module, name)
    kernels = [
        f"{{ {module.string(each.name)}, i32 {each.module}, i32 {each.shared_bytes} }}"
        for each in tables.kernels
    ]
    variants = [_variant(partial(listed, at=at), each) for at, each in enumerate(tables.variants)]
    sizes = [
        f"{{ {module.string(each.name)}, i32 {each.input}, i32 {each.dimension} }}"
        for each in tables.sizes
    ]
    first = tables.variants[0]
    counts = (
        len(tables.ptx),
        len(tables.kernels),
        len(tables.variants),
        len(tables.sizes),
        len(first.input_bytes),
        len(first.output_bytes),
        tables.n_states,
    )
    fields = [
        listed("ptx", "ptr", [module.string(text).text for text in tables.ptx]),
        str(module.string(tables.deciding)) if tables.deciding else "ptr null",
        listed("kernels", KERNEL, kernels),
        listed("variants", VARIANT, variants),
        listed("sizes", SIZE, sizes),
        f"ptr @{name}_weights",
        listed("ranks", "i32", [str(len(shape)) for shape in first.output_shapes]),
        f"ptr @{name}.on_device",
        f"i64 {tables.weights_bytes}",
        f"i64 {tables.arena_bytes}",
        *(f"i32 {count}" for count in counts),
    ]
    return f"{{ {', '.join(fields)} }}"


def _listed(
    module: ModuleText, name: str, what: str, of: str, rows: Sequence[str], at: int | None = None
) -> str:
    """A table of the model, or of one of its variants."""
    if not rows:
        return "ptr null"
    body = ", ".join(f"{of} {row}" for row in rows)
    label = f"{name}.{what}" if at is None else f"{name}.{what}.{at}"
    return str(module.constant(label, f"[{len(rows)} x {of}]", f"[{body}]"))


def _variant(listed: Callable[[str, str, Sequence[str]], str], variant: Variant) -> str:
    arguments: list[str] = []
    launches: list[str] = []
    waits: list[str] = []
    for start in variant.launches:
        given = [_argument(each) for each in start.arguments]
        launches.append(
            f"{{ i32 {start.kernel}, {_three(start.grid)}, {_three(start.block)}, "
            f"i32 {len(arguments)}, i32 {len(given)}, i32 {len(waits)}, i32 {len(start.waits)}, "
            f"i32 {int(start.starts_early)}, i32 {int(start.is_together)}, "
            f"i32 {start.first_body} }}"
        )
        arguments += given
        waits += map(str, start.waits)
    matrices = [_matrix(each) for each in variant.maps]
    fields = [
        listed("told", "i64", [str(size) for size in variant.sizes]),
        listed("bodies", BODY, [f"{{ i32 {b.first}, i32 {b.count} }}" for b in variant.bodies]),
        listed("launches", LAUNCH, launches),
        listed("arguments", ARGUMENT, arguments),
        listed("maps", MATRIX, matrices),
        listed("waits", "i32", waits),
        listed("bytes", "i64", [str(n) for n in (*variant.input_bytes, *variant.output_bytes)]),
        listed("shapes", "i64", [str(dim) for shape in variant.output_shapes for dim in shape]),
        f"i32 {len(variant.bodies)}",
        f"i32 {len(variant.launches)}",
        f"i32 {len(variant.maps)}",
    ]
    return f"{{ {', '.join(fields)} }}"


def _matrix(given: Matrix) -> str:
    *shape, channels = given.shape if given.corners else (*given.shape, 0)
    many = shape[0] if len(shape) > 2 else 0
    corners = ", ".join(f"i32 {at}" for at in given.corners or (0,) * 6)
    return (
        f"{{ {ARGUMENT} {_argument(given.base)}, i64 {many}, i64 {shape[-2]}, i64 {shape[-1]}, "
        f"i64 {channels}, i32 {MAP_TYPES[given.dtype.name]}, i32 {given.dtype.size_bytes}, "
        f"i32 {math.prod(given.box[:-1])}, i32 {given.box[-1]}, [6 x i32] [{corners}], "
        f"i32 {int(len(given.box) > len(given.shape))} }}"
    )


def _argument(given: Argument) -> str:
    return f"{{ i32 {given.kind}, i32 {given.which}, i64 {given.value} }}"


def _three(extents: tuple[int, int, int]) -> str:
    return f"[3 x i32] [{', '.join(f'i32 {extent}' for extent in extents)}]"
