"""Decoders as onnxruntime-genai's builder writes them, in few bits: against ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

MICROSOFT = "com.microsoft"
HIDDEN, HEADS, KV_HEADS, INNER, WORDS, BLOCK, LONGEST = (
    512,
    8,
    2,
    1024,
    96,
    32,
    64,
)  # large enough to stay packed
WIDTH = HIDDEN // HEADS


class Decoder:
    """One layer between an embedding and a head."""

    def __init__(self, bits, level, has_zeros, is_packed):
        self.rng = np.random.default_rng(0)
        self.bits, self.level, self.has_zeros = bits, level, has_zeros
        self.nodes, self.stored = [], []
        self.mask()
        x = self.embedding()
        norm = self.add("SimplifiedLayerNormalization", [x, self.gain("first")], axis=-1)
        heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
        if is_packed:
            projected = [self.product("qkv", norm, HIDDEN, sum(heads.values()) * WIDTH), "", ""]
        else:
            projected = [self.product(n, norm, HIDDEN, h * WIDTH) for n, h in heads.items()]
        given = [*projected, "past_key", "past_value", "lengths", "total", *self.angles()]
        attended = self.add(
            "GroupQueryAttention", given, ["attended", "key", "value"], MICROSOFT,
            num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1, scale=float(WIDTH**-0.5),
        )  # fmt: skip
        out = self.product("o", attended, HIDDEN, HIDDEN)
        after = self.skip("post", x, out, ["after", "", "", "kept"])
        gate, up = (self.product(n, after, HIDDEN, INNER) for n in ("gate", "up"))
        silu = self.add("Mul", [gate, self.add("Sigmoid", [gate])])
        down = self.product("down", self.add("Mul", [silu, up]), INNER, HIDDEN)
        last = self.skip("last", "kept", down, ["last"])
        self.add("Identity", [self.product("head", last, HIDDEN, WORDS)], ["logits"])

    def add(self, op, inputs, outputs=None, domain="", **attributes):
        outputs = outputs or [f"{op}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def store(self, name, array):
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def gain(self, name):
        return self.store(f"{name}.gain", self.rng.random(HIDDEN, np.float32) + np.float32(0.5))

    def skip(self, name, x, y, outputs):
        given = [x, y, self.gain(name)]
        return self.add("SkipSimplifiedLayerNormalization", given, outputs, MICROSOFT, epsilon=1e-6)

    def few_bits(self, name, rows, columns, by):
        """Numbers of few bits in blocks, their scales and zero points."""
        blocks = columns // BLOCK
        scales = (self.rng.random((rows, blocks), np.float32) + np.float32(0.5)) * np.float32(by)
        found = [
            self.store(name, self.rng.integers(0, 256, (rows, columns * self.bits // 8), np.uint8)),
            self.store(f"{name}.scales", scales * np.float32(2.0 ** (4 - self.bits))),
        ]
        if self.has_zeros:
            shape = (rows, -(-blocks * self.bits // 8))
            found.append(self.store(f"{name}.zeros", self.rng.integers(0, 256, shape, np.uint8)))
        return found

    def product(self, name, x, k, n):
        given = [x, *self.few_bits(name, n, k, 0.2 * k**-0.5)]
        blob = numpy_helper.to_array(self.stored[-len(given) + 1])
        shaped = blob.reshape(n, k // BLOCK, -1)
        self.stored[-len(given) + 1] = numpy_helper.from_array(shaped, name)
        return self.add(
            "MatMulNBits", given, [f"{name}.out"], MICROSOFT,
            K=k, N=n, bits=self.bits, block_size=BLOCK, accuracy_level=self.level,
        )  # fmt: skip

    def embedding(self):
        table, *others = self.few_bits("words", WORDS, HIDDEN, 0.1)
        return self.add(
            "GatherBlockQuantized", [table, "input_ids", *others], ["embedded"], MICROSOFT,
            bits=self.bits, block_size=BLOCK, gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def mask(self):
        """Lengths from the mask, as builders compute them."""
        axis, one = self.store("axis", np.array([1])), self.store("one", np.array(1))
        count = self.add("ReduceSum", ["attention_mask", axis], keepdims=0)
        self.add("Cast", [self.add("Sub", [count, one])], ["lengths"], to=TensorProto.INT32)
        total = self.add("Gather", [self.add("Shape", ["attention_mask"]), one], axis=0)
        self.add("Cast", [total], ["total"], to=TensorProto.INT32)

    def angles(self):
        at = np.outer(np.arange(LONGEST), 10000 ** (-np.arange(0, WIDTH, 2) / WIDTH))
        tables = {"cos": np.cos(at), "sin": np.sin(at)}
        return [self.store(name, table.astype(np.float32)) for name, table in tables.items()]

    def model(self):
        def value(name, dims, of=TensorProto.FLOAT):
            return helper.make_tensor_value_info(name, of, dims)

        ids, mask = ["batch", "sequence"], ["batch", "total_sequence"]
        cache = ["batch", KV_HEADS, "past_sequence", WIDTH]
        inputs = [
            value("input_ids", ids, TensorProto.INT64),
            value("attention_mask", mask, TensorProto.INT64),
            value("past_key", cache),
            value("past_value", cache),
        ]
        cache = ["batch", KV_HEADS, "total_sequence", WIDTH]
        outputs = [value("logits", [*ids, WORDS]), value("key", cache), value("value", cache)]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.stored)
        sets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=sets, ir_version=10)


def _feeds(batch, sequence, past):
    rng = np.random.default_rng(1)
    cache = rng.standard_normal((2, batch, KV_HEADS, past, WIDTH)).astype(np.float32)
    return {
        "input_ids": rng.integers(0, WORDS, (batch, sequence)),
        "attention_mask": np.ones((batch, past + sequence), np.int64),
        "past_key": cache[0],
        "past_value": cache[1],
    }


# Four bits without zero points: on some processors ONNX Runtime quantizes whole rows at level 4.
@pytest.mark.parametrize(
    ("bits", "level", "has_zeros", "is_packed", "apart"),
    [
        (4, 0, False, True, 1e-4),
        (4, 4, False, True, 0.1),
        (4, 4, True, False, 0.02),
        (8, 4, False, False, 0.02),
        (8, 0, True, True, 1e-4),
    ],
)
def test_a_decoder_in_few_bits(bits, level, has_zeros, is_packed, apart):
    model = Decoder(bits, level, has_zeros, is_packed).model()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = tw.compile(model, threads=1)
    assert not compiled.fallbacks
    for feeds in (_feeds(1, 7, 0), _feeds(1, 1, 7), _feeds(2, 1, 5)):
        made = compiled(**feeds)
        for ours, want in zip(made, session.run(None, feeds), strict=True):
            assert np.abs(np.asarray(ours) - want).max() <= apart * np.abs(want).max()


def test_a_decoder_with_a_shared_buffer():
    """Padded prompts into a cache of fixed length, then words behind each of them."""
    model = Decoder(8, 0, True, True).model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    compiled = tw.compile(model, threads=1)
    assert not compiled.fallbacks
    words, room, ends = np.random.default_rng(2), 16, np.array([5, 3])
    cache = [np.zeros((2, KV_HEADS, room, WIDTH), np.float32)] * 2
    for count in (5, 1, 1):
        total = ends.max()
        feeds = {
            "input_ids": words.integers(0, WORDS, (2, count)),
            "attention_mask": (np.arange(total) < ends[:, None]).astype(np.int64),
            **dict(zip(("past_key", "past_value"), cache, strict=True)),
        }
        ours, *caches = map(np.asarray, compiled(**feeds))
        theirs, *cache = session.run(None, feeds)
        for have, want in zip(caches, cache, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)
        for have, want, end in zip(ours, theirs, ends, strict=True):
            np.testing.assert_allclose(have[:end], want[:end], rtol=1e-3, atol=1e-3)
        ends = ends + 1
