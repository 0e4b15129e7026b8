"""NVIDIA GPUs: functions of stage `device` as PTX kernels.

Each outermost thread loop is a kernel. Its loops over blockIdx and threadIdx become the launch's
grid and block; their variables are read from special registers. Buffers in `shared` memory are
module globals, `local` ones live in registers. What lies between kernels runs on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright import sym
from tilewright.base.errors import Unsupported
from tilewright.base.target import Target
from tilewright.codegen import hardware, llvm, wgmma
from tilewright.codegen.builder import ModuleText, Value
from tilewright.codegen.emitter import Emitter
from tilewright.codegen.handlers import Emitting, Handlers
from tilewright.codegen.machine import Machine
from tilewright.codegen.memory import Memory
from tilewright.codegen.types import memory_type, register_type
from tilewright.intrin.wgmma import SUM
from tilewright.sym import ONE, Const, Expr, Var
from tilewright.tensor import ir
from tilewright.tensor.assembly import assembly_of
from tilewright.tensor.ir import Buffer, Call, For, Function, Stmt
from tilewright.tensor.scopes import LOCAL, SHARED
from tilewright.tensor.visit import exprs, output_buffers, walk

TRIPLE = "nvptx64-nvidia-cuda"
AXES = ("x", "y", "z")
REGISTERS = {"blockIdx": "ctaid", "threadIdx": "tid"}
ARGUMENT_ALIGN = 16  # of arrays that kernels are called with, in bytes


@dataclass(frozen=True)
class Kernel:
    """A launch: the kernel's name, its arguments, and its extents as expressions of sizes."""

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    grid: tuple[Expr, Expr, Expr]
    block: tuple[Expr, Expr, Expr]


def machine(target: Target) -> Machine:
    """The GPU as LLVM is told about it."""
    return Machine(
        triple=TRIPLE,
        cpu=target.mcpu or "sm_90a",
        features="+ptx83",
        relocation="default",
        converts_f16=True,
        converts_bf16=True,
    )


def emit_kernels(fn: Function, gpu: Machine) -> tuple[str, list[Kernel]]:
    """The LLVM IR of a device function's kernels, and how to launch them."""
    if fn.stage != ir.DEVICE:
        raise Unsupported("TW3050", f"@{fn.name} is of stage {fn.stage}, expected device", fn.loc)
    module = ModuleText(gpu.triple, llvm.data_layout(gpu), "nounwind")
    kernels = []
    for at, loop in enumerate(_kernel_loops(fn.body)):
        kernels.append(_emit_kernel(module, gpu, fn, loop, f"{fn.name}_{at}"))
    return module.text(), kernels


def to_ptx(fn: Function, target: str | Target = "cuda") -> tuple[str, list[Kernel]]:
    """PTX of a device function, and its launches."""
    gpu = machine(Target.parse(target))
    text, kernels = emit_kernels(fn, gpu)
    module = llvm.parse(text)
    llvm.optimize(module, gpu)
    return llvm.to_assembly(module, gpu), kernels


def _kernel_loops(body: Stmt) -> list[For]:
    stmts = body.stmts if isinstance(body, ir.Seq) else (body,)
    for stmt in stmts:
        if not isinstance(stmt, For) or stmt.kind != ir.THREAD:
            raise Unsupported(
                "TW3051",
                "a device function is a sequence of thread loops; this statement is outside",
                stmt.loc,
                help="bind the loops of every block, outermost to blockIdx",
            )
    return [stmt for stmt in stmts if isinstance(stmt, For)]


def _emit_kernel(module: ModuleText, gpu: Machine, fn: Function, loop: For, name: str) -> Kernel:
    used = _used_buffers(loop)
    buffers = tuple(buffer for buffer in fn.buffers if buffer in used)
    scalars = _free_scalars(loop, buffers)
    written = output_buffers(fn)
    params = []
    for buffer in buffers:
        access = "" if buffer in written else " readonly"
        params.append((f"ptr noalias align {ARGUMENT_ALIGN}{access}", buffer.name))
    params += [(register_type(var.dtype), var.name) for var in scalars]
    extents = _extents(loop)
    fences = wgmma.uses_wgmma(loop)
    bound = _launch_bound(extents)
    with module.function("void", name, params, linkage="ptx_kernel", suffix=bound) as (b, values):
        emitter = DeviceEmitter(module, gpu, b, name, FENCED if fences else HANDLERS)
        emitter.assembly = assembly_of(fn)
        for buffer, pointer in zip(buffers, values, strict=False):
            emitter.memories[buffer] = Memory(pointer, ARGUMENT_ALIGN)
        for var, value in zip(scalars, values[len(buffers) :], strict=True):
            emitter.variables[var] = value
        emitter.stmt(loop)
        b.ret()
    grid = tuple(extents.get(f"blockIdx.{axis}", ONE) for axis in AXES)
    block = tuple(extents.get(f"threadIdx.{axis}", ONE) for axis in AXES)
    return Kernel(name, buffers, scalars, grid, block)  # type: ignore[arg-type]  # three axes each


def _launch_bound(extents: dict[str, Expr]) -> str:
    """Tells the assembler how many threads a block has, so that it can spend registers."""
    threads = 1
    for axis in AXES:
        extent = extents.get(f"threadIdx.{axis}", ONE)
        if not isinstance(extent, Const):
            return ""
        threads *= int(extent.value)
    return f' "nvvm.maxntid"="{threads}"'


def _extents(loop: For) -> dict[str, Expr]:
    return {
        stmt.thread: stmt.extent
        for stmt in walk(loop)
        if isinstance(stmt, For) and stmt.kind == ir.THREAD
    }


def _used_buffers(root: Stmt) -> set[Buffer]:
    used = {node.buffer for node in exprs(root) if hasattr(node, "buffer")}
    for stmt in walk(root):
        if isinstance(stmt, ir.Store):
            used.add(stmt.buffer)
        elif isinstance(stmt, ir.Update):
            used.update(stmt.buffers)
    return used


def _free_scalars(root: Stmt, buffers: tuple[Buffer, ...]) -> tuple[Var, ...]:
    bound: set[Var] = set()
    for stmt in walk(root):
        if isinstance(stmt, (For, ir.Let)):
            bound.add(stmt.var)
    del buffers  # their shapes do not matter: indices are flat
    found = {node: None for node in exprs(root) if isinstance(node, Var) and node not in bound}
    return tuple(found)


class DeviceEmitter(Emitter):
    """Writes a kernel: threads instead of loops, shared memory, barriers."""

    def stmt(self, stmt: Stmt) -> None:
        if isinstance(stmt, For) and stmt.kind == ir.THREAD:
            self.variables[stmt.var] = self._thread_index(stmt)
            self.non_negative[stmt.var] = None
            self.stmt(stmt.body)
            return
        super().stmt(stmt)

    def _thread_index(self, loop: For) -> Value:
        level, axis = loop.thread.split(".")
        name = f"llvm.nvvm.read.ptx.sreg.{REGISTERS[level]}.{axis}"
        index = self.b.convert("zext", self.b.call(name, "i32"), "i64")
        return self.b.op("add nsw", index, self.expr(loop.start))

    def fail(self, code: Value) -> None:
        """A kernel has no way to report: what can fail is checked on the host."""
        self.b.ret()


# --------------------------------------------------------------------------- handlers


def _barrier(e: Emitting, node: Call, is_statement: bool) -> Value:
    return e.b.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", Value("i32", "0"))


def _fenced_barrier(e: Emitting, node: Call, is_statement: bool) -> Value:
    """Matrix units read shared memory behind the threads' backs."""
    e.b.line(wgmma.FENCE)
    return _barrier(e, node, is_statement)


def _local(e: Emitting, stmt: ir.Alloc) -> None:
    e.allocate(stmt)


def _shared(e: Emitting, stmt: ir.Alloc) -> None:
    buffer = stmt.buffer
    count = 1
    for dim in buffer.shape:
        size = sym.simplify(dim)
        if not isinstance(size, Const):
            raise Unsupported(
                "TW3053", f"shared %{buffer.name} has the symbolic size {size}", stmt.loc
            )
        count *= int(size.value)
    align = buffer.memory.alignment_bytes
    name = f"{e.name}.{buffer.name}.{len(e.module.global_lines)}"
    e.module.global_lines.append(
        f"@{name} = internal addrspace(3) global "
        f"[{count} x {memory_type(buffer.dtype)}] undef, align {align}"
    )
    pointer = e.b.value("ptr", f"addrspacecast ptr addrspace(3) @{name} to ptr", hint=buffer.name)
    e.memories[buffer] = Memory(pointer, align)
    e.stmt(stmt.body)


def _sum(e: Emitting, stmt: ir.Alloc) -> None:
    """Each thread of a warpgroup holds its part of every tile."""
    count = 1
    for dim in stmt.buffer.shape:
        assert isinstance(dim, Const)
        count *= int(dim.value)
    part = f"[{count // wgmma.THREADS} x float]"
    pointer = e.b.alloca(part, align=SUM.alignment_bytes, hint=stmt.buffer.name)
    e.memories[stmt.buffer] = Memory(pointer, SUM.alignment_bytes)
    e.stmt(stmt.body)


def _nowhere(e: Emitting, stmt: ir.Alloc) -> None:
    raise Unsupported(
        "TW3052",
        f"%{stmt.buffer.name} in {stmt.buffer.scope} memory cannot be made inside a kernel",
        stmt.loc,
        help="give it the scope shared or local, or pass it as an argument",
    )


HANDLERS = Handlers(
    {**hardware.CALLS, wgmma.PREFIX: wgmma.emit, "barrier.shared": _barrier},
    {LOCAL.name: _local, SHARED.name: _shared, SUM.name: _sum},
    other_alloc=_nowhere,
)
FENCED = replace(HANDLERS, calls={**HANDLERS.calls, "barrier.shared": _fenced_barrier})
