"""Files from compiled functions: objects, shared libraries with a C header, LLVM and assembly text.

    name.o    the object code; link it with the runtime's C files
    name.so   a shared library that holds the runtime too, and name.h beside it
    name.h    the C header alone
    name.ll   LLVM IR after optimization
    name.s    assembly
    name.wasm a WebAssembly module

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
from pathlib import Path

from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen.cache import write_atomically
from tilewright.runtime.signature import Param, Signature
from tilewright.runtime.sources import FOLDER, runtime_sources

SUFFIXES = (".o", ".so", ".h", ".ll", ".s")

# What a library shows to the outside besides its functions; the rest of the runtime is its own.
_EXPORTS = '-DTW_API=__attribute__((visibility("default")))'


def header(signatures: tuple[Signature, ...], target: Target) -> str:
    """A C header that needs no other file."""
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
        _dlpack_declarations(),
        "/* Each function returns 0, or an error code; then tw_last_error() tells why. */",
        "const char *tw_last_error(void);",
        "void tw_set_threads(int32_t threads); /* for the process; 0: all cores */",
        "",
    ]
    for signature in signatures:
        lines.append("/* args, in this order:")
        lines += [f" *   {_describe(param)}" for param in signature.params]
        lines.append(" */")
        lines.append(f"int32_t {signature.name}(const DLTensor *const *args, int32_t n_args);")
        lines.append("")
    lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)


def _describe(param: Param) -> str:
    dims = ", ".join("?" if dim is None else str(dim) for dim in param.shape)
    role = " (output)" if param.writable else ""
    return f"{param.name}: {param.dtype}[{dims}]{role}"


def _dlpack_declarations() -> str:
    """DLPack's structures, unless its own header or ours came first."""
    text = (FOLDER / "dlpack.h").read_text()
    start = text.index("typedef enum")
    stop = text.index('/* What a "dltensor" capsule holds')
    return (
        "#if !defined(DLPACK_DLPACK_H_) && !defined(TILEWRIGHT_DLPACK_H)\n"
        "#define TILEWRIGHT_DLPACK_H\n" + text[start:stop].rstrip() + "\n#endif\n"
    )


# --------------------------------------------------------------------------- linking


def find_compiler(target: Target) -> list[str]:
    """The command of a C compiler for a target."""
    chosen = os.environ.get("CC")
    if chosen and target.triple == Target.host().triple:
        return shlex.split(chosen)
    if target.triple == Target.host().triple:
        found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if found:
            return [found]
    else:
        cross = shutil.which(f"{target.triple.replace('-unknown', '')}-gcc")
        if cross:
            return [cross]
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang", "cc"]
        if target.triple == Target.host().triple:
            return zig
        return [*zig, "-target", _zig_target(target)]
    raise UserError(
        "TW3030",
        f"no C compiler links for {target}",
        help="install cc (gcc or clang), or `pip install ziglang`",
    )


def _zig_target(target: Target) -> str:
    """Zig leaves the vendor out, and its own C library links statically."""
    parts = [part for part in target.triple.split("-") if part != "unknown"]
    return "-".join(parts)


def link(
    output: Path, objects: list[Path], target: Target, *flags: str, shared: bool = True
) -> None:
    """Link objects and the runtime into a shared library, or with `shared=False` a program."""
    command = find_compiler(target)
    kind = ["-shared", "-fPIC", "-fvisibility=hidden"] if shared else []
    if shared and "ziglang" not in command:
        kind.append("-Wl,-Bsymbolic")  # two libraries in one process keep to their own runtimes
    run_compiler(
        [
            *command,
            "-O2",
            "-std=gnu11",
            *kind,
            _EXPORTS,
            f"-I{FOLDER}",
            "-o",
            str(output),
            *map(str, objects),
            *map(str, runtime_sources()),
            *flags,
            "-lpthread",
            "-lm",
        ]
    )


def run_compiler(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(
            "TW3031",
            f"the linker failed: {shlex.join(command)}\n{done.stderr.strip()[-2000:]}",
            help="set CC to a compiler for this target",
        )


def write_text(path: Path, text: str) -> None:
    write_atomically(path, text.encode())


def write_library(
    path: Path, images: list[bytes], signatures: tuple[Signature, ...], target: Target
) -> None:
    """A shared library and its header."""
    with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
        objects = []
        for at, image in enumerate(images):
            objects.append(Path(folder) / f"{at}.o")
            objects[-1].write_bytes(image)
        made = Path(folder) / "library.so"
        link(made, objects, target)
        write_atomically(path, made.read_bytes())
    write_text(path.with_suffix(".h"), header(signatures, target))
