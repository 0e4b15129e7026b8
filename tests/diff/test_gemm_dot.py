"""GEMM on dot-product instructions: the same bits as NumPy, on every target that has some.

Every target is interpreted; what the machine at hand has runs natively too.
"""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.dots import DOTS, dots_of
from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.rules import default_schedule
from tilewright.rules.context import RuleContext
from tilewright.rules.cpu.gemm_dot import GEMM_DOT
from tilewright.tensor.constants import Given, split_constant_blocks

TARGETS = {
    "vnni": ("x86_64-linux-gnu -mcpu=cascadelake", "u8", "i8", "i32", "vpdpbusd"),
    "avxvnni": ("x86_64-linux-gnu -mcpu=alderlake", "u8", "i8", "i32", "vpdpbusd"),
    "avx2": ("x86_64-linux-gnu -mcpu=haswell", "i16", "i16", "i32", "vpmaddwd"),
    "avx512": ("x86_64-linux-gnu -mcpu=skylake-avx512", "i16", "i16", "i32", "vpmaddwd"),
    "bf16": ("x86_64-linux-gnu -mcpu=cooperlake", "bf16", "bf16", "f32", "vdpbf16ps"),
    "neon": ("aarch64-linux-gnu -mcpu=neoverse-n1", "i8", "i8", "i32", "sdot"),
    "i8mm": ("aarch64-linux-gnu -mcpu=neoverse-v1", "u8", "i8", "i32", "sudot"),
}
# The host, without the matrix tiles that would serve instead.
WITHOUT_TILES = "cpu -mattr=-amx-tile" if Target.host().has("amx") else "cpu"
every_target = pytest.mark.parametrize("kind", TARGETS)
NUMPY = {"i32": np.int32, "f32": np.float32, "i16": np.int16, "u8": np.uint8, "i8": np.int8}
NUMPY["bf16"] = ml_dtypes.bfloat16


def gemm(kind, sizes, layout=("mk", "kn", "mn"), *, symbolic="", followed=False):
    """A product whose operands' dimensions are named by letters, perhaps requantized."""
    _, a, b, c, _ = TARGETS[kind]
    given = {x: te.var(x) if x in symbolic else size for x, size in sizes.items()}
    a_axes, b_axes, c_axes = layout
    A = te.placeholder(tuple(given[x] for x in a_axes), a, name="A")
    B = te.placeholder(tuple(given[x] for x in b_axes), b, name="B")

    def element(*index):
        at = dict(zip(c_axes, index, strict=True))
        at["k"] = r = te.reduce_axis((0, given["k"]), name="k")
        left, right = A[tuple(at[x] for x in a_axes)], B[tuple(at[x] for x in b_axes)]
        return te.sum(te.cast(left, c) * te.cast(right, c), axis=r)

    C = te.compute(tuple(given[x] for x in c_axes), element, name="C")
    if not followed:
        return te.function([A, B, C], name="gemm")
    D = te.compute(
        C.shape,
        lambda *index: te.cast(te.round(te.cast(C[index], "f32") * te.const(0.01, "f32")), "i8"),
        name="D",
    )
    return te.function([A, B, D], name="gemm")


def operands(kind, sizes, layout):
    _, a, b, c, _ = TARGETS[kind]
    random = np.random.default_rng(0)
    made = []
    for of, axes in ((a, layout[0]), (b, layout[1])):
        shape = [sizes[x] for x in axes]
        if of == "bf16":  # whole numbers, whose sums are exact
            made.append(random.integers(-8, 9, shape).astype(NUMPY[of]))
        else:
            limits = np.iinfo(NUMPY[of])
            values = random.integers(limits.min, limits.max, shape, endpoint=True)
            made.append(values.astype(NUMPY[of]))
    wide = [each.astype(np.int64) for each in made]
    want = np.einsum(f"{layout[0]},{layout[1]}->{layout[2]}", *wide).astype(NUMPY[c])
    return made, want


def run(fn, arguments, native):
    """Pack what is constant, then call; natively or by the interpreter."""
    call = build if native else (lambda f: lambda *args: tw.interpret(f, *args))
    split = split_constant_blocks(fn)
    packed = [np.zeros([int(d.value) for d in b.shape], b.dtype.numpy) for b in split.results]
    if split.packer is not None:
        call(split.packer)(*(arguments[at] for at in split.weights), *packed)
    given = (
        arguments[p.position] if isinstance(p, Given) else packed[p.position] for p in split.params
    )
    call(split.kernel)(*given)


def is_here(kind):
    """Whether the machine at hand multiplies these types."""
    _, a, b, c, _ = TARGETS[kind]
    return bool(dots_of(Target.host(), a, b, c))


def check(kind, sizes, layout=("mk", "kn", "mn"), *, constant=False, threads=1, **options):
    fn = gemm(kind, sizes, layout, **options)
    (a, b), want = operands(kind, sizes, layout)
    if options.get("followed"):
        want = np.clip(np.rint(want.astype(np.float32) * np.float32(0.01)), -128, 127)
        want = want.astype(np.int8)
    constants = ["B"] if constant else []
    places = [(TARGETS[kind][0], False)] + [(WITHOUT_TILES, True)] * is_here(kind)
    for target, native in places:
        scheduled = default_schedule(fn, target, threads=threads, constants=constants)
        names = [dot.name for dot in DOTS]
        assert any(f"call {name}.update" in str(scheduled.function) for name in names)
        got = np.zeros(want.shape, want.dtype)
        run(scheduled.function, [a, b, got], native)
        np.testing.assert_array_equal(got, want)


@every_target
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.sampled
def test_a_product_is_the_product(kind, constant):
    check(kind, {"m": 9, "n": 40, "k": 32}, constant=constant)


@every_target
def test_k_and_n_are_filled_up(kind):
    check(kind, {"m": 5, "n": 37, "k": 27}, constant=True)


@every_target
def test_batches_of_transposed_operands(kind):
    sizes = {"b": 3, "m": 7, "n": 33, "k": 20}
    check(kind, sizes, ("bmk", "bnk", "bmn"), threads=2)


@every_target
def test_an_operand_that_does_not_lie_along_k_is_turned(kind):
    sizes = {"b": 2, "m": 18, "n": 6, "k": 23}
    check(kind, sizes, ("bkm", "kn", "bmn"), constant=True, threads=2)
    check(kind, {**sizes, "n": 33}, ("kbm", "bnk", "bmn"), threads=2, followed=True)
    check(kind, sizes, ("bkm", "kn", "bmn"), symbolic="bm", constant=True)


@every_target
def test_sizes_that_only_the_run_knows(kind):
    check(kind, {"m": 11, "n": 48, "k": 32}, symbolic="m", constant=True)
    check(kind, {"m": 6, "n": 35, "k": 18}, ("mk", "nk", "mn"), symbolic="mnk")


@pytest.mark.parametrize("kind", ["vnni", "avx2", "neon"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.sampled
def test_results_leave_through_requantization(kind, threads):
    sizes = {"m": 13, "n": 64, "k": 64}
    check(kind, sizes, constant=True, followed=True, threads=threads)


def test_one_row_of_a_weight():
    check("neon", {"m": 1, "n": 64, "k": 64}, constant=True)


@every_target
def test_the_instruction_is_in_the_code(kind):
    target, *_, mnemonic = TARGETS[kind]
    fn = gemm(kind, {"m": 32, "n": 64, "k": 64})
    scheduled = default_schedule(fn, target, constants=["B"])
    assert mnemonic in tw.build(scheduled.function, target).assembly


@pytest.mark.parametrize("kind", ["vnni", "neon"])
def test_every_plan_gives_the_same_answer(kind):
    sizes, layout = {"m": 9, "n": 34, "k": 20}, ("mk", "kn", "mn")
    fn = gemm(kind, sizes)
    (a, b), want = operands(kind, sizes, layout)
    context = RuleContext(Target.parse(TARGETS[kind][0]), 2, frozenset(["B"]))
    problem = GEMM_DOT.match(sch := tw.Schedule(fn), sch.get_block("C"), context)
    space = GEMM_DOT.plans(problem, context)
    some = space.columns()
    assert ((GEMM_DOT.cost(problem, some, context).cycles) > 0).all()
    rows = np.random.default_rng(1).permutation(len(some["mr"]))[:6]
    assert len(rows) == 6
    for row in rows:
        plan = space.plan_at(some, row)
        sch = tw.Schedule(fn)
        GEMM_DOT.apply(sch, GEMM_DOT.match(sch, sch.get_block("C"), context), plan, context)
        got = np.zeros(want.shape, want.dtype)
        run(sch.function, [a, b, got], is_here(kind))
        np.testing.assert_array_equal(got, want, err_msg=str(plan))


def test_a_target_without_dot_products_has_no_such_plan():
    fn = gemm("neon", {"m": 8, "n": 32, "k": 32})
    context = RuleContext(Target.parse("aarch64-linux-gnu -mcpu=cortex-a53"))
    sch = tw.Schedule(fn)
    assert GEMM_DOT.match(sch, sch.get_block("C"), context) is None
