"""Transcendental functions: maximum error in ulps and throughput, against NumPy and libm.

    python bench/transcendental.py [--json FILE] [--dtype f32] [--only exp,tanh]

The error is measured against NumPy's result in f64 (f32) or long double (f64), over the range of
arguments named in the table and all magnitudes inside it; that of gelu is in units of the argument.
Throughput is that of one core over arrays that stay in the cache, in millions of elements per
second; `libm` is a loop of scalar calls into the C library, compiled here by the system's `cc`.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report
from scipy import special

from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.tensor import parse


def rsqrt(x: Any, out: Any = None) -> Any:
    return np.divide(1, np.sqrt(x, out=out), out=out)


def gelu(x: Any, out: Any = None) -> Any:
    inner = special.erf(x * x.dtype.type(np.sqrt(0.5)), out=out)
    return np.multiply(x * x.dtype.type(0.5), np.add(inner, 1, out=out), out=out)


# name: (reference, range of arguments, bound in ulps, C's name or formula of x with functions `F`)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[float, float], float, str]] = {
    "exp": (np.exp, (-80, 80), 2.0, "exp"),
    "exp2": (np.exp2, (-120, 120), 2.0, "exp2"),
    "expm1": (np.expm1, (-20, 80), 2.5, "expm1"),
    "sigmoid": (special.expit, (-80, 80), 2.5, "1 / (1 + expF(-x))"),
    "rsqrt": (rsqrt, (1e-30, 1e30), 1.5, "1 / sqrtF(x)"),
    "log": (np.log, (1e-30, 1e30), 2.0, "log"),
    "log2": (np.log2, (1e-30, 1e30), 2.0, "log2"),
    "log10": (np.log10, (1e-30, 1e30), 2.0, "log10"),
    "log1p": (np.log1p, (-0.999, 1e3), 2.0, "log1p"),
    "tanh": (np.tanh, (-10, 10), 2.0, "tanh"),
    "sinh": (np.sinh, (-80, 80), 2.5, "sinh"),
    "cosh": (np.cosh, (-80, 80), 2.5, "cosh"),
    "asinh": (np.arcsinh, (-1e3, 1e3), 2.5, "asinh"),
    "acosh": (np.arccosh, (1, 1e3), 2.5, "acosh"),
    "atanh": (np.arctanh, (-0.999, 0.999), 2.5, "atanh"),
    "sin": (np.sin, (-1e5, 1e5), 2.5, "sin"),
    "cos": (np.cos, (-1e5, 1e5), 2.5, "cos"),
    "tan": (np.tan, (-1e5, 1e5), 4.0, "tan"),
    "asin": (np.arcsin, (-1, 1), 3.0, "asin"),
    "acos": (np.arccos, (-1, 1), 2.0, "acos"),
    "atan": (np.arctan, (-50, 50), 2.5, "atan"),
    "erf": (special.erf, (-4, 4), 2.0, "erf"),
    "gelu": (gelu, (-10, 10), 2.0, "x * HALF * (1 + erfF(x * ROOT_HALF))"),
    "pow": (np.power, (0.01, 100), 2.5, "pow"),
    "atan2": (np.arctan2, (0.01, 100), 3.0, "atan2"),
}
BINARY = ("pow", "atan2")
# Functions that are formulas of others, here over `x`, a vector, and numbers in every lane.
FORMULAS = {"gelu": "{x} * {0.5} * (erf({x} * {0.7071067811865476}) + {1.0})"}
ELEMENTS = 8192  # of one timed call: three arrays of f32 fit a first-level cache


def program(op: str, of: str, lanes: int) -> str:
    index = f"ramp(%i * {lanes}, 1, {lanes})"
    names = ("%x", "%y") if op in BINARY else ("%x",)
    params = ", ".join(f"{name}: {of}[n]" for name in names)
    values = ", ".join(f"{name}[{index}]" for name in names)
    value = f"{op}({values})"
    if op in FORMULAS:
        fill = re.sub(r"{([0-9.]+)}", rf"broadcast({of}(\1), {lanes})", FORMULAS[op])
        value = fill.format(x=values)
    return f"""
    func @{op}_{of}({params}, %z: {of}[n]) stage flat {{
      for %i in 0..n // {lanes} {{
        %z[{index}] = {value}
      }}
    }}"""


def libm(folder: Path, of: str) -> ctypes.CDLL | None:
    """Loops of scalar calls into the C library, kept from being vectorized."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    kind, suffix = ("float", "f") if of == "f32" else ("double", "")
    lines = ["#include <math.h>", f"static const {kind} HALF = 0.5, ROOT_HALF = M_SQRT1_2;"]
    for op, (_, _, _, name) in FUNCTIONS.items():
        second = f", const {kind} *y" if op in BINARY else ""
        call = f"{name}{suffix}(x[i]{', y[i]' if op in BINARY else ''})"
        if "(" in name:
            call = re.sub(r"\bx\b", "x[i]", name).replace("F(", f"{suffix}(")
        lines.append(
            f"void loop_{op}(const {kind} *x{second}, {kind} *z, long n) "
            f"{{ for (long i = 0; i < n; ++i) z[i] = {call}; }}"
        )
    source, made = folder / "loops.c", folder / f"loops_{of}.so"
    source.write_text("\n".join(lines))
    flags = ["-O2", "-fno-tree-vectorize", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, source, "-o", made, "-lm"], check=True)
    return ctypes.CDLL(str(made))


def arguments_of(op: str, of: Any, n: int) -> list[Any]:
    """Spread over the range and over its magnitudes."""
    rng = np.random.default_rng(0)
    low, high = FUNCTIONS[op][1]
    even = rng.uniform(low, high, n)
    sign = rng.choice([-1.0, 1.0], n) if low < 0 else 1.0
    least = max(low, 1e-30) if low >= 0 else 1e-30
    magnitudes = sign * np.exp(rng.uniform(np.log(least), np.log(max(abs(low), high)), n))
    x = np.where(rng.random(n) < 0.5, even, np.clip(magnitudes, low, high)).astype(of)
    if op not in BINARY:
        return [x]
    return [x, rng.uniform(-10, 10, n).astype(of)]


def error_ulps(op: str, got: Any, args: list[Any]) -> float:
    wide = np.float64 if got.dtype == np.float32 else np.longdouble
    if op == "sigmoid" and wide is np.longdouble:
        exact = 1 / (1 + np.exp(-args[0].astype(wide)))
    elif op in ("erf", "gelu") and wide is np.longdouble:
        exact = FUNCTIONS[op][0](args[0]).astype(wide)  # itself good to about a unit
    else:
        exact = FUNCTIONS[op][0](*(arg.astype(wide) for arg in args))
    unit = np.spacing(np.abs(args[0] if op == "gelu" else exact).astype(got.dtype)).astype(wide)
    return float(np.max(np.abs(got.astype(wide) - exact) / unit))


def measure(options: argparse.Namespace) -> list[report.Figure]:
    figures = []
    of = options.dtype
    kind = np.dtype(np.float32 if of == "f32" else np.float64)
    lanes = Target.host().lanes(kind.itemsize * 8)
    chosen = options.only.split(",") if options.only else list(FUNCTIONS)
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        loops = libm(Path(folder), of)
        for op in chosen:
            reference, _, bound, _ = FUNCTIONS[op]
            native = build(parse(program(op, of, lanes)))
            many = arguments_of(op, kind, 1 << 18)
            out = np.zeros_like(many[0])
            native(*many, out)
            bound = bound + 2 if op in ("erf", "gelu") and of == "f64" else bound
            error = error_ulps(op, out, many)
            figures.append(report.at_most(f"{op}.{of} error", error, "ulp", bound))
            few = [arg[:ELEMENTS].copy() for arg in many]
            out = np.zeros_like(few[0])
            runs: dict[str, Callable[[], object]] = {
                "ours": lambda native=native, few=few, out=out: native(*few, out),
                "numpy": lambda reference=reference, few=few, out=out: reference(*few, out=out),
            }
            if loops is not None:
                loop = loops[f"loop_{op}"]
                pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*few, out)]
                count = ctypes.c_long(ELEMENTS)
                runs["libm"] = lambda loop=loop, p=pointers, n=count: loop(*p, n)
            best = report.interleaved(runs, rounds=5, budget_s=0.01)
            rate = {name: ELEMENTS / time / 1e6 for name, time in best.items()}
            figures.append(report.Figure(f"{op}.{of} throughput", rate["ours"], "M/s"))
            numpy_ratio = rate["ours"] / rate["numpy"]
            figures.append(report.Figure(f"{op}.{of} over NumPy", numpy_ratio, "x"))
            if "libm" in rate:
                ratio = rate["ours"] / rate["libm"]
                figures.append(report.at_least(f"{op}.{of} over libm", ratio, "x", 1.0))
    return figures


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", choices=("f32", "f64"), default="f32")
    parser.add_argument("--only", default="", help="functions, separated by commas")


if __name__ == "__main__":
    report.run(__doc__, measure, arguments)
