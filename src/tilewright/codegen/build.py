"""From a tensor function to a callable: lower, emit, optimize, load.

run = build(fn, target="cpu")
run(a, b, c)            # fills c; sizes come from the arguments
run.save("fn.so")       # for C programs; load_library("fn.so")["fn"] in Python
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.base.errors import UserError
from tilewright.base.passes import PassContext
from tilewright.base.processors import is_known
from tilewright.base.target import CUDA, Target
from tilewright.codegen import cache, jit, llvm
from tilewright.codegen.artifact import check_path, header, write_library, write_text
from tilewright.codegen.builder import ModuleText
from tilewright.codegen.cache import write_atomically
from tilewright.codegen.cuda import CudaFunction, build_cuda
from tilewright.codegen.debug import DebugInfo
from tilewright.codegen.effort import optimized
from tilewright.codegen.entry import emit_function, signature_of
from tilewright.codegen.machine import Machine
from tilewright.runtime.library import MANIFEST, to_manifest
from tilewright.runtime.pool import checked_threads
from tilewright.runtime.signature import Signature
from tilewright.sym import Var
from tilewright.tensor import ir
from tilewright.tensor.given import check_function
from tilewright.tensor.ir import Function
from tilewright.tensor.passes import lower
from tilewright.tensor.visit import walk


@dataclass(frozen=True, slots=True)
class Options:
    """How code is made, beyond the target."""

    optimize: bool = True
    debug: bool = False  # debug information: instructions point at lines of the tensor program
    cache: bool = True

    @property
    def opt_level(self) -> int:
        """Of LLVM's code generator."""
        return 3 if self.optimize else 0

    @property
    def key(self) -> str:
        return f"optimize={self.optimize} debug={self.debug}"


DEFAULTS = Options()


def emit_module(fn: Function, machine: Machine, options: Options = DEFAULTS) -> str:
    """The LLVM IR of a flat function, before optimization."""
    if fn.stage != ir.FLAT:
        raise UserError(
            "TW3004",
            f"@{fn.name} is of stage {fn.stage}, expected flat",
            fn.loc,
            help="lower it first: tensor.passes.lower(fn)",
        )
    module = new_module(machine)
    debug = DebugInfo(module, fn) if options.debug else None
    emit_function(module, machine, fn, debug)
    return module.text()


def new_module(machine: Machine) -> ModuleText:
    """An empty LLVM module whose functions are compiled for the machine."""
    attributes = [
        "nounwind",
        "mustprogress",
        f'"target-cpu"="{machine.cpu}"',
        f'"target-features"="{machine.features}"',
        *machine.function_attributes,
    ]
    return ModuleText(machine.triple, llvm.data_layout(machine), " ".join(attributes))


@dataclass(eq=False)
class CompiledFunction:
    """Native code of one tensor function: call it with arrays, outputs among them.

    Examples:
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((12, 20), name="A")
        >>> B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
        >>> add = tw.build(te.function([A, B], name="add"))
        >>> add.name
        'add'
        >>> "add" in add.assembly
        True
    """

    function: Function  # as it was given
    target: Target
    signature: Signature
    image: bytes  # the object code
    options: Options
    _native: Any = field(repr=False)
    _scalars: tuple[int, ...] = field(repr=False)

    @property
    def name(self) -> str:
        return self.function.name

    def __call__(self, *args: Any, threads: int = 0) -> None:
        if self._scalars:
            args = self._with_scalars(args)
        if self._native is None:
            raise UserError(
                "TW3005",
                f"@{self.name} is compiled for {self.target}, which is not this machine",
                help="save it, and run it there",
            )
        if threads != 0:
            self._native(*args, threads=checked_threads(threads))
        else:
            self._native(*args)

    def _with_scalars(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Numbers as arrays of no dimensions."""
        wrapped = list(args)
        for at in self._scalars:
            if at < len(wrapped) and isinstance(wrapped[at], (int, float, np.generic)):
                of = self.signature.params[at].dtype
                wrapped[at] = np.asarray(wrapped[at]).astype(of.numpy)
        return tuple(wrapped)

    @property
    def address(self) -> int:
        """The entry's address: `int32_t (*)(const DLTensor *const *, int32_t)`."""
        address: int = self._native.address
        return address

    @cached_property
    def _optimized(self) -> Any:
        machine = llvm.machine_of(self.target)
        flat = lower_for(self.function, self.target)
        text = emit_module(flat, machine, self.options)
        return optimized(text, flat, machine) if self.options.optimize else llvm.parse(text)

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR after optimization."""
        return str(self._optimized)

    @property
    def assembly(self) -> str:
        """The machine code as text."""
        machine = llvm.machine_of(self.target)
        return llvm.to_assembly(self._optimized, machine, self.options.opt_level)

    def save(self, path: str | Path) -> Path:
        """Write a file of the kind that the suffix names: .o .so .wasm .h .ll .s"""
        path = Path(path)
        check_path(path)
        signatures = (self.signature,)
        match path.suffix:
            case ".o":
                write_atomically(path, self.image)
            case ".h":
                write_text(path, header(signatures, self.target))
            case ".ll":
                write_text(path, self.llvm_ir)
            case ".s":
                write_text(path, self.assembly)
            case _:
                images = [self.image, manifest_object(signatures, self.target)]
                write_library(path, images, signatures, self.target)
        return path


def build(
    fn: Function,
    target: str | Target = "cpu",
    *,
    optimize: bool = True,
    debug: bool = False,
    use_cache: bool = True,
) -> CompiledFunction | CudaFunction:
    """Compile a tensor function and, if it is for this machine, load it.

    The object comes from the cache on disk if the very same program was compiled for the same
    machine before. For a GPU the driver loads and keeps the code.

    Examples:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> from tilewright import te
        >>> A = te.placeholder((12, 20), name="A")
        >>> B = te.compute((12, 20), lambda i, j: A[i, j] + 1.0, name="B")
        >>> add = tw.build(te.function([A, B], name="add"), target="cpu")
        >>> b = np.zeros((12, 20), np.float32)
        >>> _ = add(np.ones((12, 20), np.float32), b)
        >>> float(b.sum())
        480.0
    """
    check_function(fn, "build")
    options = Options(optimize, debug, use_cache and not debug)
    chosen = Target.parse(target)
    if chosen.kind == CUDA:
        return build_cuda(fn, chosen)
    return load_object(fn, chosen, compile_object(fn, chosen, options), options)


def load_object(
    fn: Function,
    target: Target,
    image: bytes,
    options: Options = DEFAULTS,
) -> CompiledFunction:
    """The function whose object code is at hand, loaded if it is for this machine.

    `compile_object` may have run in another process: objects are bytes, and functions pickle.
    """
    signature = signature_of(fn)
    native = None
    if can_run(target):
        externs = dict.fromkeys(
            stmt.symbol for stmt in walk(fn.body) if isinstance(stmt, ir.ExternCall)
        )
        loaded = jit.load([image], (fn.name,), tuple(externs), llvm.machine_of(target))
        native = signature.bind(loaded.addresses[fn.name], loaded)
    scalars = tuple(at for at, param in enumerate(fn.params) if isinstance(param, Var))
    return CompiledFunction(fn, target, signature, image, options, native, scalars)


def compile_object(fn: Function, target: Target, options: Options = DEFAULTS) -> bytes:
    """The object code of a function. Pure and self-contained: may run in any process."""
    machine = llvm.machine_of(target)
    flat = fn
    if any(isinstance(stmt, ir.TensorCall) for stmt in walk(fn.body)):
        flat = lower_for(fn, target)  # the key includes the implementations of intrinsics
    key = object_key(flat, target, options)
    image = cache.try_read(key) if options.cache else None
    if image is not None:
        return image
    flat = lower_for(flat, target)
    text = emit_module(flat, machine, options)
    module = optimized(text, flat, machine) if options.optimize else llvm.parse(text)
    image = llvm.to_object(module, machine, options.opt_level)
    if options.cache:
        cache.write(key, image)
    return image


def object_key(fn: Function, target: Target, options: Options) -> str:
    """Everything the object code depends on."""
    parts = (
        cache.compiler_fingerprint(),
        f"LLVM {llvm.VERSION}",
        target.key,
        repr(llvm.machine_of(target)),
        options.key,
        str(fn),
    )
    return "\n".join(parts)


def lower_for(fn: Function, target: Target) -> Function:
    """The function in stage flat."""
    return lower(fn, "cpu", PassContext(target=target)) if fn.stage == ir.SCHEDULED else fn


def can_run(target: Target) -> bool:
    """Whether code for the target runs here: the same architecture, no feature missing.

    LLVM knows more processors than we do, and may use what they have beyond our features.
    """
    host = Target.host()
    is_listed = target.is_host or is_known(target.arch, target.mcpu)
    return is_listed and target.triple == host.triple and target.features <= host.features


def manifest_object(signatures: tuple[Signature, ...], target: Target) -> bytes:
    """An object that holds the manifest of a library."""
    machine = llvm.machine_of(target)
    module = new_module(machine)
    text = module.string(to_manifest(signatures, str(target)))
    module.global_lines.append(f"@{MANIFEST} = constant {text}")
    return llvm.to_object(llvm.parse(module.text()), machine)
