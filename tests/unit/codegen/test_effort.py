"""Which functions LLVM is asked to do less to, and that their code stays what it was."""

import numpy as np
import pytest

from tilewright.base.target import Target
from tilewright.codegen import effort, llvm
from tilewright.codegen.build import Options, build, compile_object, emit_module
from tilewright.codegen.effort import REGISTER_TILE, has_register_tile, optimized
from tilewright.tensor import lower, parse


def gemm(rows):
    """Rows of 4 columns each of a product, all sums in registers."""
    return lower(
        parse(f"""
func @gemm(%A: f32[{rows}, 96], %B: f32[96, 4], %C: f32[{rows}, 4]) stage scheduled {{
  alloc %S: f32[{rows}, 4] in local
  for %i in unroll 0..{rows} {{ for %j in vector 0..4 {{ %S[%i, %j] = 0.0 }} }}
  for %k in 0..96 {{
    for %i_1 in unroll 0..{rows} {{
      for %j_1 in vector 0..4 {{ %S[%i_1, %j_1] = %S[%i_1, %j_1] + %A[%i_1, %k] * %B[%k, %j_1] }}
    }}
  }}
  for %i_2 in unroll 0..{rows} {{
    for %j_2 in vector 0..4 {{ %C[%i_2, %j_2] = %S[%i_2, %j_2] }}
  }}
}}""")
    )


@pytest.mark.parametrize(("rows", "expected"), [(REGISTER_TILE - 1, False), (REGISTER_TILE, True)])
def test_a_long_run_of_vector_statements_is_a_register_tile(rows, expected):
    assert has_register_tile(gemm(rows)) is expected


def test_prefetches_between_steps_of_a_sum_do_not_part_its_register_tile():
    """LLVM's whole pipeline moves loads of all steps up to the first, and spills them."""
    rows = REGISTER_TILE // 2
    step = """
    for %i_STEP in unroll 0..ROWS {
      for %j_STEP in vector 0..4 {
        %S[%i_STEP, %j_STEP] = %S[%i_STEP, %j_STEP]
          + %A[%i_STEP, %k + STEP] * %B[%k + STEP, %j_STEP]
      }
    }
    eval prefetch(address(%B[%k + 8, 0]))
    if %k < 48 { eval prefetch(address(%B[%k + 16, 0])) }"""
    steps = "".join(step.replace("STEP", str(at)).replace("ROWS", str(rows)) for at in range(2))
    fn = parse(f"""
func @steps(%A: f32[{rows}, 96], %B: f32[96, 4], %S: f32[{rows}, 4]) stage scheduled {{
  for %k in 0..64 {{{steps}
  }}
}}""")
    assert has_register_tile(lower(fn))


def test_sums_of_a_register_tile_are_in_registers():
    machine = llvm.machine_of(Target.parse("x86_64-linux-gnu -mcpu=skylake-avx512"))
    fn = gemm(REGISTER_TILE)
    text = str(optimized(emit_module(fn, machine), fn, machine))
    assert "%S = alloca" not in text
    assert text.count("phi <4 x float>") == REGISTER_TILE


def test_code_that_runs_once_is_not_worth_the_whole_pipeline(monkeypatch):
    machine = llvm.machine_of(Target.parse("x86_64-linux-gnu -mcpu=skylake-avx512"))
    fn, asked = gemm(2), []
    monkeypatch.setattr(llvm, "optimize", lambda module, machine, unrolls: asked.append(module))
    text = emit_module(fn, machine)
    assert "%S = alloca" not in str(optimized(text, fn, machine, runs_once=True))
    assert not asked
    optimized(text, fn, machine)
    assert len(asked) == 1


def test_plain_loops_are_not_unrolled():
    """Nests of short loops, unrolled whole, took LLVM 18 s in a model."""
    machine = llvm.machine_of(Target.parse("x86_64-linux-gnu -mcpu=skylake-avx512"))
    fn = lower(
        parse("""
func @window(%A: f32[6, 6], %W: f32[4, 4], %C: f32[3, 3]) stage scheduled {
  for %i in 0..3 { for %j in 0..3 { for %u in 0..4 { for %v in 0..4 {
    %C[%i, %j] = %C[%i, %j] + %A[%i + %u, %j + %v] * %W[%u, %v]
  } } } }
}""")
    )
    text = emit_module(fn, machine)
    products = [
        str(optimized(text, fn, machine, is_scheduled=is_scheduled)).count("fmul")
        for is_scheduled in (True, False)
    ]
    assert products[0] > products[1] == 1


def test_the_answer_is_that_of_the_whole_pipeline(monkeypatch):
    fn, random = gemm(REGISTER_TILE), np.random.default_rng(15)
    a = random.standard_normal((REGISTER_TILE, 96), np.float32)
    b = random.standard_normal((96, 4), np.float32)
    found = []
    for judge in (has_register_tile, lambda fn: False):
        monkeypatch.setattr(effort, "has_register_tile", judge)
        c = np.zeros((REGISTER_TILE, 4), np.float32)
        build(fn, use_cache=False)(a, b, c)
        found.append(c)
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], a @ b, rtol=1e-5, atol=1e-5)


PADDED = """
func @padded(%A: f32[2, 2, 4], %B: f32[2, 4, 3], %C: f32[2, 2, 3]) stage flat {
  alloc %B_pad: f32[64] in local
  for %x0 in 0..2 {
    for %x1 in 0..4 {
      for %x2 in 0..3 {
        %B_pad[%x0 * 16 + %x1 * 4 + %x2] = %B[%x0 * 12 + %x1 * 3 + %x2]
      }
      %B_pad[%x0 * 16 + %x1 * 4 + 3] = 0.0
    }
  }
  alloc %C_pad: f32[64] in local
  {
    alloc %A_pad: f32[16] in local
    for %h in 0..2 {
      for %j in 0..16 {
        %C_pad[%h * 16 + %j] = 0.0
      }
      for %ax1 in 0..2 {
        for %ax2 in 0..4 {
          %A_pad[%ax1 * 4 + %ax2] = %A[%h * 8 + %ax1 * 4 + %ax2]
        }
      }
      for %ax1_1 in 2..4 {
        for %ax2_1 in 0..4 {
          %A_pad[%ax1_1 * 4 + %ax2_1] = 0.0
        }
      }
      for %i in 0..4 {
        for %j_4 in 0..4 {
          for %r in 0..4 {
            %C_pad[%h * 16 + %i * 4 + %j_4] = %C_pad[%h * 16 + %i * 4 + %j_4]
              + %A_pad[%i * 4 + %r] * %B_pad[%h * 16 + %r * 4 + %j_4]
          }
        }
      }
    }
  }
  for %c2 in 0..3 {
    for %c0 in 0..2 {
      for %c1 in 0..2 {
        %C[%c0 * 6 + %c1 * 3 + %c2] = %C_pad[%c0 * 16 + %c1 * 4 + %c2]
      }
    }
  }
}
"""


def test_a_padded_product_of_a_few_elements_has_code_for_x86():
    """LLVM aborts on the vectors that it makes of its scalars itself."""
    server = Target.parse("x86_64-linux-gnu -mcpu=emeraldrapids")
    assert compile_object(parse(PADDED), server, Options(cache=False))
