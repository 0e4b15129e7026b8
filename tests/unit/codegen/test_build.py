"""Building and calling: arguments of every wrong kind, files, C programs, other frameworks."""

import ctypes
import shutil
import subprocess
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from tilewright import runtime, te
from tilewright.base.errors import TilewrightError, Unsupported, UserError, UserTypeError
from tilewright.base.target import Target
from tilewright.codegen.build import build, compile_object, load_object, lower_for
from tilewright.codegen.externs import register_extern
from tilewright.runtime.library import load_library
from tilewright.runtime.saved import load
from tilewright.sym import ZERO
from tilewright.tensor import Schedule, parse
from tilewright.tensor.assembly import Assembly, assembly_of, with_assembly
from tilewright.tensor.ir import Store

SCALE = """
func @scale(%x: f32[n, 4], %y: f32[n, 4]) stage flat {
  for %i in parallel 0..n {
    for %j in 0..4 {
      %y[%i, %j] = %x[%i, %j] * 2
    }
  }
}"""


@pytest.fixture(scope="module")
def scale():
    return build(parse(SCALE))


def arrays(n=3):
    x = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
    return x, np.zeros_like(x)


# --------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        (lambda x, y: (x.astype(np.float64), y), "TW4001", UserTypeError),
        (lambda x, y: (x[0], y), "TW4002", UserError),
        (lambda x, y: (x, y[:2].copy()), "TW4003", UserError),
        (lambda x, y: (x[:, :3].copy(), y), "TW4003", UserError),
        (lambda x, y: (np.asfortranarray(x), y), "TW4004", UserError),
        (lambda x, y: (x[::-1], y), "TW4004", UserError),
        (lambda x, y: (x, x), "TW4008", UserError),
        (lambda x, y: (x,), "TW4009", UserTypeError),
        (lambda x, y: (x, y, y), "TW4009", UserTypeError),
        (lambda x, y: ([1.0, 2.0], y), "TW4010", UserTypeError),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_written(scale, change, code, kind):
    x, y = arrays()
    with pytest.raises(kind) as caught:
        scale(*change(x, y))
    assert caught.value.code == code
    assert (y == 0).all()


def test_a_read_only_output_is_refused(scale):
    x, y = arrays()
    y.flags.writeable = False
    with pytest.raises(UserError) as caught:
        scale(x, y)
    assert caught.value.code == "TW4006"


def test_a_misaligned_array_is_refused(scale):
    x, y = arrays()
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    with pytest.raises(UserError) as caught:
        scale(raw.view(np.float32).reshape(x.shape), y)
    assert caught.value.code == "TW4007"


def test_arrays_of_no_elements_are_fine(scale):
    scale(*arrays(0))


def test_dimensions_that_are_expressions_are_checked():
    run = build(
        parse(
            """
            func @pairs(%x: f32[n], %y: f32[n * 2 + 1]) stage flat {
              for %i in 0..n {
                %y[%i * 2] = %x[%i]
              }
            }"""
        )
    )
    x = np.ones(3, np.float32)
    run(x, np.zeros(7, np.float32))
    with pytest.raises(UserError) as caught:
        run(x, np.zeros(6, np.float32))
    assert caught.value.message == "pairs: argument y: dimension 0 is 6, expected 7"


def test_requirements_are_checked_at_entry():
    run = build(
        parse(
            """
            func @f(%x: f32[n], %y: f32[m]) stage flat {
              require m <= n
              for %i in 0..m {
                %y[%i] = %x[%i]
              }
            }"""
        )
    )
    run(np.zeros(4, np.float32), np.zeros(3, np.float32))
    with pytest.raises(UserError) as caught:
        run(np.zeros(3, np.float32), np.zeros(4, np.float32))
    assert caught.value.message == "f: the requirement m <= n does not hold (m = 4, n = 3)"
    assert caught.value.code == "TW4012"


def test_scratch_that_cannot_be_had_is_an_error():
    run = build(
        parse(
            """
            func @f(%x: f32[n], k: index) stage flat {
              alloc %huge: f32[k * k * k]
              for %i in 0..n {
                %huge[%i] = %x[%i]
                %x[%i] = %huge[%i]
              }
            }"""
        )
    )
    x = np.zeros(3, np.float32)
    for k in (2, 10):  # these leave blocks behind that must not pass for a larger one
        run(x, k)
    for k in (1 << 20, 1 << 22, 1 << 40):  # too much, and products that overflow
        with pytest.raises(MemoryError):
            run(x, k)


# --------------------------------------------------------------------------- callers


def test_arrays_of_other_kinds(scale):
    x, y = arrays()
    mine = runtime.empty((3, 4), "f32")
    scale(x, mine)
    np.testing.assert_array_equal(np.asarray(mine), x * 2)
    scale(mine, y)
    np.testing.assert_array_equal(y, x * 4)


def test_torch_tensors_come_in_and_go_out_through_dlpack(scale):
    torch = pytest.importorskip("torch")
    x, y = torch.ones(5, 4), torch.zeros(5, 4)
    scale(x, y)
    assert bool((y == 2).all())


def test_several_threads_call_at_once(scale):
    results = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((257, 4)).astype(np.float32)
        y = np.zeros_like(x)
        for _ in range(50):
            scale(x, y, threads=1 + seed % 3)
        results.append(bool((y == x * 2).all()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_the_profiler_sees_calls(scale):
    with runtime.profile() as seen:
        scale(*arrays())
    assert [event.kernel for event in seen.events] == ["scale"]


# --------------------------------------------------------------------------- files


def test_text_and_object_files(scale, tmp_path):
    assert "define" in scale.save(tmp_path / "scale.ll").read_text()
    assert "scale" in scale.save(tmp_path / "scale.s").read_text()
    assert scale.save(tmp_path / "scale.o").read_bytes() == scale.image
    assert "int32_t scale(" in scale.save(tmp_path / "scale.h").read_text()


needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@needs_compiler
def test_a_saved_library_is_loaded_again(scale, tmp_path):
    library = load_library(scale.save(tmp_path / "scale.so"))
    x, y = arrays()
    library["scale"](x, y)
    np.testing.assert_array_equal(y, x * 2)
    library["scale"](x, y, threads=2)
    assert library["scale"].signature == scale.signature
    with pytest.raises(UserError) as caught:
        library["scale"](x, y[:1])
    assert caught.value.code == "TW4003"


@needs_compiler
def test_a_librarys_own_errors_reach_python(tmp_path):
    program = "func @f(%x: f32[n]) stage flat { require n % 2 == 0 %x[0] = 1 }"
    library = load_library(build(parse(program)).save(tmp_path / "f.so"))
    with pytest.raises(UserError) as caught:
        library["f"](np.zeros(3, np.float32))
    assert "the requirement n % 2 == 0 does not hold (n = 3)" in caught.value.message


MAIN = """
#include <stdio.h>
#include "scale.h"
int main(void) {
  float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[8] = {0};
  int64_t shape[2] = {2, 4};
  DLTensor tx = {x, {1, 0}, 2, {2, 32, 1}, shape, 0, 0}, ty = tx;
  ty.data = y;
  const DLTensor *args[2] = {&tx, &ty};
  if (scale(args, 2)) return 1;
  for (int i = 0; i < 8; ++i) if (y[i] != 2 * x[i]) return 2;
  shape[1] = 3;
  if (scale(args, 2) == 0) return 3;
  puts(tw_last_error());
  return 0;
}
"""


@needs_compiler
def test_a_c_program_calls_a_saved_library_without_python(scale, tmp_path):
    scale.save(tmp_path / "scale.so")
    (tmp_path / "main.c").write_text(MAIN)
    command = ["cc", "-Wall", "-Werror", "main.c", "./scale.so", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == "scale: argument x: dimension 1 is 3, expected 4\n"
    linked = subprocess.run(["ldd", tmp_path / "main"], capture_output=True, text=True).stdout
    assert "python" not in linked


def test_a_failed_link_leaves_no_file(scale, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "false")
    with pytest.raises(UserError) as caught:
        scale.save(tmp_path / "scale.so")
    assert caught.value.code == "TW3031"
    assert not list(tmp_path.glob("scale*"))


@pytest.mark.parametrize("command", ["no-such-compiler", " ", "cc 'half"])
def test_a_compiler_that_is_not_there_is_named(scale, tmp_path, monkeypatch, command):
    monkeypatch.setenv("CC", command)
    with pytest.raises(UserError, match="names no program") as caught:
        scale.save(tmp_path / "scale.so")
    assert caught.value.code == "TW3030"


# --------------------------------------------------------------------------- leaving the language


def test_an_external_kernel_is_called_with_regions():
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int32)
    def kernel(args, count):
        seen.append(count)
        fields = ctypes.cast(args[1], ctypes.POINTER(ctypes.c_void_p))
        ctypes.cast(fields[0], ctypes.POINTER(ctypes.c_float))[0] = 42.0
        return 0

    register_extern("test_kernel", kernel)
    run = build(
        parse(
            """
            func @f(%x: f32[n, 4], %y: f32[n, 4]) stage flat {
              for %i in 0..n {
                extern test_kernel(%x[%i, 0 +: 4]) -> (%y[%i, 2 +: 2])
              }
            }"""
        )
    )
    x, y = arrays(2)
    run(x, y)
    assert seen == [2, 2]
    np.testing.assert_array_equal(y[:, 2], [42.0, 42.0])


def test_an_external_kernels_code_stops_the_function():
    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
    def kernel(args, count):
        return 101

    register_extern("failing_kernel", kernel)
    program = """
    func @f(%x: f32[4], %y: f32[4]) stage flat {
      extern failing_kernel(%x[0 +: 4]) -> (%y[0 +: 4])
      %y[0] = 1
    }"""
    y = np.zeros(4, np.float32)
    with pytest.raises(TilewrightError):
        build(parse(program))(np.zeros(4, np.float32), y)
    assert y[0] == 0


def test_llvm_intrinsics_are_called_by_name():
    program = """
    func @f(%x: i32[8], %y: i32[8]) stage flat {
      %y[ramp(0, 1, 8)] = llvm.bitreverse.v8i32:i32x8(%x[ramp(0, 1, 8)])
    }"""
    x = np.arange(8, dtype=np.int32)
    y = np.zeros_like(x)
    build(parse(program))(x, y)
    want = [int(f"{v:032b}"[::-1], 2) for v in x]
    np.testing.assert_array_equal(y.view(np.uint32), np.array(want, np.uint32))


ADD_ONE = {"x86_64": "leal 1(${1:k}), ${0:k}", "aarch64": "add ${0:w}, ${1:w}, #1"}


def add_one() -> Assembly:
    arch = Target.host().arch
    if arch not in ADD_ONE:
        pytest.skip(f"no assembly for {arch} here")
    return Assembly("add_one", ADD_ONE[arch], "=r,r", has_effects=False)


def test_inline_assembly_is_part_of_the_program():
    program = "func @f(%x: i32[1], %y: i32[1]) stage flat { %y[0] = asm.add_one:i32(%x[0]) }"
    fn = with_assembly(parse(program), add_one())
    assert parse(str(fn)) == fn
    assert assembly_of(fn) == {"asm.add_one": add_one()}
    y = np.zeros(1, np.int32)
    build(fn, "cpu")(np.array([41], np.int32), y)
    assert y[0] == 42


def test_an_intrinsic_brings_its_assembly_along():
    x = te.placeholder((1,), "i32", name="x")
    y = te.compute((1,), lambda i: x[i] + 1, name="y")

    def lower(inputs, outputs):
        (source,), (target,) = inputs, outputs
        value = te.hardware_intrin("asm.add_one", source[0], dtype="i32")
        return Store(target.buffer, (ZERO,), value)

    intrin = te.decl_tensor_intrin(y.op, lower, name="asm_test_add", assembly=[add_one()])
    sch = Schedule(te.function([x, y], name="f"))
    (i,) = sch.get_loops(sch.get_block("y"))
    sch.tensorize(i, intrin)
    made = lower_for(sch.function, Target.parse("cpu"))
    assert dict(made.attrs).keys() >= {"asm.add_one"}
    out = np.zeros(1, np.int32)
    build(sch.function, "cpu")(np.array([41], np.int32), out)
    assert out[0] == 42


def test_prefetching_changes_nothing():
    program = """
    func @f(%x: f32[n], %y: f32[n]) stage flat {
      for %i in 0..n {
        eval prefetch(address(%x[%i + 8]))
        %y[%i] = %x[%i]
      }
    }"""
    x = np.arange(20, dtype=np.float32)
    y = np.zeros_like(x)
    build(parse(program))(x, y)
    np.testing.assert_array_equal(x, y)


def test_a_loop_of_prefetches_stays_a_loop():
    program = """
    func @f(%x: f32[64], n: index) stage flat {
      for %i in 0..n {
        if %i < 64 { eval prefetch(address(%x[%i])) }
      }
    }"""
    made = compile_object(parse(program), Target.parse("x86_64-linux-gnu -mcpu=haswell"))
    assert made.count(b"\x0f\x18") == 1  # the opcode


def test_a_condition_that_keeps_a_prefetch_from_dividing_by_zero_stays_a_branch():
    program = """
    func @f(%x: f32[64], %y: f32[n], m: index) stage flat {
      for %i in 0..n {
        if 0 < m { eval prefetch(address(%x[%i // m])) }
        %y[%i] = 1.0
      }
    }"""
    y = np.zeros(9, np.float32)
    build(parse(program))(np.zeros(64, np.float32), y, 0)
    assert y.sum() == 9


# --------------------------------------------------------------------------- refusals


def test_thread_loops_are_refused_on_a_cpu():
    program = """
    func @f(%x: f32[4]) stage flat {
      for %i in thread(threadIdx.x) 0..4 {
        %x[%i] = 0
      }
    }"""
    with pytest.raises(Unsupported) as caught:
        build(parse(program))
    assert caught.value.code == "TW3010"
    assert caught.value.message == "loop %i of kind thread has no meaning on a CPU"


def test_code_for_another_machine_is_saved_not_called(tmp_path):
    run = build(parse(SCALE), "riscv64-linux-gnu -mattr=+v")
    with pytest.raises(UserError) as caught:
        run(*arrays())
    assert caught.value.message == (
        "@scale is compiled for riscv64-linux-gnu -mattr=+v, which is not this machine"
    )
    assert run.save(tmp_path / "scale.o").read_bytes()[:4] == b"\x7fELF"


# --------------------------------------------------------------------------- processes


def test_objects_compiled_in_another_process_are_loaded_here():
    fn = parse(SCALE)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        image = pool.submit(compile_object, fn, Target.host()).result()
    x, y = arrays()
    load_object(fn, Target.host(), image)(x, y)
    np.testing.assert_array_equal(y, x * 2)


@needs_compiler
def test_load_gives_the_only_function(scale, tmp_path):
    x, y = arrays()
    load(scale.save(tmp_path / "scale.so"))(x, y)
    np.testing.assert_array_equal(y, x * 2)
