"""Code for NVIDIA GPUs, on machines without one: PTX, its assembler, launches, checks."""

import importlib.util
import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.codegen.cuda import CudaFunction
from tilewright.codegen.nvptx import device_code
from tilewright.intrin import hopper
from tilewright.tensor import parse
from tilewright.tensor.passes import lower as tensor_lower

sys.path.insert(0, str(Path(__file__).parent))
from host_gpu import assembled

SM90 = "cuda -arch=sm_90a"
EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu_matmul, gpu_wgmma = example("gpu_matmul"), example("gpu_wgmma")


def cooperative(n):
    return tw.build(gpu_matmul.cooperative(gpu_matmul.matmul(n)).function, target="cuda")


def by_warpgroups(n):
    function = gpu_wgmma.scheduled(gpu_wgmma.matmul(n)).function
    return tw.build(function, target="cuda -arch=sm_90a")


def in_order(text, *patterns):
    """Whether the patterns are found one after another."""
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        assert found, f"no {pattern} after position {at}"
        at = found.end()


def test_a_cooperative_product_fetches_waits_and_multiplies():
    built = cooperative(1024)
    assert isinstance(built, CudaFunction)
    in_order(
        built.ptx,
        r"\.target sm_90a",
        r"\.visible \.entry matmul_0\(",
        r"\.maxntid 256",
        r"\.shared \.align 128 \.b8 \S+\[4096\]",
        r"bar(rier\.cta)?\.sync",  # what was fetched before is used up
        r"ld\.global",
        r"st\.shared",
        r"bar(rier\.cta)?\.sync",
        r"ld\.shared",
        r"fma\.rn\.f32",
        r"st\.global",
    )
    assert ".local" not in built.ptx  # accumulators are registers


def test_a_product_by_warpgroups_fences_waits_and_multiplies():
    ptx = by_warpgroups(1024).ptx
    in_order(
        ptx,
        r"\.target sm_90a",
        r"\.maxntid 256",
        r"st\.shared",
        r"fence\.proxy\.async\.shared::cta",
        r"bar(rier\.cta)?\.sync",
        r"wgmma\.fence\.sync\.aligned",
        r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.bf16\.bf16",
        r"wgmma\.commit_group\.sync\.aligned",
        r"wgmma\.wait_group\.sync\.aligned 0",
        r"st\.global",
    )
    assert ptx.count("wgmma.mma_async") == 2  # the steps of one fetch
    assert ".local" not in ptx


@pytest.mark.slow
@pytest.mark.parametrize("n", [1024, 1000])
@pytest.mark.parametrize("make", [cooperative, by_warpgroups])
def test_the_assembler_finds_no_fault_and_spills_nothing(make, n):
    told = assembled(make(n).ptx)
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in told


@pytest.mark.parametrize(
    ("make", "n", "grid", "block"),
    [
        (cooperative, 1024, (16, 16, 1), (16, 16, 1)),
        (cooperative, 1000, (16, 16, 1), (16, 16, 1)),
        (cooperative, 65, (2, 2, 1), (16, 16, 1)),
        (by_warpgroups, 1024, (16, 8, 1), (128, 2, 1)),
        (by_warpgroups, 1000, (16, 8, 1), (128, 2, 1)),
        (by_warpgroups, 129, (3, 2, 1), (128, 2, 1)),
    ],
)
def test_a_launch_covers_the_result(make, n, grid, block):
    (kernel,) = make(n).kernels
    assert tuple(int(str(dim)) for dim in kernel.grid) == grid
    assert tuple(int(str(dim)) for dim in kernel.block) == block


class Launches:
    """A module that notes what it is asked to launch."""

    def __init__(self):
        self.seen = []

    def launch(self, name, grid, block, arguments, shared_bytes=0, stream=0, **how):
        assert not any(how.values())  # no early start, no blocks that wait for each other
        self.seen.append((name, grid, block, arguments[3:]))


@pytest.mark.parametrize(("n", "blocks"), [(64, 1), (65, 2), (1000, 16)])
def test_a_launch_follows_the_size_of_the_arguments(n, blocks, monkeypatch):
    run = cooperative(te.var("n"))
    run._module = Launches()
    monkeypatch.setattr("tilewright.runtime.cuda.to_device", lambda array, stream: tw.array(array))
    monkeypatch.setattr("tilewright.runtime.cuda.to_host", lambda source, target, stream: target)
    run(*(np.zeros((n, n), np.float32) for _ in "abc"))
    assert run._module.seen == [("matmul_0", (blocks, blocks, 1), (16, 16, 1), [n])]


def test_an_empty_result_launches_nothing(monkeypatch):
    run = cooperative(te.var("n"))
    run._module = Launches()
    monkeypatch.setattr("tilewright.runtime.cuda.to_device", lambda array, stream: tw.array(array))
    monkeypatch.setattr("tilewright.runtime.cuda.to_host", lambda source, target, stream: target)
    run(*(np.zeros((0, 0), np.float32) for _ in "abc"))
    assert run._module.seen == []


def wrong(run, *args):
    with pytest.raises(TilewrightError) as caught:
        run(*args)
    return caught.value.code


def test_arguments_are_checked_before_the_gpu_is_asked():
    run = cooperative(te.var("n"))
    a, b, c = (np.zeros((8, 8), np.float32) for _ in "abc")
    read_only = c.copy()
    read_only.flags.writeable = False
    assert wrong(run, a, b) == "TW4009"
    assert wrong(run, a, b[0], c) == "TW4002"
    assert wrong(run, a, b[:4], c) == "TW4003"
    assert wrong(run, a, b.astype(np.float64), c) == "TW4001"
    assert wrong(run, a, b, read_only) == "TW4006"
    assert wrong(run, a, tw.array(b), c) == "TW4005"
    assert wrong(by_warpgroups(72), a, b, c) == "TW4003"


def test_without_a_driver_running_says_so():
    if tw.runtime.cuda.is_available():
        pytest.skip("there is a GPU")
    run = by_warpgroups(72)
    a, b = (np.zeros((72, 72), ml_dtypes.bfloat16) for _ in "ab")
    assert wrong(run, a, b, np.zeros((72, 72), np.float32)) in ("TW4020", "TW4021")


def too_much(scope, bytes_):
    return parse(
        f"""
        func @f(%x: u8[32]) stage device {{
          for %b in thread(blockIdx.x) 0..1 {{
            alloc %t: u8[{bytes_}] in {scope}
            for %i in thread(threadIdx.x) 0..32 {{
              %t[%i] = %x[%i]
              eval barrier.shared()
              %x[%i] = %t[31 - %i]
            }}
          }}
        }}
        """
    )


@pytest.mark.parametrize(("scope", "most"), [("shared", 48 << 10), (hopper.TILE_SCOPE, 227 << 10)])
def test_more_shared_memory_than_a_block_has_is_refused_before_a_driver_sees_it(scope, most):
    device_code(too_much(scope, most), "cuda -arch=sm_90a")
    with pytest.raises(Unsupported, match=r"TW2219.*f_0 takes .* 49152, and 232448 together"):
        device_code(too_much(scope, most + 1), "cuda -arch=sm_90a")


def test_what_a_thread_has_no_room_for_is_refused():
    """No runtime gives a kernel memory, and the driver would refuse a call of one."""
    text = """func @f(%A: f32[n], %B: f32[32]) stage device {
      for %t in thread(threadIdx.x) 0..32 {
        alloc %T: f32[n] in local
        %T[%t] = %A[%t]
        %B[%t] = %T[0]
      }
    }"""
    with pytest.raises(Unsupported, match="own memory") as caught:
        device_code(parse(text), "cuda -arch=sm_90a")
    assert caught.value.code == "TW2219"


def padded(of, lanes=1, edge="0.0"):
    """y[i] = x[i - 1] inside of x, else a constant; and the PTX of it."""
    at = f"%b * {32 * lanes} + %t * {lanes}"
    loop = f"for %l in vector 0..{lanes} {{" if lanes > 1 else "{"
    lane = " + %l" if lanes > 1 else ""
    text = f"""
    func @padded(%x: {of}[1024], %y: {of}[1024]) stage scheduled {{
      for %b in thread(blockIdx.x) 0..{1024 // 32 // lanes} {{
        for %t in thread(threadIdx.x) 0..32 {{
          {loop}
            %y[{at}{lane}] = select({lanes} <= {at}, %x[{at}{lane} - {lanes}], {edge})
          }}
        }}
      }}
    }}
    """
    device = tensor_lower(parse(text), "gpu", PassContext(target=Target.parse(SM90)))
    return device_code(device, SM90).ptx


@pytest.mark.parametrize(
    ("of", "lanes", "load"),
    [
        ("f32", 1, "b32"),
        ("f32", 4, "v4.b32"),
        ("f16", 1, "b16"),
        ("f16", 2, "b32"),
        ("bf16", 8, "v4.b32"),
        ("i8", 8, "v2.b32"),
        ("f64", 1, "v2.b32"),
    ],
)
def test_a_load_for_a_part_of_the_threads_is_predicated(of, lanes, load):
    """Behind a branch, a second load would wait for the first."""
    ptx = padded(of, lanes=lanes, edge="0" if of == "i8" else "0.0")
    assert re.search(rf"@%p\d+ ld\.global\.{load}", ptx)
    assert "bra" not in ptx
    assert "selp" not in ptx  # what is not loaded is zero
    assembled(ptx)


GUARDED = """
func @f(%x: f32[300], %y: f32[300]) stage device {
  for %b in thread(blockIdx.x) 0..3 {
    for %t in thread(threadIdx.x) 0..128 {
      if %b * 128 + %t < 300 {
        %y[%b * 128 + %t] = %x[%b * 128 + %t] * 2.0
      }
    }
  }
}
"""
TWICE = GUARDED.replace("* 2.0\n", "* 2.0\n        %y[%b * 128 + %t] = %y[%b * 128 + %t] + 1.0\n")


def test_a_guarded_store_is_predicated():
    """Behind a branch, what is stored would be computed there, whose operands wait."""
    ptx = device_code(parse(GUARDED), SM90).ptx
    assert re.search(r"@%p\d+ st\.global\.b32", ptx)
    assert re.search(r"@%p\d+ ld\.global\.b32", ptx)
    assert "bra" not in ptx
    assembled(ptx)


def test_guards_of_more_than_a_store_are_branches():
    ptx = device_code(parse(TWICE), SM90).ptx
    assert "bra" in ptx
    assert "@%p1 st" not in ptx


def guarded(of, value, at=""):
    """The PTX of y[i + at] = value for i < 300, of two inputs and a thread's own values."""
    text = f"""
    func @guarded(%x: {of}[300], %z: {of}[300], %y: {of}[300], %n: index) stage scheduled {{
      for %b in thread(blockIdx.x) 0..3 {{
        for %t in thread(threadIdx.x) 0..32 {{
          alloc %own: {of}[4] in local
          %own[0] = %x[0]
          if %b * 128 + %t * 4 < 300 {{
            for %l in vector 0..4 {{
              %y[%b * 128 + %t * 4 + %l{at}] = {value}
            }}
          }}
        }}
      }}
    }}
    """
    device = tensor_lower(parse(text), "gpu", PassContext(target=Target.parse(SM90)))
    return device_code(device, SM90).ptx


@pytest.mark.parametrize(
    ("of", "value", "store"),
    [
        ("bool", "%x[%b * 128 + %t * 4 + %l] < %z[%b * 128 + %t * 4 + %l]", "b32"),
        ("i4", "%x[%b * 128 + %t * 4 + %l] + %z[%b * 128 + %t * 4 + %l]", "b32"),
        ("f32", "%own[0] * %x[%b * 128 + %t * 4 + %l]", "v4.b32"),
    ],
)
def test_a_guarded_store_has_the_form_of_memory(of, value, store):
    ptx = guarded(of, value)
    assert re.search(rf"@%p\d+ st\.global\.{store}", ptx)
    assert "bra" not in ptx
    assembled(ptx)


@pytest.mark.parametrize(
    ("value", "at"),
    [
        ("%x[%b * 128 + %t * 4 + %l]", " + 4 * (%b // %n)"),
        ("%x[(%b // %n) * 128 + %t * 4 + %l]", ""),
        ("%own[%b * 128 + %t * 4 + %l]", ""),
    ],
)
def test_long_arithmetic_and_dynamic_registers_stay_behind_the_branch(value, at):
    ptx = guarded("f32", value, at)
    assert "bra" in ptx
    assert not re.search(r"@%p\d+ st\.global", ptx)
    assembled(ptx)


def test_what_is_no_zero_is_selected():
    ptx = padded("f32", edge="-1.0")
    assert re.search(r"@%p\d+ ld\.global", ptx)
    assert "selp" in ptx
    assert "selp" in padded("f32", edge="-0.0")
    assembled(ptx)


def test_a_load_of_more_than_one_access_is_branched_around():
    ptx = padded("f32", lanes=8)
    assert "bra" in ptx
    assembled(ptx)
