"""Files from compiled functions: objects, shared libraries with a C header, LLVM and assembly text.

    name.o    the object code; link it with the runtime's C files
    name.so   a shared library that holds the runtime too, and name.h beside it
    name.h    the C header alone
    name.ll   LLVM IR after optimization
    name.s    assembly
    name.wasm a WebAssembly module that holds the runtime too; it exports malloc and free

A library is linked by $CC, `cc`, or the `ziglang` package, whichever is there; a file appears whole
or not at all.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilewright.base.errors import UserError
from tilewright.base.target import CUDA, WASM, Target
from tilewright.codegen import cache
from tilewright.codegen.cache import write_atomically
from tilewright.runtime.signature import Param, Signature
from tilewright.runtime.sources import FOLDER, runtime_sources

SUFFIXES = (".o", ".so", ".wasm", ".h", ".ll", ".s")

# What a library shows to the outside besides its functions; the rest of the runtime is its own.
_EXPORTS = '-DTW_API=__attribute__((visibility("default")))'


def set_foreign_name(name: str) -> str:
    """The C function of a model that takes who runs the parts without native code."""
    return f"{name}_set_foreign"


def on_stream_name(name: str) -> str:
    """The C function that runs a model for a GPU on a stream of the caller's."""
    return f"{name}_on_stream"


def foreign_name(name: str) -> str:
    """Who runs a model's parts where its library does so itself: a tw_foreign."""
    return f"{name}_foreign"


def constants_name(name: str) -> str:
    """The table of a model's constants."""
    return f"{name}_constants"


def header(
    signatures: tuple[Signature, ...],
    target: Target,
    handles: tuple[str, ...] | None = None,
    begins: tuple[int, ...] = (),
) -> str:
    """A C header that needs no other file.

    `handles` belong to a model with parts for callbacks: what each argument is a handle of, or "".
    `begins` are the constants that the states of a model begin with.
    """
    guard = "_".join(s.name.upper() for s in signatures) + "_H"
    lines = [
        f"/* Compiled by Tilewright for {target}. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        (FOLDER / "dlpack_tensor.h").read_text(),
        "/* Each function returns 0, or an error code; then tw_last_error() tells why. */",
        "const char *tw_last_error(void);",
        "void tw_set_threads(int32_t threads); /* for the process; 0: all cores */",
        "",
    ]
    if handles is not None:
        lines.append((FOLDER / "foreign.h").read_text())
        lines += [
            f"int32_t {set_foreign_name(signature.name)}(const tw_foreign *foreign);\n"
            for signature in signatures
        ]
    for signature in signatures:
        if begins:
            lines += [_states(signature, begins), ""]
        lines.append("/* args, in this order:")
        roles = handles or ("",) * len(signature.params)
        lines += [f" *   {_describe(*one)}" for one in zip(signature.params, roles, strict=True)]
        lines.append(" */")
        lines.append(f"int32_t {signature.name}(const DLTensor *const *args, int32_t n_args);")
        if target.kind == CUDA:
            lines.append(_on_stream(signature.name))
        lines.append("")
    lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)


def _on_stream(name: str) -> str:
    """How a C program has a model run on a stream of its own."""
    return f"""
/* The same on a stream (a CUstream or cudaStream_t) that is not being captured, behind what is on
 * it already. With all tensors on the GPU the call returns at once: wait for the stream before
 * results are read elsewhere, or memory is given back. Calls of a model run one after another. */
int32_t {on_stream_name(name)}(const DLTensor *const *args, int32_t n_args, void *stream);"""


def _describe(param: Param, handle: str) -> str:
    dims = ", ".join("?" if dim is None else str(dim) for dim in param.shape)
    dims = "*" if param.any_rank else dims
    role = " (output)" if param.writable else ""
    role = " (state: read, then changed)" if param.is_state else role
    meaning = f", a handle of {handle}" if handle else ""
    return _in_comment(f"{param.name}: {param.dtype}[{dims}]{meaning}{role}")


def _in_comment(text: str) -> str:
    """Text that does not end a comment of C: names of models may contain anything."""
    return " ".join(text.replace("*/", "* /").replace("/*", "/ *").split())


def _states(signature: Signature, begins: tuple[int, ...]) -> str:
    """How a C program finds what states begin with."""
    table = constants_name(signature.name)
    kept = [param.name for param in signature.params if param.is_state]
    pairs = zip(kept, begins, strict=True)
    told = [f" *   {_in_comment(name)}: {table}[{at}]" for name, at in pairs]
    head = "/* What states begin with. Give each memory of its own with a copy of that:"
    return "\n".join([head, *told, " */", f"extern const void *const {table}[];"])


# --------------------------------------------------------------------------- linking


def find_compiler(target: Target, *, static: bool = False) -> list[str]:
    """The command of a C compiler for a target; `static`: one that makes programs of one file."""
    chosen = os.environ.get("CC")
    is_host = target.triple == Target.host().triple
    if chosen and is_host:
        return _command_of(chosen)
    names = ["cc", "gcc", "clang"] if is_host else [f"{_without_vendor(target)}-gcc"]
    for name in names:
        found = shutil.which(name)
        if found:
            return [found, "-static"] if static else [found]
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang", "cc"]
        wanted = _zig_target(target, static=static)
        return [*zig, "-target", wanted, *(["-static"] if static else [])]
    raise UserError(
        "TW3030",
        f"no C compiler links for {target}",
        help="install cc (gcc or clang), or `pip install ziglang`",
    )


def _command_of(chosen: str) -> list[str]:
    """The compiler and options that $CC names."""
    try:
        command = shlex.split(chosen)
    except ValueError:  # a quote without its other half
        command = []
    if not command or shutil.which(command[0]) is None:
        raise UserError(
            "TW3030", f"CC={chosen} names no program", help="set CC to a C compiler, or unset it"
        )
    return command


def _is_zig(compiler: list[str]) -> bool:
    return "ziglang" in compiler


def _without_vendor(target: Target) -> str:
    return "-".join(part for part in target.triple.split("-") if part != "unknown")


def _zig_target(target: Target, *, static: bool) -> str:
    """Zig leaves the vendor out. Of its C libraries, musl links statically."""
    if target.kind == WASM:
        return "wasm32-wasi"
    name = _without_vendor(target)
    return name.replace("-gnu", "-musl") if static else name


def runtime_files(target: Target) -> tuple[Path, ...]:
    """The runtime's C files for a target: without threads where there are none."""
    if "linux" in target.triple or "darwin" in target.triple:
        return runtime_sources()
    return FOLDER / "check.c", FOLDER / "error.c", FOLDER / "plain" / "plain.c"


def link_library(
    output: Path, objects: list[Path], target: Target, more: tuple[Path, ...] = ()
) -> None:
    """Link objects, the runtime and more of its C files into a shared library."""
    compiler = find_compiler(target)
    flags = ["-shared", "-fPIC", "-fvisibility=hidden"]
    if not _is_zig(compiler):
        flags.append("-Wl,-Bsymbolic")  # two libraries in one process keep to their own runtimes
    _link(output, objects, target, compiler, flags, more)


def _runtime_object(sources: tuple[Path, ...], command: list[str]) -> bytes:
    """The C runtime as one object; compiled once for all libraries."""
    flags = ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", _EXPORTS, f"-I{FOLDER}"]
    texts = [path.read_text() for path in sorted((*FOLDER.rglob("*.h"), *sources))]
    found = os.stat(shutil.which(command[0]) or command[0])
    key = "\n".join((*command, *flags, f"{found.st_size} {found.st_mtime_ns}", *texts))
    image = cache.try_read(key)
    if image is None:
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            made = Path(folder) / "runtime.o"
            files = [str(path) for path in sources]
            run_compiler([*command, *flags, "-r", "-nostdlib", "-o", str(made), *files])
            image = made.read_bytes()
        cache.write(key, image)
    return image


def link_wasm(
    output: Path, objects: list[Path], target: Target, functions: tuple[str, ...]
) -> None:
    """Link objects and the runtime into a WebAssembly module."""
    exports = [*functions, "tw_last_error", "tw_last_code", "malloc", "free"]
    flags = ["-mexec-model=reactor", *(f"-Wl,--export={name}" for name in exports)]
    _link(output, objects, target, find_compiler(target), flags)


def link_program(output: Path, objects: list[Path], target: Target, sources: list[Path]) -> None:
    """Link objects, C files and the runtime into a program that needs no library."""
    _link(output, [*objects, *sources], target, find_compiler(target, static=True))


def _link(
    output: Path,
    inputs: list[Path],
    target: Target,
    compiler: list[str],
    flags: Sequence[str] = (),
    more: tuple[Path, ...] = (),
) -> None:
    """Link objects and C files with the runtime, which is compiled once but by Zig."""
    runtime = (*runtime_files(target), *more)
    if not _is_zig(compiler):
        kept = output.with_suffix(".runtime.o")
        kept.write_bytes(_runtime_object(runtime, compiler))
        runtime = (kept,)
    command = [*compiler, *flags, "-O2", "-std=gnu11", _EXPORTS, f"-I{FOLDER}", "-o", str(output)]
    libraries = [] if target.kind == WASM else ["-lpthread", "-lm", "-ldl"]
    run_compiler([*command, *(str(path) for path in (*inputs, *runtime)), *libraries])


def run_compiler(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(
            "TW3031",
            f"the linker failed: {shlex.join(command)}\n{done.stderr.strip()[-2000:]}",
            help="set CC to a compiler for this target",
        )


def link_object(output: Path, inputs: list[Path], target: Target, keep: tuple[str, ...]) -> None:
    """One object out of several; of its symbols others see those to `keep`, if objcopy is there."""
    command = [*find_compiler(target), "-r", "-nostdlib", "-o", str(output)]
    run_compiler([*command, *(str(path) for path in inputs)])
    objcopy = shutil.which("objcopy")
    if objcopy is not None and target.triple == Target.host().triple:
        flags = [f"--keep-global-symbol={name}" for name in keep]
        run_compiler([objcopy, *flags, str(output)])


def check_path(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """That a file of a kind can be written where it is wanted."""
    if path.suffix not in suffixes:
        raise UserError(
            "TW3032",
            f"cannot write {path.name}: the suffix is of no known kind of file",
            help=f"use one of {', '.join(suffixes)}",
        )
    if not path.parent.is_dir():
        raise UserError(
            "TW3033",
            f"cannot write {path.name}: there is no folder {path.parent}",
            help="make the folder first",
        )


def write_text(path: Path, text: str) -> None:
    write_atomically(path, text.encode())


def write_library(
    path: Path, images: list[bytes], signatures: tuple[Signature, ...], target: Target
) -> None:
    """A shared library or WebAssembly module, and its header."""
    if (path.suffix == ".wasm") != (target.kind == WASM):
        raise UserError(
            "TW3032",
            f"cannot write {path.name} for {target}",
            help="shared libraries are for CPUs, .wasm is for wasm32",
        )
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        objects = []
        for at, image in enumerate(images):
            objects.append(Path(folder) / f"{at}.o")
            objects[-1].write_bytes(image)
        made = Path(folder) / f"made{path.suffix}"
        if target.kind == WASM:
            link_wasm(made, objects, target, tuple(signature.name for signature in signatures))
        else:
            link_library(made, objects, target)
        write_atomically(path, made.read_bytes())
    write_text(path.with_suffix(".h"), header(signatures, target))
