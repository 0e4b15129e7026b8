"""Adapters: any kernel of a job behind one signature."""

from __future__ import annotations

import ctypes

import numpy as np

from tilewright.base.target import Target
from tilewright.codegen import jit, llvm
from tilewright.codegen.adapter import adapter_image, adapter_name
from tilewright.codegen.build import new_module
from tilewright.codegen.entry import emit_kernel
from tilewright.tensor import parse
from tilewright.tensor.constants import Given, Packed

SCALE = """
func @scale(%p: f32[4], %x: f32[8], %y: f32[8]) stage flat {
  for %i in 0..8 {
    %y[%i] = %x[%i] * %p[%i % 4]
  }
}
"""


def pointers(*arrays):
    return (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))


def test_arguments_come_from_where_the_kernel_says():
    target = Target.parse("cpu")
    machine = llvm.machine_of(target)
    module = new_module(machine)
    emit_kernel(module, machine, parse(SCALE))
    kernel = llvm.to_object(llvm.parse(module.text()), machine)
    params = (Packed(1), Given(0), Given(2))  # of a job with inputs x and w, and the result y
    adapter = adapter_image("scale", params, 0, target)
    name = adapter_name("scale")
    loaded = jit.load([kernel, adapter], (name,), (), machine)
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)(loaded.addresses[name])
    x, w, y = (np.arange(8, dtype=np.float32) for _ in range(3))
    unused, packed = np.zeros(4, np.float32), np.array([1, 10, 100, 1000], np.float32)
    sizes = (ctypes.c_int64 * 1)()
    assert call(pointers(x, w, y), sizes, pointers(unused, packed)) == 0
    np.testing.assert_array_equal(y, np.arange(8) * np.tile(packed, 2))
