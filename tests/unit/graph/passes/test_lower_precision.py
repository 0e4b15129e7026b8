"""Where products are rounded, and where not; what the passes write is in tests/ir."""

import numpy as np
import pytest

from tilewright import graph
from tilewright.base.dtype import F16
from tilewright.base.passes import PassContext
from tilewright.base.target import Target
from tilewright.base.tf32 import round_tf32
from tilewright.graph.passes import lower_precision, lower_precision_f16, lower_precision_tf32
from tilewright.graph.verify import verify

TILES = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=sapphirerapids"))
NO_TILES = PassContext(target=Target.parse("x86_64-linux-gnu -mcpu=skylake-avx512"))


def heads(rows="40", features=32):
    """Queries, keys and values as parts of one matrix."""
    parts = "\n".join(
        f"%{name}0 = slice(%x) {{starts = ({64 * at},), ends = ({64 * at + 64},), axes = (2,)}}\n"
        f"%{name}1 = reshape(%{name}0) "
        f"{{shape = (1, expr {rows}, {64 // features}, {features})}}\n"
        f"%{name} = transpose(%{name}1) {{perm = (0, 2, 1, 3)}}"
        for at, name in enumerate("qkv")
    )
    return graph.parse(
        f"graph @main(%x: f32[1, {rows}, 192]) {{ {parts} %y = attention(%q, %k, %v) return %y }}"
    )


def test_attention_reads_what_is_rounded_before_it_is_cut():
    before = heads()
    after = lower_precision(before, TILES)
    verify(after)
    (made,) = [node for node in after.main.nodes if node.op == "attention"]
    assert made["rounded"]
    assert [str(value.tensor.dtype) for value in made.inputs] == ["bf16"] * 3
    casts = [node for node in after.main.nodes if node.op == "cast"]
    assert {node.inputs[0].name for node in casts} == {"x"}
    x = np.random.default_rng(0).standard_normal((1, 40, 192)).astype(np.float32)
    (want,), (got,) = graph.interpret(before, x), graph.interpret(after, x)
    np.testing.assert_allclose(got, want, atol=0.03)


@pytest.mark.parametrize(
    ("module", "ctx"),
    [(heads(), NO_TILES), (heads(rows="n"), TILES), (heads("8"), TILES), (heads("40", 8), TILES)],
    ids=["no tiles", "a number of rows not known", "few rows", "few features"],
)
def test_attention_that_tiles_do_not_serve_stays(module, ctx):
    after = lower_precision(module, ctx)
    assert not any(node.op == "cast" for node in after.main.nodes)


def test_f16_rounds_to_f16():
    before = graph.parse(
        "graph @main(%x: f32[64, 64], %w: f32[64, 64]) { %y = matmul(%x, %w) return %y }"
    )
    after = lower_precision_f16(before, PassContext())
    casts = [node["to"] for node in after.main.nodes if node.op == "cast"]
    assert casts == [F16, F16]


MATMUL = """graph @main(%x: f32[4, 64], %w: f32[64, 32]) {
  %y = matmul(%x, %w)
  return %y
}"""


def test_tf32_is_an_attribute_of_products():
    module = lower_precision_tf32(graph.parse(MATMUL), PassContext(target=Target.parse("cuda")))
    (node,) = module.main.nodes
    assert node["tf32"]
    assert lower_precision_tf32(module, PassContext(target=Target.parse("cuda"))) is module
    x, w = (np.random.default_rng(0).standard_normal(s).astype("f4") for s in ((4, 64), (64, 32)))
    (got,) = graph.interpret(module, x, w)
    np.testing.assert_array_equal(got, round_tf32(x) @ round_tf32(w))


@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
def test_without_such_tensor_cores_f32_stays_f32(target):
    module = graph.parse(MATMUL)
    assert lower_precision_tf32(module, PassContext(target=Target.parse(target))) is module


def test_what_was_widened_is_read_as_it_was():
    module = graph.parse(
        """graph @main(%x: f16[4, 64], %w: f32[64, 32]) {
          %wide = cast(%x) {to = dtype f32}
          %y = matmul(%wide, %w)
          return %y
        }"""
    )
    after = lower_precision_f16(module, PassContext())
    (product,) = [node for node in after.main.nodes if node.op == "matmul"]
    assert product.inputs[0] is after.main.params[0]
