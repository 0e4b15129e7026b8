"""Default schedules keep the answer: graphs lowered, scheduled and run, native and interpreted."""

import importlib.util
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from grids import every_pair

import tilewright as tw
from tilewright import graph, sym, tensor
from tilewright.lower.graph import lower_graph, sizes_of
from tilewright.rules import default_schedule
from tilewright.tensor.constants import Given, split_constant_blocks
from tilewright.tensor.visit import blocks


def load_lowerings():
    """The module of the tests of lowerings, for its cases."""
    path = Path(__file__).with_name("test_lowerings.py")
    spec = importlib.util.spec_from_file_location("lowerings", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["lowerings"] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


LOWERINGS = load_lowerings()

# The first case of some operators of every kind of loops: gathers, windows, sorts, scans.
KINDS = (
    *("concat", "pad", "gather", "scatter_nd", "resize", "top_k", "cumsum"),
    *("arg_max", "max_pool", "lp_pool", "group_norm", "hardmax", "quantize", "gru", "einsum"),
)
FIRST = {name: next(case for case in LOWERINGS.CASES if case.op == name) for name in KINDS}


def sizes_in(main, arrays):
    """The values of the sizes that shapes of parameters and results mention."""
    found = {}
    for value, array in zip([*main.params, *main.results], arrays, strict=True):
        pairs = zip(value.tensor.shape, array.shape, strict=True)
        found.update((dim, extent) for dim, extent in pairs if isinstance(dim, sym.Size))
    return [found[size] for size in sizes_of(main)]


def run_scheduled(main, inputs, want, *, interpreted=False, constants=()):
    """The results of a graph under its default schedule, in arrays like those wanted."""
    function = default_schedule(
        lower_graph(main, "k"), "cpu", threads=2, constants=constants
    ).function
    made = [np.full(array.shape, 7).astype(array.dtype) for array in want]
    args = [*[np.copy(x) for x in inputs], *made, *sizes_in(main, [*inputs, *want])]
    if interpreted:
        tensor.interpret(function, *args)
    else:
        run_split(function, args)
    return made


def run_split(function, args):
    """Native code, with what is done once for weights done before."""
    split = split_constant_blocks(function)
    packed = []
    if split.packer is not None:
        shapes = split.packer.params[len(split.weights) :]
        packed = [np.zeros([int(d.value) for d in b.shape], b.dtype.numpy) for b in shapes]
        tw.build(split.packer)(*[args[at] for at in split.weights], *packed)
    chosen = [
        args[param.position] if isinstance(param, Given) else packed[param.position]
        for param in split.params
    ]
    tw.build(split.kernel)(*chosen)


@pytest.mark.parametrize("name", KINDS)
def test_operators_keep_their_answers(name, close):
    case = FIRST[name]
    module, main = LOWERINGS.build_case(case, symbolic=False)
    inputs = [x for x in case.inputs if x is not None]
    want = graph.interpret(module, *inputs)
    for got, expected in zip(run_scheduled(main, inputs, want), want, strict=True):
        close(got, expected, case.reduction)


# ------------------------------------------------------------------------------------ programs

CHAINS = {
    "chain": ("%y = add(%x, %w) %z = relu(%y) %c = greater(%z, %x) %q = where(%c, %z, %x)", 1),
    "shared": ("%e = exp(%x) %a = add(%e, %w) %q = mul(%a, %e)", 1),
    "softmax": ("%y = mul(%x, %w) %q = softmax(%y) {axes = (LAST,)}", 64),
    "softmax of columns": ("%q = softmax(%x) {axes = (0,)}", 64),
    "log softmax": ("%q = log_softmax(%x) {axes = (LAST,)}", 64),
    "layer norm": ("%a = add(%x, %x) %q = layer_norm(%a, %w, %w) {axis = LAST}", 64),
    "root mean square": ("%q = rms_norm(%x, %w) {axis = LAST}", 64),
    "less the mean": ("%m = reduce_mean(%x) {axes = (LAST,)} %q = sub(%x, %m)", 64),
    "over the sum of all": ("%s = reduce_sum(%x) %q = div(%x, %s)", 999),
    "less the greatest of columns": ("%m = reduce_max(%x) {axes = (0,)} %q = sub(%x, %m)", 1),
}
SHAPES = [(1,), (37,), (5, 1), (1, 16), (4, 17), (3, 64), (65, 130), (2, 3, 4), (2, 33, 20)]


def chain(text, shape, of="f32", symbolic=False):
    dims = ", ".join("n" if symbolic and at == 0 else str(n) for at, n in enumerate(shape))
    body = text.replace("LAST", str(len(shape) - 1))
    last = "n" if symbolic and len(shape) == 1 else shape[-1]
    return graph.parse(
        f"graph @main(%x: {of}[{dims}], %w: {of}[{last}]) -> ({of}[{dims}]) {{ {body} return %q }}"
    )


@pytest.mark.parametrize("name", CHAINS)
def test_chains_keep_the_answer(name, close):
    text, reduction = CHAINS[name]
    chance = random.Random(name)
    rng = np.random.default_rng(len(name))
    for shape in chance.sample(SHAPES, 2):
        symbolic = chance.random() < 0.5
        module = chain(text, shape, symbolic=symbolic)
        x = rng.uniform(0.5, 3, shape).astype(np.float32)
        w = rng.uniform(0.5, 3, shape[-1]).astype(np.float32)
        want = graph.interpret(module, x, w)
        interpreted = math.prod(shape) < 100
        for mode in {False, interpreted}:
            (got,) = run_scheduled(module.main, (x, w), want, interpreted=mode)
            close(got, want[0], max(reduction, 4))


@pytest.mark.parametrize("of", ["f16", "bf16", "f64", "i32", "i8", "u8", "i64", "bool"])
def test_types_keep_their_lanes(of, close):
    rng = np.random.default_rng(5)
    shape = (3, 43)
    text = (
        f"graph @main(%x: {of}[3, 43], %z: {of}[43, 3]) -> ({of}[3, 43], {of}[3]) {{"
        "%t = transpose(%z) {perm = (1, 0)} %c = equal(%x, %t) %y = where(%c, %x, %t)"
        "%m = reduce_max(%x) {axes = (1,), keepdims = false} return %y, %m }"
    )
    module = graph.parse(text)
    kind = module.main.params[0].tensor.dtype.numpy
    x, z = (rng.integers(0, 2, n).astype(kind) for n in (shape, shape[::-1]))
    want = graph.interpret(module, x, z)
    for got, expected in zip(run_scheduled(module.main, (x, z), want), want, strict=True):
        close(got, expected)


@pytest.mark.parametrize("perm", [(2, 1, 0), (0, 2, 1)])
@pytest.mark.parametrize("shape", [(3, 40, 50), (1, 17, 3), (0, 4, 5)])
@pytest.mark.sampled
def test_transposes_keep_the_answer(shape, perm):
    dims = ", ".join(map(str, shape))
    turned = ", ".join(str(shape[axis]) for axis in perm)
    module = graph.parse(
        f"graph @main(%x: f32[{dims}]) -> (f32[{turned}]) {{"
        f"%y = transpose(%x) {{perm = {perm}}} %z = neg(%y) return %z }}"
    )
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    want = graph.interpret(module, x)
    np.testing.assert_array_equal(run_scheduled(module.main, (x,), want)[0], want[0])


REDUCTIONS = [
    ((70, 80), (0, 1)),
    ((3, 1000), (1,)),
    ((1000, 3), (0,)),
    ((4, 30, 40), (1,)),
    ((4, 30, 40), (0, 2)),
    ((2, 5, 7, 7), (2, 3)),
    ((1, 1, 1), (1,)),
]


@pytest.mark.parametrize("op", ["reduce_max", "reduce_mean"])
@pytest.mark.parametrize(("shape", "axes"), REDUCTIONS)
@pytest.mark.sampled
def test_reductions_keep_the_answer(op, shape, axes, close):
    rest = [n for axis, n in enumerate(shape) if axis not in axes]
    module = graph.parse(
        f"graph @main(%x: f32{list(shape)}) -> (f32{rest}) {{"
        f"%y = {op}(%x) {{axes = {axes}, keepdims = false}} return %y }}"
    )
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want = graph.interpret(module, x)
    (got,) = run_scheduled(module.main, (x,), want)
    close(got, want[0], math.prod(shape))


EMPTY = {  # shapes of the parameter and of the result, and what is done
    "rows": ("n, 40", "n, 40", "softmax(%x) {axes = (1,)}"),
    "sums": ("n, 40", "1, 40", "reduce_sum(%x) {axes = (0,)}"),
    "all": ("n, 40", "", "reduce_max(%x) {keepdims = false}"),
    "across": ("n, 40", "40, n", "transpose(%x) {perm = (1, 0)}"),
    "queries": ("1, 1, n, 8", "1, 1, n, 8", "attention(%x, %x, %x)"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_sizes_may_turn_out_empty(name):
    given, made, body = EMPTY[name]
    module = graph.parse(
        f"graph @main(%x: f32[{given}]) -> (f32[{made}]) {{ %y = {body} return %y }}"
    )
    dims = module.main.params[0].tensor.shape
    shape = [0 if isinstance(dim, sym.Size) else int(dim.value) for dim in dims]
    x = np.zeros(shape, np.float32)
    want = graph.interpret(module, x)
    np.testing.assert_array_equal(run_scheduled(module.main, (x,), want)[0], want[0])


# ------------------------------------------------------------------------------------ attention

ATTENTION = {  # batch, query heads, key heads, queries, keys, features, width
    "whole tiles": (1, 2, 2, 64, 64, 16, 32, ""),
    "odd sizes": (2, 3, 3, 33, 45, 5, 40, ""),
    "shared keys": (1, 4, 2, 17, 20, 8, 16, "causal = true"),
    "one query": (1, 2, 2, 1, 70, 16, 16, ""),
    "causal, many tiles": (1, 2, 2, 100, 100, 16, 16, "causal = true"),
    "causal, keys before": (1, 2, 1, 70, 121, 8, 20, "causal = true, past = 51"),
    "causal, more queries": (1, 2, 2, 90, 40, 8, 16, "causal = true"),
    "window": (1, 2, 2, 130, 130, 8, 16, "window = (9, 40)"),
    "narrow window": (1, 2, 1, 200, 200, 8, 16, "causal = true, window = (20, -1)"),
    "window, keys before": (1, 2, 1, 70, 321, 8, 20, "window = (20, 3), past = 251"),
    "window beyond the keys": (1, 1, 1, 150, 40, 8, 16, "window = (30, 0)"),
    "one query of a window": (
        1,
        2,
        2,
        1,
        300,
        8,
        16,
        "causal = true, window = (40, -1), past = 299",
    ),
}


@pytest.mark.parametrize(
    ("name", "symbolic"), [*[(n, False) for n in ATTENTION], ("odd sizes", True)]
)
def test_attention_keeps_the_answer(name, symbolic, close):
    b, h, g, s, t, d, f, attributes = ATTENTION[name]
    queries, keys = ("s", "t") if symbolic else (s, t)
    module = graph.parse(
        f"graph @main(%q: f32[{b}, {h}, {queries}, {d}], %k: f32[{b}, {g}, {keys}, {d}], "
        f"%v: f32[{b}, {g}, {keys}, {f}]) -> (f32[{b}, {h}, {queries}, {f}]) {{"
        f"%y = attention(%q, %k, %v) {{{attributes}}} return %y }}"
    )
    rng = np.random.default_rng(2)
    shapes = ((b, h, s, d), (b, g, t, d), (b, g, t, f))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    want = graph.interpret(module, *inputs)
    (got,) = run_scheduled(module.main, inputs, want)
    close(got, want[0], 64)


def test_masks_may_hide_more_than_what_is_causal(close):
    """Padding at the end, one query that sees nothing, and a number for each of the others."""
    module = graph.parse(
        "graph @main(%q: f32[1, 2, 70, 8], %k: f32[1, 2, 100, 8], %v: f32[1, 2, 100, 16], "
        "%m: f32[1, 1, 70, 100]) -> (f32[1, 2, 70, 16]) {"
        "%y = attention(%q, %k, %v, %m) {causal = true, past = 30} return %y }"
    )
    rng = np.random.default_rng(5)
    shapes = ((1, 2, 70, 8), (1, 2, 100, 8), (1, 2, 100, 16), (1, 1, 70, 100))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    inputs[3][..., 90:] = -np.inf
    inputs[3][:, :, 40] = -np.inf
    want = graph.interpret(module, *inputs)
    (got,) = run_scheduled(module.main, inputs, want)
    assert not got[:, :, 40].any()
    close(got, want[0], 64)


@pytest.mark.parametrize("attributes", ["", "causal = true"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.sampled
def test_attention_of_open_length_is_compiled_once(attributes, threads, close):
    shape = "f32[1, 3, s, 16]"
    module = graph.parse(
        f"graph @main(%q: {shape}, %k: {shape}, %v: {shape}) -> ({shape}) {{"
        f"%y = attention(%q, %k, %v) {{{attributes}}} return %y }}"
    )
    fn = default_schedule(lower_graph(module.main, "k"), "cpu", threads=threads).function
    call = tw.build(fn)
    rng = np.random.default_rng(6)
    for s in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 77):
        q, k, v = (rng.standard_normal((1, 3, s, 16)).astype(np.float32) for _ in range(3))
        (want,) = graph.interpret(module, q, k, v)
        got = np.full_like(want, np.nan)
        call(q, k, v, got, s)
        close(got, want, 64)


def test_causal_attention_leaves_out_keys_that_no_query_of_a_tile_sees():
    text = scheduled_text(
        "graph @main(%q: f32[1, 8, 128, 64], %k: f32[1, 8, 128, 64], %v: f32[1, 8, 128, 64]) -> "
        "(f32[1, 8, 128, 64]) { %y = attention(%q, %k, %v) {causal = true} return %y }",
        threads=1,
    )
    flat = str(tensor.passes.lower(tensor.parse(text)))
    # Of the scores, 8 keys at a time; of the values, 4.
    assert "in 0..%i_0 * 4 + 4 " in flat
    assert "in 0..%i_0 * 8 + 8 " in flat


@pytest.mark.parametrize(("queries", "kept"), [("256", "f32[3072]"), ("n", "f32[n * 32]")])
def test_a_window_leaves_out_keys_on_both_sides(queries, kept):
    of = f"f32[1, 8, {queries}, 64]"
    module = graph.parse(
        f"graph @main(%q: {of}, %k: {of}, %v: {of}) -> ({of}) {{ "
        "%y = attention(%q, %k, %v) {causal = true, window = (64, -1)} return %y }"
    )
    target = "x86_64-linux-gnu -mcpu=emeraldrapids"
    made = default_schedule(lower_graph(module.main, "k"), target, threads=1)
    flat = str(tensor.passes.lower(made.function))
    # Scores and weights of 96 keys by 32 queries, where the number of keys is known.
    assert f"alloc %y_scores: {kept}" in flat
    assert f"alloc %y_exp: {kept}" in flat
    assert "in max(%i_0 * 4 - 8, 0)..%i_0 * 4 + 4 " in flat  # 8 keys at a time
    assert "in max(0, %i_0 * 32 - 64)..%i_0 * 32 + 32 " in flat


def test_heads_side_by_side_are_copied_apart(close):
    """Rows of one head lie so far from each other that few places of a cache are theirs."""
    module = graph.parse(
        "graph @main(%q: f32[1, 32, 130, 64], %k: f32[1, 70, 32, 64], %v: f32[1, 70, 32, 64]) -> "
        "(f32[1, 32, 130, 64]) {"
        "%a = transpose(%k) {perm = (0, 2, 1, 3)} %b = transpose(%v) {perm = (0, 2, 1, 3)} "
        "%y = attention(%q, %a, %b) return %y }"
    )
    fn = default_schedule(lower_graph(module.main, "kernel"), "cpu").function
    assert {"k_global", "v_global"} <= {block.name for block in blocks(fn.body)}
    rng = np.random.default_rng(4)
    shapes = ((1, 32, 130, 64), (1, 70, 32, 64), (1, 70, 32, 64))
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    want = graph.interpret(module, *inputs)
    (got,) = run_scheduled(module.main, inputs, want)
    close(got, want[0], 64)


# ------------------------------------------------------------------------------------ recurrence


@pytest.mark.parametrize(
    ("sizes", "constants", "of"),
    every_pair([(3, 1, 40), (1, 3, 7), (4, 9, 33)], [(), ("r",)], ["f32", "bf16"]),
)
def test_recurrent_layers_keep_the_answer(sizes, constants, of, close):
    steps, batch, hidden = sizes
    module = graph.parse(
        f"graph @main(%g: f32[{steps}, {batch}, {4 * hidden}], %r: {of}[{4 * hidden}, {hidden}], "
        f"%h: f32[{batch}, {hidden}], %c: f32[{batch}, {hidden}]) -> "
        f"(f32[{steps}, {batch}, {hidden}], f32[{batch}, {hidden}], f32[{batch}, {hidden}]) {{"
        '%y, %p, %q = lstm(%g, %r, none, %h, %c) {activations = (("sigmoid", 0.0, 0.0), '
        '("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0)), reverse = false} return %y, %p, %q }'
    )
    rng = np.random.default_rng(3)
    shapes = [tuple(int(d.value) for d in value.tensor.shape) for value in module.main.params]
    types = [value.tensor.dtype.numpy for value in module.main.params]
    inputs = [
        (rng.standard_normal(shape) * 0.3).astype(kind)
        for shape, kind in zip(shapes, types, strict=True)
    ]
    want = graph.interpret(module, *inputs)
    made = run_scheduled(module.main, inputs, want, constants=constants)
    for got, expected in zip(made, want, strict=True):
        close(got, expected, hidden * steps)


def test_recurrent_layers_of_any_batch_keep_the_answer(close):
    module = graph.parse(
        "graph @main(%g: f32[3, n, 64], %r: f32[64, 16]) -> (f32[3, n, 16], f32[n, 16], f32[n, 16])"
        ' { %y, %p, %q = lstm(%g, %r) {activations = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), '
        '("tanh", 0.0, 0.0)), reverse = false} return %y, %p, %q }'
    )
    compiled = tw.compile(module, threads=1)
    rng = np.random.default_rng(3)
    weights = (rng.standard_normal((64, 16)) * 0.3).astype(np.float32)
    for batch in range(1, 8):
        gates = rng.standard_normal((3, batch, 64)).astype(np.float32)
        want = graph.interpret(module, gates, weights)
        for got, expected in zip(compiled(gates, weights), want, strict=True):
            close(np.asarray(got), expected, 48)


def test_weights_of_recurrent_layers_are_laid_out_as_they_are_stored():
    text = scheduled_text(
        "graph @main(%g: f32[9, 1, 256], %r: bf16[256, 256]) -> (f32[9, 1, 256], f32[1, 256]) {"
        '%y, %h = rnn(%g, %r) {activations = (("tanh", 0.0, 0.0),)} return %y, %h }'
    )
    assert "%r_global: bf16[2, 256, 1, 128]" in text  # panel, k, gate, unit


# ------------------------------------------------------------------------------------ what is made


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_what_is_padded_by_itself_is_copied_inside(mode):
    module = graph.parse(
        f'graph @main(%x: f32[3, 90]) {{ %y = pad(%x) {{pads = (1, 20, 2, 7), mode = "{mode}"}} '
        "return %y }"
    )
    assert "%x[%vindex0 - 1, %vindex1 - 20]" in str(lower_graph(module.main, "k"))
    x = np.arange(270, dtype=np.float32).reshape(3, 90)
    (got,) = tw.compile(module, threads=1)(x)
    np.testing.assert_array_equal(np.asarray(got), np.pad(x, ((1, 2), (20, 7)), mode=mode))


SERVER = "x86_64-linux-gnu -mcpu=sapphirerapids"


def scheduled_text(text, threads=2, target=SERVER):
    module = graph.parse(text)
    return str(default_schedule(lower_graph(module.main, "k"), target, threads=threads).function)


def test_elementwise_producers_disappear_and_lanes_are_vectors():
    text = scheduled_text(
        "graph @main(%x: f32[64, 1024]) -> (f32[64, 1024]) { %y = relu(%x) %z = neg(%y) return %z }"
    )
    assert text.count("block @") == 1
    assert "in vector 0.." in text
    assert "in parallel 0.." in text


def test_few_channels_are_interleaved_without_tiles():
    for channels, tiles in ((4, False), (8, False), (32, True)):
        text = scheduled_text(
            f"graph @main(%x: f32[{channels}, 960]) -> (f32[960, {channels}]) {{"
            "%y = transpose(%x) {perm = (1, 0)} return %y }",
        )
        assert ("in local" in text) == tiles


def test_small_work_stays_on_one_core():
    text = scheduled_text("graph @main(%x: f32[64]) -> (f32[64]) { %y = exp(%x) return %y }")
    assert "parallel" not in text
    assert "in vector 0..16" in text


def test_stages_of_a_row_share_one_loop_and_exp_is_computed_once():
    text = scheduled_text(
        "graph @main(%x: f32[512, 256]) -> (f32[512, 256]) {"
        "%y = softmax(%x) {axes = (1,)} return %y }"
    )
    assert text.count("in parallel") == 1
    assert text.count(" = exp_nonpositive(") == 1


def test_attention_keeps_a_tile_of_scores():
    text = str(
        tensor.passes.lower(
            tensor.parse(
                scheduled_text(
                    "graph @main(%q: f32[1, 8, 256, 64], %k: f32[1, 8, 256, 64], "
                    "%v: f32[1, 8, 256, 64]) -> (f32[1, 8, 256, 64]) {"
                    "%y = attention(%q, %k, %v) return %y }"
                )
            )
        )
    )
    assert "f32[8192]" in text  # 256 keys by 32 queries
    assert "f32[524288]" not in text  # all of them


def test_values_used_twice_again_and_again_stay_small():
    lines = [f"%v{at + 1} = add(%v{at}, %v{at})" for at in range(40)]
    text = "graph @main(%v0: f32[64]) { " + " ".join(lines) + " return %v40 }"
    module = graph.parse(text)
    scheduled = default_schedule(lower_graph(module.main, "kernel"), "cpu").function
    assert len(str(scheduled)) < 200_000
    x = np.ones(64, np.float32)
    made = np.zeros(64, np.float32)
    tw.build(scheduled)(x, made)
    assert (made == 2.0**40).all()


def test_a_long_sum_of_equal_numbers_does_not_round_in_one_direction():
    text = "graph @main(%x: f32[2, 65536]) { %y = reduce_sum(%x) {axes = (1,)} return %y }"
    x = np.full((2, 65536), 0.7, np.float32)
    want = x.sum(1, keepdims=True, dtype=np.float64)
    (made,) = run_scheduled(graph.parse(text).main, [x], [want.astype(np.float32)])
    np.testing.assert_allclose(made, want, rtol=2e-6)
