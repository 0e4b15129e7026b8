"""Files that ONNX Runtime takes though the specification says otherwise, or says nothing."""

import numpy as np
import pytest
from grids import every_pair
from onnx import TensorProto, helper, numpy_helper, parser

import tilewright as tw
from tilewright.base.errors import UserError
from tilewright.frontends.onnx import import_model

ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: bench)")
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '


def parsed(text):
    return parser.parse_model(HEAD + text)


def theirs(model):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    names = [info.name for info in session.get_inputs()]
    return lambda *args: session.run(None, dict(zip(names, args, strict=True)))


def check(model, *calls):
    """Native code gives what ONNX Runtime gives, in shape and value, for each call."""
    module, peer = tw.compile(model, threads=1), theirs(model)
    for args in calls:
        for have, want in zip(module(*args), peer(*args), strict=True):
            assert np.asarray(have).shape == want.shape
            np.testing.assert_allclose(np.asarray(have), want, rtol=1e-4, atol=1e-5)
    return module


def ramp(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7


# ------------------------------------------------------------------ ranks


def test_squeeze_without_axes_where_the_model_ends():
    model = parsed("g (float[n, 1, 8] x) => (float[] y) { y = Squeeze (x) }")
    check(model, [ramp(1, 1, 8)], [ramp(3, 1, 8)])


def test_squeeze_without_axes_where_both_ranks_go_on():
    text = "g (float[n, 1, m] x) => (float[] y) { z = Squeeze (x)\n y = Softmax (z) }"
    check(parsed(text), [ramp(1, 1, 8)], [ramp(3, 1, 8)], [ramp(3, 1, 1)])


def test_squeeze_without_axes_where_one_rank_fits():
    text = """g (float[n, 1, 8, m] x, float[n, 8, m] w) => (float[] y) {
        z = Squeeze (x)
        y = Concat <axis = 2> (z, w)
    }"""
    module = check(parsed(text), [ramp(3, 1, 8, 2), ramp(3, 8, 2)])
    assert not module.fallbacks
    with pytest.raises(UserError, match="what follows does not fit"):
        module(ramp(1, 1, 8, 2), ramp(1, 8, 2))


def test_squeeze_at_an_opset_with_axes_as_an_attribute():
    text = "g (float[n, 1, 8] x) => (float[] y) { y = Squeeze (x) }"
    model = parsed(text)
    model.opset_import[0].version = 11
    check(model, [ramp(1, 1, 8)], [ramp(3, 1, 8)])


LOOP = """g (float[n, 3] x, int64 trip) => (float[] y) {
    none = Constant <value = int64[1] {0}> ()
    start = ConstantOfShape (none)
    go = Constant <value = bool {1}> ()
    rows = Loop (trip, go, start) <body = b (int64 i, bool c, float[] s) => (bool d, float[] t) {
        d = Identity (c)
        f = Cast <to = 1> (i)
        w = Add (x, f)
        t = Concat <axis = 0> (s, w)
    }>
    y = Neg (rows)
}"""


@pytest.mark.parametrize("trip", [0, 1, 4])
def test_a_loop_that_gathers_rows_from_nothing(trip):
    x = ramp(2, 3)
    (made,) = tw.compile(parsed(LOOP), threads=1)(x, np.array(trip))
    want = np.concatenate([x + at for at in range(trip)]) if trip else np.zeros(0, np.float32)
    np.testing.assert_allclose(np.asarray(made), -want, rtol=1e-6)


def test_a_loop_that_adds_dimensions():
    text = """g (float[n, 3] x) => (float[] y) {
        axis = Constant <value = int64[1] {0}> ()
        go = Constant <value = bool {1}> ()
        trip = Constant <value = int64 {3}> ()
        z = Loop (trip, go, x) <body = b (int64 i, bool c, float[] s) => (bool d, float[] t) {
            d = Identity (c)
            t = Unsqueeze (s, axis)
        }>
        y = Neg (z)
    }"""
    module = tw.compile(parsed(text), threads=1)
    assert not module.fallbacks
    assert np.asarray(module(ramp(2, 3))[0]).shape == (1, 1, 1, 2, 3)


# ------------------------------------------------------------------ order, signals


def test_nodes_in_any_order():
    text = """g (float[n, 8] x, bool c) => (float[n, 8] y) {
        y = Relu (z)
        z = If (c) <
            then_branch = t () => (float[n, 8] r) { r = Neg (q)
                q = Exp (w) },
            else_branch = e () => (float[n, 8] u) { u = Identity (w) }
        >
        w = Neg (x)
    }"""
    module = tw.compile(parsed(text), threads=1)
    x = ramp(2, 8)
    for taken, want in ((True, -np.exp(-x)), (False, -x)):
        (made,) = module(x, np.array(taken))
        np.testing.assert_allclose(np.asarray(made), np.maximum(want, 0), rtol=1e-5)


def test_nodes_in_another_order_as_onnx_runtime_takes_them():
    check(
        parsed("g (float[n, 8] x) => (float[n, 8] y) { y = Relu (z)\n z = Neg (x) }"), [ramp(2, 8)]
    )


def test_stft_of_a_signal_of_rank_two():
    text = """g (float[n, 64] x) => (float[] y) {
        step = Constant <value = int64 {8}> ()
        length = Constant <value = int64 {16}> ()
        y = STFT (x, step, , length)
    }"""
    check(parsed(text), [np.sin(ramp(3, 64))])


# ------------------------------------------------------------------ memory


def slice_of_all(end):
    """A convolution of x[0:end], where the end stands for all there is."""
    weights = np.random.default_rng(0).standard_normal((8, 16, 1, 5)).astype(np.float32)
    stored = {"s": np.array([0]), "e": np.array([end]), "a": np.array([0]), "w": weights}
    nodes = [
        helper.make_node("Slice", ["x", "s", "e", "a"], ["p"]),
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 3, 2, 1]),
        helper.make_node("Conv", ["t", "w"], ["z"]),
        helper.make_node("Relu", ["z"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40, 1, 16])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    held = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("end", [10**9, 10**7, 3])
def test_memory_follows_the_sizes_and_not_their_bounds(end):
    module = check(slice_of_all(end), [ramp(2, 40, 1, 16)], [ramp(5, 40, 1, 16)])
    assert module.arena_bytes < 1 << 22


# ------------------------------------------------------------------ indices


@pytest.mark.parametrize(
    ("node", "good", "bad"),
    [
        ("y = Gather <axis = 0> (x, i)", [[0, -4, 3], [1, 1, 1]], [[0, 4, 0], [-5, 0, 0]]),
        ("y = GatherElements <axis = 1> (x, j)", [[2, -3, 0]], [[3, 0, 0], [0, -4, 0]]),
        ("y = GatherND (x, j)", [[3, -3]], [[4, 0], [0, 3], [-5, 0]]),
        ("y = ScatterND (x, j, u)", [[3, -3]], [[4, 0], [0, 3]]),
    ],
)
def test_indices_outside_are_errors(node, good, bad):
    i = "int64[k] i" if "(x, i)" in node else "int64[1, k] j"
    given = f"float[n, 3] x, {i}" + (", float[1] u" if "u)" in node else "")
    model = parsed(f"g ({given}) => (float[] y) {{ {node} }}").SerializeToString()
    if "ND" in node:
        model = parsed(f"g ({given.replace('k', '2')}) => (float[] y) {{ {node} }}")
        model = model.SerializeToString()
    module, peer = tw.compile(model, threads=1), ort.InferenceSession(model)
    more = [np.ones(1, np.float32)] if "u)" in node else []
    names = [info.name for info in peer.get_inputs()]
    for numbers in good:
        args = [ramp(4, 3), np.array(numbers if "(x, i)" in node else [numbers]), *more]
        (want,) = peer.run(None, dict(zip(names, args, strict=True)))
        np.testing.assert_array_equal(np.asarray(module(*args)[0]), want)
    for numbers in bad:
        args = [ramp(4, 3), np.array(numbers if "(x, i)" in node else [numbers]), *more]
        with pytest.raises(UserError, match="outside of the dimension"):
            module(*args)


def test_indices_that_are_inside_for_certain_cost_no_check():
    text = """g (float[n, 8] x) => (float[] y) {
        best = ArgMax <axis = 1, keepdims = 1> (x)
        y = GatherElements <axis = 1> (x, best)
    }"""
    module = check(parsed(text), [ramp(3, 8)])
    assert "require" not in str(module.inside.program.module)


# ------------------------------------------------------------------ sequences shorter than the axis


def recurrent(kind, direction, time):
    """A layer of two sequences, whose lengths are an input."""
    rng = np.random.default_rng(3)
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"w": (ways, gates * 6, 4), "r": (ways, gates * 6, 6), "b": (ways, 2 * gates * 6)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    outputs = ["y", "h", "c"] if kind == "LSTM" else ["y", "h"]
    more = {"hidden_size": 6, "direction": direction}
    node = helper.make_node(kind, ["x", "w", "r", "b", "lengths"], outputs, **more)
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [time, 2, 4]),
        helper.make_tensor_value_info("lengths", TensorProto.INT32, [2]),
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "g", infos, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("kind", "direction", "time"),
    every_pair(("RNN", "GRU", "LSTM"), ("forward", "reverse", "bidirectional"), (9, "t")),
)
def test_sequences_shorter_than_the_time_axis(kind, direction, time):
    lengths = ([9, 9], [3, 5], [1, 9], [2, 0])
    check(recurrent(kind, direction, time), *([ramp(9, 2, 4), np.int32(each)] for each in lengths))


def test_no_step_where_all_sequences_are_empty():
    module = tw.compile(recurrent("LSTM", "forward", 9), threads=1)
    for made in module(ramp(9, 2, 4), np.zeros(2, np.int32)):
        assert not np.asarray(made).any()


# ------------------------------------------------------------------ windows larger than the image


@pytest.mark.parametrize(
    ("op", "extra", "dims"),
    every_pair(
        ("MaxPool", "AveragePool", "LpPool"),
        ({}, {"ceil_mode": 1}, {"pads": [1, 0, 0, 0]}),
        ((3, 2), ("h", "w")),
    ),
)
def test_a_window_larger_than_its_image(op, extra, dims):
    """One window is left where the image lacks less than a stride."""
    more = {"kernel_shape": [5, 4], "strides": [3, 3], **extra}
    node = helper.make_node(op, ["x"], ["y"], **more)
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, *dims])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [info], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    sizes = [(3, 2)] if dims == (3, 2) else [(3, 2), (3, 9), (2, 4), (8, 1), (11, 13)]
    check(model, *([ramp(1, 2, *size)] for size in sizes))


def test_valid_windows_may_be_rounded_up():
    text = """g (float[1, 1, 6] x) => (float[] y) {
        y = MaxPool <kernel_shape = [3], strides = [2], auto_pad = "VALID", ceil_mode = 1> (x)
    }"""
    check(parsed(text), [ramp(1, 1, 6)])


# ------------------------------------------------------------------ sizes known in part


SIZES = """s = Shape <start = 0, end = 2> (x)
    wanted = Cast <to = 7> (t)
    to = Concat <axis = 0> (s, wanted)
    y = Resize <mode = "linear"> (x, , , to)"""
SCALES = """ones = Constant <value = float[2] {1.0, 1.0}> ()
    by = Concat <axis = 0> (ones, t)
    y = Resize <mode = "linear"> (x, , by)"""


@pytest.mark.parametrize(("nodes", "calls"), [(SIZES, [(6, 9), (2, 3)]), (SCALES, [(1.5, 2.25)])])
def test_batch_and_channels_are_not_resized(nodes, calls):
    """What becomes of height and width is known only when the model runs."""
    text = f"g (float[n, c, h, w] x, float[2] t) => (float[n, c, a, b] y) {{ {nodes} }}"
    (resize,) = [node for node in import_model(parsed(text)).main.nodes if node.op == "resize"]
    assert resize["axes"] == (2, 3)
    assert resize.output.tensor.shape[:2] == resize.inputs[0].tensor.shape[:2]
    check(parsed(text), *([ramp(2, 3, 4, 5), np.array(size, np.float32)] for size in calls))


# ------------------------------------------------------------------ names, types, masks


def test_dimensions_that_all_are_called_none_differ():
    """Some exporters write the word where a size is not known."""
    model = parsed("g (float[None, None] x, float[unknown] y) => (float[] z) { z = Add (x, y) }")
    check(model, [ramp(2, 3), ramp(3)], [ramp(5, 4), ramp(1)])


@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize(("of", "to"), [("float16", "float"), ("float", "float16")])
def test_norms_before_opset_17_give_the_type_of_their_scale(op, of, to):
    text = f"g ({of}[2, 8] x, {to}[8] scale) => ({to}[2, 8] y) {{ y = {op} (x, scale) }}"
    model = parser.parse_model('<ir_version: 7, opset_import: ["" : 12]> ' + text)
    types = {"float16": np.float16, "float": np.float32}
    large = 1e6 if of == "float" else 1  # more than f16 holds
    module = check(model, [(ramp(2, 8) * large).astype(types[of]), ramp(8).astype(types[to])])
    assert module.outputs[0].dtype.numpy == types[to]


@pytest.mark.parametrize("opset", [7, 10, 13])
def test_mask_of_a_dropout_that_does_not_train(opset):
    of = "float" if opset < 10 else "bool"
    text = f"g (float[2, 8] x) => (float[2, 8] y, {of}[2, 8] mask) {{ y, mask = Dropout (x) }}"
    check(
        parser.parse_model(f'<ir_version: 7, opset_import: ["" : {opset}]> ' + text), [ramp(2, 8)]
    )


def test_slice_whose_bounds_are_of_dynamic_length_but_whose_steps_are_not():
    text = """g (float[n, 5] x, int64[a] starts, int64[b] ends) => (float[] y) {
        steps = Constant <value = int64[1] {1}> ()
        y = Slice (x, starts, ends, , steps)
    }"""
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    module = check(model, [ramp(4, 5), np.array([1]), np.array([3])])
    assert not module.fallbacks
    with pytest.raises(UserError, match="lists of different lengths"):
        module(ramp(4, 5), np.array([1, 0]), np.array([3, 2]))


def test_slice_to_far_ends_whose_starts_are_of_dynamic_length():
    text = """g (float[n, 40000] x, int64[a] starts) => (float[] y) {
        ends = Constant <value = int64[1] {1000000000}> ()
        y = Slice (x, starts, ends)
    }"""
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    module = check(model, [ramp(3, 40000), np.array([1])])
    assert not module.fallbacks
    with pytest.raises(UserError, match="lists of different lengths"):
        module(ramp(3, 40000), np.array([1, 0]))


def test_a_concat_of_hundreds_of_columns():
    """As scikit-learn's polynomial features are exported; conditions are not nested as deep."""
    columns = "\n".join(
        f"i{at} = Constant <value = int64[1] {{{at % 5}}}> ()\n"
        f"g{at} = Gather <axis = 1> (x, i{at})\n"
        f"c{at} = Mul (g{at}, x{at % 3})"
        for at in range(300)
    )
    slices = "\n".join(
        f"k{at} = Constant <value = int64[1] {{{at}}}> ()\nx{at} = Gather <axis = 1> (x, k{at})"
        for at in range(3)
    )
    joined = ", ".join(f"c{at}" for at in range(300))
    text = f"""g (float[n, 5] x) => (float[n, 300] y) {{
        {slices}
        {columns}
        y = Concat <axis = 1> ({joined})
    }}"""
    check(parsed(text), [ramp(1, 5)], [ramp(7, 5)])


def test_a_reduction_that_names_an_axis_twice():
    model = parsed(
        "g (float[n, 3, 4] x) => (float[n, 1, 4] y)"
        " { y = ReduceL2<axes = [1, -2], keepdims = 1>(x) }"
    )
    check(model, [ramp(2, 3, 4)])


def test_slice_without_axes_before_a_squeeze():
    check(
        parsed("""g (float[2, 2, 2] x) => (float[2, 2] y, float[2, 2, 2] z)
        <int64[1] start = {0}, int64[1] end = {1}> {
            t = Transpose <perm = [1, 0, 2]> (x)
            part = Slice (t, start, end)
            y = Squeeze (part, start)
            z = Relu (t)
        }"""),
        [ramp(2, 2, 2)],
    )
