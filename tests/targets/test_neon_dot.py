"""NEON's dot products on an emulated AArch64 machine."""

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.arm]

PRODUCT = """
func @product(%A: {of}[3, 16], %B: {of}[4, 8, 4], %C: i32[3, 8]) stage scheduled {{
  for %i in 0..3 {{
    for %j in 0..2 {{
      block @C_init(%vi: spatial 3 = %i, %vj: spatial 2 = %j) {{
        writes %C[%vi, %vj * 4 +: 4]
        call {dot}.reset(%C[%vi, %vj * 4 +: 4])
      }}
      for %k in 0..4 {{
        block @C(%vi: spatial 3 = %i, %vj: spatial 2 = %j, %vk: reduce 4 = %k) {{
          reads %A[%vi, %vk * 4 +: 4], %B[%vk, %vj * 4 +: 4, 0 +: 4]
          writes %C[%vi, %vj * 4 +: 4]
          call {dot}.update(
            %A[%vi, %vk * 4 +: 4], %B[%vk, %vj * 4 +: 4, 0 +: 4], %C[%vi, %vj * 4 +: 4])
        }}
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize(("dot", "of", "numpy"), [("sdot", "i8", "i1"), ("udot", "u8", "u1")])
def test_a_product_by_dots_runs_there(run_elsewhere, dot, of, numpy):
    rng, limits = np.random.default_rng(0), np.iinfo(numpy)
    a = rng.integers(limits.min, limits.max, (3, 16), endpoint=True).astype(numpy)
    b = rng.integers(limits.min, limits.max, (4, 8, 4), endpoint=True).astype(numpy)
    text = PRODUCT.format(dot=f"neon_{dot}", of=of)
    target = "aarch64-linux-gnu -mcpu=cortex-a76"
    *_, c = run_elsewhere(text, target, a, b, np.zeros((3, 8), np.int32))
    wide = b.astype(np.int32).transpose(0, 2, 1).reshape(16, 8)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ wide)
