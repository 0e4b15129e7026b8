"""Kernels of the simulators: declared steps over memories, in turn."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.accel.declared import STEPS
from tilewright.accel.device import describe, load
from tilewright.accel.isa import parse as parse_stream
from tilewright.accel.isa.table import REQUANTIZING
from tilewright.accel.kernels import kernel_function, load_kernels, scheduled_kernel
from tilewright.base.errors import UserError
from tilewright.base.geometry import Geometry
from tilewright.base.target import Target
from tilewright.runtime.accel import Accelerator
from tilewright.tensor import parse, verify

G = Geometry(2, 4, 8, inp_bytes=2048, wgt_bytes=4096, acc_bytes=8192, uop_bytes=512)
DEEP = Geometry(1, 32, 4)  # where rows of weights are two instructions long
ENTRIES, COUNT = 12, 30
HOSTS = {
    "x86_64-linux-gnu -mcpu=haswell": "vpmaddwd",
    "aarch64-linux-gnu -mcpu=neoverse-n1": "sdot",
}


def arguments(name, g, random):
    """Memories, then tables whose steps read what earlier ones wrote."""

    def numbers(*shape, of=np.int32):
        kind = np.iinfo(of)
        return random.integers(kind.min, kind.max, shape, endpoint=True).astype(of)

    acc = numbers(ENTRIES, g.batch, g.block_out)
    if name == "gemm":
        inp, wgt = (numbers(ENTRIES, *shape, of=np.int8) for shape in (
            (g.batch, g.block_in), (g.block_out, g.block_in)))  # fmt: skip
        chains = random.integers(0, ENTRIES // 2, (COUNT, 3))
        first = random.integers(0, 2, (COUNT, 1))
        return [inp, wgt, chains, first, random.integers(0, ENTRIES // 2, (5, 2)), acc]
    steps = random.integers(0, ENTRIES - 2, (COUNT, 3))
    limits = [np.array([one], np.int32) for one in (5, -100, 90)] if name in REQUANTIZING else []
    out = [numbers(ENTRIES, g.batch, g.block_out, of=np.int8)] if name == "requant" else []
    return [acc, *out, *limits, steps]


@pytest.mark.parametrize("geometry", [G, DEEP], ids=["small", "deep"])
@pytest.mark.parametrize("name", STEPS)
def test_native_code_does_what_the_interpreter_does(name, geometry):
    given = arguments(name, geometry, np.random.default_rng(STEPS.index(name)))
    want, got = ([one.copy() for one in given] for _ in range(2))
    tw.interpret(kernel_function(name, geometry), *want)
    load_kernels(geometry)[STEPS.index(name)](*got)
    for before, one, other in zip(given, want, got, strict=True):
        np.testing.assert_array_equal(one, other)
        assert before.dtype != np.int64 or np.array_equal(before, other)


def test_a_chain_that_begins_anew_forgets_what_was_there():
    kernel = load_kernels(DEEP)[0]
    inp, wgt = np.ones((1, 1, 32), np.int8), np.ones((1, 4, 32), np.int8)
    acc, chains = np.full((1, 1, 4), 7, np.int32), np.zeros((3, 3), np.int64)
    kernel(inp, wgt, chains, np.array([[0], [1], [0]]), np.zeros((2, 2), np.int64), acc)
    assert acc.tolist() == [[[128] * 4]]


@pytest.mark.parametrize("name", STEPS)
def test_kernels_are_text(name):
    fn = kernel_function(name, G)
    verify(fn)
    assert parse(str(fn)) == fn


@pytest.mark.parametrize("host", HOSTS)
def test_products_of_rows_are_instructions(host):
    target = Target.parse(host)
    made = tw.build(scheduled_kernel("gemm", Geometry(), target), target)
    assert made.assembly.count(HOSTS[host]) >= Geometry().block_out


def test_kernels_do_not_depend_on_sizes_of_memories():
    assert load_kernels(Geometry()) is load_kernels(Geometry(acc_bytes=1 << 16, bus_bits=128))


def test_a_simulator_without_kernels_says_so():
    stream = parse_stream(
        f"""target "vta-sim {G.options}"
        buffer x: in {G.entry_bytes()["inp"]} buffer w: in {G.entry_bytes()["wgt"]}
        buffer y: out {4 * G.batch * G.block_out} buffer code: uop 8 uop
        aux push=gemm fmt=uop base=code load fmt=inp base=x load push=gemm fmt=wgt base=w
        gemm pop=load,aux push=store uend=1 init=1 store pop=gemm fmt=acc base=y finish"""
    )
    device = Accelerator(describe(G), "functional")
    given = {"x": np.ones(8, np.int8), "w": np.ones(32, np.int8)}
    load(device, stream, given).start()
    with pytest.raises(UserError) as caught:
        device.wait()
    assert caught.value.code == "TW7033"
    assert "no kernels" in caught.value.message
