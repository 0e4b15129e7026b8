"""Modules compiled in this process, and how to save them.

module.save("model.so")   a shared library with everything in it; tw.load("model.so")
module.save("model.o")    the same as an object file, without the C runtime
module.save("model.h")    the C header of either
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.loc import Fused, Loc, ModelNode
from tilewright.base.target import Target
from tilewright.codegen.artifact import (
    check_path,
    constants_name,
    foreign_name,
    header,
    link_library,
    link_object,
    set_foreign_name,
    write_text,
)
from tilewright.codegen.entry import size_names
from tilewright.codegen.export import Accelerator, c_name, entry_object, places_of, write_weights
from tilewright.codegen.host import input_function, input_signature
from tilewright.driver.libraries import check_alone
from tilewright.driver.lowering import Program
from tilewright.driver.placement import Placement
from tilewright.driver.saved_parts import Foreign
from tilewright.graph import ir
from tilewright.graph.memory import MemoryPlan
from tilewright.graph.visit import walk
from tilewright.runtime import _native
from tilewright.runtime.accel import TIMEOUT_CYCLES
from tilewright.runtime.array import Array
from tilewright.runtime.library import VERSION
from tilewright.runtime.module import Module, Spec
from tilewright.runtime.seal import seal
from tilewright.runtime.signature import Param, Signature
from tilewright.runtime.sources import accelerator_sources
from tilewright.sym import Const, Size
from tilewright.tune.outcome import Outcome

if TYPE_CHECKING:
    from tilewright.accel.part import Part

SUFFIXES = (".so", ".o", ".h")
PRODUCTS = {  # contraction operators, by the kind of their operands
    "integers": ("matmul_integer", "conv_integer"),
    "floats": ("matmul", "conv", "attention"),
}


@dataclass(frozen=True)
class Inside:
    """The intermediate results of a compilation."""

    program: Program
    plan: MemoryPlan
    image: bytes = field(repr=False)  # the host program's object code; none on a GPU
    main: str  # the symbol of its main function; none on a GPU
    target: Target
    placement: Placement
    foreign: Foreign | None = None  # parts that the interpreter or an accelerator runs
    tuning: Outcome | None = None  # the outcome of tuning, if it was asked for
    streams: tuple[Part, ...] = ()  # instruction streams of the foreign parts, with an accelerator

    @property
    def interpreted(self) -> Foreign | None:
        """The parts for which a saved library needs the interpreter."""
        return None if self.streams else self.foreign

    @property
    def calls_back(self) -> bool:
        """Whether native code calls back into whoever loads it, to run parts."""
        return self.interpreted is not None and self.interpreted.calls_back


class CompiledModule(Module):
    """A model as native code that runs in this process."""

    inside: Inside

    @property
    def tuning(self) -> Outcome | None:
        """The outcome of tuning, if it was asked for."""
        return self.inside.tuning

    def call_exchanged(
        self, exchange: _native.Exchange, inputs: Sequence[object], threads: int = 0
    ) -> tuple[Any, ...] | None:
        return self._native.call_exchanged(exchange, tuple(inputs), threads or self.threads)

    def save(self, path: str | Path, name: str = "") -> Path:
        """Write .so, .o or .h; `name` is the C function's, by default the file's."""
        module = self.inside.program.module
        return self.save_beginning(path, name, [module.constants[each] for each in module.states])

    def save_beginning(self, path: str | Path, name: str, states: Sequence[Any]) -> Path:
        path = Path(path)
        check_path(path, SUFFIXES)
        check_alone(self.inside.program.kernels.values())
        inside = replace(self.inside, program=with_begins(self.inside.program, states))
        export = _Export(inside, self.inputs, self.outputs, c_name(name or path.stem), self.threads)
        foreign = self.inside.interpreted
        handles = foreign.handles() if foreign is not None and foreign.calls_back else None
        text = header(
            (export.signature,),
            self.inside.target,
            handles,
            state_constants(self.inside.program.module),
        )
        if path.suffix != ".h":
            export.write(path)
        write_text(path.with_suffix(".h"), text)
        return path


class CrossModule(CompiledModule):
    """A model as native code for another machine: it can be saved, not called."""

    def __init__(
        self, inside: Inside, inputs: Sequence[Spec], outputs: Sequence[Spec], threads: int
    ) -> None:
        self.inside = inside
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.threads = threads

    def call_exchanged(
        self, exchange: _native.Exchange, inputs: Sequence[object], threads: int = 0
    ) -> tuple[Any, ...] | None:
        return self(*inputs)

    def __call__(self, *args: Any, **named: Any) -> tuple[Array, ...]:
        raise UserError(
            "TW3005",
            f"the model is compiled for {self.inside.target}, which is not this machine",
            help="save it, and run it there",
        )

    def set_foreign(self, run: int, fetch: int, context: int = 0) -> None:
        """Does nothing: whoever loads the saved model registers callbacks there."""

    @property
    def arena_bytes(self) -> int:
        return 0


def with_begins(program: Program, states: Sequence[Any]) -> Program:
    """A compiled model with other initial states, each a constant that nothing else reads: as the
    last ones, so that native code finds the others where it expects them."""
    module = program.module
    if not states:
        return program
    used = {node["data"] for node in walk(module.main) if node.op == "constant"}
    count = max((at + 1 for at, name in enumerate(module.constants) if name in used), default=0)
    constants = dict(itertools.islice(module.constants.items(), count))
    begins = {f"state#{at}": state for at, state in enumerate(states)}
    module = replace(module, constants={**constants, **begins}, states=tuple(begins))
    return replace(program, module=module)


class _Export:
    """Writes a module to one file."""

    def __init__(
        self,
        inside: Inside,
        inputs: tuple[Spec, ...],
        outputs: tuple[Spec, ...],
        name: str,
        threads: int,
    ) -> None:
        self.inside = inside
        self.inputs = inputs
        self.outputs = outputs
        self.name = name
        self.threads = threads
        self.weights = [np.asarray(w) for w in inside.program.module.constants.values()]
        self.constants = len(self.weights)
        self.simulated: Mapping[str, bytes] = {}
        if inside.streams:
            # Imported here: most compilations are for no accelerator.
            from tilewright.accel.saved import saved_arrays, saved_kernels

            self.weights += saved_arrays(inside.streams)
            self.simulated = saved_kernels(inside.streams, inside.target)
        self.signature = full_signature(inside.program.module, outputs, name)

    def write(self, path: Path) -> None:
        target = self.inside.target
        with tempfile.TemporaryDirectory(prefix=".tilewright-", dir=path.parent) as temporary:
            folder = Path(temporary)
            inputs = [write_weights(folder, self.name, self.weights, target)]
            for at, image in enumerate(self._images()):
                inputs.append(folder / f"{at}.o")
                inputs[-1].write_bytes(image)
            output = folder / f"made{path.suffix}"
            if path.suffix == ".o":
                link_object(output, inputs, target, self._exported())
            else:
                more = accelerator_sources() if self.inside.streams else ()
                link_library(output, inputs, target, more)
                seal(output)
            os.chmod(output, 0o644)
            os.replace(output, path)

    def _exported(self) -> tuple[str, ...]:
        """The exported symbols."""
        more = (set_foreign_name(self.name),) if self.inside.calls_back else ()
        constants = (constants_name(self.name),) if self.inside.program.module.states else ()
        return (self.name, *more, *constants)

    def _images(self) -> Iterable[bytes]:
        inside = self.inside
        yield entry_object(
            self.signature,
            len(self.inputs),
            inside.main,
            list(places_of(self.weights))[: self.constants],
            json.dumps(self.manifest()),
            inside.target,
            foreign=inside.calls_back,
            accelerator=self._accelerator(),
        )
        yield inside.image
        for kernel in inside.program.kernels.values():
            yield kernel.image
        yield from self.simulated.values()

    def _accelerator(self) -> Accelerator | None:
        """The description of the accelerator and its streams for the library."""
        streams = self.inside.streams
        if not streams:
            return None
        from tilewright.accel.saved import saved_backend, saved_numbers

        placed = zip(places_of(self.weights), self.weights, strict=True)
        numbers = saved_numbers(streams, list(placed)[self.constants :])
        backend = saved_backend(streams[0].target)
        return Accelerator(backend, numbers, TIMEOUT_CYCLES, tuple(self.simulated))

    def manifest(self) -> dict[str, Any]:
        """Everything that loading must know, and the origin of each kernel."""
        plan, foreign = self.inside.plan, self.inside.interpreted
        params = self.signature.params
        count = len(self.inputs)
        places = list(places_of(self.weights))  # in bytes from the first
        begins = list(state_constants(self.inside.program.module))
        return {
            "version": VERSION,
            "target": str(self.inside.target),
            "functions": [],
            "model": {
                "name": self.name,
                "main": self.inside.main,
                "constants": constants_name(self.name),
                "threads": self.threads,
                "inputs": [entry(*one) for one in zip(self.inputs, params[:count], strict=True)],
                "outputs": [entry(*one) for one in zip(self.outputs, params[count:], strict=True)],
                "features": sorted(self.inside.target.features),
                "kernels": [dict(one) for one in kernel_calls(self.inside.program)],
                "arena_bytes": plan.arena_bytes,
                "weights_bytes": sum(weight.nbytes for weight in self.weights),
                "states": begins,
                "state_places": [places[at] for at in begins],
                **({} if foreign is None else {"foreign": foreign.told()}),
                **({"accelerator": foreign_name(self.name)} if self.inside.streams else {}),
            },
        }


def state_constants(module: ir.Module) -> tuple[int, ...]:
    """The constants with which the states, the last inputs, are initialized."""
    places = {name: at for at, name in enumerate(module.constants)}
    return tuple(places[name] for name in module.states)


def entry(spec: Spec, param: Param) -> dict[str, Any]:
    """The manifest's entry for an input or output."""
    return {
        "name": spec.name,
        "dtype": str(spec.dtype),
        "shape": list(spec.shape),
        "extents": list(param.shape),
        **({"kind": spec.kind} if spec.kind else {}),
    }


def full_signature(module: ir.Module, outputs: Iterable[Spec], name: str) -> Signature:
    """The C signature: inputs, then outputs. Sizes that no input determines are checked at run
    time."""
    sizes = size_names(input_function(module.main, name))

    def extent(dim: object) -> int | str | None:
        if isinstance(dim, Const):
            return int(dim.value)
        return sizes.get(dim) if isinstance(dim, Size) else None

    params = list(input_signature(module, name).params)
    for spec, value in zip(outputs, module.made, strict=True):
        of = value.tensor
        shape, is_open = tuple(map(extent, of.shape or ())), of.shape is None
        params.append(Param(spec.name, of.dtype, shape, writable=True, any_rank=is_open))
    return Signature(name, tuple(params))


def kernel_calls(program: Program) -> Iterable[Mapping[str, Any]]:
    """Each kernel call, in order, with the nodes of the model that it computes."""
    for node in walk(program.module.main):
        if node.op == "kernel":
            yield {
                "kernel": node["function"],
                "label": node["label"],
                "nodes": list(dict.fromkeys(origins(node.loc))),
            }


def products_of(graph: ir.Graph) -> dict[str, int]:
    """How many GEMMs and convolutions of a graph multiply integers, and how many floats."""
    counts = Counter(node.op for node in walk(graph))
    return {kind: sum(counts[op] for op in ops) for kind, ops in PRODUCTS.items()}


def origins(loc: Loc) -> Iterable[str]:
    """The names of the model's nodes in a source location."""
    if isinstance(loc, Fused):
        for part in loc.parts:
            yield from origins(part)
    elif isinstance(loc, ModelNode):
        yield loc.node
