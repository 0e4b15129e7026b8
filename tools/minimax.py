"""Finds the polynomials of `codegen/math`: `python tools/minimax.py`.

Each is the polynomial of its degree whose greatest weighted error over an interval is least, found
by Remez exchange in 60-digit arithmetic; its coefficients are then rounded. Needs mpmath.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    name: str
    function: Function  # what the polynomial stands for
    low: mp.mpf
    high: mp.mpf
    degrees: dict[str, int]  # by type
    weight: Function = lambda x: mp.mpf(1)  # of the error


def rounded(value: mp.mpf, of: str) -> mp.mpf:
    code = "<f" if of == "f32" else "<d"
    return mp.mpf(struct.unpack(code, struct.pack(code, float(value)))[0])


def remez(
    f: Function, low: mp.mpf, high: mp.mpf, powers: list[int], weight: Function
) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients of the given powers and the greatest weighted error."""
    n = len(powers)
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle - half * mp.cos(mp.pi * k / n) for k in range(n + 1)]
    grid = [middle - half * mp.cos(mp.pi * k / 600) for k in range(601)]
    values = [(x, f(x), weight(x)) for x in grid]
    coefficients: list[mp.mpf] = []
    error = mp.mpf(0)
    for _ in range(12):
        matrix = mp.matrix(n + 1, n + 1)
        right = mp.matrix(n + 1, 1)
        for row, x in enumerate(nodes):
            for column, power in enumerate(powers):
                matrix[row, column] = x**power
            matrix[row, n] = (-1) ** row / weight(x)
            right[row] = f(x)
        solved = mp.lu_solve(matrix, right)
        coefficients, level = [solved[k] for k in range(n)], abs(solved[n])
        errors = [
            w * (sum(c * x**p for c, p in zip(coefficients, powers, strict=True)) - y)
            for x, y, w in values
        ]
        # One extreme between each two changes of sign.
        runs: list[int] = [0]
        for k in range(1, len(grid)):
            if errors[k] * errors[runs[-1]] > 0:
                if abs(errors[k]) > abs(errors[runs[-1]]):
                    runs[-1] = k
            else:
                runs.append(k)
        error = max(abs(e) for e in errors)
        if len(runs) < n + 1 or error <= level * mp.mpf("1.001"):
            break
        best = max(
            range(len(runs) - n), key=lambda s: min(abs(errors[k]) for k in runs[s : s + n + 1])
        )
        nodes = [grid[k] for k in runs[best : best + n + 1]]
    return coefficients, error


def fit(task: Fit, of: str) -> tuple[list[mp.mpf], mp.mpf]:
    powers = list(range(task.degrees[of] + 1))
    found, error = remez(task.function, task.low, task.high, powers, task.weight)
    return [rounded(value, of) for value in found], error


def at_zero(function: Function, series: list[mp.mpf]) -> Function:
    """The function, by its series close to 0 where it is a quotient of zeros."""

    def g(x: mp.mpf) -> mp.mpf:
        if abs(x) < mp.mpf(10) ** -6:
            return sum(c * x**k for k, c in enumerate(series))
        return function(x)

    return g


def taylor(g: Function, skip: int, step: int, count: int = 12) -> list[mp.mpf]:
    """Every `step`-th Taylor coefficient of g from degree `skip` on."""
    all_ = mp.taylor(g, 0, skip + step * count)
    return [all_[skip + step * k] for k in range(count)]


LN2 = mp.log(2)
TINY = mp.mpf(10) ** -12  # keeps a weight from vanishing
SQRT = mp.sqrt
QUARTER_PI_SQUARED = (mp.pi / 4) ** 2


def tasks() -> list[Fit]:
    def odd(name: str, g: Function, high: mp.mpf, degrees: dict[str, int]) -> Fit:
        """(g(x) - x) / x**3 as a polynomial in x**2."""
        series = taylor(g, 3, 2)
        return Fit(
            name,
            at_zero(lambda t: (g(SQRT(t)) - SQRT(t)) / SQRT(t) ** 3, series),
            mp.mpf(0),
            high,
            degrees,
            lambda t: t + TINY,
        )

    erf_low = mp.mpf("0.921875")
    return [
        Fit(
            "EXP",  # (exp(r) - 1 - r) / r**2
            at_zero(lambda r: (mp.exp(r) - 1 - r) / r**2, taylor(mp.exp, 2, 1)),
            -LN2 / 2 * mp.mpf("1.001"),
            LN2 / 2 * mp.mpf("1.001"),
            {"f32": 4, "f64": 9},
            lambda r: r**2 + TINY,
        ),
        Fit(
            "EXP2",  # (2**r - 1) / r
            at_zero(lambda r: (2**r - 1) / r, taylor(lambda r: 2**r, 1, 1)),
            mp.mpf("-0.5005"),
            mp.mpf("0.5005"),
            {"f32": 5, "f64": 11},
        ),
        Fit(
            "LOG",  # (log(1 + f) - f + f**2 / 2) / f**3
            at_zero(
                lambda f: (mp.log(1 + f) - f + f**2 / 2) / f**3,
                taylor(lambda f: mp.log(1 + f), 3, 1),
            ),
            SQRT(mp.mpf("0.5")) - 1,
            SQRT(mp.mpf(2)) - 1,
            {"f32": 7},
            lambda f: f**2 + TINY,
        ),
        Fit(
            "LOG_QUOTIENT",  # log((1 + s) / (1 - s)) = 2 s + s**3 R(s**2): R
            at_zero(
                lambda t: (mp.log((1 + SQRT(t)) / (1 - SQRT(t))) - 2 * SQRT(t)) / SQRT(t) ** 3,
                [mp.mpf(2) / (2 * k + 3) for k in range(12)],
            ),
            mp.mpf(0),
            mp.mpf("0.02944"),
            {"f64": 6},
            lambda t: t + TINY,
        ),
        Fit(
            "LOG2_RATIO",  # log2(1 + f) / f, as good as a power of f32 needs it
            at_zero(
                lambda f: mp.log(1 + f) / (f * LN2),
                taylor(lambda f: mp.log(1 + f) / LN2, 1, 1),
            ),
            SQRT(mp.mpf("0.5")) - 1,
            SQRT(mp.mpf(2)) - 1,
            {"f64": 12},
        ),
        odd("SIN", mp.sin, QUARTER_PI_SQUARED * mp.mpf("1.001"), {"f32": 2, "f64": 5}),
        Fit(
            "COS",  # (cos(r) - 1 + r**2 / 2) / r**4 in r**2
            at_zero(lambda t: (mp.cos(SQRT(t)) - 1 + t / 2) / t**2, taylor(mp.cos, 4, 2)),
            mp.mpf(0),
            QUARTER_PI_SQUARED * mp.mpf("1.001"),
            {"f32": 2, "f64": 5},
            lambda t: t**2 + TINY,
        ),
        odd("TANH", mp.tanh, mp.mpf("0.625") ** 2, {"f32": 4, "f64": 11}),
        odd("SINH", mp.sinh, mp.mpf(1), {"f32": 3, "f64": 7}),
        odd("ASIN", mp.asin, mp.mpf("0.25"), {"f32": 4, "f64": 12}),
        odd("ATAN", mp.atan, mp.mpf(1), {"f32": 8}),
        odd("ATAN_NARROW", mp.atan, mp.tan(mp.pi / 8) ** 2 * mp.mpf("1.001"), {"f64": 10}),
        Fit(
            "ERF",  # erf(x) / x - 1 in x**2
            at_zero(
                lambda t: mp.erf(SQRT(t)) / SQRT(t) - 1,
                taylor(lambda x: mp.erf(x) - x, 1, 2),
            ),
            mp.mpf(0),
            erf_low**2,
            {"f32": 6, "f64": 11},
        ),
        Fit(
            "ERFC_LOG",  # -log(erfc(t)) in t
            lambda t: -mp.log(mp.erfc(t)),
            erf_low,
            mp.mpf("4.0"),
            {"f32": 6},
            mp.erfc,
        ),
        Fit(
            "ERFC_LOG2",  # log2(erfc(t)) / t in t
            lambda t: mp.log(mp.erfc(t)) / (t * LN2),
            mp.mpf("0.0001"),
            mp.mpf("4.1"),
            {"f32": 7},
            lambda t: mp.erfc(t) * t * LN2 + TINY,
        ),
        Fit(
            "ERFC_LOG",
            lambda t: -mp.log(mp.erfc(t)),
            erf_low,
            mp.mpf("6.0"),
            {"f64": 17},
            mp.erfc,
        ),
    ]


def table(g: Function, step: mp.mpf, count: int, degree: int) -> list[list[float]]:
    """By degree, the coefficients of g(k step + t) for each k; |t| <= step / 2.

    Around 0 those of (g(t) - t) / t, so that relative errors are small; the last value is 1.
    """
    half = step / 2 * mp.mpf("1.0001")  # whose interval a number at the border is in is open
    start = at_zero(lambda t: g(t) / t - 1, [c - (k == 0) for k, c in enumerate(taylor(g, 1, 1))])
    first, _ = remez(start, mp.mpf(0), half, list(range(degree)), lambda t: mp.mpf(1))
    rows = [[mp.mpf(0), *first]]
    for k in range(1, count):

        def near(t: mp.mpf, middle: mp.mpf = k * step) -> mp.mpf:
            return g(middle + t)

        powers = list(range(degree + 1))
        found, _ = remez(near, -half, half, powers, lambda t: mp.mpf(1))
        rows.append(found)
    rows[-1][0] = mp.mpf(1)
    return [[float(rounded(row[at], "f32")) for row in rows] for at in range(degree + 1)]


def print_tables(wanted: list[str]) -> None:
    for name, g, step, count, degree in (
        ("ERF", mp.erf, mp.mpf(33) / 128, 16, 5),
        ("TANH", mp.tanh, mp.mpf(37) / 128, 32, 6),
    ):
        if wanted and f"{name}_TABLE" not in wanted:
            continue
        print(f"{name}_TABLE: Table = (")
        for values in table(g, step, count, degree):
            shown = [f"{value:#.9g}" for value in values]  # enough to tell floats of 32 bits apart
            lines = [", ".join(shown[at : at + 4]) for at in range(0, count, 4)]
            print("    (" + ",\n     ".join(lines) + "),")
        print(")", flush=True)


def main() -> None:
    wanted = sys.argv[1:]
    print_tables(wanted)
    for task in tasks():
        if wanted and task.name not in wanted:
            continue
        for of in task.degrees:
            found, error = fit(task, of)
            print(f"# error 2**{mp.nstr(mp.log(error, 2), 4)}")
            print(f"{task.name}_{of.upper()} = (")
            for value in found:
                print(f"    {float(value)!r},")
            print(")", flush=True)


main()
