"""Models with something changed are imported or refused: never a crash, never an error of Python's.

pytest -m fuzz tests/unit/frontends/onnx     10,000 of them
"""

import random

import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.base.errors import CompilerBug, TilewrightError
from tilewright.frontends.onnx import import_model

TEXTS = [
    """g (float[n, 8] x, int64[2] a) => (float[p, q] y) {
        s = Shape (x)
        t = Constant <value = int64[2] {2, -1}> ()
        r = Reshape (x, t)
        u = ReduceMean <keepdims = 0> (r, a)
        v = Slice (x, a, a, a)
        w = Gather <axis = 1> (x, a)
        y = Concat <axis = 0> (v, w)
    }""",
    """g (bool c, float[4] x) => (float[m] y, float[k, 4] z) {
        z = Loop (, c, x) <body = b (int64 i, bool d, float[4] s) => (bool e, float[4] t) {
            e = Identity (d)
            t = Mul (s, x)
        }>
        y = If (c) <then_branch = t () => (float[m] p) { p = Neg (x) },
                    else_branch = f () => (float[m] q) { q = Tile (x, one) }>
    }""",
    """g (float[1, 3, 8, 8] x) => (float[1, 4, q, r] y)
        <float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
        k = Constant <value_ints = [0, 0, 1, 1, 0, 0, -1, 0]> ()
        c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
        p = MaxPool <kernel_shape = [2, 2], ceil_mode = 1> (c)
        y = Pad <mode = "edge"> (p, k)
    }""",
    """g (float[5, 4] x) => (float[a, b] v, int64[a, b] i, float[c] o, int64[2, d] n) {
        k = Constant <value_ints = [2]> ()
        h = Constant <value_ints = [1]> ()
        v, i = TopK <axis = 1, largest = 0> (x, k)
        n = NonZero (x)
        e = Einsum <equation = "ij,kj->ik"> (x, x)
        o = ReduceLogSumExp <keepdims = 0> (e, h)
    }""",
]
HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
NUMBERS = [0, 1, -1, 2, 7, 255, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63)]


def models():
    made = []
    for text in TEXTS:
        model = onnx.parser.parse_model(HEAD + text)
        model.graph.initializer.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
        made.append(model)
    return made


def change_bytes(model, rng):
    """Bytes of the file changed, removed, added or cut off."""
    data = bytearray(model.SerializeToString())
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 8)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
            case _:
                del data[max(at, 1) :]
        if not data:
            return b"\0"
    return bytes(data)


def change_fields(model, rng):
    """Numbers, names and types of the model replaced by others."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        graph = model.graph
        node = rng.choice(graph.node)
        match rng.randrange(9):
            case 0 if node.attribute:
                attribute = rng.choice(node.attribute)
                attribute.i = rng.choice(NUMBERS)
                if attribute.ints:
                    attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
            case 1 if node.attribute:
                del node.attribute[rng.randrange(len(node.attribute))]
            case 2 if node.input:
                names = [name for other in graph.node for name in other.output] + ["", "x", "none"]
                node.input[rng.randrange(len(node.input))] = rng.choice(names)
            case 3:
                node.op_type = rng.choice(["Relu", "Reshape", "Loop", "Conv", "Gather", "Softmax"])
            case 4 if graph.initializer:
                tensor = rng.choice(graph.initializer)
                tensor.dims[:] = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
            case 5:
                info = rng.choice(graph.input)
                info.type.tensor_type.elem_type = rng.randrange(30)
            case 6:
                dims = rng.choice(graph.input).type.tensor_type.shape.dim
                if dims:
                    rng.choice(dims).dim_value = rng.choice(NUMBERS)
            case 7:
                model.opset_import[0].version = rng.choice([1, 6, 7, 9, 11, 13, 18, 24])
            case _:
                graph.node.append(rng.choice(graph.node))
    return model.SerializeToString()


def check(seed):
    rng = random.Random(seed)
    model = onnx.ModelProto()
    model.CopyFrom(rng.choice(MODELS))
    data = rng.choice([change_bytes, change_fields, change_fields])(model, rng)
    try:
        import_model(data)
    except CompilerBug:
        raise
    except TilewrightError:
        pass  # refused, in our words


MODELS = models()


def test_the_models_are_valid():
    for model in MODELS:
        import_model(model)


def test_changed_models_are_imported_or_refused():
    for seed in range(400):
        check(seed)


@pytest.mark.fuzz
def test_many_changed_models_are_imported_or_refused():
    for seed in range(400, 10_400):
        check(seed)
