"""Which register tiles keep all that a step of the sum needs in registers."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.target import Target
from tilewright.rules.cpu.gemm_model import fits_registers

AVX512 = "x86_64-linux-gnu -mcpu=cascadelake"
AVX2 = "x86_64-linux-gnu -mcpu=haswell"
NEON = "aarch64-linux-gnu -mcpu=neoverse-n1"


@pytest.mark.parametrize(
    ("target", "k_interleave", "nr", "most"),
    [
        (AVX512, 1, 1, 30),  # multiply-adds read numbers from memory
        (AVX512, 2, 1, 16),  # pairs of numbers are loaded, and sums take their registers
        (AVX512, 1, 2, 14),
        (AVX512, 2, 2, 14),
        (AVX2, 1, 1, 8),
        (AVX2, 1, 2, 6),
        (NEON, 1, 1, 27),  # four numbers are loaded ahead
        (NEON, 1, 3, 8),
        (NEON, 1, 4, 6),
        (NEON, 1, 6, 4),  # no more than half of those of a step
    ],
)
def test_most_rows_of_a_tile(target: str, k_interleave: int, nr: int, most: int) -> None:
    rows = np.arange(1, 33)
    fits = fits_registers(rows, np.full_like(rows, nr), Target.parse(target), k_interleave)
    assert rows[fits].tolist() == list(range(1, most + 1))
