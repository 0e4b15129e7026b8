"""From ONNX to our operators: names, functions, control flow, everything wrong at once."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.base.errors import Unsupported, UserError, UserTypeError
from tilewright.frontends.onnx import import_model
from tilewright.frontends.onnx.frames import free_names
from tilewright.graph import interpret
from tilewright.graph.verify import verify


def parsed(text):
    return onnx.parser.parse_model(text)


def run(text, *args):
    module = import_model(parsed(text))
    verify(module)
    return interpret(module, *args, check=True)


HEAD = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>\n'


def test_everything_missing_is_reported_at_once():
    text = (
        HEAD
        + """g (float[2] x) => (float[2] y) {
        a = NoSuchThing (x)
        b = Relu (a)
        c = other.Missing (x)
        y = Add (b, c)
    }"""
    )
    with pytest.raises(Unsupported) as caught:
        import_model(parsed(text))
    assert "ai.onnx.NoSuchThing at opset 21 (a)" in caught.value.message
    assert "other.Missing" in caught.value.message


def test_named_dimensions_are_one_size():
    text = (
        HEAD
        + """g (float[batch, 3] x, float[batch, 4] y) => (float[batch, 7] z) {
        z = Concat <axis = 1> (x, y)
    }"""
    )
    module = import_model(parsed(text))
    assert str(module.main.results[0].type) == "f32[batch, 7]"


def test_initializers_are_constants_even_if_inputs():
    text = (
        HEAD
        + """g (float[2] x, float[2] w) => (float[2] y)
        <float[2] w = {1.0, 2.0}> {
        y = Mul (x, w)
    }"""
    )
    (made,) = run(text, np.ones(2, np.float32))
    assert made.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("y = Relu (missing)", "which nothing defines"),
        ("y = Relu (z)\n z = Relu (y)", "which depends on it in turn"),
        ("z = Relu (x)", "nothing defines the output 'y'"),
    ],
)
def test_names_that_nothing_defines(nodes, words):
    with pytest.raises(UserError, match="TW1102") as caught:
        import_model(parsed(HEAD + f"g (float[2] x) => (float[2] y) {{ {nodes} }}"))
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("y = Concat (x)", "needs the attribute 'axis'"),
        ('y = Concat <axis = "one"> (x)', "is not int"),
        ("y = Relu (x, x)", "has 1 inputs, not 2"),
        ("y = Concat <axis = 3> (x, x)", "outside 1 dimensions"),
    ],
)
def test_nodes_that_do_not_fit_their_declaration(node, words):
    with pytest.raises(UserError) as caught:
        import_model(parsed(HEAD + f"g (float[2] x) => (float[2] y) {{ {node} }}"))
    assert words in caught.value.message
    assert '"y"' in str(caught.value)


# ------------------------------------------------------------------------------------ functions

FUNCTION = (
    HEAD
    + """g (float[2] x) => (float[2] y) {
    y = local.Scaled <by = 3.0> (x)
}
<opset_import: ["" : 21], domain: "local"> Scaled <by: float = 2.0, shift: float = 1.0> (x) => (y) {
    f = Constant <value_float: float = @by> ()
    s = Constant <value_float: float = @shift> ()
    p = Mul (x, f)
    y = Add (p, s)
}"""
)


def test_functions_are_expanded_with_their_attributes():
    assert run(FUNCTION, np.ones(2, np.float32))[0].tolist() == [4, 4]
    plain = FUNCTION.replace("<by = 3.0> ", "")
    assert run(plain, np.ones(2, np.float32))[0].tolist() == [3, 3]


def test_functions_see_nothing_but_their_arguments():
    text = FUNCTION.replace("p = Mul (x, f)", "p = Mul (outer, f)").replace(
        "y = local", "outer = Relu (x)\n y = local"
    )
    with pytest.raises(UserError, match="TW1102"):
        import_model(parsed(text))


def test_recursion_is_an_error():
    text = FUNCTION.replace("p = Mul (x, f)", "p = local.Scaled (x)").replace(
        '<opset_import: ["" : 21], domain', '<opset_import: ["" : 21, "local" : 1], domain'
    )
    with pytest.raises(UserError, match="TW1108"):
        import_model(parsed(text))


def test_operators_defined_by_functions_need_no_rule():
    text = (
        HEAD
        + """g (float[2, 3] x) => (float[2, 3] y) {
        y = MeanVarianceNormalization <axes = [1]> (x)
    }"""
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    want = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    np.testing.assert_allclose(run(text, x)[0], want, rtol=1e-5)


# ------------------------------------------------------------------------------------ control flow


def test_bodies_capture_values_and_restate_what_is_known():
    text = (
        HEAD
        + """g (bool c, float[n] x) => (float[m] y)
        <float[1] w = {2.0}> {
        s = Shape (x)
        z = Neg (x)
        y = If (c) <
            then_branch = t () => (float[k] p) { q = Mul (z, w)  p = Reshape (q, s) },
            else_branch = e () => (float[l] r) { r = Concat <axis = 0> (x, w) }
        >
    }"""
    )
    module = import_model(parsed(text))
    verify(module)
    (branch,) = (node for node in module.main.nodes if node.op == "if")
    assert [value.name for value in branch.inputs] == ["c", "neg", "x"]
    x = np.ones(3, np.float32)
    assert interpret(module, np.bool_(True), x, check=True)[0].tolist() == [-2, -2, -2]
    assert interpret(module, np.bool_(False), x, check=True)[0].tolist() == [1, 1, 1, 2]


def test_a_known_condition_takes_a_branch():
    text = (
        HEAD
        + """g (float[4] x) => (float[k] y) {
        s = Shape (x)
        n = Size (s)
        one = Constant <value_int = 1> ()
        c = Equal (n, one)
        y = If (c) <
            then_branch = t () => (float[k] p) { p = Neg (x) },
            else_branch = e () => (float[l] r) { r = NoSuchThing (x) }
        >
    }"""
    )
    module = import_model(parsed(text))
    assert "if" not in {node.op for node in module.main.nodes}
    assert str(module.main.results[0].type) == "f32[4]"


LOOP = (
    HEAD
    + """g (int64 n, float[2] x) => (float[d] y, float[i, e] z) {
    y, z = Loop (n, , x) <
        body = b (int64 i, bool c, float[f] s) => (bool d, float[g] t, float[h] u) {
            d = Identity (c)
            t = Concat <axis = 0> (s, x)
            u = Mul (x, x)
        }
    >
}"""
)


def test_states_grow_to_the_type_that_covers_them():
    y, z = run(LOOP, np.int64(3), np.full(2, 2, np.float32))
    assert y.shape == (8,)
    assert z.tolist() == [[4, 4]] * 3


def test_the_type_of_a_state_stays():
    text = LOOP.replace("t = Concat <axis = 0> (s, x)", "t = Cast <to = 7> (s)")
    with pytest.raises(UserTypeError, match="TW1109"):
        import_model(parsed(text.replace("float[g] t", "int64[g] t")))


def test_scans_along_any_axis_in_either_direction():
    text = (
        HEAD
        + """g (float[2] s, float[2, 3] x) => (float[2] y, float[2, 3] z) {
        y, z = Scan (s, x) <
            num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [-1], scan_output_directions = [1],
            body = b (float[2] a, float[2] e) => (float[2] t, float[2] o) {
                t = Add (a, e)
                o = Identity (t)
            }
        >
    }"""
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, z = run(text, np.zeros(2, np.float32), x)
    np.testing.assert_array_equal(z, np.cumsum(x[:, ::-1], axis=1)[:, ::-1])
    np.testing.assert_array_equal(y, x.sum(1))


def test_free_names_of_nested_bodies():
    model = parsed(LOOP)
    (loop,) = model.graph.node
    assert free_names(loop.attribute[0].g) == ["x"]


# ------------------------------------------------------------------------------------ shapes


def test_shapes_computed_by_the_model_are_known():
    text = (
        HEAD
        + """g (float[batch, seq, 64] x) => (float[a, b, c, d] y) {
        s = Shape <start = 0, end = 2> (x)
        tail = Constant <value_ints = [8, -1]> ()
        t = Concat <axis = 0> (s, tail)
        r = Reshape (x, t)
        y = Transpose <perm = [0, 2, 1, 3]> (r)
    }"""
    )
    module = import_model(parsed(text))
    assert str(module.main.results[0].type) == "f32[batch, 8, seq, 8]"


@pytest.mark.parametrize(
    ("node", "args", "want"),
    [
        ("y = Unsqueeze (x, a)", [np.array([0, -1])], (1, 2, 3, 1)),
        ("u = Unsqueeze (x, a)\n y = Squeeze (u, a)", [np.array([0, 3])], (2, 3)),
        ("y = Reshape (x, a)", [np.array([0, -1, 1])], (2, 3, 1)),
        ("y = ReduceSum (x, a)", [np.array([1])], (2, 1)),
        ("y = Expand (x, a)", [np.array([4, 1, 1])], (4, 2, 3)),
        ("y = Tile (x, a)", [np.array([2, 1])], (4, 3)),
        ("p, q, y = Split <axis = 1> (x, a)", [np.array([1, 0, 2])], (2, 2)),
    ],
)
def test_shapes_that_only_the_run_tells(node, args, want):
    count = len(args[0])
    text = HEAD + f"g (float[2, 3] x, int64[{count}] a) => (float[q, r] y) {{ {node} }}"
    (made,) = run(text, np.arange(6, dtype=np.float32).reshape(2, 3), *args)
    assert made.shape == want


@pytest.mark.parametrize("rows", [1, 5])
def test_squeeze_of_all_ones_follows_the_run(rows):
    text = HEAD + "g (float[n, 1] x) => (float[] y) { y = Squeeze (x) }"
    x = np.zeros((rows, 1), np.float32)
    assert run(text, x)[0].shape == x.squeeze().shape
    assert run(text.replace("float[n, 1]", f"float[{rows}, 1]"), x)[0].shape == x.squeeze().shape


def test_draws_are_the_same_in_every_run():
    text = (
        HEAD
        + """g () => (float[1000] u, float[1000] v, float[1000] w) {
        u = RandomUniform <shape = [1000], low = 2.0, high = 4.0, seed = 1.0> ()
        v = RandomNormal <shape = [1000], mean = 5.0, seed = 1.0> ()
        w = RandomNormal <shape = [1000]> ()
    }"""
    )
    first, second = run(text), run(text)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    u, v, w = first
    assert 2 <= u.min() < u.max() < 4
    assert abs(v.mean() - 5) < 0.15
    assert abs(v.std() - 1) < 0.1
    assert not np.array_equal(v - 5, w)


def test_multinomial_follows_the_weights():
    text = (
        HEAD
        + """g (float[1, 3] x) => (int32[1, 4000] y) {
        y = Multinomial <sample_size = 4000, seed = 3.0> (x)
    }"""
    )
    (drawn,) = run(text, np.log(np.array([[0.2, 0.0, 0.8]], np.float32) + 1e-30))
    shares = np.bincount(drawn[0], minlength=3) / 4000
    np.testing.assert_allclose(shares, [0.2, 0.0, 0.8], atol=0.03)


def test_old_opsets_are_read_where_operators_stayed_the_same():
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 2)) for n in "xy")
    for op, supported in (("Relu", True), ("Dropout", False)):
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)])
        if supported:
            import_model(model)
        else:
            with pytest.raises(Unsupported, match="at opset 6"):
                import_model(model)
