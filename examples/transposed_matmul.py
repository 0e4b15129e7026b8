"""The transposed matrix product of the TVM paper (OSDI 2018), symbolic in all three sizes.

C[y, x] is the sum over k of A[k, y] * B[k, x]. The program is written once for all m, n and h; a
tiled schedule follows, whose tiles need not divide anything. At the end the paper's own listing,
which declares A as (m, h) and B as (n, h): it reads outside of them unless all sizes are equal, and
is refused when the function is entered.
"""

import numpy as np

from tilewright import te
from tilewright.base.errors import UserError
from tilewright.tensor import Function, interpret
from tilewright.tensor.schedule import Schedule


def matmul(*, as_printed: bool = False) -> Function:
    """The product as a tensor function; `as_printed` declares A and B as the paper does."""
    m, n, h = te.var("m"), te.var("n"), te.var("h")
    A = te.placeholder((m, h) if as_printed else (h, m), name="A")
    B = te.placeholder((n, h) if as_printed else (h, n), name="B")
    k = te.reduce_axis((0, h), name="k")
    C = te.compute((m, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k), name="C")
    return te.function([A, B, C], name="matmul")


def tiled(fn: Function) -> Function:
    """Tiles of 8 x 8 x 4, the rows of tiles in parallel."""
    sch = Schedule(fn)
    y, x, k = sch.get_loops(sch.get_block("C"))
    yo, yi = sch.split(y, [None, 8])
    xo, xi = sch.split(x, [None, 8])
    ko, ki = sch.split(k, [None, 4])
    sch.reorder(yo, xo, ko, yi, xi, ki)
    sch.parallel(yo)
    return sch.function


def run(fn: Function, a: np.ndarray, b: np.ndarray, m: int, n: int) -> np.ndarray:
    c = np.full((m, n), np.nan, np.float32)
    interpret(fn, a, b, c)
    return c


def main() -> None:
    rng = np.random.default_rng(0)
    plain = matmul()
    print(plain)
    assert plain.requires == ()  # every read is proved to be inside
    for m, n, h in ((1, 1, 1), (16, 8, 4), (13, 9, 7), (2, 17, 5), (0, 3, 2)):
        a = rng.standard_normal((h, m)).astype(np.float32)
        b = rng.standard_normal((h, n)).astype(np.float32)
        for fn in (plain, tiled(plain)):
            np.testing.assert_allclose(run(fn, a, b, m, n), a.T @ b, rtol=1e-4, atol=1e-5)
        print(f"m={m:<3} n={n:<3} h={h:<3} agrees with NumPy")

    printed = matmul(as_printed=True)
    print("as printed in the paper:", ", ".join(f"require {cond}" for cond in printed.requires))
    a, b = (rng.standard_normal((6, 6)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(run(printed, a, b, 6, 6), a.T @ b, rtol=1e-4, atol=1e-5)
    try:
        run(printed, a[:5], b, 5, 6)
    except UserError as refusal:
        print(refusal)
    else:
        raise AssertionError("reading outside of A was not refused")


if __name__ == "__main__":
    main()
