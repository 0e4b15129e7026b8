"""The exported function: `int32_t NAME(const DLTensor *const *args, int32_t n_args)`.

It has the runtime check every argument, reads the sizes, checks dimensions that are expressions
and the function's requirements, and only then calls the kernel on raw pointers and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright import sym
from tilewright.base.errors import UserError
from tilewright.base.text import Names
from tilewright.codegen.builder import FunctionText, ModuleText, Value, i32, i64
from tilewright.codegen.debug import FUNCTION, START, DebugInfo
from tilewright.codegen.emitter import Emitter
from tilewright.codegen.hardware import DLTENSOR
from tilewright.codegen.index_ranges import index_ranges
from tilewright.codegen.machine import Machine
from tilewright.codegen.memory import Memory
from tilewright.codegen.targets import handlers_of
from tilewright.codegen.types import memory_type, register_type
from tilewright.runtime.dlpack import code_of
from tilewright.runtime.signature import Param, Signature
from tilewright.sym import Const, Expr, Size, Var
from tilewright.tensor import ir
from tilewright.tensor.assembly import assembly_of
from tilewright.tensor.ir import Buffer, Function
from tilewright.tensor.passes.simplify_program import known
from tilewright.tensor.visit import output_buffers, walk

CHECK_FAILED = 12  # TW_ERROR_CHECK of the runtime
PARAM = "{ ptr, ptr, i32, { i8, i8, i16 }, i32, i32, i32, i32 }"
SIGNATURE = "{ ptr, ptr, ptr, i32, i32 }"


def signature_of(fn: Function) -> Signature:
    """What callers must know of a function. A scalar is an array of no dimensions."""
    names = size_names(fn)
    written = output_buffers(fn)
    params = []
    for param in fn.params:
        shape = param.shape if isinstance(param, Buffer) else ()
        extents = tuple(_extent(dim, names) for dim in shape)
        params.append(Param(param.name, param.dtype, extents, writable=param in written))
    return Signature(fn.name, tuple(params))


def _extent(dim: Expr, names: dict[Size, str]) -> int | str | None:
    if isinstance(dim, Const):
        return int(dim.value)
    return names.get(dim) if isinstance(dim, Size) else None


def size_names(fn: Function) -> dict[Size, str]:
    """A name of its own for every size that a dimension gives."""
    names = Names()
    return {size: names(size, size.name) for size in symbol_sizes(fn)}


def symbol_sizes(fn: Function) -> tuple[Size, ...]:
    """The sizes that a dimension gives; a size that is a parameter is given by it instead."""
    scalars = {param for param in fn.params if isinstance(param, Var)}
    return tuple(size for size in ir.sizes_of(fn) if size not in scalars)


def emit_function(
    module: ModuleText, machine: Machine, fn: Function, debug: DebugInfo | None = None
) -> None:
    """Write the kernel of a flat function and its checked entry."""
    _check_sizes_known(fn)
    kernel = emit_kernel(module, machine, fn, debug, linkage="internal")
    _emit_entry(module, machine, fn, kernel, debug)


def _check_sizes_known(fn: Function) -> None:
    known = set(symbol_sizes(fn)) | {param for param in fn.params if isinstance(param, Var)}
    used = [dim for buffer in fn.buffers for dim in buffer.shape]
    for var in sym.free_vars(*used, *fn.requires):
        if var not in known:
            raise UserError(
                "TW3003",
                f"@{fn.name}: no argument gives the value of {var.name}",
                fn.loc,
                help=f"make {var.name} a dimension of its own of some parameter, or a parameter",
            )


# --------------------------------------------------------------------------- kernel


def emit_kernel(
    module: ModuleText,
    machine: Machine,
    fn: Function,
    debug: DebugInfo | None = None,
    *,
    linkage: str = "hidden",
    in_place: tuple[tuple[int, int], ...] = (),
) -> str:
    """`NAME_kernel(pointers..., scalars..., sizes...)`: the loops themselves.

    Pointers do not alias, except for pairs of parameters that may be the same memory.
    """
    name = f"{fn.name}_kernel"
    handlers = handlers_of(machine)
    fn = replace(fn, body=handlers.arrange(fn.body))
    scalars = [param for param in fn.params if isinstance(param, Var)]
    written = output_buffers(fn)
    params = []
    shared = {fn.params[a]: fn.params[b] for pair in in_place for a, b in (pair, pair[::-1])}
    for buffer in fn.buffers:
        access = "" if buffer in written else " readonly"
        alone = "" if buffer in shared else " noalias"
        params.append((f"ptr{alone}{access}", buffer.name))
    params += [(register_type(scalar.dtype), scalar.name) for scalar in scalars]
    params += [("i64", size.name) for size in symbol_sizes(fn)]
    lines = debug.lines(name) if debug is not None else {}
    suffix = lines.get(FUNCTION, "")
    with module.function("i32", name, params, linkage=linkage, suffix=suffix) as (b, values):
        emitter = Emitter(module, machine, b, fn.name, handlers, debug)
        emitter.aliases = _alias_scopes(module, fn, shared)
        emitter.lines, emitter.assembly = lines, assembly_of(fn)
        b.debug = lines.get(START, "")
        if machine.narrows_indices:
            emitter.ranges = index_ranges(fn.body, known(fn))
        rest = values[len(fn.buffers) :]
        for buffer, pointer in zip(fn.buffers, values, strict=False):
            align = buffer.dtype.scalar.size_bytes
            emitter.memories[buffer] = Memory(pointer, align, emitter.aliases[buffer])
        for var, value in zip((*scalars, *symbol_sizes(fn)), rest, strict=True):
            emitter.bind(var, value)
        handlers.begin(emitter, fn.body)
        emitter.stmt(fn.body)
        b.ret(i32(0))
    return name


def _alias_scopes(
    module: ModuleText, fn: Function, shared: Mapping[Buffer | Var, Buffer | Var]
) -> dict[Buffer, str]:
    """For each buffer, metadata that keeps it apart from all others but the one it shares with."""
    buffers = list(fn.buffers)
    buffers += [stmt.buffer for stmt in walk(fn.body) if isinstance(stmt, ir.Alloc)]
    domain = module.distinct(f'!{{@, !"{fn.name}"}}')
    scopes = [module.distinct(f'!{{@, {domain}, !"{buffer.name}"}}') for buffer in buffers]
    found = {}
    for at, buffer in enumerate(buffers):
        with_it = (buffer, shared.get(buffer))
        others = [scope for scope, b in zip(scopes, buffers, strict=True) if b not in with_it]
        text = f", !alias.scope {module.metadata('!{' + scopes[at] + '}')}"
        if others:
            text += f", !noalias {module.metadata('!{' + ', '.join(others) + '}')}"
        found[buffer] = text
    return found


# --------------------------------------------------------------------------- entry


def _emit_entry(
    module: ModuleText, machine: Machine, fn: Function, kernel: str, debug: DebugInfo | None
) -> None:
    signature = emit_signature(module, signature_of(fn))
    params = (("ptr", "args"), ("i32", "n_args"))
    lines = debug.lines(fn.name) if debug is not None else {}
    suffix = lines.get(FUNCTION, "")
    with module.function("i32", fn.name, params, suffix=suffix) as (b, (args, n_args)):
        b.debug = lines.get(START, "")
        count = max(1, len(symbol_sizes(fn)))
        symbols = b.alloca(f"[{count} x i64]", align=8, hint="symbols")
        emitter = Emitter(module, machine, b, fn.name, handlers_of(machine))
        emitter.check(b.call("tw_check_args", "i32", signature, args, n_args, symbols))
        for at, size in enumerate(symbol_sizes(fn)):
            value = b.load("i64", b.offset("i64", symbols, i64(at)))
            emitter.variables[size] = value
        tensors = [b.load("ptr", b.offset("ptr", args, i64(at))) for at in range(len(fn.params))]
        pointers = []
        for param, tensor in zip(fn.params, tensors, strict=True):
            pointer = data_pointer(b, tensor)
            if isinstance(param, Buffer):
                pointers.append(pointer)
            else:
                emitter.variables[param] = _scalar(emitter, param, pointer)
        check_dimensions(emitter, fn, tensors)
        check_requirements(emitter, fn.name, fn.requires)
        scalars = [param for param in fn.params if isinstance(param, Var)]
        rest = [emitter.variables[var] for var in (*scalars, *symbol_sizes(fn))]
        begin = b.call("tw_profile_begin", "i64")
        shown = ", ".join(str(value) for value in (*pointers, *rest))
        code = b.value("i32", f"call i32 @{kernel}({shown})")
        with b.when(b.compare("icmp ne", begin, i64(0)), unlikely=True):
            touched = _touched_bytes(emitter, fn)
            name = module.string(fn.name)
            b.call("tw_profile_end", "void", name, begin, i64(_flops(fn)), touched)
        b.ret(code)


def emit_signature(module: ModuleText, signature: Signature, prefix: str = "") -> Value:
    """The runtime's description of the arguments, as constant data; `prefix` names that data."""
    prefix = prefix or signature.name
    rows = []
    for at, param in enumerate(signature.params):
        rank = len(param.shape)
        shape = "null"
        if rank:
            dims = ", ".join(f"i64 {extent}" for extent in signature.extents(param))
            shape = module.constant(f"{prefix}.shape.{at}", f"[{rank} x i64]", f"[{dims}]").text
        code, bits, lanes = code_of(param.dtype)
        rows.append(
            f"{PARAM} {{ {module.string(param.name)}, ptr {shape}, i32 {rank}, "
            f"{{ i8, i8, i16 }} {{ i8 {code}, i8 {bits}, i16 {lanes} }}, "
            f"i32 {param.device_code}, i32 {param.flags}, i32 {param.align}, i32 0 }}"
        )
    params = module.constant(f"{prefix}.params", f"[{len(rows)} x {PARAM}]", f"[{', '.join(rows)}]")
    names = "null"
    if signature.symbols:
        listed = ", ".join(str(module.string(symbol)) for symbol in signature.symbols)
        count = len(signature.symbols)
        names = module.constant(f"{prefix}.symbols", f"[{count} x ptr]", f"[{listed}]").text
    body = (
        f"{{ {module.string(signature.name)}, {params}, ptr {names}, "
        f"i32 {len(rows)}, i32 {len(signature.symbols)} }}"
    )
    return module.constant(f"{prefix}.signature", SIGNATURE, body)


def data_pointer(b: FunctionText, tensor: Value) -> Value:
    """The address of a tensor's first element."""
    base = b.load("ptr", b.member(DLTENSOR, tensor, 0))
    offset = b.load("i64", b.member(DLTENSOR, tensor, 6))
    return b.value("ptr", f"getelementptr i8, {base}, {offset}")


def _scalar(emitter: Emitter, param: Var, pointer: Value) -> Value:
    loaded = emitter.b.load(memory_type(param.dtype), pointer)
    return emitter.access.to_register(loaded, param.dtype)


def check_dimensions(emitter: Emitter, fn: Function, tensors: list[Value]) -> None:
    """Dimensions that are expressions of sizes."""
    b, module = emitter.b, emitter.module
    symbols = set(symbol_sizes(fn))
    for param, tensor in zip(fn.params, tensors, strict=True):
        for axis, dim in enumerate(param.shape if isinstance(param, Buffer) else ()):
            if isinstance(dim, Const) or dim in symbols:
                continue
            if any(var not in emitter.variables for var in sym.free_vars(dim)):
                continue  # a part of a model, which is told the size otherwise
            shape = b.load("ptr", b.member(DLTENSOR, tensor, 4))
            got = b.load("i64", b.offset("i64", shape, i64(axis)))
            want = emitter.expr(dim)
            with b.when(b.compare("icmp ne", got, want), unlikely=True):
                names = module.string(fn.name), module.string(param.name)
                b.ret(b.call("tw_error_dim", "i32", *names, i32(axis), got, want))


def check_requirements(emitter: Emitter, name: str, requires: tuple[Expr, ...]) -> None:
    """Conditions on sizes; what fails is told with the sizes' values."""
    b, module = emitter.b, emitter.module
    for cond in requires:
        holds = emitter.expr(cond)
        fails = b.op("xor", holds, Value("i1", "true"))
        with b.when(fails, unlikely=True):
            used = [var for var in sym.free_vars(cond) if var.dtype.is_int]
            values = ", ".join(f"{var.name} = %lld" for var in used)
            told = f" ({values})" if used else ""
            text = f"{name}: the requirement {cond} does not hold".replace("%", "%%") + told
            args = [i32(CHECK_FAILED), module.string(text)]
            args += [_as_i64(emitter, var) for var in used]
            callee = module.declare("i32", "tw_errorf", ["i32", "ptr"], variadic=True)
            shown = ", ".join(str(arg) for arg in args)
            b.ret(b.value("i32", f"call i32 (i32, ptr, ...) {callee}({shown})"))


def _as_i64(emitter: Emitter, var: Var) -> Value:
    value = emitter.variables[var]
    return emitter.b.convert("sext" if var.dtype.kind == "int" else "zext", value, "i64")


def _touched_bytes(emitter: Emitter, fn: Function) -> Value:
    """The size of all arguments together."""
    total = i64(0)
    for buffer in fn.buffers:
        size = i64(buffer.dtype.size_bytes)
        for dim in buffer.shape:
            size = emitter.b.op("mul", size, emitter.expr(dim))
        total = emitter.b.op("add", total, size)
    return total


def _flops(fn: Function) -> int:
    """What the function was annotated with."""
    value = dict(fn.attrs).get("flops", 0)
    return value if isinstance(value, int) else 0
