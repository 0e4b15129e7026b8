"""The same kernels on other machines, emulated: AArch64, RISC-V, Arm and WebAssembly."""

import ml_dtypes
import numpy as np
import pytest

from tilewright import te
from tilewright.rules import schedule

TARGETS = [
    pytest.param("aarch64-linux-gnu", marks=pytest.mark.arm),
    pytest.param("aarch64-linux-gnu -mcpu=cortex-a76", marks=pytest.mark.arm),
    pytest.param("arm-linux-gnueabihf", marks=pytest.mark.arm),
    pytest.param("riscv64-linux-gnu", marks=pytest.mark.riscv),
    pytest.param("x86_64-linux-gnu -mcpu=haswell", marks=[pytest.mark.x86, pytest.mark.fuzz]),
    pytest.param("wasm32", marks=pytest.mark.wasm),
]
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("target", TARGETS)]

KERNELS = """
func @kernels(
  %x: f32[n], %at: i32[n], %bytes: i8[n], %half: f16[n], %brain: bf16[n], %small: f8e4m3[n],
  %run: f32[n], %gathered: f32[n], %exps: f32[n], %tanhs: f32[n], %halves: f16[n],
  %brains: bf16[n], %smalls: f8e4m3[n], %dots: i32[n], %divided: i32[n], %rounded: i32[n],
  %A: f32[m, k], %B: f32[k, m], %C: f32[m, m]
) stage flat {
  for %i in parallel 0..(n + 7) // 8 {
    let %m8: boolx8 = ramp(%i * 8, 1, 8) < broadcast(n, 8)
    let %v: f32x8 = masked(%x[ramp(%i * 8, 1, 8)], %m8)
    let %where: i32x8 = masked(%at[ramp(%i * 8, 1, 8)], %m8)
    %run[ramp(%i * 8, 1, 8)] = max(%v, broadcast(f32(0), 8)) where %m8
    %gathered[ramp(%i * 8, 1, 8)] = masked(%x[indexx8(%where)], %m8) where %m8
    %exps[ramp(%i * 8, 1, 8)] = exp(%v) where %m8
    %tanhs[ramp(%i * 8, 1, 8)] = tanh(%v) where %m8
    %divided[ramp(%i * 8, 1, 8)] = (%where - broadcast(i32(9), 8)) // broadcast(i32(4), 8) where %m8
    %rounded[ramp(%i * 8, 1, 8)] = i32x8(%v * broadcast(f32(1e9), 8)) where %m8
    %halves[ramp(%i * 8, 1, 8)] = masked(%half[ramp(%i * 8, 1, 8)], %m8) * f16x8(%v) where %m8
    %brains[ramp(%i * 8, 1, 8)] = masked(%brain[ramp(%i * 8, 1, 8)], %m8) + bf16x8(%v) where %m8
    let %f: f32x8 = f32x8(masked(%small[ramp(%i * 8, 1, 8)], %m8))
    %smalls[ramp(%i * 8, 1, 8)] = f8e4m3x8(%f * %v) where %m8
    let %b: i32x8 = i32x8(masked(%bytes[ramp(%i * 8, 1, 8)], %m8))
    %dots[ramp(%i * 8, 1, 8)] = %b * %b where %m8
  }
  for %y in parallel 0..m {
    alloc %row: f32[m]
    for %z in 0..m {
      %row[%z] = 0
      for %r in 0..k {
        %row[%z] = %row[%z] + %A[%y, %r] * %B[%r, %z]
      }
    }
    for %z in 0..m {
      %C[%y, %z] = %row[%z]
    }
  }
}"""


def test_kernels_run_on_the_other_machine(run_elsewhere, target):
    rng = np.random.default_rng(0)
    n, m, k = 21, 9, 5
    x = rng.standard_normal(n).astype(np.float32)
    at = rng.permutation(n).astype(np.int32)
    eight = rng.integers(-128, 127, n).astype(np.int8)
    half = rng.standard_normal(n).astype(np.float16)
    brain = rng.standard_normal(n).astype(ml_dtypes.bfloat16)
    small = rng.standard_normal(n).astype(ml_dtypes.float8_e4m3fn)
    a = rng.standard_normal((m, k)).astype(np.float32)
    b = rng.standard_normal((k, m)).astype(np.float32)
    inputs = [x, at, eight, half, brain, small]
    want = [
        np.maximum(x, 0),
        x[at],
        np.exp(x),
        np.tanh(x),
        half * x.astype(np.float16),
        brain + x.astype(ml_dtypes.bfloat16),
        (small.astype(np.float32) * x).astype(ml_dtypes.float8_e4m3fn),
        eight.astype(np.int32) ** 2,
        (at - 9) // 4,
        np.clip(np.trunc(x * np.float32(1e9)).astype(np.float64), -(2.0**31), 2.0**31 - 1).astype(
            np.int32
        ),
    ]
    outputs = [np.zeros_like(array) for array in want]
    results = run_elsewhere(KERNELS, target, *inputs, *outputs, a, b, np.zeros((m, m), np.float32))
    for got, expected in zip(results[len(inputs) :], want, strict=False):
        if expected.dtype == np.float32:
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(results[-1], a @ b, rtol=1e-5, atol=1e-6)


def test_transposes_run_on_the_other_machine(run_elsewhere, target):
    a = te.placeholder((2, 20, 28), name="a")
    b = te.compute((2, 28, 20), lambda n, i, j: a[n, j, i], name="b")
    made = schedule(te.function([a, b], name="kernels"), target, threads=2)
    x = np.random.default_rng(0).standard_normal((2, 20, 28)).astype(np.float32)
    out = np.zeros((2, 28, 20), np.float32)
    results = run_elsewhere(str(made.schedule.function), target, x, out)
    np.testing.assert_array_equal(results[-1], x.transpose(0, 2, 1))
