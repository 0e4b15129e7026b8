"""Schedules of convolutions keep the answer: random configurations, natively and interpreted."""

import random

import numpy as np
import pytest

import tilewright as tw
from tilewright import graph, sym
from tilewright.graph.interp import interpret
from tilewright.graph.winograd import FORMS
from tilewright.lower.graph import lower_graph
from tilewright.rules import default_schedule, schedule
from tilewright.tensor.constants import Given, split_constant_blocks
from tilewright.tensor.ir import For
from tilewright.tensor.passes.tails import is_marked
from tilewright.tensor.visit import walk

EPILOGUES = {
    "": "%q = relu(%y)",
    "nothing": "%q = reshape(%y) {shape = SHAPE}",
    "residual": "%r = add(%y, %more)\n%q = relu(%r)",
    "swish": "%r = sigmoid(%y)\n%q = mul(%r, %y)",
    "two results": "%p = relu(%y)\n%q = add(%p, %more)",
}

SERVER = "x86_64-linux-gnu -mcpu=sapphirerapids"


def configuration(seed):
    """A convolution by chance: shapes, window, groups, what follows."""
    pick = random.Random(seed)
    rank = pick.choice([1, 2, 2, 2, 2, 3])
    groups = pick.choice([1, 1, 1, 2, 3])
    depthwise = pick.random() < 0.3
    inner, per_group = pick.choice([1, 3, 8, 17]), pick.choice([1, 5, 16, 24, 40])
    if depthwise:
        groups, inner, per_group = pick.choice([1, 5, 16, 40]), 1, pick.choice([1, 1, 1, 2])
    kernel = [pick.choice([1, 2, 3, 3, 5]) for _ in range(rank)]
    strides = [pick.choice([1, 1, 2, 3]) for _ in range(rank)]
    dilations = [pick.choice([1, 1, 1, 2]) for _ in range(rank)]
    pads = [pick.randint(0, 2) for _ in range(2 * rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [max(1, r) + pick.randint(0, 17 if rank < 3 else 4) for r in reach]
    return {
        "batch": pick.choice([1, 1, 2, 3]),
        "size": size,
        "channels": groups * inner,
        "out": groups * per_group,
        "kernel": kernel,
        "attributes": {
            "strides": tuple(strides),
            "pads": tuple(pads),
            "dilations": tuple(dilations),
            "groups": groups,
        },
        "epilogue": pick.choice(list(EPILOGUES)),
        "bias": pick.random() < 0.7,
        "dynamic": pick.choice(["", "", "batch", "size"]),
        "constant": pick.random() < 0.8,
        "threads": pick.choice([1, 2]),
    }


def module_of(conf):
    """The model, and the arrays it takes."""
    attributes = ", ".join(f"{k} = {v}" for k, v in conf["attributes"].items())
    names = ["n"] if conf["dynamic"] == "batch" else [str(conf["batch"])]
    sizes = [f"s{at}" if conf["dynamic"] == "size" else str(s) for at, s in enumerate(conf["size"])]
    shape = ", ".join([*names, *sizes, str(conf["channels"])])
    weights = [
        conf["out"],
        conf["channels"] // conf["attributes"].get("groups", 1),
        *conf["kernel"],
    ]
    bias = ", %b" if conf["bias"] else ""
    head = f"""%y = conv(%x, %w{bias}) {{{attributes}, layout = "channels_last"}}"""
    params = f"%x: f32[{shape}], %w: f32[{', '.join(map(str, weights))}], %b: f32[{conf['out']}]"
    made = graph.parse(f"graph @main({params}) {{ {head} return %y }}")
    result = made.main.results[0].type.shape
    shown = "(" + ", ".join(f"expr {dim}" for dim in result) + ")"
    more = ", ".join(map(str, result))
    body = EPILOGUES[conf["epilogue"]].replace("SHAPE", shown)
    results = "%p, %q" if conf["epilogue"] == "two results" else "%q"
    return graph.parse(
        f"graph @main({params}, %more: f32[{more}]) {{ {head} {body} return {results} }}"
    )


def arrays_of(module, conf, seed):
    rng = np.random.default_rng(seed)
    env = {"n": conf["batch"], **{f"s{at}": size for at, size in enumerate(conf["size"])}}
    made = []
    for value in module.main.params:
        dims = [
            int(sym.evaluate(d, {v: env[v.name] for v in sym.free_vars(d)}))
            for d in value.type.shape
        ]
        made.append(rng.standard_normal(dims).astype(np.float32))
    return made, env


def run_kernel(run, split, arrays, outs, sizes):
    """Pack what is constant, then call the kernel."""
    given = [*arrays, *outs, *sizes]
    packed = []
    if split.packer is not None:
        shapes = [
            [int(d.value) for d in p.shape] for p in split.packer.params[len(split.weights) :]
        ]
        packed = [np.zeros(shape, np.float32) for shape in shapes]
        run(split.packer)(*[given[at] for at in split.weights], *packed)
    args = [
        given[param.position] if isinstance(param, Given) else packed[param.position]
        for param in split.params
    ]
    run(split.kernel)(*args)


def made_by(conf, run, module, arrays, env):
    """What the kernel of a model makes of its arrays."""
    fn = lower_graph(module.main, "kernel")
    constants = ("w", "b") if conf["constant"] else ()
    scheduled = default_schedule(fn, "cpu", threads=conf["threads"], constants=constants)
    known = {size: env[size.name] for size in fn.params[len(arrays) + len(module.main.results) :]}
    shapes = [[int(sym.evaluate(d, known)) for d in y.type.shape] for y in module.main.results]
    outs = [np.full(shape, np.nan, np.float32) for shape in shapes]
    run_kernel(run, split_constant_blocks(scheduled.function), arrays, outs, [*known.values()])
    return outs


def check(conf, seed, run, loose=1):
    module = module_of(conf)
    arrays, env = arrays_of(module, conf, seed)
    outs = made_by(conf, run, module, arrays, env)
    terms = np.prod(conf["kernel"]) * conf["channels"]
    for found, wanted in zip(outs, graph.interpret(module, *arrays), strict=True):
        np.testing.assert_allclose(
            found, wanted, rtol=2e-5 * loose, atol=2e-6 * terms + 1e-5 * loose
        )


def seeds(few, many):
    """Some always, the others on request."""
    more = [pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(few, many)]
    return [*range(few), *more]


@pytest.mark.parametrize("seed", seeds(12, 20))
def test_scheduled_convolutions_keep_the_answer(seed):
    check(configuration(seed), seed, tw.build)


@pytest.mark.parametrize("seed", seeds(4, 6))
def test_the_method_of_winograd_keeps_the_answer(seed):
    pick = random.Random(seed)
    pads = tuple(pick.randint(0, 2) for _ in range(4))
    form = pick.choice(FORMS)
    tile, window = form.tile, form.window
    conf = {
        "batch": pick.choice([1, 2]),
        "size": [pick.randint(window, 18), pick.randint(window, 18)],
        "channels": pick.choice([1, 7, 16, 40]),
        "out": pick.choice([1, 16, 24, 80]),
        "kernel": [window, window],
        "attributes": {
            "strides": (1, 1),
            "pads": pads,
            "dilations": (1, 1),
            "winograd": tile,
        },
        "epilogue": pick.choice(list(EPILOGUES)),
        "bias": pick.random() < 0.7,
        "dynamic": pick.choice(["", "batch", "size"]),
        "constant": pick.random() < 0.8,
        "threads": pick.choice([1, 2]),
    }
    check(conf, seed, tw.build, loose=10)


@pytest.mark.parametrize("dynamic", ["", "size"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_windows_of_every_size_have_tiles_of_winograds_method(form, dynamic):
    sizes = {"batch": 1, "size": [11, 14], "channels": 20, "out": 32, "constant": True}
    conf = winograd(form.tile, 1, **sizes) | {"kernel": [form.window] * 2, "dynamic": dynamic}
    made = schedule(lower_graph(module_of(conf).main, "kernel"), "cpu", constants=("w", "b"))
    assert "winograd" in [each.rule for each in made.decisions]
    check(conf, 0, tw.build, loose=10)


def winograd(tile, threads, groups=1, **sizes):
    """A convolution by tiles of Winograd's method, whose result is added to another."""
    ones = (1, 1)
    attributes = {"strides": ones, "pads": (1, 1, 1, 1), "dilations": ones, "winograd": tile}
    attributes["groups"] = groups
    return {
        "kernel": [3, 3],
        "attributes": attributes,
        "epilogue": "residual",
        "bias": True,
        "dynamic": "",
        "threads": threads,
        **sizes,
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.sampled
def test_weights_of_winograds_method_may_be_given_with_a_call(tile, threads):
    conf = winograd(tile, threads, batch=2, size=[9, 14], channels=40, out=80, constant=False)
    made = schedule(lower_graph(module_of(conf).main, "kernel"), "cpu", threads=threads)
    (decision,) = [each for each in made.decisions if each.rule == "winograd"]
    assert decision.terms["weights"] > 0
    check(conf, 0, tw.build, loose=10)


def test_what_moves_pixels_is_not_joined_to_tiles_of_winograds_method():
    module = graph.parse("""
        graph @main(%x: f32[4, 6, 7, 16], %w: f32[32, 16, 3, 3]) {
          %y = conv(%x, %w) {strides = (1, 1), pads = (1, 1, 1, 1), dilations = (1, 1),
                             winograd = 4, layout = "channels_last"}
          %a = reshape(%y) {shape = (2, 2, 6, 7, 32)}
          %b = transpose(%a) {perm = (2, 0, 3, 1, 4)}
          %c = reshape(%b) {shape = (1, 12, 14, 32)}
          %q = relu(%c)
          return %q
        }""")
    fn = lower_graph(module.main, "kernel")
    made = schedule(fn, SERVER, constants=("w",))
    assert "winograd" in [each.rule for each in made.decisions]
    conf = {"constant": True, "threads": 1}
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((4, 6, 7, 16), (32, 16, 3, 3))]
    (found,) = made_by(conf, tw.build, module, arrays, {})
    np.testing.assert_allclose(found, graph.interpret(module, *arrays)[0], rtol=2e-4, atol=4e-4)


@pytest.mark.parametrize(
    ("groups", "out", "by_tiles"), [(2, 64, True), (3, 96, True), (4, 64, True), (2, 40, False)]
)
@pytest.mark.parametrize(
    ("tile", "threads", "dynamic", "constant"),
    [(2, 1, "size", True), (4, 2, "", True), (4, 1, "batch", False)],
)
@pytest.mark.sampled
def test_winograds_method_serves_groups_of_whole_vectors(
    groups, out, by_tiles, tile, threads, dynamic, constant
):
    sizes = {"batch": 2, "size": [9, 14], "channels": 5 * groups, "out": out}
    conf = winograd(tile, threads, groups, **sizes, constant=constant) | {"dynamic": dynamic}
    made = schedule(lower_graph(module_of(conf).main, "kernel"), SERVER, threads=threads)
    assert ("winograd" in [each.rule for each in made.decisions]) == by_tiles
    check(conf, 0, tw.build, loose=10)


@pytest.mark.parametrize(
    ("rule", "attributes"),
    [
        ("depthwise", {"groups": 32}),
        ("grouped", {"groups": 8}),
        ("winograd", {"winograd": 2}),
        ("conv", {}),
    ],
)
def test_rows_of_any_length_have_code_for_whatever_is_left_over(rule, attributes):
    """Positions that may not exist would each be a branch: in sums, and where padding is read."""
    conf = {
        "batch": 1,
        "channels": 32,
        "out": 32,
        "kernel": [3, 3],
        "attributes": {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), **attributes},
        "epilogue": "swish",
        "bias": True,
        "dynamic": "size",
        "constant": True,
        "threads": 1,
    }
    module = module_of(conf | {"size": [5, 5]})
    made = schedule(lower_graph(module.main, "kernel"), "cpu", constants=("w", "b"))
    assert rule in [each.rule for each in made.decisions]
    split = split_constant_blocks(made.schedule.function)
    built = {id(fn): tw.build(fn) for fn in (split.packer, split.kernel) if fn is not None}
    assert any(isinstance(stmt, For) and is_marked(stmt) for stmt in walk(split.kernel.body))
    for width in range(1, 20):
        given = conf | {"size": [5, width]}
        arrays, _ = arrays_of(module, given, width)
        (wanted,) = graph.interpret(module, *arrays)
        found = np.full_like(wanted, np.nan)
        run_kernel(lambda fn: built[id(fn)], split, arrays, [found], [5, width])
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


def of_windows(channels, tile, strides=(1, 1), window=3):
    """A convolution of square windows, in tiles by Winograd's method or as it is."""
    return {
        "batch": 1,
        "size": [16, 16],
        "channels": channels,
        "out": 32,
        "kernel": [window, window],
        "attributes": {
            "strides": strides,
            "pads": (0, 0, 0, 0),
            "dilations": (1, 1),
            "winograd": tile,
        },
        "epilogue": "nothing",
        "bias": False,
        "dynamic": "",
        "constant": True,
        "threads": 1,
    }


def errors_of(conf):
    """How far a convolution is off, element by element, and how far that of a chain in f32 is."""
    module = module_of(conf)
    arrays, env = arrays_of(module, conf, 0)
    (made,) = made_by(conf, tw.build, module, arrays, env)
    windows = np.lib.stride_tricks.sliding_window_view(arrays[0][0], conf["kernel"], axis=(0, 1))
    along, across = conf["attributes"]["strides"]
    terms = windows[::along, ::across].transpose(0, 1, 3, 4, 2).reshape(*made[0].shape[:2], -1)
    weights = arrays[1].transpose(2, 3, 1, 0).reshape(-1, conf["out"])
    exact = terms.astype(float) @ weights.astype(float)
    chain = np.zeros_like(made[0])
    for at in range(len(weights)):
        chain += terms[..., at, None] * weights[at]
    return made[0] - exact, chain - exact


@pytest.mark.parametrize("channels", [64, 192])
@pytest.mark.parametrize(("tile", "window"), [(4, 3), (2, 2)])
def test_tiles_of_winograds_method_round_little_more_than_plain_sums(channels, tile, window):
    (tiles, _), (plain, _) = (
        errors_of(of_windows(channels, each, window=window)) for each in (tile, 0)
    )
    assert np.abs(tiles).max() < 3 * np.abs(plain).max()


@pytest.mark.parametrize(("tile", "strides", "share"), [(4, (1, 1), 0.9), (0, (2, 2), 0.6)])
def test_long_sums_are_cut_where_one_chain_loses_digits(tile, strides, share):
    """In one chain, 512 products of large tiles are off farther than the 4,608 they stand for."""
    ours, chain = errors_of(of_windows(512, tile, strides))
    assert np.square(ours).mean() ** 0.5 < share * np.square(chain).mean() ** 0.5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "tile"), [((7, 7), 2), ((8, 5), 4), ((14, 14), 4)])
@pytest.mark.sampled
def test_weights_of_winograds_method_come_by_once(size, tile, threads):
    conf = winograd(tile, threads, batch=1, size=list(size), channels=256, out=272, constant=True)
    check(conf, 0, tw.build, loose=10)
    fn = lower_graph(module_of(conf).main, "kernel")
    made = default_schedule(fn, SERVER, threads=threads, constants=("w", "b"))
    assert "align(4, 256, 16)" in str(made.function)


FEW_PIXELS = {
    "padded": ([4, 4], [2, 2], (1, 0, 0, 1)),
    "copied": ([4, 4], [1, 1], (0, 0, 0, 0)),
    "along one axis": ([12], [3], (1, 1)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "kernel", "pads"), FEW_PIXELS.values(), ids=FEW_PIXELS)
@pytest.mark.sampled
def test_many_weights_for_few_pixels_are_read_once(size, kernel, pads, threads):
    conf = {
        "batch": 1,
        "size": size,
        "channels": 1024,
        "out": 1072 // int(np.prod(kernel)),
        "kernel": kernel,
        "attributes": {"strides": (1,) * len(size), "pads": pads, "dilations": (1,) * len(size)},
        "epilogue": "residual",
        "bias": True,
        "dynamic": "",
        "constant": True,
        "threads": threads,
    }
    check(conf, 0, tw.build)
    fn = lower_graph(module_of(conf).main, "kernel")
    made = default_schedule(fn, SERVER, constants=("w", "b"))
    text = str(made.function)
    assert f"align({len(size)}, 1024, 16)" in text  # pixels are not 4096 bytes apart
    assert "_prefetch(" in text


WINDOWS = [(1, 1, ""), (1, 1, "size"), (3, 2, ""), (3, 1, "batch")]


@pytest.mark.parametrize(
    "channels", [(24, 144), (8, 50), (40, 144), (3, 24), (48, 32), (24, 15)], ids=str
)
@pytest.mark.parametrize("window", [(*each, n) for each in WINDOWS for n in (1, 2)], ids=str)
@pytest.mark.sampled
def test_channels_that_half_fill_a_vector_are_summed_side_by_side(channels, window):
    out, inner = channels
    kernel, stride, dynamic, threads = window
    conf = {
        "batch": 2,
        "size": [11, 13],
        "channels": inner,
        "out": out,
        "kernel": [kernel, kernel],
        "attributes": {
            "strides": (stride, stride),
            "pads": (kernel // 2,) * 4,
            "dilations": (1, 1),
        },
        "epilogue": "residual",
        "bias": True,
        "dynamic": dynamic,
        "constant": True,
        "threads": threads,
    }
    check(conf, out, tw.build)
    fn = lower_graph(module_of(conf | {"size": [56, 56], "dynamic": ""}).main, "kernel")
    made = default_schedule(fn, SERVER, constants=("w", "b"))
    assert ("_rf(" in str(made.function)) == (out < 48 and inner % 2 == 0)


@pytest.mark.parametrize("size", [(9, 33), (7, 7), (16, 14), (3, 5)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 2, 1, 0)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.sampled
def test_planes_keep_the_answer(size, pads, stride):
    module = graph.parse(
        f"""graph @main(%x: f32[2, 5, {size[0]}, {size[1]}], %w: f32[5, 1, 3, 3], %b: f32[5]) {{
          %y = conv(%x, %w, %b) {{
            strides = ({stride}, {stride}), pads = {pads}, dilations = (1, 1), groups = 5}}
          %q = relu(%y)
          return %q }}"""
    )
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal(v.type.static_shape).astype(np.float32) for v in module.main.params
    ]
    scheduled = default_schedule(lower_graph(module.main, "kernel"), "cpu", threads=2)
    (want,) = graph.interpret(module, *arrays)
    out = np.full_like(want, np.nan)
    tw.build(scheduled.function)(*arrays, out)
    np.testing.assert_allclose(out, want, rtol=2e-5, atol=2e-5)


POOLS = {  # of, type, image, kernel, stride, dilation
    "greatest": ("max_pool", "f32", (9, 13), 3, 1, 1),
    "many for two threads": ("max_pool", "f32", (40, 37), 3, 1, 1),
    "rounded": ("max_pool", "bf16", (9, 14), 5, 1, 1),
    "bytes": ("max_pool", "u8", (9, 13), 3, 1, 1),
    "mean": ("avg_pool", "f32", (9, 13), 5, 1, 1),
    "apart": ("avg_pool", "f32", (11, 13), 3, 1, 2),
    "strides": ("max_pool", "f32", (23, 23), 5, 2, 1),
    "a line": ("max_pool", "f32", (2900,), 3, 1, 1),
    "a line as an image": ("max_pool", "f32", (1, 2900), 3, 1, 1),
    "a room": ("avg_pool", "f32", (5, 6, 9), 3, 1, 1),
}


def pool_of(of, dtype, image, kernel, stride, dilation, channels):
    rank = len(image)
    kernels = tuple(min(kernel, size) for size in image)
    pads = tuple(1 if size > 1 else 0 for size in image) * 2
    shape = ", ".join(map(str, (2, *image, channels)))
    return graph.parse(
        f"""graph @main(%x: {dtype}[{shape}]) {{
          %y = {of}(%x) {{
            kernel = {kernels}, strides = {(stride,) * rank}, pads = {pads},
            dilations = {(dilation,) * rank}, layout = "channels_last"}}
          return %y }}"""
    )


@pytest.mark.parametrize("channels", [16, 40])
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.sampled
def test_pools_whose_windows_share_much_keep_the_answer(name, channels):
    module = pool_of(*POOLS[name], channels)
    param = module.main.params[0].type
    x = np.random.default_rng(0).uniform(0, 200, param.static_shape).astype(param.dtype.numpy)
    if POOLS[name][1] != "u8":
        x.flat[[7, 333]], x.flat[500] = np.nan, -np.inf
    scheduled = default_schedule(lower_graph(module.main, "kernel"), "cpu", threads=2)
    (want,) = graph.interpret(module, x)
    out = np.zeros_like(want)
    tw.build(scheduled.function)(x, out)
    wide = np.float64
    np.testing.assert_allclose(out.astype(wide), want.astype(wide), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("pool", "is_cut"),
    [
        (("max_pool", "f32", (28, 28), 3, 1, 1), True),
        (("avg_pool", "f32", (28, 28), 5, 2, 1), True),
        (("max_pool", "f32", (28, 28), 3, 2, 1), False),
        (("max_pool", "f32", (28, 28), 2, 2, 1), False),
        (("avg_pool", "f32", (7, 7), 9, 1, 1), False),  # one window
        (("lp_pool", "f32", (28, 28), 3, 1, 1), False),  # a function of each
    ],
)
def test_windows_that_share_much_are_cut_as_depthwise_ones(pool, is_cut):
    fn = lower_graph(pool_of(*pool, 64).main, "kernel")
    made = default_schedule(fn, SERVER)
    assert ("_init(" in str(made.function)) == is_cut


def frames_of(batch, stride, lead=()):
    """Windows along lines of one channel, whose taps lie side by side."""
    ones = (1,) * len(lead)
    strides, pads = (*ones, stride), (0,) * (2 * len(ones) + 2)
    x, y = f"{[batch, *lead, 203, 1]}", f"{[batch, *lead, (203 - 24) // stride + 1, 37]}"
    return graph.parse(
        f"graph @main(%x: f32{x}, %w: f32{[37, 1, *ones, 24]}) -> (f32{y}) {{"
        f"%y = conv(%x, %w) {{strides = ({', '.join(map(str, strides))},), pads = {pads}, "
        f'dilations = ({"1, " * len(strides)}), groups = 1, layout = "channels_last"}} return %y }}'
    )


@pytest.mark.parametrize(("batch", "lead"), [(1, ()), (3, ()), (2, (4,))])
@pytest.mark.parametrize("stride", [1, 10, 30])
@pytest.mark.sampled
def test_windows_along_lines_of_one_channel_are_rows_of_a_product(batch, stride, lead):
    module = frames_of(batch, stride, lead)
    fn = lower_graph(module.main, "frames")
    made = schedule(fn, "cpu", threads=1, constants=["w"])
    assert "conv" not in [each.rule for each in made.decisions]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, *lead, 203, 1)).astype(np.float32)
    w = rng.standard_normal((37, 1, *(1,) * len(lead), 24)).astype(np.float32)
    (want,) = graph.interpret(module, x, w)
    got = tw.compile(module, threads=1)(x, w)[0]
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-4)


PLANES = [  # size, kernel, strides, dilation, pad
    ((28, 28), 5, (2, 2), 1, 2),
    ((7, 14), 3, (1, 2), 1, 1),
    ((9, 33), 3, (2, 3), 2, 2),
    ((17, 40), 4, (3, 4), 1, 0),
    ((20, 21), 7, (2, 5), 1, 3),
    ((2, 3), 3, (2, 2), 1, 1),
]


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("size", "kernel", "strides", "dilation", "pad"), PLANES, ids=str)
def test_depthwise_windows_of_any_stride_channels_first(
    size, kernel, strides, dilation, pad, is_dynamic
):
    shape = "h, w" if is_dynamic else ", ".join(map(str, size))
    params = f"%x: f32[2, 5, {shape}], %w: f32[5, 1, {kernel}, {kernel}]"
    module = graph.parse(f"""graph @main({params}) {{
      %y = conv(%x, %w) {{strides = {strides}, pads = {(pad,) * 4}, groups = 5,
                          dilations = {(dilation,) * 2}}}
      %z = relu(%y)
      return %z
    }}""")
    made = tw.compile(module, threads=1, without=("assign_layout",), database="")
    drawn = np.random.default_rng(0)
    for height, width in (size, (size[0] + 2, size[1] + 17)) if is_dynamic else (size,):
        x = drawn.standard_normal((2, 5, height, width)).astype(np.float32)
        w = drawn.standard_normal((5, 1, kernel, kernel)).astype(np.float32)
        np.testing.assert_allclose(made(x, w)[0], interpret(module, x, w)[0], rtol=1e-4, atol=1e-4)
