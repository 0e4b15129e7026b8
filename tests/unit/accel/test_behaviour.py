"""What instructions do, one by one, against NumPy or by hand."""

import numpy as np
import pytest

from tilewright.accel.build import Builder
from tilewright.accel.isa import MicroOp, parse
from tilewright.accel.memory import Memory
from tilewright.accel.simulate import prepare, run, simulate
from tilewright.accel.verify import verify
from tilewright.base.errors import ExecutionError, UserError
from tilewright.base.geometry import Geometry

G = Geometry(1, 4, 4, inp_bytes=1024, wgt_bytes=4096, acc_bytes=4096, uop_bytes=512)


def alu(values, code, out=None, size=4, **fields):
    """Run one ALU task over entries that are loaded first, and store some of them."""
    builder = Builder(G)
    values = np.asarray(values, np.int32)
    x = builder.buffer("x", "in", values.nbytes)
    is_requant = fields.get("fn") == "requant"
    y = builder.buffer("y", "out", size * (4 if is_requant else 16))
    begin, end = builder.microcode([MicroOp(*one) for one in code])
    builder.load_microcode(push=())
    builder.task("aux", fmt="acc", base=x, x=len(values), push=("alu",))
    builder.task("alu", ubegin=begin, uend=end, pop=("aux",), push=("store",), **fields)
    fmt = "out" if is_requant else "acc"
    builder.task("store", fmt=fmt, base=y, sram=out or 0, x=size, pop=("alu",))
    stream = builder.finish()
    verify(stream)
    made = simulate(stream, {"x": values})["y"]
    return made.view(np.int8 if is_requant else np.int32).reshape(size, 4)


ROWS = np.array([[1, -2, 3, 2**31 - 1], [5, 7, -9, 1], [0, 1, 2, 31], [-1, 40, -3, 4]], np.int32)


@pytest.mark.parametrize(
    ("fn", "want"),
    [
        ("add", [6, 5, -6, -(2**31)]),
        ("max", [5, 7, 3, 2**31 - 1]),
        ("min", [1, -2, -9, 1]),
    ],
)
def test_functions_of_two_entries(fn, want):
    made = alu(ROWS, [(3, 0, 1)], fn=fn)
    assert made[3].tolist() == want
    np.testing.assert_array_equal(made[:3], ROWS[:3])


def test_shifts_go_both_ways():
    assert alu([[-9, 9, 1, -1]], [(0, 0, 0)], size=1, fn="shift", imm=1, value=2)[0].tolist() == [
        -3, 2, 0, -1,
    ]  # fmt: skip
    assert alu([[-9, 9, 1, -1]], [(0, 0, 0)], size=1, fn="shift", imm=1, value=-3)[0].tolist() == [
        -72,
        72,
        8,
        -8,
    ]


def test_multiply_add_takes_the_low_byte_of_both():
    rows = [[10, 0, 1, 2], [3, 127, -128, 257], [4, 127, -128, 2]]
    made = alu(rows, [(0, 1, 2)], size=1, fn="mac")
    assert made[0].tolist() == [10 + 12, 127 * 127, 1 + 128 * 128, 2 + 1 * 2]


def test_steps_see_what_steps_before_them_wrote():
    """A maximum over entries, into entry 0 step by step, as pools have it."""
    made = alu(ROWS, [(0, 0, 1), (0, 0, 2), (0, 0, 3)], size=1, fn="max")
    np.testing.assert_array_equal(made[0], ROWS.max(0))


def test_requantization_rounds_half_up_and_clamps():
    rows = [[10, -10, 5, 100000], [0, 0, 1, 0], [1, 1, 3, 1], [2, 2, 2, 0]]
    made = alu(rows, [(0, 0, 1)], size=1, fn="requant", zero=1, low=-100, high=120)
    # 10/4 = 2.5 -> 3; -2.5 -> -2; 18/4 = 4.5 -> 5; then the zero point
    assert made[0].tolist() == [4, -1, 6, 120]
    made = alu([[-1000, 0, 0, 0], *rows[1:]], [(0, 0, 1)], size=1, fn="requant", low=-100)
    assert made[0][0] == -100


def test_requantized_sums_come_back_as_accumulators():
    rows = [[10, -10, 5, 100000], [0, 0, 1, 0], [1, 1, 3, 1], [2, 2, 2, 0]]
    made = alu(rows, [(0, 0, 1)], size=4, fn="rescale", zero=1, low=-100, high=120)
    assert made[0].tolist() == [4, -1, 6, 120]
    np.testing.assert_array_equal(made[1:], rows[1:])


def test_a_rescale_that_reads_its_own_results_is_refused():
    rows = np.zeros((8, 4), np.int32)
    with pytest.raises(
        ExecutionError, match=r"rescale reads acc\[5\], which an earlier step"
    ) as caught:
        alu(rows, [(5, 4, 0), (6, 5, 0)], fn="rescale")
    assert caught.value.code == "TW7050"
    alu(rows, [(5, 5, 0), (6, 6, 0)], fn="rescale")  # in place


def transfer(text, **inputs):
    stream = parse(f'target "vta-sim {G.options}"\n{text}')
    verify(stream)
    return simulate(stream, inputs)


def test_a_load_pads_with_any_value_in_two_dimensions():
    x = np.arange(2 * 3 * 5 * 4, dtype=np.int8).reshape(2, 3, 5, 4)  # planes, rows, columns
    made = transfer(
        """buffer x: in 120
        buffer y: out 384
        aux fmt=acc8 base=x offset=4 x=2 y=2 z=2 xstride=2 ystride=5 zstride=15 x0=1 x1=1 y1=1
            value=-7 push=store
        store fmt=acc base=y x=24 pop=aux
        finish""".replace("\n            ", " "),
        x=x,
    )["y"].view(np.int32)
    want = np.full((2, 3, 4, 4), -7)
    want[:, :2, 1:3] = x[:, :2, 1:5:2]
    np.testing.assert_array_equal(made.reshape(want.shape), want)


def test_weights_of_four_bits_are_sign_extended():
    builder = Builder(G)
    x = builder.buffer("x", "in", 4)
    w = builder.buffer("w", "in", 8)
    y = builder.buffer("y", "out", 16)
    begin, end = builder.microcode([MicroOp()])
    builder.load_microcode(push=("gemm",))
    builder.task("load", fmt="inp", base=x)
    builder.task("load", fmt="wgt4", base=w, push=("gemm",))
    builder.task("gemm", ubegin=begin, uend=end, init=1, pop=("load", "aux"), push=("store",))
    builder.task("store", fmt="acc", base=y, pop=("gemm",))
    stream = builder.finish()
    verify(stream)
    weights = np.array([[-8, 7, 0, 1], [2, 3, -1, -2], [0, 0, 0, 1], [5, 5, 5, 5]])
    nibbles = (weights & 15).reshape(-1, 2)
    packed = (nibbles[:, 0] | nibbles[:, 1] << 4).astype(np.uint8)
    vector = np.array([1, -2, 3, 100], np.int8)
    made = simulate(stream, {"x": vector, "w": packed})["y"].view(np.int32)
    np.testing.assert_array_equal(made, weights @ vector.astype(int))


COPY = """
target "vta-sim"
buffer x: in 64
buffer y: out 64
aux fmt=acc base=x push=store
store fmt=acc base=y pop=aux
finish
"""


def test_the_device_does_not_see_what_is_not_flushed():
    stream = parse(COPY)
    memory = Memory(stream)
    memory.write("x", np.arange(16, dtype=np.int32))
    with pytest.raises(ExecutionError, match=r"reads x\[0\], which nothing has written") as caught:
        run(stream, memory)
    assert caught.value.code == "TW7013"


def test_the_host_does_not_see_what_is_not_invalidated():
    stream = parse(COPY)
    values = np.arange(16, dtype=np.int32)
    memory = prepare(stream, {"x": values})
    run(stream, memory)
    assert not memory.read("y", "i32", (16,)).any()
    memory.invalidate("y")
    np.testing.assert_array_equal(memory.read("y", "i32", (16,)), values)
    memory.write("x", values + 1)  # the device still has the old ones
    run(stream, memory)
    memory.invalidate("y")
    np.testing.assert_array_equal(memory.read("y", "i32", (16,)), values)


def test_scratchpads_begin_as_poison():
    stream = parse(COPY.replace("store fmt=acc", "store fmt=acc sram=1"))
    with pytest.raises(ExecutionError, match=r"store reads acc\[1\]") as caught:
        simulate(stream, {"x": np.zeros(16, np.int32)})
    assert caught.value.code == "TW7013"


@pytest.mark.parametrize(
    "use",
    [
        lambda memory: memory.write("q", np.zeros(4)),
        lambda memory: memory.write("x", np.zeros(4)),
        lambda memory: memory.read("y", "i8", (4,)),
        lambda memory: memory.read("y", "f32", (16,)),
    ],
)
def test_wrong_names_and_sizes_are_refused(use):
    with pytest.raises(UserError) as caught:
        use(Memory(parse(COPY)))
    assert caught.value.code == "TW7020"
