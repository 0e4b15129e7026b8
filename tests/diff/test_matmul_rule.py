"""Products of any shape and layout, by their default schedules, against NumPy."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.codegen.build import build
from tilewright.rules import default_schedule
from tilewright.rules.constants import Given, split_constant_blocks

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
    np.testing.assert_allclose(c, EXPECTED[followed](want, bias), rtol=1e-4, atol=1e-4)
    return str(scheduled.function)


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
