"""GEMM on Hopper without a GPU: behaviour interpreted, PTX assembled, roles shown."""

import re
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import UserError
from tilewright.intrin import hopper
from tilewright.rules import schedule
from tilewright.tensor.intrin import intrinsic
from tilewright.tensor.passes import lower

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
TARGET = "cuda -arch=sm_90a"


def gemm(m, n, k, dtype="bf16", rounded=True):
    A = te.placeholder((m, k), dtype, name="A")
    B = te.placeholder((n, k), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(A[i, r], "f32") * te.cast(B[j, r], "f32"), axis=r),
        name="C",
    )
    if not rounded:
        return te.function([A, B, C], name="gemm")
    D = te.compute((m, n), lambda i, j: te.cast(C[i, j], dtype), name="D")
    return te.function([A, B, D], name="gemm")


def planned(m, n, k, dtype="bf16", rounded=True):
    made = schedule(gemm(m, n, k, dtype, rounded), TARGET)
    assert [decision.rule for decision in made.decisions] == ["gemm_hopper"]
    return made.schedule.function


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rounded", [True, False])
def test_the_schedule_computes_what_numpy_does(dtype, rounded):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 128)).astype(TYPES[dtype]) for rows in (128, 192))
    want = a.astype(np.float32) @ b.astype(np.float32).T
    out = np.zeros((128, 192), TYPES[dtype] if rounded else np.float32)
    tw.interpret(planned(128, 192, 128, dtype, rounded), a, b, out)
    tolerance = 1e-2 if rounded else 1e-5
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=tolerance, atol=50 * tolerance)


def test_roles_wait_for_each_other():
    text = str(lower(planned(512, 512, 256), "gpu"))
    consumer, producer = text.split("} else {")
    ring = int(re.search(r"mbarrier.init:bool\(address\(%full\[0\]\), (\d+), 1\)", text)[1])
    assert 2 <= ring <= 6
    assert consumer.index("mbarrier.wait:bool(address(%full") < consumer.index("wgmma.tile")
    assert consumer.index("wgmma.tile") < consumer.index("mbarrier.arrive:bool(address(%empty")
    assert consumer.index("mbarrier.arrive") < consumer.index("wgmma.round")
    assert producer.index("mbarrier.wait:bool(address(%empty") < producer.index("mbarrier.expect")
    assert producer.index("mbarrier.expect") < producer.index("tma.load")
    assert "tma.load" not in consumer
    assert "wgmma" not in producer


def test_the_producer_expects_every_byte_that_is_copied():
    text = str(lower(planned(512, 512, 256), "gpu"))
    expected = int(re.search(r"mbarrier.expect:bool\(address\(%full\[[^]]*\]\), (\d+)\)", text)[1])
    rows = [int(found) for found in re.findall(r"tma\.load:bool\(.*?\]\), (\d+), address", text)]
    assert expected == sum(rows) * hopper.ROW_BYTES


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (2048, 2048, 2048), (128, 4096, 4096)])
def test_blocks_stay_for_all_tiles(shape):
    (kernel,) = tw.build(planned(*shape), TARGET).kernels
    grid, block = (tuple(int(str(dim)) for dim in dims) for dims in (kernel.grid, kernel.block))
    assert grid[0] <= 132
    assert block[0] == 128
    assert len(kernel.maps) == 2
    assert kernel.shared_bytes > 48 * 1024


def test_the_code_has_what_hopper_needs():
    ptx = tw.build(planned(512, 512, 256), TARGET).ptx
    for wanted in (
        r"\.extern \.shared \.align 1024",
        r"\.maxntid 384|\.maxntid 256",
        r"\.minnctapersm 1",
        r"mbarrier\.init\.shared",
        r"mbarrier\.try_wait\.parity",
        r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile",
        r"setmaxnreg\.inc",
        r"setmaxnreg\.dec",
        r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.bf16\.bf16",
        r"cvt\.rn\.bf16x2\.f32",
    ):
        assert re.search(wanted, ptx), wanted
    assert not re.search(r"^\s*call", ptx, re.MULTILINE)  # names that LLVM does not know
    assert ".local" not in ptx


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_the_assembler_finds_no_fault_and_spills_nothing(dtype, tmp_path):
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not installed (it comes with NVIDIA's CUDA toolkit)")
    source = tmp_path / "kernel.ptx"
    source.write_text(tw.build(planned(4096, 4096, 4096, dtype), TARGET).ptx)
    done = subprocess.run(
        ["ptxas", "-arch=sm_90a", "-v", source, "-o", tmp_path / "kernel.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    for trouble in ("serialized", "setmaxnreg", "C75"):
        assert trouble not in done.stderr


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width_is_declared(n):
    behavior = hopper.dot_of("bf16", n).behavior
    assert [str(dim) for dim in behavior.buffers[2].shape] == ["64", str(n)]


@pytest.mark.parametrize(
    ("name", "parameters", "code"),
    [
        ("wgmma_bf16", {"n": 12}, "TW2011"),
        ("wgmma_bf16", {"n": 264}, "TW2011"),
        ("tma_load_bf16", {"rows": 7}, "TW2011"),
        ("wgmma_f64", {"n": 64}, "TW2010"),
    ],
)
def test_what_the_hardware_does_not_have_is_not_declared(name, parameters, code):
    with pytest.raises(UserError) as caught:
        intrinsic(name, **parameters)
    assert caught.value.code == code


def test_sizes_that_no_tile_divides_go_elsewhere():
    made = schedule(gemm(100, 90, 70), TARGET)
    assert made.decisions[0].rule == "gemm"


def test_older_gpus_go_elsewhere():
    made = schedule(gemm(512, 512, 256), "cuda -arch=sm_80")
    assert made.decisions[0].rule != "gemm_hopper"
