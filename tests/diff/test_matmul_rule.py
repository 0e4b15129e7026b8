"""Products of any shape and layout, by their default schedules, against NumPy."""

import ctypes
import mmap
import re

import ml_dtypes
import numpy as np
import pytest
from grids import every_pair

import tilewright as tw
from tilewright import te
from tilewright.base.host import host_arch
from tilewright.base.processors import BASELINE
from tilewright.codegen.build import build
from tilewright.rules import default_schedule
from tilewright.tensor.constants import Given, split_constant_blocks
from tilewright.tensor.ir import Eval, For, Store
from tilewright.tensor.passes import lower
from tilewright.tensor.visit import walk

FOLLOWED = {
    "": lambda x, bias: x,
    "bias and relu": lambda x, bias: te.max(x + bias, te.const(0, "f32")),
    "tanh": lambda x, bias: te.tanh(x),
}
EXPECTED = {
    "": lambda x, bias: x,
    "bias and relu": lambda x, bias: np.maximum(x + bias, 0),
    "tanh": lambda x, bias: np.tanh(x),
}


def product(sizes, a_axes, b_axes, c_axes, followed="", of="f32", wide="f32"):
    """The sum over k of products of operands whose dimensions are named by letters."""
    shapes = [tuple(sizes[x] for x in axes) for axes in (a_axes, b_axes, c_axes)]
    A, B = te.placeholder(shapes[0], of, name="A"), te.placeholder(shapes[1], of, name="B")
    bias = te.placeholder((sizes[c_axes[-1]],), wide, name="bias")
    inner = [x for x in a_axes if x not in c_axes]

    def element(*index):
        at = dict(zip(c_axes, index, strict=True))
        axes = {x: te.reduce_axis((0, sizes[x]), name=x) for x in inner}
        at.update(axes)
        a = te.cast(A[tuple(at[x] for x in a_axes)], wide)
        b = te.cast(B[tuple(at[x] for x in b_axes)], wide)
        return te.sum(a * b, axis=list(axes.values()))

    C = te.compute(shapes[2], element, name="C")
    if not followed:
        return te.function([A, B, bias, C], name="product")
    D = te.compute(
        shapes[2], lambda *index: FOLLOWED[followed](C[index], bias[index[-1]]), name="D"
    )
    return te.function([A, B, bias, D], name="product")


def run(fn, arguments, *, constants=(), threads=1, target="cpu", native=True):
    """Schedule by default, pack what is constant, call."""
    scheduled = default_schedule(fn, target, threads=threads, constants=constants)
    split = split_constant_blocks(scheduled.function)
    call = build if native else (lambda f: lambda *args: tw.interpret(f, *args))
    packed = [np.zeros([int(d.value) for d in b.shape], b.dtype.numpy) for b in split.results]
    if split.packer is not None:
        call(split.packer)(*(arguments[at] for at in split.weights), *packed)
    call(split.kernel)(
        *(
            arguments[p.position] if isinstance(p, Given) else packed[p.position]
            for p in split.params
        )
    )
    return scheduled


def check(sizes, layout, *, followed="", symbolic="", **options):
    a_axes, b_axes, c_axes = layout
    given = {x: te.var(x) if x in symbolic else size for x, size in sizes.items()}
    fn = product(given, a_axes, b_axes, c_axes, followed)
    random = np.random.default_rng(0)
    a, b = (
        random.standard_normal([sizes[x] for x in axes], dtype=np.float32)
        for axes in (a_axes, b_axes)
    )
    bias = random.standard_normal(sizes[c_axes[-1]], dtype=np.float32)
    c = np.full([sizes[x] for x in c_axes], np.nan, np.float32)
    scheduled = run(fn, (a, b, bias, c), **options)
    want = np.einsum(f"{a_axes},{b_axes}->{c_axes}", a.astype(np.float64), b.astype(np.float64))
    atol = 1e-4 * max(1.0, sizes["k"] / 1024)  # sums in one piece round more often
    np.testing.assert_allclose(c, EXPECTED[followed](want, bias), rtol=1e-4, atol=atol)
    return str(scheduled.function)


SERVER = "x86_64-linux-gnu -mcpu=sapphirerapids"
TO_NUMPY = {"f32": np.float32, "i32": np.int32}
LAYOUTS = {
    "plain": ("mk", "kn", "mn"),
    "columns first": ("mk", "nk", "mn"),
    "rows last": ("km", "kn", "mn"),
    "both turned": ("km", "nk", "mn"),
    "turned result": ("mk", "kn", "nm"),
    "stack": ("bmk", "bkn", "bmn"),
    "stack inside": ("mbk", "nbk", "bmn"),
    "rows in two": ("bmk", "kn", "bmn"),
    "columns in two": ("mk", "kbn", "mbn"),
    "sum in two": ("mbk", "bkn", "mn"),
    "one row": ("k", "kn", "n"),
    "one column": ("mk", "k", "m"),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.sampled
def test_products_of_random_sizes(layout, seed):
    random = np.random.default_rng([seed, *map(ord, "".join(layout))])
    sizes = {
        "b": int(random.integers(1, 5)),
        "m": int(random.choice([1, 3, 8, 12, 20, 29, 77])),
        "n": int(random.choice([8, 16, 21, 40, 64, 100, 130])),
        "k": int(random.choice([1, 5, 32, 77])),
    }
    check(
        sizes,
        layout,
        followed=str(random.choice(list(FOLLOWED))),
        constants=("B",) if random.random() < 0.5 else (),
        threads=int(random.integers(1, 3)),
        symbolic=str(random.choice(["", "", "m", "mk", "n"])),
    )


def test_the_interpreter_agrees():
    for constants in ((), ("B",)):
        text = check(
            {"m": 7, "n": 20, "k": 5},
            LAYOUTS["plain"],
            followed="bias and relu",
            constants=constants,
            target="x86_64-linux-gnu -mcpu=haswell",
            native=False,
        )
        assert "in vector 0..8" in text


def test_other_processors_have_tiles_of_their_own():
    oldest = BASELINE[host_arch()]
    check(
        {"m": 50, "n": 70, "k": 30},
        LAYOUTS["plain"],
        constants=("B",),
        target=f"cpu -mcpu={oldest}",
    )
    fn = product({"m": 50, "n": 70, "k": 30}, *LAYOUTS["plain"])
    scheduled = default_schedule(fn, "x86_64-linux-gnu -mcpu=haswell", constants=("B",))
    assert "in vector 0..8" in str(scheduled.function)
    scheduled = default_schedule(fn, "aarch64-linux-gnu -mcpu=cortex-a76")
    assert "in vector 0..4" in str(scheduled.function)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_sums_are_cut_into_parts(threads):
    sizes, options = {"m": 128, "n": 200, "k": 3072}, {"constants": ("B",), "threads": threads}
    check(sizes, LAYOUTS["plain"], followed="bias and relu", **options)
    fn = product(sizes, *LAYOUTS["plain"], "bias and relu")
    text = str(default_schedule(fn, SERVER, **options).function)
    assert re.search(r"reduce [2-9]\d? =", text)  # parts
    assert "block @C_rf" in text


APPLIED = {
    "a layer": ({"m": 128, "n": 768, "k": 768}, "plain", ("B",), ""),
    "a layer of any length": ({"m": 128, "n": 768, "k": 768}, "plain", ("B",), "m"),
    "weights by rows": ({"m": 197, "n": 768, "k": 768}, "columns first", ("B",), ""),
    "scores": ({"b": 12, "m": 128, "n": 128, "k": 64}, "stack inside", (), ""),
    "scores of any length": ({"b": 12, "m": 128, "n": 128, "k": 64}, "stack inside", (), "mn"),
    "averages": ({"b": 12, "m": 128, "n": 64, "k": 128}, "stack", (), ""),
    "a batch": ({"b": 8, "m": 49, "n": 512, "k": 512}, "rows in two", ("B",), "b"),
    "one row": ({"n": 4096, "k": 4096}, "one row", ("B",), ""),
    "one row by another matrix": ({"n": 4096, "k": 4096}, "one row", (), ""),
    "square": ({"m": 2048, "n": 2048, "k": 2048}, "plain", (), ""),
}


@pytest.mark.parametrize(
    ("sizes", "layout", "constants", "symbolic"), APPLIED.values(), ids=APPLIED
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.sampled
def test_the_rule_takes_usual_products_whole(sizes, layout, constants, symbolic, threads):
    given = {x: te.var(x) if x in symbolic else size for x, size in sizes.items()}
    fn = product(given, *LAYOUTS[layout], "bias and relu")
    scheduled = default_schedule(fn, SERVER, threads=threads, constants=constants)
    text = str(split_constant_blocks(scheduled.function).kernel)
    outermost = [line for line in text.splitlines() if line.startswith("  for ")]
    assert len(outermost) == 1
    is_shared = "in parallel" in outermost[0] and "threads = 1" not in outermost[0]
    assert is_shared == (threads > 1)
    assert "in local" in text
    assert "in unroll" in text


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("m", "n", "k", "layout"),
    [
        (1, 512, 100, "one row"),
        (3, 1000, 77, "plain"),
        (1, 130, 259, "rows in two"),
        (2, 300, 40, "stack"),
        (12, 1100, 1024, "plain"),
    ],
)
@pytest.mark.sampled
def test_few_rows_meet_a_few_rows_of_a_matrix_at_a_time(m, n, k, layout, threads):
    sizes = {"b": 3, "m": m, "n": n, "k": k}
    check(sizes, LAYOUTS[layout], followed="bias and relu", threads=threads)
    text = str(
        default_schedule(
            product(sizes, *LAYOUTS[layout], "bias and relu"), SERVER, threads=threads
        ).function
    )
    assert f"in 0..{-(-k // 16)} " in text
    assert "B_prefetch" not in text


@pytest.mark.parametrize(("m", "k"), [(8, 400), (64, 400), (1, 700)])
def test_lanes_past_the_last_column_are_summed_too(m, k):
    text = check({"m": m, "n": 30, "k": k}, LAYOUTS["plain"])
    product = text[text.index("sum=") :].splitlines()[0]
    assert "select" in product  # of zero, so that sums stay in registers whole


def test_one_row_by_weights_that_no_cache_holds_alternates_direction():
    check({"n": 1000, "k": 1400}, LAYOUTS["one row"], constants=("B",))

    def scheduled(n, k):
        fn = product({"n": n, "k": k}, *LAYOUTS["one row"])
        made = default_schedule(fn, SERVER, constants=("B",))
        return str(made.function)

    text = scheduled(1900, 700)  # 119 vectors
    assert "f32[30, 700, 64]" in text
    assert "in parallel 0..30 [alternating = true, threads = 1]" in text
    assert "in parallel" not in scheduled(130, 70)


# The kernels run: a processor without tiles cannot execute them.
needs_tiles = pytest.mark.skipif(
    not tw.Target.host().has("amx-bf16"), reason="this machine has no AMX"
)
TYPES = {"bf16": ("f32", ml_dtypes.bfloat16), "i8": ("i32", np.int8)}


@needs_tiles
@pytest.mark.parametrize("symbolic", ["", "m"])
@pytest.mark.parametrize("constants", [(), ("B",)])
@pytest.mark.parametrize(("of", "depth"), [("bf16", 130), ("bf16", 19), ("i8", 130), ("i8", 35)])
@pytest.mark.sampled
def test_small_types_multiply_on_tiles(of, depth, constants, symbolic):
    wide, numpy = TYPES[of]
    sizes = {"m": 45, "n": 70, "k": depth}
    given = {x: te.var(x) if x in symbolic else size for x, size in sizes.items()}
    random = np.random.default_rng(0)
    a = random.integers(-100, 100, (45, depth)).astype(numpy)
    b = random.integers(-100, 100, (depth, 70)).astype(numpy)
    bias = random.integers(-100, 100, 70).astype(np.dtype(TO_NUMPY[wide]))
    out = np.zeros((45, 70), TO_NUMPY[wide])
    fn = product(given, "mk", "kn", "mn", "bias and relu" if wide == "f32" else "", of, wide)
    scheduled = run(fn, (a, b, bias, out), constants=constants, threads=2)
    want = a.astype(np.float64) @ b.astype(np.float64)
    if wide == "f32":
        want = np.maximum(want + bias, 0)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    assert f"amx_{of}_dot" in str(scheduled.function)


@needs_tiles
def test_a_batch_that_is_not_known_multiplies_on_tiles():
    """Threads share rows of a number of products that only the call tells."""
    random = np.random.default_rng(0)
    a = random.integers(-100, 100, (3, 640, 160)).astype(ml_dtypes.bfloat16)
    b = random.integers(-100, 100, (160, 64)).astype(ml_dtypes.bfloat16)
    out = np.zeros((3, 640, 64), np.float32)
    sizes = {"b": te.var("b"), "m": 640, "n": 64, "k": 160}
    fn = product(sizes, "bmk", "kn", "bmn", "", "bf16", "f32")
    scheduled = run(fn, (a, b, np.zeros(64, np.float32), out), constants=("B",), threads=2)
    assert "amx_bf16_dot" in str(scheduled.function)
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-6)


@needs_tiles
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("axes", "open_sizes", "constants"),
    [
        (("bmk", "kn", "bmn"), "b", ("B",)),
        (("bmk", "kn", "bmn"), "bm", ("B",)),
        (("bmk", "kn", "bmn"), "b", ()),
        (("bmk", "kn", "bmn"), "bm", ()),
        (("bmk", "kn", "bmn"), "bn", ("B",)),
        (("sbmk", "skn", "sbmn"), "b", ("B",)),
    ],
)
@pytest.mark.sampled
def test_blocks_of_weights_meet_all_rows_of_an_open_batch(axes, open_sizes, constants, threads):
    sizes = {"s": 3, "b": 3, "m": 49, "n": 416, "k": 512}
    given = {x: te.var(x) if x in open_sizes else size for x, size in sizes.items()}
    random = np.random.default_rng(0)
    a, b = (
        random.integers(-9, 9, [sizes[x] for x in each]).astype(ml_dtypes.bfloat16)
        for each in axes[:2]
    )
    out = np.zeros([sizes[x] for x in axes[2]], np.float32)
    bias = random.integers(-9, 9, sizes["n"]).astype(np.float32)
    fn = product(given, *axes, "bias and relu", "bf16", "f32")
    scheduled = run(fn, (a, b, bias, out), constants=constants, threads=threads)
    assert "amx_bf16_dot" in str(scheduled.function)
    weights = b.astype(np.float64)
    want = a.astype(np.float64) @ (weights[:, None] if "s" in axes[1] else weights)
    np.testing.assert_allclose(out, np.maximum(want + bias, 0), rtol=1e-6)
    if constants:
        assert "_prefetch" in str(scheduled.function)


@needs_tiles
@pytest.mark.parametrize("result", ["f32", "bf16"])
@pytest.mark.parametrize(("rows", "depth"), [(64, 1024), (64, 160), (50, 200)])
@pytest.mark.sampled
def test_what_follows_runs_between_the_products_of_the_next_tiles(result, rows, depth):
    """With more steps of the sum than rows of a block, with fewer, and with rows filled up."""
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (rows, depth)).astype(ml_dtypes.bfloat16)
    b = random.integers(-3, 4, (depth, 256)).astype(ml_dtypes.bfloat16)
    A, B = te.placeholder(a.shape, "bf16", name="A"), te.placeholder(b.shape, "bf16", name="B")
    k = te.reduce_axis((0, depth), name="k")
    C = te.compute(
        (rows, 256),
        lambda i, j: te.sum(te.cast(A[i, k], "f32") * te.cast(B[k, j], "f32"), axis=k),
        name="C",
    )
    D = te.compute((rows, 256), lambda i, j: te.cast(te.round(C[i, j] / 8), result), name="D")
    out = np.zeros((rows, 256), D.dtype.numpy)
    fn = te.function([A, B, D], name="product")
    scheduled = run(fn, (a, b, out), constants=("B",))
    want = np.round(a.astype(np.float32) @ b.astype(np.float32) / 8).astype(D.dtype.numpy)
    np.testing.assert_array_equal(out, want)
    flat = lower(split_constant_blocks(scheduled.function).kernel)
    loops = [list(walk(stmt)) for stmt in walk(flat.body) if isinstance(stmt, For)]
    for inside in loops:
        called = " ".join(str(stmt.value) for stmt in inside if isinstance(stmt, Eval))
        stored = {stmt.buffer.name for stmt in inside if isinstance(stmt, Store)}
        if "tdpbf16ps" in called and "tilestored" not in called and "D" in stored:
            return
    pytest.fail("the results are not written in the loop over the products")


OPEN_ROWS = {  # columns, steps of the sum, what follows, threads
    "panels": (64, 40, "bias and relu", 1),
    "parts of the sum": (32, 2048, "bias and relu", 1),
    "shared columns": (256, 64, "", 2),
    "shared rows": (20, 512, "bias and relu", 2),
}


@pytest.mark.parametrize("name", OPEN_ROWS)
def test_any_number_of_rows_is_multiplied_by_code_compiled_once(name):
    n, k, followed, threads = OPEN_ROWS[name]
    fn = product({"m": te.var("m"), "k": k, "n": n}, "mk", "kn", "mn", followed)
    scheduled = default_schedule(fn, "cpu", threads=threads, constants=("B",)).function
    assert "tails = true" in str(scheduled)
    split = split_constant_blocks(scheduled)
    random = np.random.default_rng(0)
    b, bias = (random.standard_normal(s, dtype=np.float32) for s in ((k, n), n))
    packed = [np.zeros([int(d.value) for d in p.shape], np.float32) for p in split.results]
    build(split.packer)(b, *packed)
    kernel = build(split.kernel)
    for m in (0, 1, 2, 5, 7, 8, 9, 14, 15, 16, 17, 50):
        a, c = random.standard_normal((m, k), dtype=np.float32), np.full((m, n), np.nan, "f4")
        given = (a, b, bias, c)
        kernel(
            *[
                given[p.position] if isinstance(p, Given) else packed[p.position]
                for p in split.params
            ]
        )
        want = EXPECTED[followed](a.astype(np.float64) @ b, bias)
        np.testing.assert_allclose(c, want, rtol=1e-4, atol=2e-4, err_msg=str(m))


@pytest.fixture
def at_the_end_of_a_page():
    """Copies of arrays behind which nothing may be touched."""
    libc, page, kept = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, []

    def copied(array):
        pages = -(-array.nbytes // page) + 1
        memory = mmap.mmap(-1, pages * page)
        copy = np.frombuffer(memory, array.dtype)[-page // array.itemsize - array.size :]
        copy = copy[: array.size].reshape(array.shape)
        copy[...] = array
        guard = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + len(memory))
        guard.value -= page
        assert libc.mprotect(guard, ctypes.c_size_t(page), 0) == 0
        kept.append((memory, guard))
        return copy

    yield copied
    for _, guard in kept:
        libc.mprotect(guard, ctypes.c_size_t(page), 3)


@pytest.mark.parametrize(
    ("layout", "threads", "symbolic"), every_pair(("plain", "stack"), (1, 2), ("", "n", "mn"))
)
def test_nothing_is_read_behind_the_last_column(layout, threads, symbolic, at_the_end_of_a_page):
    built = {}  # by the sizes that are fixed
    for n, m, k in [(1, 1, 1), (5, 1, 1), (15, 2, 1), (130, 1, 1), (30, 3, 7), (17, 8, 20)]:
        sizes = {"b": 2, "m": m, "n": n, "k": k}
        a_axes, b_axes, c_axes = LAYOUTS[layout]
        fixed = tuple(size for x, size in sizes.items() if x not in symbolic)
        if fixed not in built:
            given = {x: te.var(x) if x in symbolic else size for x, size in sizes.items()}
            fn = product(given, a_axes, b_axes, c_axes)
            built[fixed] = build(default_schedule(fn, "cpu", threads=threads).function)
        shapes = [[sizes[x] for x in axes] for axes in (a_axes, b_axes, "n", c_axes)]
        a, b, bias, c = (
            at_the_end_of_a_page(np.ones(shape, np.float32) + at) for at, shape in enumerate(shapes)
        )
        built[fixed](a, b, bias, c)
        np.testing.assert_array_equal(c, 2 * k)


@pytest.mark.parametrize("layout", ["plain", "stack", "rows in two", "columns in two"])
@pytest.mark.parametrize("symbolic", ["n", "mn"])
@pytest.mark.sampled
def test_threads_share_out_columns_of_any_number_on_tiles(layout, symbolic):
    sizes = {"b": 3, "m": 12, "n": 203, "k": 259}
    given = {x: te.var(x) if x in symbolic else size for x, size in sizes.items()}
    a_axes, b_axes, c_axes = LAYOUTS[layout]
    random = np.random.default_rng(0)
    shapes = [[sizes[x] for x in axes] for axes in (a_axes, b_axes, "n", c_axes)]
    a, b = (random.standard_normal(s).astype(ml_dtypes.bfloat16) for s in shapes[:2])
    bias, c = (np.zeros(s, np.float32) for s in shapes[2:])
    fn = product(given, a_axes, b_axes, c_axes, of="bf16")
    run(fn, (a, b, bias, c), threads=2)
    want = np.einsum(f"{a_axes},{b_axes}->{c_axes}", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)
