"""Costs of the runtime and the compiler: parallel regions, calls, scratch memory, compiling.

    python bench/runtime.py [--json FILE]

The C figures come from a program that is compiled here with the system's `cc` from the runtime's
own sources; "from C" calls a compiled function in a loop of compiled code. Run it on an idle
machine: a region's cost is a race between two cores.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import tempfile
import timeit
from pathlib import Path

import gemm
import numpy as np
import report

from tilewright.base.dtype import F32
from tilewright.base.target import Target
from tilewright.codegen.build import build, lower_for
from tilewright.runtime import Param, Signature, _native
from tilewright.runtime.array import array
from tilewright.runtime.sources import FOLDER, runtime_sources
from tilewright.tensor import parse

PROGRAM = Path(__file__).parent / "native" / "runtime.c"
LABELS = {
    # name: (what it is, the most it may cost in us)
    "empty_region": ("empty parallel region, 2 threads", 5.0),
    "both_threads": ("parallel region that needs both of 2 threads", 5.0),
    "checked_call": ("call from C, three checked arguments", 0.2),
    "workspace": ("scratch memory, taken and given back", 0.1),
    "profiler_off": ("profiler hooks while off", 0.01),
    "python_call": ("call from Python, three NumPy arrays", 8.0),
    "python_call_arrays": ("call from Python, three tilewright arrays", 8.0),
    "compiled_python_call": ("compiled function from Python, three NumPy arrays", 8.0),
    "compiled_call": ("compiled function from C, three arguments", 0.2),
}
COMPILE_LIMIT_MS, CACHED_LIMIT_MS = 250, 20
TINY = """
func @tiny(%A: f32[n, k], %B: f32[k, m], %C: f32[n, m]) stage flat {
  for %i in 0..min(n, 1) {
    %C[%i] = %A[%i] + %B[%i]
  }
}"""


def measure_native() -> dict[str, float]:
    """The C program's figures, in us."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "runtime"
        sources = [str(path) for path in (PROGRAM, *runtime_sources())]
        subprocess.run(
            ["cc", "-std=c11", "-O2", "-pthread", "-I", FOLDER, *sources, "-o", program], check=True
        )
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: float(ns) / 1000 for name, ns in map(str.split, lines.splitlines())}


def measure_python() -> dict[str, float]:
    """The cost of a call to a function that does nothing, in us."""
    signature = Signature(
        "matmul",
        (
            Param("A", F32, ("n", "k")),
            Param("B", F32, ("k", "m")),
            Param("C", F32, ("n", "m"), writable=True),
        ),
    )
    nothing = signature.bind(_native.symbols()["tw_last_code"], None)
    matrices = [np.zeros((8, 8), np.float32) for _ in range(3)]
    cases = {"python_call": matrices, "python_call_arrays": [array(x) for x in matrices]}
    return {
        name: statistics.median(
            timeit.repeat(lambda args=args: nothing(*args), number=1000, repeat=51)
        )
        * 1000
        for name, args in cases.items()
    }


def measure_compiled() -> dict[str, float]:
    """The cost of calling a function that was compiled, in us."""
    tiny = build(parse(TINY))
    matrices = [np.ones((8, 8), np.float32) for _ in range(3)]
    python = timeit.repeat(lambda: tiny(*matrices), number=1000, repeat=51)

    # A loop of native calls on DLTensors made once, as a C program would have them.
    class Tensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 4),
            ("shape", ctypes.c_void_p),
            ("strides", ctypes.c_void_p),
            ("byte_offset", ctypes.c_uint64),
        )

    shape = (ctypes.c_int64 * 2)(8, 8)
    f32 = (ctypes.c_uint8 * 4)(2, 32, 1, 0)
    device = (ctypes.c_int32 * 2)(1, 0)
    tensors = [
        Tensor(m.ctypes.data, device, 2, f32, ctypes.addressof(shape), None, 0) for m in matrices
    ]
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(tensor) for tensor in tensors))
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "loop.c", Path(folder) / "loop.so"
        source.write_text(
            "#include <stdint.h>\n"
            "int32_t loop(int32_t (*f)(void *, int32_t), void *args, int64_t times) {\n"
            "  int32_t code = 0;\n"
            "  while (times-- > 0) code |= f(args, 3);\n"
            "  return code;\n}\n"
        )
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", made], check=True)
        loop = ctypes.CDLL(str(made)).loop
    calls = 100_000
    arguments = (ctypes.c_void_p(tiny.address), ctypes.byref(pointers), ctypes.c_int64(calls))
    if loop(*arguments) != 0:
        raise RuntimeError("the compiled function refuses its arguments")
    native = timeit.repeat(lambda: loop(*arguments), number=1, repeat=21)
    return {
        "compiled_python_call": min(python) * 1000,
        "compiled_call": min(native) / calls * 1e6,
    }


def measure_compiler() -> list[report.Figure]:
    """Latencies of compiling one scheduled matmul, each the least of several, in ms."""
    fn = gemm.scheduled(gemm.matmul(1024, 1024, 1024), threads=2)
    flat = lower_for(fn, Target.host())
    old = os.environ.get("TILEWRIGHT_CACHE_DIR")
    folder = tempfile.mkdtemp()
    os.environ["TILEWRIGHT_CACHE_DIR"] = folder
    try:
        build(parse(TINY))  # start LLVM and the linker: they start once per process
        cold = report.seconds(lambda: build(flat, use_cache=False), budget_s=2.0)
        whole = report.seconds(lambda: build(fn, use_cache=False), budget_s=2.0)
        cached = report.seconds(lambda: build(fn), budget_s=0.5)
    finally:
        shutil.rmtree(folder)
        if old is None:
            del os.environ["TILEWRIGHT_CACHE_DIR"]
        else:
            os.environ["TILEWRIGHT_CACHE_DIR"] = old
    return [
        report.at_most(
            "compile a scheduled matmul, cold", min(whole) * 1e3, "ms", COMPILE_LIMIT_MS
        ),
        report.Figure("of that, after lowering", min(cold) * 1e3, "ms"),
        report.at_most("compile it from the cache", min(cached) * 1e3, "ms", CACHED_LIMIT_MS),
    ]


def measure(options: argparse.Namespace) -> list[report.Figure]:
    costs = {**measure_native(), **measure_python(), **measure_compiled()}
    figures = [
        report.at_most(LABELS[name][0], us, "us", LABELS[name][1]) for name, us in costs.items()
    ]
    return figures + measure_compiler()


if __name__ == "__main__":
    report.run(__doc__, measure)
