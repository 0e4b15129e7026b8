"""Kernels that call BLAS: when they may, that it is loaded, and its number of threads.

The user allows BLAS (`tw.compile(..., allow_blas=True)`). Tuning then lets it compete for GEMMs,
and tuning records that chose BLAS are used only where it is allowed. A module that calls BLAS needs
it in the process, and cannot be saved as a self-contained file.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.errors import UserError
from tilewright.base.target import Target
from tilewright.codegen.blas import find_blas, use_blas
from tilewright.codegen.build import can_run
from tilewright.driver.kernels import BLAS, Kernel
from tilewright.rules.library import SGEMM
from tilewright.tune.grids import Grid, GridSpace

LIBRARY = "library"  # the name of the choice between rules and a library
FIELD = "gemm"


def allowed_libraries(target: Target, *, allow_blas: bool) -> tuple[str, ...]:
    """The libraries that kernels may call."""
    if not allow_blas:
        return ()
    if not can_run(target):
        raise UserError(
            "TW6049",
            f"BLAS is called on this machine alone, not on {target}",
            help="leave allow_blas out, or compile where the model runs",
        )
    if find_blas() is None:
        raise UserError(
            "TW3023", "no OpenBLAS was found", help="install numpy or scipy from PyPI wheels"
        )
    return (BLAS,)


def library_space() -> GridSpace:
    """The choice whether rules schedule a kernel's GEMM or BLAS computes it."""
    return GridSpace(LIBRARY, (Grid(LIBRARY, {FIELD: ("rules", BLAS)}),))


def is_library(plan: str) -> bool:
    """Whether a plan of `library_space` chooses BLAS."""
    return plan == f"{FIELD}={BLAS}"


def linked(kernels: Iterable[Kernel], threads: int) -> tuple[str, ...]:
    """The library symbols that kernels call, with the libraries loaded."""
    symbols = tuple(dict.fromkeys(name for kernel in kernels for name in kernel.externs))
    if SGEMM in symbols:
        use_blas(threads)
    return symbols


def check_alone(kernels: Iterable[Kernel]) -> None:
    """Refuse to save kernels that call a library: saved files are self-contained."""
    calling = [kernel.name for kernel in kernels if kernel.externs]
    if calling:
        raise UserError(
            "TW6048",
            f"a model that calls BLAS cannot be saved: {calling[0]} does",
            help="compile it without allow_blas: what was tuned without is used then",
        )
