"""Save a model for a GPU: PTX, weights and launch tables in a shared library of the host.

The nodes are walked once with symbolic places instead of memory: the upper byte of an address says
whether it is in an input, an output, the weights or the arena, and the rest is the offset. The
launches become tables that the C runtime executes, one set of tables for each set of sizes that the
model is saved for. Bodies of choices and loops are further rows of the same table.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.errors import UserError
from tilewright.base.target import CPU, Target
from tilewright.codegen.artifact import (
    check_path,
    constants_name,
    header,
    link_library,
    link_object,
    on_stream_name,
    write_text,
)
from tilewright.codegen.conditions import conditions_ptx
from tilewright.codegen.device_tables import (
    ARENA,
    CHOICE,
    COPY,
    INPUT,
    LOOP,
    MAP,
    NUMBER,
    OUTPUT,
    WEIGHT,
    Argument,
    Body,
    Matrix,
    Start,
    Started,
    Tables,
    Told,
    Variant,
    device_object,
)
from tilewright.codegen.export import c_name, entry_object, places_of, write_weights
from tilewright.codegen.launches import number
from tilewright.driver.compiled import (
    SUFFIXES,
    entry,
    full_signature,
    kernel_calls,
    state_constants,
)
from tilewright.driver.device_control import Choice, Loop, decides_beforehand
from tilewright.driver.device_launch import Copied, in_order
from tilewright.driver.lowering import Program
from tilewright.graph.ir import Graph, Module, Value
from tilewright.graph.memory import given_sizes
from tilewright.runtime.library import VERSION
from tilewright.runtime.module import Spec
from tilewright.runtime.seal import seal
from tilewright.sym import Var

# bit positions in an address: of the kind, and of the input's or output's number
KIND_SHIFT, EACH_SHIFT = 56, 44
ALIGN_BYTES = 256  # alignment in bytes of values in the arena


@dataclass(frozen=True)
class Place:
    """Memory that will be allocated when the saved model runs."""

    address: int
    size_bytes: int = 0


@dataclass
class Numbers:
    """Constants that loop bodies read, such as the iteration number; stored behind the weights."""

    start: int  # offset where the weights end
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    places: dict[bytes, Place] = field(default_factory=dict)

    def place(self, array: np.ndarray[Any, Any]) -> Place:
        key = array.tobytes()
        if key not in self.places:
            self.arrays.append(array)
            *_, at = places_of(self.arrays)
            self.places[key] = Place(WEIGHT << KIND_SHIFT | self.start + at, array.nbytes)
        return self.places[key]


@dataclass
class Places:
    """Implements `Gpu` for saving: hands out places, and records descriptions of tensor maps."""

    numbers: Numbers
    used_bytes: int = 0
    counted_bytes: int = 0  # at the start of the arena: arrival counters, for all sets of sizes

    def allocate(self, size_bytes: int, stream: int) -> Place:
        at = self.used_bytes
        self.used_bytes += -(-max(1, size_bytes) // ALIGN_BYTES) * ALIGN_BYTES
        return Place(ARENA << KIND_SHIFT | at, size_bytes)

    def zeroed(self, size_bytes: int, stream: int) -> Place:
        """A place for counters; the runtime clears the arena before the first call."""
        begin = self.counted_bytes
        self.counted_bytes += -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        return Place(ARENA << KIND_SHIFT | begin, size_bytes)

    def holding(self, array: np.ndarray[Any, Any], stream: int) -> Place:
        return self.numbers.place(array)

    def tensor_map(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        box: tuple[int, ...],
        corners: tuple[int, ...],
    ) -> Matrix:
        return Matrix(argument_of(address), shape, dtype, box, corners)


@dataclass(frozen=True)
class Ready:
    """Implements `Loaded` for saving: kernels by name, weights by place."""

    codes: Mapping[str, Any]
    modules: Mapping[str, str]
    weights: Mapping[str, Place]
    host: Mapping[str, Any] = field(default_factory=dict)


def argument_of(address: int) -> Argument:
    """A place as an argument in a table."""
    kind, rest = address >> KIND_SHIFT, address & ((1 << KIND_SHIFT) - 1)
    if kind not in (INPUT, OUTPUT):
        return Argument(kind, rest)
    which, offset = divmod(rest, 1 << EACH_SHIFT)
    return Argument(kind, offset, which)


def size_sets(program: Program, asked: Mapping[str, Sequence[int]]) -> list[dict[Var, int]]:
    """The sets of sizes that a model is saved for: tables hold numbers, not expressions."""
    graph = program.module.main
    if not decides_beforehand(program):
        raise _unsaved("sizes of what it launches depend on values", "save it for a CPU")
    sizes = given_sizes(graph)
    names = [size.name for size in sizes]
    strange = [name for name in asked if name not in names]
    if strange:
        raise _unsaved(
            f"no dimension of an input is called {strange[0]}",
            f"known: {', '.join(names) or 'none'}",
        )
    missing = [name for name in names if name not in asked]
    if missing:
        example = ", ".join(f"{name!r}: [1, 8]" for name in missing)
        command = " ".join(f"--sizes {name}=1,8" for name in missing)
        raise _unsaved(
            f"the sizes {', '.join(missing)} are dynamic",
            f"name the values to save for: save(path, sizes={{{example}}}), or {command}",
        )
    rows = list(product(*(dict.fromkeys(asked[name]) for name in names)))
    if not 0 < len(rows) <= MAX_VARIANTS:
        raise _unsaved(
            f"{len(rows)} sets of sizes are asked for",
            f"ask for 1 to {MAX_VARIANTS} combinations",
        )
    return [dict(zip(sizes, row, strict=True)) for row in rows]


def _unsaved(what: str, help: str) -> UserError:
    return UserError("TW6015", f"the model cannot be saved for a GPU: {what}", help=help)


MAX_VARIANTS = 256  # sets of sizes in one library


Walked = Callable[[Places, Ready, list[Place], list[Place], dict[Var, int]], list[Any]]


def tables_of(
    program: Program,
    codes: Mapping[str, Any],
    launched: Walked,
    sets: Sequence[dict[Var, int]],
    host: Mapping[str, Any],
) -> Tables:
    """The launch tables of a model; `launched` returns its launches for places of inputs and
    outputs."""
    weights = [np.asarray(w) for w in program.module.constants.values()]
    *at, end = places_of([*weights, np.zeros(0)])
    numbers = Numbers(end)
    places = {
        name: Place(WEIGHT << KIND_SHIFT | place)
        for name, place in zip(program.module.constants, at, strict=True)
    }
    ready = Ready(codes, {name: name for name in codes}, places, host)
    filled = _Filled(codes)
    graph = program.module.main

    def walked(gpu: Places, variant: Variant, sizes: dict[Var, int]) -> list[Any]:
        given = [_numbered(INPUT, at, size) for at, size in enumerate(variant.input_bytes)]
        wanted = [_numbered(OUTPUT, at, size) for at, size in enumerate(variant.output_bytes)]
        return launched(gpu, ready, given, wanted, dict(sizes))

    variants = [_sized(program.module, sizes) for sizes in sets]
    # Arrival counters are laid out first, set after set; prefix sums of their bytes.
    counter_offsets = [0]
    for variant, sizes in zip(variants, sets, strict=True):
        walked(gpu := Places(Numbers(end)), variant, sizes)
        counter_offsets.append(counter_offsets[-1] + gpu.counted_bytes)
    for variant, sizes, start in zip(variants, sets, counter_offsets, strict=False):
        gpu = Places(numbers, counter_offsets[-1], start)
        filled.fill(variant, walked(gpu, variant, sizes))
        variant.arena_bytes = gpu.used_bytes
        filled.tables.variants.append(variant)
    tables = filled.tables
    tables.sizes = _size_sources(graph, sets[0])
    tables.numbers = numbers.arrays
    tables.n_states = len(program.module.states)
    *_, tables.weights_bytes = places_of([*weights, *numbers.arrays, np.zeros(0)])
    return tables


class _Filled:
    """Fills tables with launches; kernels and PTX modules are stored once."""

    def __init__(self, codes: Mapping[str, Any]) -> None:
        self.codes, self.tables = codes, Tables()
        self._kernels: dict[tuple[str, str], int] = {}
        self._modules: dict[str, int] = {}

    def fill(self, variant: Variant, launches: Sequence[Any]) -> None:
        """Append the launches of a model, followed by those of the bodies of its choices and
        loops."""
        bodies: list[Sequence[Any]] = [launches]
        for body in bodies:  # grows while it is traversed
            first = len(variant.launches)
            for launch, waits in zip(*in_order(body), strict=True):
                start = self._start(launch, variant)
                if start.kernel in (CHOICE, LOOP):
                    start = replace(start, first_body=len(bodies))
                    bodies += launch.bodies
                    self.tables.deciding = self.tables.deciding or conditions_ptx()
                absolute = tuple(first + other for other in waits)
                variant.launches.append(replace(start, waits=absolute))
            variant.bodies.append(Body(first, len(body)))

    def _start(self, launch: Any, variant: Variant) -> Start:
        match launch:
            case Copied(to=to, source=source, size_bytes=size):
                return _step(COPY, argument_of(to), argument_of(source), Argument(NUMBER, size))
            case Choice(cond=cond):
                return _step(CHOICE, argument_of(cond))
            case Loop():
                places = (launch.control, launch.trip, launch.begins, launch.at, launch.going)
                control, trip, begins, at, going = map(argument_of, places)
                limit = Argument(NUMBER, launch.limit)
                return _step(LOOP, control, trip, limit, begins, at, going)
        kernel = self._kernel(launch)
        how = (launch.starts_early, launch.kernel.is_together)
        arguments = _arguments(launch, variant)
        return Start(kernel, launch.grid, launch.block, arguments, (), *how)

    def _kernel(self, launch: Any) -> int:
        """The number of a kernel in the tables."""
        kernel, module, tables = launch.kernel, launch.module, self.tables
        if module not in self._modules:
            self._modules[module] = len(tables.ptx)
            tables.ptx.append(self.codes[module].ptx)
        key = (module, kernel.name)
        if key not in self._kernels:
            self._kernels[key] = len(tables.kernels)
            made = Started(kernel.name, self._modules[module], kernel.shared_bytes)
            tables.kernels.append(made)
        return self._kernels[key]


def _step(kind: int, *arguments: Argument) -> Start:
    """A row that launches no kernel of the model."""
    return Start(kind, (1, 1, 1), (1, 1, 1), arguments)


def _sized(module: Module, sizes: Mapping[Var, int]) -> Variant:
    """The variant of a model for some sizes, without launches."""
    graph, made = module.main, module.made
    return Variant(
        tuple(sizes.values()),
        input_bytes=[_bytes(value, sizes) for value in graph.params],
        output_bytes=[_bytes(value, sizes) for value in made],
        output_shapes=[_shape(value, sizes) for value in made],
    )


def _size_sources(graph: Graph, sizes: Mapping[Var, int]) -> list[Told]:
    """Where a call reads each dynamic size: the first input that has it as a dimension."""
    found = {
        dim: Told(str(dim), at, axis)
        for at, value in reversed(list(enumerate(graph.params)))
        for axis, dim in reversed(list(enumerate(value.tensor.shape or ())))
    }
    return [found[size] for size in sizes]


def _arguments(launch: Any, variant: Variant) -> tuple[Argument, ...]:
    pointers = len(launch.kernel.buffers)
    found: list[Argument] = []
    for at, value in enumerate(launch.arguments):
        if isinstance(value, Matrix):
            found.append(Argument(MAP, len(variant.maps)))
            variant.maps.append(value)
        else:
            found.append(argument_of(value) if at < pointers else Argument(NUMBER, value))
    return tuple(found)


def _numbered(kind: int, at: int, size_bytes: int) -> Place:
    return Place(kind << KIND_SHIFT | at << EACH_SHIFT, size_bytes)


def _shape(value: Value, sizes: Mapping[Var, int]) -> tuple[int, ...]:
    return tuple(number(dim, sizes) for dim in value.tensor.shape or ())


def _bytes(value: Value, sizes: Mapping[Var, int]) -> int:
    return math.prod(_shape(value, sizes)) * value.tensor.dtype.size_bytes


def save(
    path: Path,
    name: str,
    program: Program,
    tables: Tables,
    target: Target,
    ports: tuple[tuple[Spec, ...], tuple[Spec, ...]],
) -> Path:
    """Write .so, .o or .h atomically."""
    check_path(path, SUFFIXES)
    name, host, (inputs, outputs) = c_name(name or path.stem), Target.parse(CPU), ports
    signature = full_signature(program.module, outputs, name)
    signature = replace(
        signature, params=tuple(replace(each, device=None) for each in signature.params)
    )
    if path.suffix != ".h":
        main = f"{name}_main"
        weights = [np.asarray(w) for w in program.module.constants.values()]
        count, places = len(inputs), list(places_of(weights))
        begins = list(state_constants(program.module))
        manifest = {
            "version": VERSION,
            "target": str(target),
            "functions": [],
            "model": {
                "name": name,
                "main": main,
                "constants": constants_name(name),
                "threads": 1,
                "device": "cuda",
                "inputs": [entry(*p) for p in zip(inputs, signature.params[:count], strict=True)],
                "outputs": [entry(*p) for p in zip(outputs, signature.params[count:], strict=True)],
                "features": [],
                "kernels": [dict(one) for one in kernel_calls(program)],
                "arena_bytes": tables.arena_bytes,
                "weights_bytes": sum(weight.nbytes for weight in weights),
                "states": begins,
                "state_places": [places[at] for at in begins],
            },
        }
        images = (
            entry_object(signature, count, main, places, json.dumps(manifest), host),
            device_object(name, main, tables, host),
        )
        exported = (name, on_stream_name(name), *([constants_name(name)] if begins else []))
        _write(path, name, [*weights, *tables.numbers], images, host, exported)
    write_text(
        path.with_suffix(".h"), header((signature,), target, begins=state_constants(program.module))
    )
    return path


def _write(
    path: Path,
    name: str,
    weights: list[Any],
    images: tuple[bytes, ...],
    host: Target,
    exported: tuple[str, ...],
) -> None:
    with tempfile.TemporaryDirectory(prefix=".tilewright-", dir=path.parent) as temporary:
        folder = Path(temporary)
        files = [write_weights(folder, name, weights, host)]
        for at, image in enumerate(images):
            files.append(folder / f"{at}.o")
            files[-1].write_bytes(image)
        output = folder / f"made{path.suffix}"
        if path.suffix == ".o":
            link_object(output, files, host, exported)
        else:
            link_library(output, files, host)
            seal(output)
        os.chmod(output, 0o644)
        os.replace(output, path)
